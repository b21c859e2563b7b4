"""Finds the last entry older than a time, with few reads of bookies or files.

Ledgers closed before the time are skipped; in the first ledger that may have younger entries,
bisection over publish times finds the entry. That is accurate enough for hypothetical limits; what
brokers delete, they verify entry by entry if producers' clocks differ.
"""

from magnetar.core.ids import Position
from magnetar.managed_ledger.index import LedgerInfo
from magnetar_spark.jobs.backlog.gather.topic_state import TopicState


class LogAges:
    """Implements `what_if.Ages` for one topic."""

    def __init__(self, state: TopicState) -> None:
        self._state = state

    async def older_end(self, before_ms: int) -> Position | None:
        """The last entry older than the time; see `what_if.Ages`."""
        last: Position | None = None
        for info in self._state.index.infos:
            if info.created_ms >= before_ms:
                break
            if not info.entries:
                continue
            if not info.created_ms <= info.closed_ms < before_ms:
                return await self._within(info, before_ms) or last
            last = Position(info.ledger_id, info.entries - 1)
        return last

    async def _within(self, info: LedgerInfo, before_ms: int) -> Position | None:
        # `bisect` takes no asynchronous key.
        low, high = -1, info.entries - 1
        while low < high:
            middle = (low + high + 1) // 2
            time_ms = await self._state.times.publish_ms(Position(info.ledger_id, middle))
            if time_ms is not None and time_ms < before_ms:
                low = middle
            else:
                high = middle - 1
        return None if low < 0 else Position(info.ledger_id, low)
