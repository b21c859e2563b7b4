"""Tokens: a fixed one, one in a file that others renew, or one that a function returns."""

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path

from magnetar.client.auth.api import Authentication
from magnetar.client.errors import AuthenticationFailed, InvalidConfiguration
from magnetar.core.header_text import NO_HEADER_TEXT, is_header_text


class TokenSupplier(Authentication):
    """Calls a function, which may be a coroutine function, for each connect and refresh."""

    def __init__(self, supply: Callable[[], str | Awaitable[str]]) -> None:
        self._supply = supply

    @property
    def method(self) -> str:
        return "token"

    async def token(self) -> str:
        """Returns the current token; raises AuthenticationFailed."""
        try:
            supplied = self._supply()
            token = await supplied if inspect.isawaitable(supplied) else supplied
        except Exception as error:  # the function is users' code
            reason = str(error) or repr(error)
            raise AuthenticationFailed(f"The token could not be supplied: {reason}") from error
        if not isinstance(token, str) or not token.strip():
            raise AuthenticationFailed("The supplied token is empty")
        if not is_header_text(token.strip()):
            raise AuthenticationFailed(NO_HEADER_TEXT)
        return token.strip()

    async def credentials(self) -> bytes:
        return (await self.token()).encode()

    async def http_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {await self.token()}"}


class Token(TokenSupplier):
    """A fixed token; `file:PATH` and `token:VALUE`, as in Pulsar's tools, are understood."""

    def __init__(self, token: str) -> None:
        if not token.strip():
            raise InvalidConfiguration("The token is empty")
        if token.startswith("file:"):
            path = Path(token.removeprefix("file:").removeprefix("//"))
            super().__init__(path.read_text)
        else:
            value = token.removeprefix("token:")
            super().__init__(lambda: value)


class TokenFile(TokenSupplier):
    """The token in a file, which is read again at each connect and refresh."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path).read_text)
