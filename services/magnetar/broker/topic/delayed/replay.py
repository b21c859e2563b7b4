"""Reads the delivery times of the entries after a snapshot, when the index is restored."""

from collections.abc import Callable
from typing import Final

from magnetar.core.ids import Position
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

READ_ENTRIES_MAX: Final = 500
READ_BYTES_MAX: Final = 8 << 20

OnDelay = Callable[[int, int, int], object]
"""Gets the delivery time, the ledger id and the entry id."""


async def replay(ledger: ManagedLedger, after: Position, on_delay: OnDelay) -> int:
    """Calls `on_delay` for each entry with a delivery time after a position, up to the last entry.

    Returns the number of entries that were read. Without an await after the last call, no entry is
    confirmed between that call and the return.
    """
    entries_read = 0
    at = ledger.next_position(after)
    while at <= ledger.last_confirmed:
        entries = await ledger.read(at, READ_ENTRIES_MAX, READ_BYTES_MAX)
        if not entries:
            break
        for entry in entries:
            try:
                deliver_at_ms = parse_metadata(entry.data).deliver_at_time
            except MalformedEntry:
                continue
            if deliver_at_ms > 0:
                on_delay(deliver_at_ms, entry.ledger_id, entry.entry_id)
        entries_read += len(entries)
        last = entries[-1]
        at = ledger.next_position(Position(last.ledger_id, last.entry_id))
    return entries_read
