"""Up to where a topic's entries are older than a time, by few reads of bookies or files.

A ledger that was closed before the time is passed whole; in the first that may have younger entries
the place is found by bisection over publish times. For a limit that nobody has set that is enough:
what brokers delete by, they prove entry by entry where producers' clocks differ.
"""

from magnetar.core.ids import Position
from magnetar.managed_ledger.index import LedgerInfo
from magnetar_spark.jobs.backlog.topic_state import TopicState


class LogAges:
    """`what_if.Ages` of one topic."""

    def __init__(self, state: TopicState) -> None:
        self._state = state

    async def older_end(self, before_ms: int) -> Position | None:
        """See `what_if.Ages`."""
        found: Position | None = None
        for info in self._state.index.infos:
            if info.created_ms >= before_ms:
                break
            if not info.entries:
                continue
            if not info.created_ms <= info.closed_ms < before_ms:
                return await self._within(info, before_ms) or found
            found = Position(info.ledger_id, info.entries - 1)
        return found

    async def _within(self, info: LedgerInfo, before_ms: int) -> Position | None:
        low, high = -1, info.entries - 1
        while low < high:
            middle = (low + high + 1) // 2
            time_ms = await self._state.times.publish_ms(Position(info.ledger_id, middle))
            if time_ms is not None and time_ms < before_ms:
                low = middle
            else:
                high = middle - 1
        return None if low < 0 else Position(info.ledger_id, low)
