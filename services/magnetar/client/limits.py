"""Counted permits with a first-in, first-out queue, safe under cancellation."""

import asyncio
from collections import deque


class Permits:
    """A number of permits, such as bytes of memory; a limit of 0 permits everything.

    A request for more than the limit is granted when nothing else is taken, so that a large
    message is not refused for ever. No caller overtakes one that waits.
    """

    __slots__ = ("_waiters", "limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return len(self._waiters)

    def try_take(self, count: int) -> bool:
        """Takes permits if they are free and no caller waits."""
        if not self.limit:
            self.taken += count
            return True
        if self._waiters or not self._has_room(count):
            return False
        self.taken += count
        return True

    async def take(self, count: int) -> None:
        """Takes permits, and waits for them; a cancelled caller has taken none."""
        if self.try_take(count):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (count, granted)
        self._waiters.append(waiter)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                self._grant()
            elif granted.exception() is None:  # granted in the turn of the cancellation
                self.release(count)
            raise

    def release(self, count: int) -> None:
        """Returns permits."""
        self.taken -= count
        if self._waiters:
            self._grant()

    def _has_room(self, count: int) -> bool:
        return self.taken + count <= self.limit or not self.taken

    def _grant(self) -> None:
        waiters = self._waiters
        while waiters:
            count, granted = waiters[0]
            if granted.done():  # cancelled
                waiters.popleft()
                continue
            if not self._has_room(count):
                return
            waiters.popleft()
            self.taken += count
            granted.set_result(None)

    def fail_waiters(self, error: Exception) -> None:
        """Fails all callers that wait, because their permits will not come."""
        waiters, self._waiters = self._waiters, deque()
        for _, granted in waiters:
            if not granted.done():
                granted.set_exception(error)
