"""Runs the job `compact` on a cluster in memory, with Spark's part in plain Python."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from tests.spark.job_stage import NEWEST, TOPIC, JobCluster, entry
from tests.support.compaction import LogEntry

from magnetar.compaction import records
from magnetar.compaction.records import CompactionRecord, CompactionRequest
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.compaction import chunks, plan
from magnetar.jobs.compaction.here import Compacted
from magnetar.jobs.compaction.second_pass import Writing
from magnetar.jobs.log.topics import log_name
from magnetar_spark.jobs.compact import engine
from magnetar_spark.jobs.progress import Progress

NAME = log_name(parse_topic(TOPIC))
KEYS = 5


def keyed(first: int, count: int) -> list[bytes]:
    """Returns values of five keys in turn; every seventh is a tombstone."""
    return [
        entry(n, key=f"k{n % KEYS}", value=b"" if n % 7 == 3 else f"value {n} ".encode() * 9)
        for n in range(first, first + count)
    ]


def mapped(function: Any, rows: list[int]) -> Iterator[dict[str, Any]]:
    """Returns the rows of one partition, as Spark's `mapInArrow` does."""
    for batch in function(iter([pa.record_batch([pa.array(rows, pa.int64())], ["id"])])):
        yield from batch.to_pylist()


def by_spark(spark: Any, writing: Writing, settled: Position, progress: Progress) -> Compacted:
    """Runs the functions that Spark maps, and sorts rows between them as Spark does."""
    assert isinstance(spark, JobCluster)
    assert progress is not None
    seen: list[tuple[int, int, int, int]] = []
    first = engine._first_pass(
        writing, lambda c: seen.append((c.entries, c.bytes, c.messages, c.chunks))
    )
    numbers = range(len(writing.parts))
    latest: dict[bytes, int] = {}
    for number in numbers:
        for row in mapped(first, [number]):
            latest[row["key"]] = max(latest.get(row["key"], 0), row["place"])
    places = {place for place in latest.values() if place & 1}
    entries, size, count, chunk_count = map(sum, zip(*seen, strict=True))
    if chunk_count:
        found = engine._chunks(writing, settled)
        rows = [chunks.ChunkRow(**row) for number in numbers for row in mapped(found, [number])]
        places |= chunks.staying(rows, places)
    files: list[records.CompactedFile] = []
    for number in numbers:
        some = sorted(place for place in places if place >> plan.PART_SHIFT == number)
        for row in mapped(engine._second_pass(writing), some):
            assert row["part"] == number
            files.append(msgspec.json.decode(row["file"], type=records.CompactedFile))
    return Compacted(tuple(files), entries, size, count)


def compact(cluster: JobCluster, *arguments: str, topic: str = TOPIC) -> dict[str, Any]:
    store = f"file://{cluster.folder}"
    return cluster.job(
        "compact", "--topic", topic, "--store", store, "--parallelism", "2", *arguments
    )


def record(cluster: JobCluster, name: str = NAME) -> CompactionRecord | None:
    key = records.compaction_key(name)
    stored = cluster.run(cluster.store.get(key))
    return None if stored is None else records.decode_compaction(key, stored.value)


def artifact(cluster: JobCluster, name: str = NAME) -> list[LogEntry]:
    found = record(cluster, name)
    assert found is not None
    return [
        LogEntry(Position(ledger_id, entry_id), data)
        for file in found.files
        for ledger_id, entry_id, data in cluster.content(file.path)
    ]


def status(cluster: JobCluster, name: str = NAME) -> CompactionRequest | None:
    key = records.request_key(name)
    stored = cluster.run(cluster.store.get(key))
    return None if stored is None else records.decode_request(key, stored.value)


def counts(found: dict[str, Any], *names: str) -> list[int]:
    return [found["metrics"].get(name) for name in names]


def readable(cluster: JobCluster, topic: str = TOPIC) -> list[LogEntry]:
    """Omits the newest entry, which is not confirmed to the bookies yet."""
    return [each for each in cluster.log(topic) if each.data != NEWEST]
