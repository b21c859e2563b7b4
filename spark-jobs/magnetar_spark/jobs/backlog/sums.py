"""Tasks' sums put together by Spark: what is few comes to the driver, of keys only the first.

A key's messages may be in many tasks, and a topic may have more keys than a driver has memory. So
keys are summed and ranked by Spark, and KEYS_MAX of a topic or a subscription come back. All of it
is one query, so that a small scan costs one job of Spark.
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
    FAILED,
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
TOPS: Final = (1, 10, 100)
"""Hottest keys whose share of a topic is told; KEYS_MAX at most."""
MINUTES_MAX: Final = 1_440
"""The newest of a topic: a day."""
MINUTE_ROWS_MAX: Final = 500_000
"""Of all topics: of many, each has fewer."""

Row = dict[str, Any]


@dataclass(slots=True)
class Scanned:
    """What the scan found, by kind; rows have the columns of `partials.SCHEMA`."""

    topics: dict[str, Row] = field(default_factory=dict)
    unread: dict[tuple[str, str], Row] = field(default_factory=dict)
    minutes: dict[str, list[Row]] = field(default_factory=dict)
    """By topic."""
    sizes: list[Row] = field(default_factory=list)
    flows: list[Row] = field(default_factory=list)
    keys: list[Row] = field(default_factory=list)
    skew: dict[str, Row] = field(default_factory=dict)
    unread_keys: list[Row] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Topics that could not be read in part, each with why."""


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
    """Runs the scan tasks (at least one) on Spark's executors and adds up their counts."""
    context = spark.sparkContext
    shared = context.broadcast([pickle.dumps((settings, task, tuple(bookies))) for task in tasks])

    def run_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """On an executor: the tasks whose numbers these are."""
        from magnetar_spark.jobs.backlog.scan import scanned

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from scanned(*pickle.loads(shared.value[number]))  # noqa: S301 - our own

    try:
        with progress.stages(context), warnings.catch_warnings():
            # Of Pandas, which this does not hand out.
            warnings.simplefilter("ignore", FutureWarning)
            numbers = spark.range(0, len(tasks), 1, len(tasks))
            sums = numbers.mapInArrow(run_tasks, SPARK_SCHEMA)
            rows = _ranked(sums, minutes_max(tasks)).collect()
    finally:
        shared.destroy()
    return sorted_out([row.asDict() for row in rows])


def minutes_max(tasks: Iterable[tuple[ScanRange, ...]]) -> int:
    """How many minutes of each topic come back, the newest."""
    topics = len({each.ranged.topic for task in tasks for each in task})
    return max(1, min(MINUTES_MAX, MINUTE_ROWS_MAX // topics))


def _ranked(sums: "DataFrame", newest: int) -> "DataFrame":
    """Sums over all tasks, with ranks: of keys the first of each topic or subscription, of minutes
    the newest."""
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
    each = Window.partitionBy("kind", "topic", "subscription")
    by_messages = each.orderBy(f.desc("messages"), f.asc_nulls_first("key"))
    # Of minutes the newest first.
    age = f.when(is_minute, -f.col("group")).otherwise(f.lit(0))
    by_age = each.orderBy(age, f.asc("place"), f.asc_nulls_first("key"))
    is_key = f.col("kind").isin([BY_KEY, UNREAD_BY_KEY])
    return (
        summed.withColumn("rank_messages", f.row_number().over(by_messages))
        .withColumn("rank_oldest", f.row_number().over(by_age))
        .withColumn("keys", f.count("*").over(each))
        .withColumn("keyed_messages", f.sum("messages").over(each))
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


def sorted_out(rows: Iterable[Row]) -> Scanned:
    """The rows by kind."""
    found = Scanned()
    lists = {BY_SIZE: found.sizes, FLOW: found.flows}
    failed: set[str] = set()
    for row in rows:
        kind, topic = row["kind"], row["topic"]
        if kind == SCANNED:
            found.topics[topic] = row
        elif kind == UNREAD:
            found.unread[topic, row["subscription"]] = row
        elif kind == BY_KEY:
            found.keys.append(row)
        elif kind == UNREAD_BY_KEY:
            found.unread_keys.append({**row, "oldest_ms": row["first_ms"]})
        elif kind == BY_MINUTE:
            found.minutes.setdefault(topic, []).append({**row, "number": row["group"]})
        elif kind == FAILED:
            if topic not in failed:  # one reason of each is enough
                failed.add(topic)
                found.failures.append((topic, bytes(row["key"]).decode(errors="replace")))
        else:
            lists[kind].append({**row, "number": row["group"]})
    found.keys.sort(key=lambda row: (row["topic"], row["rank_messages"]))
    found.unread_keys.sort(key=lambda row: (row["topic"], row["subscription"], row["rank_oldest"]))
    found.skew = _skew(found.keys)
    return found


def _skew(keys: Iterable[Row]) -> dict[str, Row]:
    """How each topic's keys spread, from the first of them."""
    skew: dict[str, Row] = {}
    for row in keys:
        each = skew.setdefault(
            row["topic"], {"keys": row["keys"], "keyed_messages": row["keyed_messages"]}
        )
        for top in TOPS:
            each.setdefault(f"top{top}", 0)
            if row["rank_messages"] <= top:
                each[f"top{top}"] += row["messages"]
    return skew
