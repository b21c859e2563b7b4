"""Runs the two passes over a plan's parts: by Spark, or in this process if there is little to do.

By Spark: `first_pass` per part, then the greatest place of each key (an aggregation that Spark
sorts and spills), then the survivors shuffled to their part and sorted, then `second_pass` per
part. Rows are a key and eight bytes, later eight bytes only; Spark's memory settings bound the
memory, not the number of keys.

In this process: the same functions with dictionaries in place of Spark, for topics of at most
LOCAL_BYTES_MAX, for which starting Spark alone would take longer, with at most LOCAL_KEYS_MAX keys
of LOCAL_KEY_BYTES_MAX.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from magnetar.compaction.records import CompactedFile
from magnetar.core.ids import Position
from magnetar_spark.jobs.compact import chunks, first_pass, second_pass
from magnetar_spark.jobs.compact.first_pass import Counts, latest_places
from magnetar_spark.jobs.compact.part_entries import entries_of_part
from magnetar_spark.jobs.compact.plan import PART_SHIFT
from magnetar_spark.jobs.compact.second_pass import Writing, written_files
from magnetar_spark.jobs.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LOCAL_BYTES_MAX: Final = 8 << 20
LOCAL_KEYS_MAX: Final = 500_000
LOCAL_KEY_BYTES_MAX: Final = 64 << 20
"""A small compressed input may have many keys, or long ones."""

Batches = Iterator["pa.RecordBatch"]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The files of the new artifact in order, and the amount of input read."""

    files: tuple[CompactedFile, ...]
    entries_read: int
    bytes_read: int
    messages_read: int


def compact_here(writing: Writing, settled: Position) -> Compacted | None:
    """Compacts in this process; None if there are too many keys for that."""
    latest: dict[bytes, int] = {}
    key_bytes = 0
    counts = Counts()
    for part in writing.parts:
        entries = entries_of_part(writing.settings, writing.bookies, part)
        for batch in latest_places(part.number, entries, counts):
            latest |= batch
            key_bytes += sum(map(len, batch))
            if len(latest) > LOCAL_KEYS_MAX or key_bytes > LOCAL_KEY_BYTES_MAX:
                return None
    places = {place for place in latest.values() if place & 1}
    if counts.chunks:
        rows = [
            row
            for part in writing.parts
            for row in chunks.chunks_of(
                part.number, entries_of_part(writing.settings, writing.bookies, part), settled
            )
        ]
        places |= chunks.staying(rows, places)
    files = [file for _, file in written_files(writing, sorted(places))]
    return Compacted(tuple(files), counts.entries, counts.bytes, counts.messages)


def compact_by_spark(
    spark: "SparkSession", writing: Writing, settled: Position, progress: Progress
) -> Compacted:
    """Compacts by Spark."""
    from pyspark import StorageLevel
    from pyspark.sql import functions as f

    # PySpark warns about pandas in `mapInArrow`, which uses Arrow only.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    context = spark.sparkContext
    totals = [context.accumulator(0) for _ in range(4)]

    def report(counts: Counts) -> None:
        values = (counts.entries, counts.bytes, counts.messages, counts.chunks)
        for total, value in zip(totals, values, strict=True):
            total.add(value)

    count = len(writing.parts)
    numbers = spark.range(0, count, 1, count)
    latest = numbers.mapInArrow(_first_pass(writing, report), first_pass.LATEST_SCHEMA)
    survivors = (
        latest.groupBy("key")
        .agg(f.max("place").alias("place"))
        .where(f.col("place").bitwiseAND(1) == 1)
        .select("place")
        .persist(StorageLevel.DISK_ONLY)
    )
    try:
        with progress.stages(context):
            survivors.count()  # runs the first pass; only then the number of chunks is known
            entries, size, messages, chunk_count = (total.value for total in totals)
            places = survivors
            if chunk_count:
                chunk_rows = numbers.mapInArrow(_chunks(writing, settled), chunks.CHUNKS_SCHEMA)
                places = survivors.union(chunks.staying_in(chunk_rows, survivors))
            rows = _sorted(places, count).mapInArrow(
                _second_pass(writing), second_pass.FILES_SCHEMA
            )
            written = sorted((row.part, bytes(row.file)) for row in rows.collect())
    finally:
        survivors.unpersist()
    files = tuple(msgspec.json.decode(file, type=CompactedFile) for _, file in written)
    return Compacted(files, entries, size, messages)


def _sorted(places: "DataFrame", count: int) -> "DataFrame":
    """Sorts places, with one partition of Spark per part."""
    from pyspark.sql import functions as f

    number = f.shiftright("place", PART_SHIFT).cast("int")
    return places.repartitionById(count, number).sortWithinPartitions("place")


def _first_pass(writing: Writing, report: Callable[[Counts], Any]) -> Callable[[Batches], Batches]:
    def batches(numbers: Batches) -> Batches:
        for number in _numbers(numbers):
            entries = entries_of_part(writing.settings, writing.bookies, writing.parts[number])
            yield from first_pass.as_batches(latest_places(number, entries, Counts(report=report)))

    return batches


def _chunks(writing: Writing, settled: Position) -> Callable[[Batches], Batches]:
    def batches(numbers: Batches) -> Batches:
        for number in _numbers(numbers):
            entries = entries_of_part(writing.settings, writing.bookies, writing.parts[number])
            yield from chunks.as_batches(chunks.chunks_of(number, entries, settled))

    return batches


def _second_pass(writing: Writing) -> Callable[[Batches], Batches]:
    def batches(rows: Batches) -> Batches:
        places = (place for batch in rows for place in batch.column(0).to_pylist())
        for part, file in written_files(writing, places):
            yield second_pass.as_batch(part, file)

    return batches


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
