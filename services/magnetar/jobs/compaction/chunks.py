"""Chunked messages: decides which of their chunks survive.

The first pass sees only the last chunk of a chunked message, which completes it. If there are other
chunks (rarely), a pass over the input's metadata finds them. A chunk belongs to the next last chunk
of its name: a producer that restarts may reuse names. It survives if that last chunk does; without
one below the horizon, it survives until it is settled.

Whether a chunk is settled depends on earlier runs and on the job's clock. Each artifact records a
position up to which everything was in the log at a given time (`mark_of`); OPEN_MS_MAX later, a
producer that would complete the message is gone. Publish times do not serve: they are the
producers', may be off by years, and are old in messages that were replicated or sent again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from magnetar.compaction.records import CompactionRecord
from magnetar.core.ids import EARLIEST, Position
from magnetar.jobs.compaction.entries import Kind, parse
from magnetar.jobs.compaction.part_entries import PlacedEntry
from magnetar.jobs.compaction.plan import place_of
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata

OPEN_MS_MAX: Final = 7 * 24 * 3_600_000
"""How long the rest of a message may take; replication may have been cut off for days."""


class ChunkRow(NamedTuple):
    """A chunk. `open`: it survives if no last chunk follows it."""

    message: bytes
    place: int
    last: bool
    open: bool


def settled(previous: CompactionRecord | None, now_ms: int) -> Position:
    """The position up to which incomplete messages are no longer awaited."""
    if previous is None or not previous.marked_ms or previous.marked_ms > now_ms - OPEN_MS_MAX:
        return EARLIEST
    return previous.marked


def mark_of(
    previous: CompactionRecord | None, horizon: Position, now_ms: int
) -> tuple[Position, int]:
    """The next artifact's mark: the previous one until it has settled, then its own horizon."""
    if previous is not None and now_ms - OPEN_MS_MAX < previous.marked_ms <= now_ms:
        return previous.marked, previous.marked_ms
    return horizon, now_ms


def chunks_of(part: int, entries: Iterable[PlacedEntry], settled: Position) -> Iterator[ChunkRow]:
    """All chunks that have a key, in order."""
    for number, ledger_id, entry_id, data in entries:
        parsed = parse(data)
        metadata = parsed.metadata
        last = parsed.kind is Kind.SINGLE and metadata.num_chunks_from_msg > 1
        if last or parsed.kind is Kind.CHUNK:
            place = place_of(part, number, 0, alive=True)
            yield ChunkRow(_message_of(metadata), place, last, (ledger_id, entry_id) > settled)


def _message_of(metadata: MessageMetadata) -> bytes:
    """The identity of a chunked message: its producer's name and its uuid."""
    return f"{metadata.producer_name}\0{metadata.uuid}".encode()


def staying(rows: Sequence[ChunkRow], survivors: set[int]) -> set[int]:
    """The places of first chunks that survive, decided in memory. Rows are in order. Pure."""
    staying = set[int]()
    next_last: dict[bytes, int] = {}
    for message, place, last, is_open in reversed(rows):
        if last:
            next_last[message] = place
        elif next_last[message] in survivors if message in next_last else is_open:
            staying.add(place)
    return staying
