"""Tasks' sums put together by Spark: what is few comes to the driver, of keys only the first.

A key's messages may be in many tasks, and a topic may have more keys than a driver has memory. So
keys are summed and ranked by Spark, and KEYS_MAX of a topic or a subscription come back.
"""

import pickle
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from magnetar.bookie.registration import BookieRegistration
from magnetar_spark.jobs.backlog.partials import (
    BY_KEY,
    BY_MINUTE,
    BY_SIZE,
    FLOW,
    SCANNED,
    SPARK_SCHEMA,
    UNREAD,
    UNREAD_BY_KEY,
)
from magnetar_spark.jobs.backlog.scan_plan import ScanRange
from magnetar_spark.jobs.progress import Progress
from magnetar_spark.log.settings import LogSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES: Final = 64 << 20
KEYS_MAX: Final = 100
MINUTES_MAX: Final = 1_440
"""The newest of a topic: a day."""

Row = dict[str, Any]


@dataclass(slots=True)
class Scanned:
    """What the scan found, by kind; rows have the columns of `partials.SCHEMA`."""

    topics: dict[str, Row] = field(default_factory=dict)
    unread: dict[tuple[str, str], Row] = field(default_factory=dict)
    minutes: list[Row] = field(default_factory=list)
    sizes: list[Row] = field(default_factory=list)
    flows: list[Row] = field(default_factory=list)
    keys: list[Row] = field(default_factory=list)
    skew: dict[str, Row] = field(default_factory=dict)
    unread_keys: list[Row] = field(default_factory=list)


def tasks_of(ranges: Iterable[ScanRange]) -> list[tuple[ScanRange, ...]]:
    """Ranges, gathered until they have about TASK_BYTES."""
    tasks: list[tuple[ScanRange, ...]] = []
    gathered: list[ScanRange] = []
    size = 0
    for each in ranges:
        if gathered and size + each.ranged.size_bytes > TASK_BYTES:
            tasks.append(tuple(gathered))
            gathered, size = [], 0
        gathered.append(each)
        size += each.ranged.size_bytes
    if gathered:
        tasks.append(tuple(gathered))
    return tasks


def scan_with_spark(
    spark: "SparkSession",
    settings: LogSettings,
    tasks: Sequence[tuple[ScanRange, ...]],
    bookies: Sequence[BookieRegistration],
    progress: Progress,
) -> Scanned:
    """Reads what was planned; see the module's text."""
    if not tasks:
        return Scanned()
    context = spark.sparkContext
    shared = context.broadcast([pickle.dumps((settings, task, tuple(bookies))) for task in tasks])

    def run_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """On an executor: the tasks whose numbers these are."""
        from magnetar_spark.jobs.backlog.scan import scanned

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from scanned(*pickle.loads(shared.value[number]))  # noqa: S301 - our own

    with progress.stages(context):
        numbers = spark.range(0, len(tasks), 1, len(tasks))
        with warnings.catch_warnings():
            # Of Pandas, which this does not hand out.
            warnings.simplefilter("ignore", FutureWarning)
            sums = numbers.mapInArrow(run_tasks, SPARK_SCHEMA).persist()
        try:
            found = _few(sums)
            found.keys, found.skew = _keys(sums)
            found.unread_keys = _unread_keys(sums)
        finally:
            sums.unpersist()
            shared.destroy()
    return found


def _few(sums: "DataFrame") -> Scanned:
    from pyspark.sql import functions as f

    rows = (
        sums.where(f.col("kind").isin([SCANNED, BY_MINUTE, BY_SIZE, UNREAD, FLOW]))
        .withColumn(
            "group", f.when(f.col("kind").isin([SCANNED, UNREAD]), 0).otherwise(f.col("number"))
        )
        .groupBy("kind", "topic", "subscription", "key", "group")
        .agg(
            f.sum("number").alias("number"),
            f.sum("entries").alias("entries"),
            f.sum("messages").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.min("oldest_ms").alias("oldest_ms"),
            f.max("newest_ms").alias("newest_ms"),
        )
        .toLocalIterator()
    )
    found = Scanned()
    for each in rows:
        row: Row = each.asDict()
        kind, group = row.pop("kind"), row.pop("group")
        if kind == SCANNED:
            found.topics[row["topic"]] = row
            continue
        if kind == UNREAD:
            found.unread[row["topic"], row["subscription"]] = row
            continue
        row["number"] = group
        {BY_MINUTE: found.minutes, BY_SIZE: found.sizes, FLOW: found.flows}[kind].append(row)
    return found


def _keys(sums: "DataFrame") -> tuple[list[Row], dict[str, Row]]:
    """The hottest keys of each topic, and how its keys spread."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    by_topic = Window.partitionBy("topic")
    ranked = (
        sums.where(f"kind = {BY_KEY} and key is not null")
        .groupBy("topic", "key")
        .agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
        .withColumn("rank", f.row_number().over(by_topic.orderBy(f.desc("messages"), f.asc("key"))))
        .persist()
    )
    try:
        spread = ranked.groupBy("topic").agg(
            f.count("*").alias("keys"),
            f.sum("messages").alias("keyed_messages"),
            *(
                f.sum(f.when(f.col("rank") <= top, f.col("messages")).otherwise(0)).alias(
                    f"top{top}"
                )
                for top in (1, 10, 100)
            ),
        )
        skew = {row["topic"]: row.asDict() for row in spread.collect()}
        hottest = [row.asDict() for row in ranked.where(f"rank <= {KEYS_MAX}").collect()]
    finally:
        ranked.unpersist()
    return sorted(hottest, key=lambda row: (row["topic"], row["rank"])), skew


def _unread_keys(sums: "DataFrame") -> list[Row]:
    """Of each subscription the keys with the oldest unread messages, and those with the most."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    each = Window.partitionBy("topic", "subscription")
    place = f.struct("ledger_id", "entry_id", "oldest_ms")
    rows = (
        sums.where(f"kind = {UNREAD_BY_KEY}")
        .groupBy("topic", "subscription", "key")
        .agg(
            f.sum("messages").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.min(place).alias("place"),
        )
        .withColumn(
            "rank_oldest",
            f.row_number().over(each.orderBy(f.asc("place"), f.asc_nulls_first("key"))),
        )
        .withColumn(
            "rank_messages",
            f.row_number().over(each.orderBy(f.desc("messages"), f.asc_nulls_first("key"))),
        )
        .where(f"rank_oldest <= {KEYS_MAX} or rank_messages <= {KEYS_MAX}")
        .select("*", "place.*")
        .drop("place")
        .collect()
    )
    return sorted(
        (row.asDict() for row in rows),
        key=lambda row: (row["topic"], row["subscription"], row["rank_oldest"]),
    )
