"""Chunked messages: which of their first chunks stay.

The first pass sees of a chunked message its last chunk alone, with which it is complete. Where
there are others (rarely), this pass over the input's metadata finds them. They stay if their last
chunk does; and, while it is not below the horizon, if they are younger than OPEN_MS_MAX: what is
read behind the horizon may complete them.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar_spark.jobs.compact.entries import Kind, parse
from magnetar_spark.jobs.compact.first_pass import ROWS_MAX
from magnetar_spark.jobs.compact.plan import place_of
from magnetar_spark.jobs.compact.reading import PlacedEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPEN_MS_MAX: Final = 24 * 3_600_000
"""Of a message whose last chunk did not come for so long, the producer has gone."""
PIECES_SCHEMA: Final = "message binary, place long, last boolean, published long"
_SCHEMA: Final = pa.schema(
    [
        ("message", pa.binary()),
        ("place", pa.int64()),
        ("last", pa.bool_()),
        ("published", pa.int64()),
    ]
)

PieceRow = tuple[bytes, int, bool, int]


def pieces_of(part: int, entries: Iterable[PlacedEntry]) -> Iterator[PieceRow]:
    """Every chunk that has a key: its message, its place, whether it is the last, its time."""
    for number, _, _, data in entries:
        parsed = parse(data)
        metadata = parsed.metadata
        last = parsed.kind is Kind.SINGLE and metadata.num_chunks_from_msg > 1
        if last or parsed.kind is Kind.PIECE:
            place = place_of(part, number, 0, alive=True)
            yield _message_of(metadata), place, last, metadata.publish_time


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


def staying(rows: Iterable[PieceRow], survivors: set[int], now_ms: int) -> set[int]:
    """The places of first chunks that stay, decided in memory."""
    pieces = list(rows)
    lasts = {message: place for message, place, last, _ in pieces if last}
    return {
        place
        for message, place, last, published in pieces
        if not last
        and (lasts[message] in survivors if message in lasts else published > now_ms - OPEN_MS_MAX)
    }


def staying_in(pieces: "DataFrame", survivors: "DataFrame", now_ms: int) -> "DataFrame":
    """The same by Spark: both have a column `place`, and so has the result."""
    from pyspark.sql import functions as f

    lasts = pieces.where("last").groupBy("message").agg(f.max("place").alias("last_place"))
    kept = survivors.select(f.col("place").alias("last_place"), f.lit(True).alias("kept"))
    found = pieces.where("not last").join(lasts, "message", "left").join(kept, "last_place", "left")
    return found.where(
        f.col("kept") | (f.col("last_place").isNull() & (f.col("published") > now_ms - OPEN_MS_MAX))
    ).select("place")
