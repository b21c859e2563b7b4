"""What Spark maps and joins between the passes of a compaction: Arrow batches and their schemas."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from magnetar.compaction.records import CompactedFile
from magnetar.jobs.compaction.chunks import ChunkRow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_MAX: Final = 20_000
"""Rows of one Arrow batch."""
LATEST_SCHEMA: Final = "key binary, place long"
CHUNKS_SCHEMA: Final = "message binary, place long, last boolean, open boolean"
FILES_SCHEMA: Final = "part int, file binary"
_LATEST: Final = pa.schema([("key", pa.binary()), ("place", pa.int64())])
_CHUNKS: Final = pa.schema(
    [
        ("message", pa.binary()),
        ("place", pa.int64()),
        ("last", pa.bool_()),
        ("open", pa.bool_()),
    ]
)
_FILES: Final = pa.schema([("part", pa.int32()), ("file", pa.binary())])


def latest_batches(dictionaries: Iterable[dict[bytes, int]]) -> Iterator[pa.RecordBatch]:
    """Arrow batches of LATEST_SCHEMA."""
    for latest in dictionaries:
        keys, places = list(latest), list(latest.values())
        for start in range(0, len(keys), ROWS_MAX):
            rows = slice(start, start + ROWS_MAX)
            yield pa.record_batch(
                [pa.array(keys[rows], pa.binary()), pa.array(places[rows], pa.int64())], _LATEST
            )


def chunk_batches(rows: Iterable[ChunkRow]) -> Iterator[pa.RecordBatch]:
    """Arrow batches of CHUNKS_SCHEMA."""
    batch: list[ChunkRow] = []
    for row in rows:
        batch.append(row)
        if len(batch) >= ROWS_MAX:
            yield _chunk_batch(batch)
            batch = []
    if batch:
        yield _chunk_batch(batch)


def _chunk_batch(rows: list[ChunkRow]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(list(values), field.type) for values, field in zip(columns, _CHUNKS, strict=True)
    ]
    return pa.record_batch(arrays, _CHUNKS)


def file_batch(part: int, file: CompactedFile) -> pa.RecordBatch:
    """An Arrow batch of FILES_SCHEMA."""
    return pa.record_batch([[part], [msgspec.json.encode(file)]], _FILES)


def staying_in(rows: "DataFrame", survivors: "DataFrame") -> "DataFrame":
    """The same as `chunks.staying`, by Spark. Arguments and result have a column `place`.

    Only survivors may be broadcast: Spark does not know the size of data made by Python, or
    guesses it far too small.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    behind = (
        Window.partitionBy("message")
        .orderBy(f.col("place").desc())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    next_last = f.min(f.when(f.col("last"), f.col("place"))).over(behind)
    firsts = rows.withColumn("last_place", next_last).where("not last")
    kept = survivors.select(f.col("place").alias("last_place"), f.lit(True).alias("kept"))
    return (
        firsts.join(kept, "last_place", "left")
        .where(f.col("kept") | (f.col("last_place").isNull() & f.col("open")))
        .select("place")
    )
