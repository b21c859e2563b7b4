"""Spreads work evenly over time, so that it keeps a rate."""

import asyncio
from typing import Final

BEHIND_S_MAX: Final = 1.0
"""How much lost time is caught up; a longer stall would end in a burst."""


class Pacer:
    """Waits before each message, so that `rate` messages per second pass."""

    def __init__(self, rate: float) -> None:
        self._interval_s = 1 / rate
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.time()

    def due(self) -> float:
        """Takes the next slot; returns when it is due, by the loop's clock."""
        self._next = max(self._next, self._loop.time() - BEHIND_S_MAX)
        due, self._next = self._next, self._next + self._interval_s
        return due

    async def wait(self) -> float:
        """Returns when the next slot is due, once it is."""
        due = self.due()
        delay_s = due - self._loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        return due
