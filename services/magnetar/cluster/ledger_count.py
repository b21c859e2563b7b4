"""The number of ledgers of a bookie, for /status and /metrics.

Counting reads the keys of the index. A task therefore counts in the background, at most every
COUNT_AGE_S and only while the number is read; readers get the last count.
"""

import asyncio
from typing import Final

from magnetar.bookie.api import Bookie, BookieError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet

COUNT_AGE_S: Final = 5.0

log = get_logger("magnetar.cluster.ledger_count")


class LedgerCount:
    """Counts the ledgers of a bookie in the background, on demand."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._tasks = TaskSet("ledger count")
        self._last = 0
        self._counted_at = float("-inf")

    @property
    def count(self) -> int:
        """The result of the last count; starts a new count if that is older than COUNT_AGE_S."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_AGE_S and not len(self._tasks):
            self._counted_at = now
            self._tasks.start(self._count(), "count")
        return self._last

    async def stop(self) -> None:
        """Cancels a count under way."""
        await self._tasks.stop()

    async def _count(self) -> None:
        try:
            self._last = len(await self._bookie.list_ledgers())
        except BookieError as error:
            log.info("the bookie cannot count its ledgers", error=str(error))
