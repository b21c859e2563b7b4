"""Reads the ids of the entries after a snapshot, when the state of deduplication is recovered."""

from collections.abc import Callable
from typing import Final

from magnetar.broker.topic.deduplication.sequences import NONE
from magnetar.core.ids import Position
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

READ_ENTRIES_MAX: Final = 500
READ_BYTES_MAX: Final = 8 << 20

OnId = Callable[[str, int], None]


async def replay(ledger: ManagedLedger, after: Position, on_id: OnId) -> int:
    """Calls `on_id(producer, id)` for each stored message after a position, up to the last entry.

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
                metadata = parse_metadata(entry.data)
            except MalformedEntry:
                continue  # no producer can send it again: its name and id are unknown
            recorded = recorded_id(metadata)
            if recorded != NONE:
                on_id(metadata.producer_name, recorded)
        entries_read += len(entries)
        last = entries[-1]
        at = ledger.next_position(Position(last.ledger_id, last.entry_id))
    return entries_read


def recorded_id(metadata: MessageMetadata) -> int:
    """Returns the highest id that a stored entry records; NONE for markers and earlier chunks."""
    if metadata.HasField("marker_type"):
        return NONE
    chunks = metadata.num_chunks_from_msg
    if chunks > 1 and metadata.chunk_id != chunks - 1:
        return NONE
    return max(metadata.sequence_id, metadata.highest_sequence_id)
