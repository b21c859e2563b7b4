"""Bounds on the copies of one node: bytes per second, and bytes in memory.

Requests are served in order. A single request above the whole bound is served alone.
"""

import asyncio
from collections import deque

from magnetar.core.clock import Clock


class ByteRate:
    """Bounds the bytes per second, on average over time; 0: unbounded."""

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_at = 0.0

    async def spend(self, count: int) -> None:
        """Waits until `count` more bytes are within the rate."""
        if not self._bytes_per_s:
            return
        now = self._clock.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + count / self._bytes_per_s
        if start > now:
            await asyncio.sleep(start - now)


class ByteBudget:
    """Bounds the bytes that are held at the same time."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held(self) -> int:
        """The bytes that are held now."""
        return self._held

    async def take(self, count: int) -> None:
        """Waits until `count` more bytes fit, and holds them."""
        if not self._waiting and self._fits(count):
            self._held += count
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(count)
            raise

    def release(self, count: int) -> None:
        """Releases bytes that `take` granted, and wakes waiters in order."""
        self._held -= count
        while self._waiting:
            wanted, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            if not self._fits(wanted):
                return
            self._waiting.popleft()
            self._held += wanted
            future.set_result(None)

    def _fits(self, count: int) -> bool:
        return self._held == 0 or self._held + count <= self._bytes_max
