"""Chunked messages: which of their first chunks stay.

The first pass sees of a chunked message its last chunk alone, with which it is complete. Where
there are others (rarely), this pass over the input's metadata finds them. A chunk belongs to the
next last chunk of its name behind it: a producer that starts again may give old names again. It
stays if that one does; and, while there is none below the horizon, until it is settled.

What is settled goes by runs and the job's own clock: each artefact says of a position that all up
to it was in the log at a time (`mark_of`), and OPEN_MS_MAX after that time whoever was to complete
it has gone. Publish times are the producers': they may be off by years, and of a message that was
replicated, or sent again, they are old when it arrives.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from magnetar.compaction.records import CompactionRecord
from magnetar.core.ids import EARLIEST, Position
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar_spark.jobs.compact.entries import Kind, parse
from magnetar_spark.jobs.compact.first_pass import ROWS_MAX
from magnetar_spark.jobs.compact.plan import place_of
from magnetar_spark.jobs.compact.reading import PlacedEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPEN_MS_MAX: Final = 7 * 24 * 3_600_000
"""How long the rest of a message is waited for; replication may have been cut off for days."""
PIECES_SCHEMA: Final = "message binary, place long, last boolean, open boolean"
_SCHEMA: Final = pa.schema(
    [
        ("message", pa.binary()),
        ("place", pa.int64()),
        ("last", pa.bool_()),
        ("open", pa.bool_()),
    ]
)


class PieceRow(NamedTuple):
    """A chunk. `open`: it stays where no last chunk comes behind it."""

    message: bytes
    place: int
    last: bool
    open: bool


def settled(known: CompactionRecord | None, now_ms: int) -> Position:
    """Chunks up to here are waited for no more."""
    if known is None or not known.marked_ms or known.marked_ms > now_ms - OPEN_MS_MAX:
        return EARLIEST
    return known.marked


def mark_of(known: CompactionRecord | None, horizon: Position, now_ms: int) -> tuple[Position, int]:
    """The next artefact's mark: the one there is until it has settled, then its own horizon."""
    if known is not None and now_ms - OPEN_MS_MAX < known.marked_ms <= now_ms:
        return known.marked, known.marked_ms
    return horizon, now_ms


def pieces_of(part: int, entries: Iterable[PlacedEntry], settled: Position) -> Iterator[PieceRow]:
    """Every chunk that has a key, in order."""
    for number, ledger_id, entry_id, data in entries:
        parsed = parse(data)
        metadata = parsed.metadata
        last = parsed.kind is Kind.SINGLE and metadata.num_chunks_from_msg > 1
        if last or parsed.kind is Kind.PIECE:
            place = place_of(part, number, 0, alive=True)
            yield PieceRow(_message_of(metadata), place, last, (ledger_id, entry_id) > settled)


def _message_of(metadata: MessageMetadata) -> bytes:
    """A message's chunks have its producer's name and a uuid in common."""
    return f"{metadata.producer_name}\0{metadata.uuid}".encode()


def as_batches(rows: Iterable[PieceRow]) -> Iterator[pa.RecordBatch]:
    """For Spark, `PIECES_SCHEMA`."""
    some: list[PieceRow] = []
    for row in rows:
        some.append(row)
        if len(some) >= ROWS_MAX:
            yield _batch(some)
            some = []
    if some:
        yield _batch(some)


def _batch(rows: list[PieceRow]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(list(values), field.type) for values, field in zip(columns, _SCHEMA, strict=True)
    ]
    return pa.record_batch(arrays, _SCHEMA)


def staying(rows: Sequence[PieceRow], survivors: set[int]) -> set[int]:
    """The places of first chunks that stay, decided in memory; rows are in order."""
    found = set[int]()
    next_last: dict[bytes, int] = {}
    for message, place, last, is_open in reversed(rows):
        if last:
            next_last[message] = place
        elif next_last[message] in survivors if message in next_last else is_open:
            found.add(place)
    return found


def staying_in(pieces: "DataFrame", survivors: "DataFrame") -> "DataFrame":
    """The same by Spark: both have a column `place`, and so has the result.

    Nothing but survivors can be broadcast here: of what Python makes Spark guesses no size, or far
    too small a one.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    behind = (
        Window.partitionBy("message")
        .orderBy(f.col("place").desc())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    next_last = f.min(f.when(f.col("last"), f.col("place"))).over(behind)
    chunks = pieces.withColumn("last_place", next_last).where("not last")
    kept = survivors.select(f.col("place").alias("last_place"), f.lit(True).alias("kept"))
    return (
        chunks.join(kept, "last_place", "left")
        .where(f.col("kept") | (f.col("last_place").isNull() & f.col("open")))
        .select("place")
    )
