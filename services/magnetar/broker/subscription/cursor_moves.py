"""Finds the position of a publish time, or of the nth unacknowledged entry, for cursor moves."""

import asyncio
from typing import Final

from magnetar.broker.dispatch.metadata import publish_time_ms
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger

ENTRIES_PER_TURN: Final = 1_000


async def last_older_than(ledger: ManagedLedger, time_ms: int) -> Position | None:
    """Returns the last entry published before `time_ms`, None if there is none."""
    return await ledger.find_by(
        lambda data: publish_time_ms(data) < time_ms, published_before_ms=time_ms
    )


async def position_of_time(ledger: ManagedLedger, time_ms: int) -> Position:
    """Returns the first entry published at or after `time_ms`, else the next entry's position."""
    older = await last_older_than(ledger, time_ms)
    return ledger.next_position(EARLIEST if older is None else older)


async def nth_unacked(
    ledger: ManagedLedger, cursor: Cursor, nth: int, *, exact: bool = False
) -> Position | None:
    """Returns the nth unacknowledged entry (from 1); if there are fewer, the last one or None.

    With `exact`, None if there are fewer than `nth`.
    """
    unacked, seen, walked = None, 0, 0
    position = ledger.next_position(cursor.mark_delete)
    while seen < nth and position <= ledger.last_confirmed:
        if not cursor.is_acked(*position):
            seen += 1
            unacked = position
        position = ledger.next_position(position)
        walked += 1
        if walked % ENTRIES_PER_TURN == 0:
            await asyncio.sleep(0)
    return None if exact and seen < nth else unacked
