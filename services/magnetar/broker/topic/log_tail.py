"""Reads the metadata of the entries after a snapshot, when state that follows a log is restored."""

from collections.abc import Callable
from typing import Final

from magnetar.core.ids import Position
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

READ_ENTRIES_MAX: Final = 500
READ_BYTES_MAX: Final = 8 << 20

OnEntry = Callable[[Entry, MessageMetadata], None]


async def read_tail(ledger: ManagedLedger, after: Position, on_entry: OnEntry) -> int:
    """Calls `on_entry` for each entry after a position, up to the last one.

    Entries whose metadata cannot be parsed are passed over: nothing is known of them. Returns the
    number of entries that were read. Without an await after the last call, no entry is confirmed
    between that call and the return.
    """
    entries_read = 0
    at = ledger.next_position(after)
    while at <= ledger.last_confirmed:
        entries = await ledger.read(at, READ_ENTRIES_MAX, READ_BYTES_MAX)
        if not entries:
            break
        for entry in entries:
            try:
                metadata = parse_metadata(entry.data)
            except MalformedEntry:
                continue
            on_entry(entry, metadata)
        entries_read += len(entries)
        last = entries[-1]
        at = ledger.next_position(Position(last.ledger_id, last.entry_id))
    return entries_read
