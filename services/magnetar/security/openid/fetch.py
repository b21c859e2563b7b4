"""Fetches the documents of issuers over HTTP, within bounds.

Redirects are not followed: an issuer could send the request elsewhere. Every failure is
ProviderUnavailable, which names the URL.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from magnetar.security.api import ProviderUnavailable
from magnetar.security.configuration import ConfigurationError

if TYPE_CHECKING:
    import ssl

    import httpx

DOCUMENT_BYTES_MAX: Final = 1 << 20
CONNECTIONS_MAX: Final = 10
_OK: Final = 200


class DocumentFetcher:
    """An HTTP client for issuers, opened on first use."""

    def __init__(
        self, trust_certs_file: str, connect_timeout_ms: int, read_timeout_ms: int
    ) -> None:
        """Reads the CA certificates; raises ConfigurationError if they are unusable."""
        self._context = tls_context(trust_certs_file)
        self._connect_s = connect_timeout_ms / 1000
        self._read_s = read_timeout_ms / 1000
        self._client: httpx.AsyncClient | None = None

    async def get(self, url: str, headers: dict[str, str] | None = None) -> bytes:
        """Returns the body of a successful answer; raises ProviderUnavailable."""
        import httpx

        try:
            async with asyncio.timeout(self._connect_s + self._read_s):
                return await self._body(url, headers or {})
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ProviderUnavailable(f"cannot fetch {url}: {reason}") from None

    async def _body(self, url: str, headers: dict[str, str]) -> bytes:
        body = bytearray()
        async with self._opened().stream("GET", url, headers=headers) as response:
            if response.status_code != _OK:
                raise ProviderUnavailable(f"{url} answered {response.status_code}")
            async for part in response.aiter_bytes():
                body += part
                if len(body) > DOCUMENT_BYTES_MAX:
                    raise ProviderUnavailable(f"{url} is larger than {DOCUMENT_BYTES_MAX} bytes")
        return bytes(body)

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


def tls_context(trust_certs_file: str) -> "ssl.SSLContext":
    """Returns a context that verifies certificates and host names; raises ConfigurationError.

    `trust_certs_file`: the CA certificates (PEM); empty: the machine's.
    """
    import ssl

    try:
        return ssl.create_default_context(cafile=trust_certs_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"cannot read the CA certificates of {trust_certs_file}: {error.strerror}"
        ) from None
