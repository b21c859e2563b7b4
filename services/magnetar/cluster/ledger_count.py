"""How many ledgers a bookie holds, for those who look: counted when asked, not all the time.

Counting reads the keys of the index, so it is done beside, at most every COUNT_AGE_S, and who asks
gets the last count.
"""

import asyncio
from typing import Final

from magnetar.bookie.api import Bookie, BookieError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet

COUNT_AGE_S: Final = 5.0

log = get_logger("magnetar.bookie")


class LedgerCount:
    """See the module's text."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._tasks = TaskSet("ledger count")
        self._last = 0
        self._counted_at = float("-inf")

    @property
    def count(self) -> int:
        """As of the last count; asks for a new one where that is old."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_AGE_S and not len(self._tasks):
            self._counted_at = now
            self._tasks.start(self._count(), "count")
        return self._last

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _count(self) -> None:
        try:
            self._last = len(await self._bookie.list_ledgers())
        except BookieError as error:
            log.info("ledgers not counted", error=str(error))
