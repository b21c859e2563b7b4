"""What factories return: `await` it for the opened object, or use it in `async with`.

producer = await client.producer("orders")          # close it yourself
async with client.producer("orders") as producer:   # closed at the end of the block
"""

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """An object with a `close` that may be awaited more than once."""

    async def close(self) -> None:
        """Releases what the object holds."""


C = TypeVar("C", bound=Closable)


class Opening(Generic[C]):
    """A producer, consumer, reader or table view that opens when it is awaited."""

    __slots__ = ("_open", "_opened")

    def __init__(self, open_: Callable[[], Awaitable[C]]) -> None:
        self._open = open_
        self._opened: C | None = None

    async def opened(self) -> C:
        """Returns the opened object, which the caller closes."""
        return await self._open()

    def __await__(self) -> Generator[object, None, C]:
        return self.opened().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            await self._opened.close()
