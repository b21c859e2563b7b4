"""Adds up the sums of all scan tasks, and returns results that fit into the driver.

The messages of a key may be in many tasks, and a topic may have more keys than fit into a driver's
memory. So Spark sums and ranks keys, and returns at most KEYS_MAX per topic or subscription. All of
it is one query. A scan of a single task needs no Spark (`ranks`), unless it finds too many keys.
"""

import pickle
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from magnetar.bookie.registration import BookieRegistration
from magnetar_spark.jobs.backlog.scan.partials import (
    BY_KEY,
    BY_MINUTE,
    BY_SIZE,
    DELAYED,
    FAILED,
    FLOW,
    SCANNED,
    SPARK_SCHEMA,
    UNREAD,
    UNREAD_BY_KEY,
    SumRow,
)
from magnetar_spark.jobs.backlog.scan.plan import ScanRange
from magnetar_spark.jobs.backlog.scan.ranks import ranked
from magnetar_spark.jobs.backlog.scan.scan import scan_ranges
from magnetar_spark.jobs.progress import Progress
from magnetar_spark.log.settings import LogSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES: Final = 64 << 20
KEYS_MAX: Final = 100
TOPS: Final = (1, 10, 100)
"""Numbers of hottest keys whose share of a topic is computed; at most KEYS_MAX."""
MINUTES_MAX: Final = 1_440
"""The newest minutes per topic: a day."""
MINUTE_ROWS_MAX: Final = 500_000
"""Minutes of all topics; with many topics, each has fewer."""


@dataclass(slots=True)
class KeySkew:
    """The distribution of a topic's keys. `top` maps each of TOPS to the messages of these keys."""

    keys: int
    keyed_messages: int
    top: dict[int, int]


@dataclass(slots=True)
class Scanned:
    """The results of the scan by kind.

    In `minutes`, `sizes` and `flows`, `number` is the group's; see the kinds in `partials`.
    """

    topics: dict[str, SumRow] = field(default_factory=dict)
    unread: dict[tuple[str, str], SumRow] = field(default_factory=dict)
    """The unread messages by topic and subscription."""
    delayed: dict[tuple[str, str], SumRow] = field(default_factory=dict)
    """Those of them that are not due, by topic and subscription."""
    minutes: dict[str, list[SumRow]] = field(default_factory=dict)
    """The messages of each minute by topic."""
    sizes: list[SumRow] = field(default_factory=list)
    flows: list[SumRow] = field(default_factory=list)
    keys: list[SumRow] = field(default_factory=list)
    skew: dict[str, KeySkew] = field(default_factory=dict)
    unread_keys: list[SumRow] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Topics that could not be read completely, with the reason."""


def tasks_of(ranges: Iterable[ScanRange]) -> list[tuple[ScanRange, ...]]:
    """Groups consecutive ranges into tasks of about TASK_BYTES."""
    tasks: list[tuple[ScanRange, ...]] = []
    group: list[ScanRange] = []
    size = 0
    for scan_range in ranges:
        if group and size + scan_range.ranged.size_bytes > TASK_BYTES:
            tasks.append(tuple(group))
            group, size = [], 0
        group.append(scan_range)
        size += scan_range.ranged.size_bytes
    if group:
        tasks.append(tuple(group))
    return tasks


def scan_with_spark(
    spark: "SparkSession",
    settings: LogSettings,
    tasks: Sequence[tuple[ScanRange, ...]],
    bookies: Sequence[BookieRegistration],
    progress: Progress,
) -> Scanned:
    """Runs the scan tasks (at least one) on Spark's executors, and adds up their sums."""
    context = spark.sparkContext
    shared = context.broadcast([pickle.dumps((settings, task, tuple(bookies))) for task in tasks])

    def run_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs tasks, given by number, on an executor."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from scan_ranges(*pickle.loads(shared.value[number]))  # noqa: S301 - our own

    try:
        with progress.stages(context), warnings.catch_warnings():
            # PySpark warns about pandas, which this does not use.
            warnings.simplefilter("ignore", FutureWarning)
            numbers = spark.range(0, len(tasks), 1, len(tasks))
            sums = numbers.mapInArrow(run_tasks, SPARK_SCHEMA)
            rows = _ranked(sums, minutes_max(tasks)).collect()
    finally:
        shared.destroy()
    return grouped_by_kind(SumRow.of(row.asDict()) for row in rows)


def scan_here(
    settings: LogSettings, task: tuple[ScanRange, ...], bookies: Sequence[BookieRegistration]
) -> Scanned:
    """Runs a single task in this process. Raises TooManyRows if there are too many keys."""
    sums = scan_ranges(settings, task, tuple(bookies))
    return grouped_by_kind(ranked(sums, minutes_max([task]), KEYS_MAX))


def minutes_max(tasks: Iterable[tuple[ScanRange, ...]]) -> int:
    """The number of newest minutes per topic that the driver receives."""
    topics = len({scan_range.ranged.topic for task in tasks for scan_range in task})
    return max(1, min(MINUTES_MAX, MINUTE_ROWS_MAX // topics))


def _ranked(sums: "DataFrame", newest: int) -> "DataFrame":
    """Sums over all tasks, with ranks: the first keys of each topic or subscription, and the newest
    minutes."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    by_entry = f.col("kind").isin([SCANNED, UNREAD])
    summed = (
        sums.where(f"kind != {BY_KEY} or key is not null")
        .withColumn("group", f.when(by_entry, 0).otherwise(f.col("number")))
        .groupBy("kind", "topic", "subscription", "key", "group")
        .agg(
            f.sum("number").alias("number"),
            f.sum("entries").alias("entries"),
            f.sum("messages").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.min("oldest_ms").alias("oldest_ms"),
            f.max("newest_ms").alias("newest_ms"),
            f.min(f.struct("ledger_id", "entry_id", "oldest_ms")).alias("place"),
        )
    )
    is_minute = f.col("kind") == BY_MINUTE
    group = Window.partitionBy("kind", "topic", "subscription")
    by_messages = group.orderBy(f.desc("messages"), f.asc_nulls_first("key"))
    # Minutes are ranked from the newest.
    age = f.when(is_minute, -f.col("group")).otherwise(f.lit(0))
    by_age = group.orderBy(age, f.asc("place"), f.asc_nulls_first("key"))
    is_key = f.col("kind").isin([BY_KEY, UNREAD_BY_KEY])
    return (
        summed.withColumn("rank_messages", f.row_number().over(by_messages))
        .withColumn("rank_oldest", f.row_number().over(by_age))
        .withColumn("keys", f.count("*").over(group))
        .withColumn("keyed_messages", f.sum("messages").over(group))
        .where(
            (~is_key & ~is_minute)
            | (is_minute & (f.col("rank_oldest") <= newest))
            | (is_key & (f.col("rank_messages") <= KEYS_MAX))
            | ((f.col("kind") == UNREAD_BY_KEY) & (f.col("rank_oldest") <= KEYS_MAX))
        )
        .select(
            "*", "place.ledger_id", "place.entry_id", f.col("place.oldest_ms").alias("first_ms")
        )
        .drop("place")
    )


def grouped_by_kind(rows: Iterable[SumRow]) -> Scanned:
    """Sorts rows by their kind. Pure."""
    scanned = Scanned()
    lists = {BY_SIZE: scanned.sizes, FLOW: scanned.flows}
    failed: set[str] = set()
    replace = msgspec.structs.replace
    for row in rows:
        kind, topic = row.kind, row.topic
        if kind == SCANNED:
            scanned.topics[topic] = row
        elif kind == UNREAD:
            scanned.unread[topic, row.subscription] = row
        elif kind == DELAYED:
            scanned.delayed[topic, row.subscription] = row
        elif kind == BY_KEY:
            scanned.keys.append(row)
        elif kind == UNREAD_BY_KEY:
            scanned.unread_keys.append(replace(row, oldest_ms=row.first_ms))
        elif kind == BY_MINUTE:
            scanned.minutes.setdefault(topic, []).append(replace(row, number=row.group))
        elif kind == FAILED:
            if topic not in failed:  # one reason per topic is enough
                failed.add(topic)
                scanned.failures.append((topic, row.text))
        else:
            lists[kind].append(replace(row, number=row.group))
    scanned.keys.sort(key=lambda row: (row.topic, row.rank_messages))
    scanned.unread_keys.sort(key=lambda row: (row.topic, row.subscription, row.rank_oldest))
    scanned.skew = _skew(scanned.keys)
    return scanned


def _skew(keys: Iterable[SumRow]) -> dict[str, KeySkew]:
    """The distribution of each topic's keys, from the hottest ones."""
    skews: dict[str, KeySkew] = {}
    for row in keys:
        skew = skews.get(row.topic)
        if skew is None:
            skew = skews[row.topic] = KeySkew(row.keys, row.keyed_messages, dict.fromkeys(TOPS, 0))
        for top in TOPS:
            if row.rank_messages <= top:
                skew.top[top] += row.messages
    return skews
