"""Obtains tokens by OAuth 2.0 client credentials (RFC 6749 section 4.4), and presents them.

The issuer's metadata names the token endpoint; this process authenticates there by a client secret
(`client_secret_post`) or a client certificate (`tls_client_auth`, RFC 8705). The token is presented
as the method `token`. Parameters have the names of Pulsar's Java client or of its C++ client.

A token is used until `earlyTokenRefreshPercent` of its lifetime has passed, then replaced; if that
fails, it is used until it expires. Callers share one request at a time. Key file and certificates
are read again for each request. A token endpoint of an https issuer must be https.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from magnetar.core.clock import Clock
from magnetar.core.log import get_logger
from magnetar.security.api import ProviderUnavailable
from magnetar.security.credentials.plugins import CredentialsUnavailable, bearer
from magnetar.security.errors import ConfigurationError
from magnetar.security.fetch import ProviderClient, tls_context
from magnetar.security.secret import Secret
from magnetar.security.source import KeySource

log = get_logger("magnetar.security.oauth2")

EARLY_REFRESH_DEFAULT: Final = 0.9
LIFETIME_DEFAULT_S: Final = 60.0
"""The lifetime of a token whose response has no `expires_in`."""
LIFETIME_S_MAX: Final = 365 * 86_400.0
ERROR_TEXT_CHARS_MAX: Final = 200
_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth2Config:
    """The token endpoint, and the identity of the client."""

    issuer_url: str
    metadata_path: str = "/.well-known/openid-configuration"
    audience: str = ""
    scope: str = ""
    key_file: KeySource | None = None
    """The JSON with `client_id` and `client_secret`."""
    client_id: str = ""
    client_secret: Secret | None = None
    certificate_file: str = ""
    certificate_key_file: str = ""
    """The client certificate of `tls_client_auth`; then there is no client secret."""
    trust_certs_file: str = ""
    early_refresh: float = EARLY_REFRESH_DEFAULT
    """The fraction of its lifetime after which a token is replaced."""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Token:
    value: Secret
    refresh_at: float
    expires_at: float


class OAuth2Credentials:
    """Presents tokens that an authorization server issues to this client."""

    def __init__(
        self,
        config: OAuth2Config,
        clock: Clock,
        client: Callable[[OAuth2Config], ProviderClient] | None = None,
    ) -> None:
        """`client` opens a connection to the server; by default, as configured."""
        self._config = config
        self._clock = clock
        self._open = client or _client
        self._requesting = asyncio.Lock()
        self._token: _Token | None = None

    async def method_and_data(self) -> tuple[str, Secret]:
        return "token", await self._current()

    async def headers(self) -> dict[str, str]:
        return bearer(await self._current())

    async def close(self) -> None:
        """Does nothing: a connection lasts for one request of a token."""

    async def _current(self) -> Secret:
        token = self._token
        if token is not None and self._clock.monotonic() < token.refresh_at:
            return token.value
        async with self._requesting:
            if self._token is not None and self._token is not token:
                return self._token.value
            try:
                self._token = await self._requested()
            except CredentialsUnavailable as error:
                if token is None or self._clock.monotonic() >= token.expires_at:
                    raise
                log.warning("the token was not renewed, the old one is valid", error=str(error))
                return token.value
            return self._token.value

    async def _requested(self) -> _Token:
        try:
            client = await asyncio.to_thread(self._open, self._config)
            form = await asyncio.to_thread(_form, self._config)
            try:
                endpoint = await _token_endpoint(self._config, client)
                # The lifetime starts before the request, so it never ends after the server's.
                started_at = self._clock.monotonic()
                status, body = await client.post_form(endpoint, form)
            finally:
                await client.close()
        except (ConfigurationError, ProviderUnavailable) as error:
            raise CredentialsUnavailable(str(error)) from None
        value, lifetime_s = _issued(status, body, endpoint)
        return _Token(
            value,
            started_at + lifetime_s * self._config.early_refresh,
            started_at + lifetime_s,
        )


def _client(config: OAuth2Config) -> ProviderClient:
    context = tls_context(
        config.trust_certs_file, config.certificate_file, config.certificate_key_file
    )
    return ProviderClient(
        context,
        connect_timeout_s=config.connect_timeout_s,
        read_timeout_s=config.read_timeout_s,
    )


async def _token_endpoint(config: OAuth2Config, client: ProviderClient) -> str:
    """Returns the URL of the token endpoint; raises ProviderUnavailable."""
    url = config.issuer_url.rstrip("/") + config.metadata_path
    try:
        endpoint = msgspec.json.decode(await client.get(url))["token_endpoint"]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, TypeError, KeyError):
        endpoint = None
    if not isinstance(endpoint, str):
        raise ProviderUnavailable(f"{url} names no token_endpoint")
    schemes = ("https",) if urlsplit(url).scheme == "https" else ("https", "http")
    if urlsplit(endpoint).scheme not in schemes:
        raise ProviderUnavailable(f"{url} names a token_endpoint that is not https")
    return endpoint


def _form(config: OAuth2Config) -> dict[str, str]:
    """Returns the parameters of the request; raises ConfigurationError."""
    client_id, secret = config.client_id, config.client_secret
    if config.key_file is not None:
        client_id, secret = _key_file(config.key_file)
    form = {"grant_type": "client_credentials", "client_id": client_id}
    if secret is not None:
        form["client_secret"] = secret.reveal_text()
    if config.audience:
        form["audience"] = config.audience
    if config.scope:
        form["scope"] = config.scope
    return form


def _key_file(source: KeySource) -> tuple[str, Secret]:
    try:
        document = msgspec.json.decode(source.read())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        document = None
    values = document if isinstance(document, Mapping) else {}
    client_id, secret = values.get("client_id"), values.get("client_secret")
    if not isinstance(client_id, str) or not isinstance(secret, str):
        raise ConfigurationError(
            f"{source.path or source.setting} is not JSON with client_id and client_secret"
        )
    return client_id, Secret(secret)


def _issued(status: int, body: bytes, endpoint: str) -> tuple[Secret, float]:
    """Returns the token of a response and its lifetime in seconds."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        document = None
    values: Mapping[str, object] = document if isinstance(document, Mapping) else {}
    token = values.get("access_token")
    if status != _OK or not isinstance(token, str) or not token:
        parts = [values.get("error"), values.get("error_description")]
        reason = ": ".join(part for part in parts if isinstance(part, str))
        raise CredentialsUnavailable(
            f"{endpoint} issued no token, status {status} {reason[:ERROR_TEXT_CHARS_MAX]}".strip()
        )
    lifetime = values.get("expires_in")
    if isinstance(lifetime, bool) or not isinstance(lifetime, int | float):
        lifetime = LIFETIME_DEFAULT_S
    return Secret(token), min(max(float(lifetime), 0.0), LIFETIME_S_MAX)
