"""The credentials of plugins: a token, a user with a password, or the connection's certificate.

Each has `method_and_data` for CONNECT and AUTH_RESPONSE, and `headers` for HTTP requests. The
errors are `CredentialsUnavailable`; they show no secret.
"""

import asyncio
import base64
from typing import Protocol

from magnetar.core.header_text import NO_HEADER_TEXT, is_header_text
from magnetar.security.errors import ConfigurationError
from magnetar.security.secret import Secret
from magnetar.security.source import KeySource

METHOD_HEADER = "X-Pulsar-Auth-Method-Name"


class CredentialsUnavailable(Exception):
    """This process cannot obtain its own credentials now. The text shows no secret."""


class Plugin(Protocol):
    """One kind of credentials."""

    async def method_and_data(self) -> tuple[str, Secret]:
        """Returns the protocol's name of the method and its data; raises CredentialsUnavailable."""

    async def headers(self) -> dict[str, str]:
        """Returns the headers of HTTP requests; raises CredentialsUnavailable."""

    async def close(self) -> None:
        """Closes connections; idempotent."""


class NoCredentials:
    """Presents nothing: the peer does not require authentication, or has an anonymous role."""

    async def method_and_data(self) -> tuple[str, Secret]:
        return "none", Secret(b"")

    async def headers(self) -> dict[str, str]:
        return {}

    async def close(self) -> None:
        """Does nothing."""


class TokenCredentials:
    """Presents a token from a text or a file, which is read again on each use."""

    def __init__(self, source: Secret | KeySource) -> None:
        self._source = source

    async def method_and_data(self) -> tuple[str, Secret]:
        return "token", await self._token()

    async def headers(self) -> dict[str, str]:
        return bearer(await self._token())

    async def close(self) -> None:
        """Does nothing."""

    async def _token(self) -> Secret:
        if isinstance(self._source, Secret):
            return self._source
        try:
            token = (await asyncio.to_thread(self._source.read)).strip()
        except ConfigurationError as error:
            raise CredentialsUnavailable(str(error)) from None
        if not token:
            raise CredentialsUnavailable(f"{self._source.path} has no token")
        return Secret(token)


class BasicCredentials:
    """Presents a user name and a password."""

    def __init__(self, user: str, password: Secret) -> None:
        self._pair = Secret(user.encode() + b":" + password.reveal())

    async def method_and_data(self) -> tuple[str, Secret]:
        return "basic", self._pair

    async def headers(self) -> dict[str, str]:
        encoded = base64.b64encode(self._pair.reveal()).decode()
        return {METHOD_HEADER: "basic", "Authorization": f"Basic {encoded}"}

    async def close(self) -> None:
        """Does nothing."""


class TlsCredentials:
    """Presents the client certificate, which the TLS context of the connection sends."""

    def __init__(self, certificate_file: str, key_file: str) -> None:
        self.certificate_file = certificate_file
        self.key_file = key_file

    async def method_and_data(self) -> tuple[str, Secret]:
        return "tls", Secret(b"")

    async def headers(self) -> dict[str, str]:
        return {METHOD_HEADER: "tls"}

    async def close(self) -> None:
        """Does nothing."""


def bearer(token: Secret) -> dict[str, str]:
    """Returns the headers of a request with a token; raises CredentialsUnavailable."""
    text = token.reveal().decode("utf-8", "replace")
    if not is_header_text(text):
        raise CredentialsUnavailable(NO_HEADER_TEXT)
    return {METHOD_HEADER: "token", "Authorization": f"Bearer {text}"}
