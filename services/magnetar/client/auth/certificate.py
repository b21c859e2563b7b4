"""A TLS client certificate as the identity of the client."""

from pathlib import Path

from magnetar.client.auth.api import Authentication


class ClientCertificate(Authentication):
    """Authenticates with a certificate and its key, in PEM files; needs a TLS service URL."""

    def __init__(self, certificate_file: str | Path, key_file: str | Path) -> None:
        self._files = str(certificate_file), str(key_file)

    @property
    def method(self) -> str:
        return "tls"

    async def credentials(self) -> bytes:
        return b""

    @property
    def certificate(self) -> tuple[str, str] | None:
        return self._files
