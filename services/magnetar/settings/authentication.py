"""Turns the settings of authentication into the configuration of its providers.

An open process does not import this module.
"""

from typing import Final

from magnetar.security.configuration import (
    Authentication,
    BasicProviderConfig,
    OpenIdProviderConfig,
    ProviderConfig,
    TlsProviderConfig,
    TokenProviderConfig,
)
from magnetar.settings.field import SettingsError
from magnetar.settings.security import SecuritySettings

_PACKAGE: Final = "org.apache.pulsar.broker.authentication."
PROVIDERS: Final = {
    "token": _PACKAGE + "AuthenticationProviderToken",
    "basic": _PACKAGE + "AuthenticationProviderBasic",
    "tls": _PACKAGE + "AuthenticationProviderTls",
    "openid": _PACKAGE + "oidc.AuthenticationProviderOpenID",
}
"""The supported providers and the Java classes that Pulsar's configuration names them by."""


def authentication_of(settings: SecuritySettings) -> Authentication:
    """Returns the configuration of the providers that the settings name; raises SettingsError."""
    names = tuple(dict.fromkeys(map(_provider_name, settings.authentication_providers)))
    if not names:
        raise SettingsError(
            "authentication is on, but authentication_providers (authenticationProviders) is "
            f"empty; supported: {', '.join(PROVIDERS)}"
        )
    return Authentication(
        providers=tuple(_provider(settings, name) for name in names),
        anonymous_role=settings.anonymous_role,
        strict_method=settings.strict_auth_method,
    )


def _provider_name(text: str) -> str:
    """Returns the short name of a provider; raises SettingsError if it is not supported."""
    for name, java_class in PROVIDERS.items():
        if text in (name, java_class):
            return name
    supported = ", ".join(f"{name} ({java_class})" for name, java_class in PROVIDERS.items())
    raise SettingsError(
        f"authentication_providers has {text}, which Magnetar does not support; supported: "
        f"{supported}"
    )


def _provider(settings: SecuritySettings, name: str) -> ProviderConfig:
    if name == "token":
        return TokenProviderConfig(
            secret_key=settings.token_secret_key,
            public_key=settings.token_public_key,
            public_algorithm=settings.token_public_algorithm,
            key_set=settings.token_key_set,
            role_claim=settings.token_role_claim,
            audience_claim=settings.token_audience_claim,
            audience=settings.token_audience,
            clock_skew_s=settings.token_clock_skew_s,
        )
    if name == "basic":
        if settings.basic_users is None:
            raise SettingsError("the provider basic needs basic_users (basicAuthConf)")
        return BasicProviderConfig(users=settings.basic_users)
    if name == "tls":
        return TlsProviderConfig()
    return _openid(settings)


def _openid(settings: SecuritySettings) -> OpenIdProviderConfig:
    return OpenIdProviderConfig(
        allowed_issuers=settings.openid_issuers,
        allowed_audiences=settings.openid_audiences,
        role_claim=settings.openid_role_claim,
        leeway_s=settings.openid_leeway_s,
        issuers_cached_max=settings.openid_issuers_cached,
        refresh_after_s=settings.openid_refresh_s,
        expire_after_s=settings.openid_expiration_s,
        unknown_key_refresh_s=settings.openid_unknown_key_s,
        connect_timeout_ms=settings.openid_connect_timeout_ms,
        read_timeout_ms=settings.openid_read_timeout_ms,
        trust_certs_file=settings.openid_trust_certs_file,
        require_https=settings.openid_require_https,
        require_not_before=settings.openid_require_not_before,
        fallback_discovery_mode=settings.openid_discovery,
    )
