"""Tokens of OAuth 2.0 client credentials (RFC 6749 section 4.4), presented as the method `token`.

The issuer's metadata names the token endpoint. A token is used until a part of its lifetime has
passed, then replaced; if that fails, it is used until it expires. Callers share one request at a
time. The key file is read again for each request.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit

import msgspec

from magnetar.client.auth.token import TokenSupplier
from magnetar.client.errors import (
    AuthenticationFailed,
    ClientError,
    InvalidConfiguration,
    ServiceNotReady,
)
from magnetar.client.network.tls import Tls
from magnetar.core.log import get_logger

log = get_logger("magnetar.client.oauth2")

METADATA_PATH: Final = "/.well-known/openid-configuration"
LIFETIME_DEFAULT_S: Final = 60.0
"""The lifetime of a token whose answer has no `expires_in`."""
ERROR_TEXT_CHARS_MAX: Final = 200

_NAMES: Final = {
    "issuerUrl": "issuer_url",
    "privateKey": "private_key",
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "wellKnownMetadataPath": "metadata_path",
    "trustCertsFilePath": "trust_certificates_file",
    "certFile": "certificate_file",
    "keyFile": "key_file",
}
"""The names of Java's client."""


@dataclass(slots=True)
class _Issued:
    token: str
    refresh_at: float
    expires_at: float


class OAuth2(TokenSupplier):
    """Authenticates with tokens that an authorization server issues to this client."""

    def __init__(
        self,
        issuer_url: str,
        *,
        private_key: str | Path = "",
        client_id: str = "",
        client_secret: str = "",
        audience: str = "",
        scope: str = "",
        certificate_file: str = "",
        key_file: str = "",
        trust_certificates_file: str = "",
        metadata_path: str = METADATA_PATH,
        early_refresh: float = 0.9,
        timeout_s: float = 10.0,
    ) -> None:
        """`private_key`: a path, `file://` or `data:` of JSON with `client_id`, `client_secret`.

        Or give `client_id` with `client_secret`, or with `certificate_file` and `key_file`
        (`tls_client_auth`). `early_refresh` is the part of a token's lifetime after which it is
        replaced.
        """
        super().__init__(self._current)
        if urlsplit(issuer_url).scheme not in ("http", "https"):
            raise InvalidConfiguration(f"issuer_url: {issuer_url!r} is not an http or https URL")
        if sum(map(bool, (private_key, client_secret, certificate_file))) != 1:
            raise InvalidConfiguration(
                "OAuth2 needs one of private_key, client_secret, certificate_file"
            )
        if not private_key and not client_id:
            raise InvalidConfiguration("OAuth2 needs client_id if it has no private_key")
        if not 0 < early_refresh <= 1 or timeout_s <= 0:
            raise InvalidConfiguration("OAuth2: early_refresh is in (0, 1], timeout_s above 0")
        self._issuer = issuer_url.rstrip("/")
        self._private_key = str(private_key)
        self._client = client_id, client_secret
        self._more = {"audience": audience, "scope": scope}
        self._tls = Tls(
            trust_certificates_file=trust_certificates_file,
            certificate_file=certificate_file,
            key_file=key_file,
        )
        self._metadata_path = metadata_path
        self._early_refresh = early_refresh
        self._timeout_s = timeout_s
        self._requesting = asyncio.Lock()
        self._issued: _Issued | None = None

    @classmethod
    def from_parameters(cls, parameters: str | Mapping[str, Any]) -> "OAuth2":
        """Returns the method for the JSON parameters of Java's or C++'s client.

        Raises InvalidConfiguration for unknown names.
        """
        try:
            given = (
                msgspec.json.decode(parameters, type=dict[str, Any])
                if isinstance(parameters, str)
                else dict(parameters)
            )
        except msgspec.MsgspecError as error:
            raise InvalidConfiguration(f"The parameters of OAuth2 are no JSON: {error}") from error
        if given.pop("type", "client_credentials") != "client_credentials":
            raise InvalidConfiguration("OAuth2 supports the type client_credentials only")
        given.pop("tokenEndpointAuthMethod", None)  # the credentials show it
        if "earlyTokenRefreshPercent" in given:
            given["early_refresh"] = float(given.pop("earlyTokenRefreshPercent"))
        try:
            return cls(**{_NAMES.get(name, name): value for name, value in given.items()})
        except TypeError as error:
            raise InvalidConfiguration(f"The parameters of OAuth2: {error}") from error

    async def _current(self) -> str:
        now = asyncio.get_running_loop().time
        issued = self._issued
        if issued is not None and now() < issued.refresh_at:
            return issued.token
        async with self._requesting:
            if self._issued is not None and self._issued is not issued:
                return self._issued.token
            try:
                self._issued = await self._request()
            except ClientError as error:
                if issued is None or now() >= issued.expires_at:
                    raise
                log.warning("the token was not renewed, the old one is valid", error=str(error))
                return issued.token
            return self._issued.token

    async def _request(self) -> _Issued:
        from magnetar.client.network.http import request

        client_id, secret = await asyncio.to_thread(self._identity)
        tls = await asyncio.to_thread(self._tls.context)
        url = self._issuer + self._metadata_path
        answer = await request("GET", url, headers={}, tls=tls, timeout_s=self._timeout_s)
        document = _document(answer.body)
        endpoint = document.get("token_endpoint")
        if answer.status >= 500:
            raise ServiceNotReady(f"{url} answered {answer.status}")
        if answer.status != 200 or not isinstance(endpoint, str):
            raise AuthenticationFailed(f"{url} names no token_endpoint, status {answer.status}")
        if url.startswith("https") and not endpoint.startswith("https"):
            raise AuthenticationFailed(f"{url} names a token_endpoint that is not https")
        form = {"grant_type": "client_credentials", "client_id": client_id}
        form |= {"client_secret": secret} if secret else {}
        form |= {name: value for name, value in self._more.items() if value}
        # The lifetime starts before the request, so it never ends after the server's.
        started_at = asyncio.get_running_loop().time()
        answer = await request(
            "POST",
            endpoint,
            headers={"Content-Type": "application/x-www-form-urlencoded"},
            body=urlencode(form).encode(),
            tls=tls,
            timeout_s=self._timeout_s,
        )
        return self._read(endpoint, answer.status, _document(answer.body), started_at)

    def _read(
        self, endpoint: str, status: int, document: Mapping[str, Any], started_at: float
    ) -> _Issued:
        token = document.get("access_token")
        if status != 200 or not isinstance(token, str) or not token:
            parts = (document.get("error"), document.get("error_description"))
            reason = ": ".join(part for part in parts if isinstance(part, str))
            kind = ServiceNotReady if status >= 500 else AuthenticationFailed
            raise kind(
                f"{endpoint} issued no token, status {status} {reason[:ERROR_TEXT_CHARS_MAX]}"
            )
        lifetime = document.get("expires_in")
        if isinstance(lifetime, bool) or not isinstance(lifetime, int | float):
            lifetime = LIFETIME_DEFAULT_S
        lifetime_s = max(float(lifetime), 0.0)
        return _Issued(
            token, started_at + lifetime_s * self._early_refresh, started_at + lifetime_s
        )

    def _identity(self) -> tuple[str, str]:
        """Returns the id and the secret of the client; raises AuthenticationFailed."""
        if not self._private_key:
            return self._client
        try:
            document = msgspec.json.decode(_read_key(self._private_key), type=dict[str, Any])
            return str(document["client_id"]), str(document["client_secret"])
        except (OSError, ValueError, KeyError, binascii.Error) as error:
            # Not the text of the error, which may have a part of the secret.
            raise AuthenticationFailed(
                "private_key is not a file or data: URL of JSON with client_id and client_secret: "
                f"{type(error).__name__}"
            ) from None


def _read_key(source: str) -> bytes:
    if source.startswith("data:"):
        kind, _, data = source.removeprefix("data:").partition(",")
        if kind.endswith(";base64"):
            return base64.b64decode(data, validate=True)
        return unquote(data).encode()
    return Path(source.removeprefix("file:").removeprefix("//")).read_bytes()


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
