"""A producer or consumer on its way: from its command until it is attached, or closed before.

It is known from the moment its command is read, for the client may close it with the next one, and
it may be closed at any await. What is attached by then is detached again by who attaches it, on
the `CancelledError` that `end` causes; there is no answer to the first command then.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Key = tuple[str, int]
"""Producer or consumer, and its id."""


class Attaching:
    """See the module's text. It stands in `among` while it is under way."""

    __slots__ = ("_among", "_ended", "_key", "_task")

    def __init__(self, among: "dict[Key, Attaching]", key: Key) -> None:
        self._among = among
        self._key = key
        self._task: asyncio.Task[Any] | None = None
        self._ended = False
        among[key] = self

    async def run(self, attach: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Attaches, unless it was ended before this began."""
        if self._ended:
            return
        self._task = asyncio.current_task()
        try:
            await attach()
        finally:
            if self._among.get(self._key) is self:
                del self._among[self._key]

    def end(self) -> None:
        """The client closes it."""
        self._ended = True
        self._among.pop(self._key, None)
        if self._task is not None:
            self._task.cancel()
