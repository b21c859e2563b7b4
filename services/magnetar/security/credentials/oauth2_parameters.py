"""Parses the JSON parameters of the plugin `oauth2`, by Java's or C++'s names."""

import re
from collections.abc import Mapping
from typing import Final

from magnetar.security.credentials.oauth2 import EARLY_REFRESH_DEFAULT, OAuth2Config
from magnetar.security.errors import ConfigurationError
from magnetar.security.fetch import checked_url
from magnetar.security.secret import Secret
from magnetar.security.source import KeySource

JAVA_NAMES: Final = {
    "issuer_url": "issuerUrl",
    "private_key": "privateKey",
    "client_id": "clientId",
    "client_secret": "clientSecret",
    "token_endpoint_auth_method": "tokenEndpointAuthMethod",
    "tls_cert_file": "tlsCertFile",
    "tls_key_file": "tlsKeyFile",
}
"""Java's names by C++'s, where they differ."""

KNOWN: Final = (
    "type",
    "issuerUrl",
    "privateKey",
    "clientId",
    "clientSecret",
    "audience",
    "scope",
    "tokenEndpointAuthMethod",
    "wellKnownMetadataPath",
    "earlyTokenRefreshPercent",
    "connectTimeout",
    "readTimeout",
    "trustCertsFilePath",
    "tlsCertFile",
    "tlsKeyFile",
)
"""`autoCertRefreshDuration` is not needed: certificates are read for each token."""

TIMEOUT_S_MAX: Final = 600.0
_POST_METHOD: Final = "client_secret_post"
_CERTIFICATE_METHOD: Final = "tls_client_auth"
_TLS_CLIENT_ID: Final = "pulsar-client"
_DURATION: Final = re.compile(r"PT(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?", re.IGNORECASE)


def oauth2_config(values: Mapping[str, str]) -> OAuth2Config:
    """Returns the configuration by known parameters; raises ConfigurationError."""
    if values.get("type", "client_credentials") != "client_credentials":
        raise ConfigurationError("the type of oauth2 should be client_credentials")
    issuer = values.get("issuerUrl", "")
    if (reason := checked_url(issuer, require_https=False)) is not None:
        raise ConfigurationError(f"the issuerUrl of oauth2: {reason}")
    client_id, secret, key_file, certificate = _client(values)
    return OAuth2Config(
        issuer_url=issuer,
        metadata_path=_metadata_path(values.get("wellKnownMetadataPath", "")),
        audience=values.get("audience", ""),
        scope=values.get("scope", ""),
        key_file=key_file,
        client_id=client_id,
        client_secret=secret,
        certificate_file=certificate[0],
        certificate_key_file=certificate[1],
        trust_certs_file=values.get("trustCertsFilePath", ""),
        early_refresh=_early_refresh(values.get("earlyTokenRefreshPercent")),
        connect_timeout_s=_timeout_s(values, "connectTimeout", 10.0),
        read_timeout_s=_timeout_s(values, "readTimeout", 30.0),
    )


def _client(
    values: Mapping[str, str],
) -> tuple[str, Secret | None, KeySource | None, tuple[str, str]]:
    """Returns the client's id, its secret, its key file, and its certificate with key."""
    method = values.get("tokenEndpointAuthMethod", _POST_METHOD)
    certificate = (values.get("tlsCertFile", ""), values.get("tlsKeyFile", ""))
    if method == _CERTIFICATE_METHOD:
        if not all(certificate):
            raise ConfigurationError(f"{_CERTIFICATE_METHOD} needs tlsCertFile and tlsKeyFile")
        if "privateKey" in values or "clientSecret" in values:
            raise ConfigurationError(f"{_CERTIFICATE_METHOD} has no privateKey and no clientSecret")
        return values.get("clientId", _TLS_CLIENT_ID), None, None, certificate
    if method != _POST_METHOD:
        raise ConfigurationError(
            f"tokenEndpointAuthMethod should be {_POST_METHOD} or {_CERTIFICATE_METHOD}"
        )
    if any(certificate):
        raise ConfigurationError(f"tlsCertFile and tlsKeyFile need {_CERTIFICATE_METHOD}")
    if "privateKey" in values:
        if "clientId" in values or "clientSecret" in values:
            raise ConfigurationError("privateKey excludes clientId and clientSecret")
        source = KeySource.parse("privateKey", Secret(values["privateKey"]))
        return "", None, source, certificate
    if not values.get("clientId") or not values.get("clientSecret"):
        raise ConfigurationError("oauth2 needs privateKey, or clientId and clientSecret")
    return values["clientId"], Secret(values["clientSecret"]), None, certificate


def _metadata_path(text: str) -> str:
    if not text:
        return "/.well-known/openid-configuration"
    if not text.startswith("/.well-known/") or ".." in text:
        raise ConfigurationError("wellKnownMetadataPath should start with /.well-known/")
    return text


def _early_refresh(text: str | None) -> float:
    if text is None:
        return EARLY_REFRESH_DEFAULT
    try:
        fraction = float(text)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise ConfigurationError("earlyTokenRefreshPercent should be above 0 and at most 1")
    return fraction


def _timeout_s(values: Mapping[str, str], name: str, default_s: float) -> float:
    """Returns a duration of ISO 8601, such as PT10S, in seconds."""
    text = values.get(name)
    if text is None:
        return default_s
    match = _DURATION.fullmatch(text)
    duration_s = int(match[1] or 0) * 60 + float(match[2] or 0) if match else 0.0
    if not 0 < duration_s <= TIMEOUT_S_MAX:
        raise ConfigurationError(
            f"{name} should be a duration such as PT10S, of at most {TIMEOUT_S_MAX:.0f} s"
        )
    return duration_s
