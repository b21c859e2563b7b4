"""The two passes over a plan's parts: by Spark, or, for little, in this process.

Spark's way: `first_pass` per part, then the greatest place of each key (an aggregation that Spark
sorts and spills), then the survivors shuffled to the part that they are of and sorted, then
`second_pass` per part. Rows are a key and eight bytes, and later eight bytes alone; what runs at
once is bounded by Spark's memory settings and not by the number of keys.

In this process: the same functions with dictionaries for Spark. It is for topics of at most
LOCAL_BYTES_MAX, for which Spark's start alone would take longer, with at most LOCAL_KEYS_MAX keys
of LOCAL_KEY_BYTES_MAX.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from magnetar.compaction.records import CompactedFile
from magnetar.core.ids import Position
from magnetar_spark.jobs.compact import first_pass, pieces, second_pass
from magnetar_spark.jobs.compact.first_pass import Counts, latest_places
from magnetar_spark.jobs.compact.plan import PART_SHIFT
from magnetar_spark.jobs.compact.reading import entries_of_part
from magnetar_spark.jobs.compact.second_pass import Writing, written_files
from magnetar_spark.jobs.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LOCAL_BYTES_MAX: Final = 8 << 20
LOCAL_KEYS_MAX: Final = 500_000
LOCAL_KEY_BYTES_MAX: Final = 64 << 20
"""What is small when it is compressed may have many keys, or long ones."""

Batches = Iterator["pa.RecordBatch"]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The new artefact's files, in order, and what was read for it."""

    files: tuple[CompactedFile, ...]
    entries_read: int
    bytes_read: int
    messages_read: int


def compact_here(writing: Writing, settled: Position) -> Compacted | None:
    """In this process; None where there are too many keys for that."""
    latest: dict[bytes, int] = {}
    key_bytes = 0
    counts = Counts()
    for part in writing.parts:
        entries = entries_of_part(writing.settings, writing.bookies, part)
        for found in latest_places(part.number, entries, counts):
            latest |= found
            key_bytes += sum(map(len, found))
            if len(latest) > LOCAL_KEYS_MAX or key_bytes > LOCAL_KEY_BYTES_MAX:
                return None
    places = {place for place in latest.values() if place & 1}
    if counts.pieces:
        rows = [
            row
            for part in writing.parts
            for row in pieces.pieces_of(
                part.number, entries_of_part(writing.settings, writing.bookies, part), settled
            )
        ]
        places |= pieces.staying(rows, places)
    files = [file for _, file in written_files(writing, sorted(places))]
    return Compacted(tuple(files), counts.entries, counts.bytes, counts.messages)


def compact_by_spark(
    spark: "SparkSession", writing: Writing, settled: Position, progress: Progress
) -> Compacted:
    """By Spark."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    # Said of Pandas by `mapInArrow`, which hands out Arrow.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    context = spark.sparkContext
    totals = [context.accumulator(0) for _ in range(4)]

    def tell(counts: Counts) -> None:
        seen = (counts.entries, counts.bytes, counts.messages, counts.pieces)
        for total, count in zip(totals, seen, strict=True):
            total.add(count)

    count = len(writing.parts)
    numbers = spark.range(0, count, 1, count)
    latest = numbers.mapInArrow(_first_pass(writing, tell), first_pass.LATEST_SCHEMA)
    survivors = (
        latest.groupBy("key")
        .agg(f.max("place").alias("place"))
        .where(f.col("place").bitwiseAND(1) == 1)
        .select("place")
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        with progress.stages(context):
            survivors.count()  # made and kept on disk; after it is known whether there are chunks
            entries, size, messages, chunks = (total.value for total in totals)
            places = survivors
            if chunks:
                found = numbers.mapInArrow(_pieces(writing, settled), pieces.PIECES_SCHEMA)
                places = survivors.union(pieces.staying_in(found, survivors))
            rows = _sorted(places, count).mapInArrow(
                _second_pass(writing), second_pass.FILES_SCHEMA
            )
            written = sorted((row.part, bytes(row.file)) for row in rows.collect())
    finally:
        survivors.unpersist()
    files = tuple(msgspec.json.decode(file, type=CompactedFile) for _, file in written)
    return Compacted(files, entries, size, messages)


def _sorted(places: "DataFrame", count: int) -> "DataFrame":
    """Each part's places in a partition of Spark of their own, in order."""
    from pyspark.sql import functions as f

    number = f.shiftright("place", PART_SHIFT).cast("int")
    return places.repartitionById(count, number).sortWithinPartitions("place")


def _first_pass(writing: Writing, tell: Callable[[Counts], Any]) -> Callable[[Batches], Batches]:
    def batches(numbers: Batches) -> Batches:
        for number in _numbers(numbers):
            entries = entries_of_part(writing.settings, writing.bookies, writing.parts[number])
            yield from first_pass.as_batches(latest_places(number, entries, Counts(told=tell)))

    return batches


def _pieces(writing: Writing, settled: Position) -> Callable[[Batches], Batches]:
    def batches(numbers: Batches) -> Batches:
        for number in _numbers(numbers):
            entries = entries_of_part(writing.settings, writing.bookies, writing.parts[number])
            yield from pieces.as_batches(pieces.pieces_of(number, entries, settled))

    return batches


def _second_pass(writing: Writing) -> Callable[[Batches], Batches]:
    def batches(found: Batches) -> Batches:
        places = (place for batch in found for place in batch.column(0).to_pylist())
        for part, file in written_files(writing, places):
            yield second_pass.as_batch(part, file)

    return batches


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
