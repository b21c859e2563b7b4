"""Runs the two passes over a plan's parts: by Spark, or in this process if there is little to do.

By Spark: `first_pass` per part, then the greatest place of each key (an aggregation that Spark
sorts and spills), then the survivors shuffled to their part and sorted, then `second_pass` per
part. Rows are a key and eight bytes, later eight bytes only; Spark's memory settings bound the
memory, not the number of keys.

In this process (`magnetar.jobs.compaction.here`): topics of at most LOCAL_BYTES_MAX, for which
starting Spark alone would take longer.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from magnetar.compaction.records import CompactedFile
from magnetar.core.ids import Position
from magnetar.jobs.compaction import chunks
from magnetar.jobs.compaction.first_pass import Counts, latest_places
from magnetar.jobs.compaction.here import Compacted
from magnetar.jobs.compaction.part_entries import entries_of_part
from magnetar.jobs.compaction.plan import PART_SHIFT
from magnetar.jobs.compaction.second_pass import Writing, written_files
from magnetar_spark.jobs.compact import batches
from magnetar_spark.jobs.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LOCAL_BYTES_MAX: Final = 8 << 20

Batches = Iterator["pa.RecordBatch"]


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
    latest = numbers.mapInArrow(_first_pass(writing, report), batches.LATEST_SCHEMA)
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
                chunk_rows = numbers.mapInArrow(_chunks(writing, settled), batches.CHUNKS_SCHEMA)
                places = survivors.union(batches.staying_in(chunk_rows, survivors))
            rows = _sorted(places, count).mapInArrow(_second_pass(writing), batches.FILES_SCHEMA)
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
    def mapped(numbers: Batches) -> Batches:
        for number in _numbers(numbers):
            entries = entries_of_part(writing.reader, writing.parts[number])
            yield from batches.latest_batches(latest_places(number, entries, Counts(report=report)))

    return mapped


def _chunks(writing: Writing, settled: Position) -> Callable[[Batches], Batches]:
    def mapped(numbers: Batches) -> Batches:
        for number in _numbers(numbers):
            entries = entries_of_part(writing.reader, writing.parts[number])
            yield from batches.chunk_batches(chunks.chunks_of(number, entries, settled))

    return mapped


def _second_pass(writing: Writing) -> Callable[[Batches], Batches]:
    def mapped(rows: Batches) -> Batches:
        places = (place for batch in rows for place in batch.column(0).to_pylist())
        for part, file in written_files(writing, places):
            yield batches.file_batch(part, file)

    return mapped


def _numbers(numbers: Batches) -> Iterator[int]:
    for batch in numbers:
        yield from batch.column(0).to_pylist()
