"""The interface of authentication methods."""

from abc import ABC, abstractmethod


class Authentication(ABC):
    """Provides the credentials of a client, at each connect and each time the broker asks."""

    @property
    @abstractmethod
    def method(self) -> str:
        """The protocol's name of the method, such as `token`."""

    @abstractmethod
    async def credentials(self) -> bytes:
        """Returns current credentials; raises AuthenticationFailed if there are none."""

    async def http_headers(self) -> dict[str, str]:
        """Returns the headers with which HTTP requests are authenticated."""
        return {}

    @property
    def certificate(self) -> tuple[str, str] | None:
        """The files of a client certificate and its key for TLS, if the method uses them."""
        return None

    async def close(self) -> None:  # noqa: B027  # most methods hold nothing
        """Releases what the method holds."""


class NoAuthentication(Authentication):
    """No credentials."""

    @property
    def method(self) -> str:
        return "none"

    async def credentials(self) -> bytes:
        return b""
