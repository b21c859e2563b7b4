"""Requests documents and tokens from identity providers over HTTP, within bounds.

Redirects are not followed: a provider could send the request, with its secrets, elsewhere. Answers
are not decompressed: a small one could become a large one in memory before its bound is checked.
Every failure is ProviderUnavailable, which names the URL.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from magnetar.security.api import ProviderUnavailable
from magnetar.security.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

    import httpx

DOCUMENT_BYTES_MAX: Final = 1 << 20
CONNECTIONS_MAX: Final = 10
_OK: Final = 200


class ProviderClient:
    """An HTTP client for identity providers, which connects on first use."""

    def __init__(
        self, context: "ssl.SSLContext", *, connect_timeout_s: float, read_timeout_s: float
    ) -> None:
        self._context = context
        self._connect_s = connect_timeout_s
        self._read_s = read_timeout_s
        self._client: httpx.AsyncClient | None = None

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> bytes:
        """Returns the body of a successful answer; raises ProviderUnavailable."""
        status, body = await self._request("GET", url, headers or {}, None)
        if status != _OK:
            raise ProviderUnavailable(f"{url} answered {status}")
        return body

    async def post_form(self, url: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        """Posts a form; returns status and body; raises ProviderUnavailable without them."""
        return await self._request("POST", url, {"Accept": "application/json"}, form)

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        import httpx

        body = bytearray()
        headers = {**headers, "Accept-Encoding": "identity"}
        try:
            async with (
                asyncio.timeout(self._connect_s + self._read_s),
                self._opened().stream(method, url, headers=headers, data=form) as response,
            ):
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > DOCUMENT_BYTES_MAX:
                        raise ProviderUnavailable(
                            f"the answer of {url} is larger than {DOCUMENT_BYTES_MAX} bytes"
                        )
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ProviderUnavailable(f"no answer of {url}: {reason}") from None
        return response.status_code, bytes(body)

    def _opened(self) -> "httpx.AsyncClient":
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(
                verify=self._context,
                timeout=httpx.Timeout(self._read_s, connect=self._connect_s),
                limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
                follow_redirects=False,
                trust_env=False,
            )
        return self._client

    async def close(self) -> None:
        """Closes all connections; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def tls_context(
    trust_certs_file: str, certificate_file: str = "", key_file: str = ""
) -> "ssl.SSLContext":
    """Returns a context that verifies certificates and host names; raises ConfigurationError.

    `trust_certs_file`: the CA certificates (PEM); empty: the machine's. Reads files for some
    milliseconds.
    """
    import ssl

    try:
        context = ssl.create_default_context(cafile=trust_certs_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"cannot read the CA certificates of {trust_certs_file}: {error.strerror}"
        ) from None
    if certificate_file:
        try:
            context.load_cert_chain(certificate_file, key_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"cannot read the certificate {certificate_file} with its key: {error.strerror}"
            ) from None
    return context


def checked_url(url: str, *, require_https: bool) -> str | None:
    """Returns the reason why a URL of a provider is not usable, None if it is."""
    parts = urlsplit(url)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        return f"{url} is not an https URL"
    if parts.scheme == "http" and require_https:
        return f"{url} is not https (openIDRequireIssuersUseHttps=false permits that, for tests)"
    if parts.username is not None or parts.query or parts.fragment:
        return f"{parts.hostname} is named with a user, a query or a fragment"
    return None
