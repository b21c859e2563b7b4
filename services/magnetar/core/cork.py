"""Collects the frames that one batch of callbacks sends, so that each connection writes once.

The transports of asyncio and of uvloop write each frame by a system call of its own. While the cork
is held, connections queue small frames, and write them when it is released. Code that calls back
many waiting requests in a row holds it: a read of a socket, a commit of the journal, a group of
records of transactions. Nothing is delayed to another turn of the event loop.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final

from magnetar.core.log import get_logger

log = get_logger("magnetar.core")


class Cork:
    """Hold it by `with`, without a wait inside; it may be held again meanwhile."""

    __slots__ = ("_depth", "_flushes", "held")

    def __init__(self) -> None:
        self.held = False
        self._depth = 0
        self._flushes: list[Callable[[], None]] = []

    def on_release(self, flush: Callable[[], None]) -> None:
        """Calls `flush` once when the cork is released. Call this only while it is held."""
        self._flushes.append(flush)

    def __enter__(self) -> None:
        self._depth += 1
        self.held = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        self.held = False
        if not self._flushes:
            return
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            try:
                flush()
            except Exception:
                # A bug. It must not keep the frames of other connections.
                log.exception("frames could not be written")


cork: Final = Cork()
"""That of this process's event loop."""
