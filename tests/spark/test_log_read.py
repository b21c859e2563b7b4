"""The side effects of a read: only needed ledgers, no broker, no write to metadata."""

import asyncio
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pulsar
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In
from tests.spark.conftest import Log
from tests.support.cluster_processes import brokers, wait_for

from magnetar.core.clock import SystemClock
from magnetar.core.errors import PersistenceError, PreconditionFailed, TopicNotFound
from magnetar.core.names import parse_topic
from magnetar.jobs.log.topics import log_name
from magnetar.ledger.metadata import ledger_key
from magnetar.metadata.store_url import open_store
from magnetar_spark.filters import Bounds
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.options import ReadOptions
from magnetar_spark.source import PulsarDataSource

ENTRIES = 70
"""Four ledgers: the cluster's have 20 entries at most."""
SEND_MS = 120_000
"""Timeout for messages of many MB."""


def publish(client: pulsar.Client, topic: str, count: int = ENTRIES, size: int = 100) -> list[Any]:
    """Publishes messages, one entry each; returns their ids."""
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        return [producer.send(f"{index:06}".encode().ljust(size)) for index in range(count)]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["value"]) for row in rows]


def metadata_of(log: Log, topic: str) -> dict[str, tuple[bytes, int]]:
    """Returns the records of a topic, and those that no other test changes.

    Cursors and ledgers of other tests' topics may change at any time.
    """
    plan = log.plan(topic, admin_url="")
    ledgers = {ledger_key(each.ledger_id) for task in plan.tasks for each in task}
    name = log_name(parse_topic(topic))

    async def read() -> dict[str, tuple[bytes, int]]:
        store = await open_store(log.cluster.metadata_url, SystemClock())
        try:
            return {r.key: (r.value, r.revision) for r in await store.list("/")}
        finally:
            await store.close()

    return {
        key: value
        for key, value in asyncio.run(read()).items()
        if key in ledgers
        or name in key
        or key.startswith(("/schemas", "/partitioned", "/namespaces"))
    }


def test_an_open_ledger_is_read_to_its_end_and_stays_open(
    log: Log, client: pulsar.Client, topic: str
) -> None:
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        for index in range(25):
            producer.send(str(index).encode())
        before = metadata_of(log, topic)
        assert numbers(log.rows(topic)) == list(range(25))
        # Bookies learn that an entry is confirmed with the next one, or after a pause: without the
        # broker, the last entry may not be readable yet.
        assert numbers(log.rows(topic, admin_url=""))[:24] == list(range(24))
        assert metadata_of(log, topic) == before
        last = producer.send(b"25")
        assert numbers(log.rows(topic)) == list(range(26))
    row = log.rows(topic)[-1]
    assert (row["__ledgerId"], row["__entryId"]) == (last.ledger_id(), last.entry_id())


def test_an_idle_topic_is_read_to_its_end_without_a_broker(
    log: Log, client: pulsar.Client, topic: str
) -> None:
    """The writer of an idle ledger sends the last confirmed entry to the bookies."""
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        ids = [producer.send(str(index).encode()) for index in range(5)]
        before = metadata_of(log, topic)

        def read_to_its_end() -> bool:
            return numbers(log.rows(topic, admin_url="")) == list(range(5))

        wait_for(read_to_its_end, "bookies know that the last message is confirmed")
        assert metadata_of(log, topic) == before  # no client closed the ledger
        assert producer.send(b"5").ledger_id() == ids[-1].ledger_id()


def test_no_subscription_is_left(log: Log, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 5)
    log.rows(topic)
    url = f"{brokers(log.cluster)[0].http_url}/admin/v2/{topic.replace('://', '/')}/stats"
    stats = httpx.get(url, timeout=30).json()
    assert stats["subscriptions"] == {}
    assert stats["msgOutCounter"] == 0


def test_filters_and_options_prune_ledgers(log: Log, client: pulsar.Client, topic: str) -> None:
    ids = publish(client, topic)
    ledgers = sorted({each.ledger_id() for each in ids})
    assert len(ledgers) >= 3

    def planned(*filters: Any, **options: str) -> set[int]:
        plan = log.plan(topic, Bounds(filters), **options)
        return {each.ledger_id for task in plan.tasks for each in task}

    assert planned() == set(ledgers)
    assert planned(EqualTo(("__ledgerId",), ledgers[1])) == {ledgers[1]}
    assert planned(In(("__ledgerId",), tuple(ledgers[:2]))) == set(ledgers[:2])
    assert planned(GreaterThanOrEqual(("__ledgerId",), ledgers[2])) == set(ledgers[2:])
    assert planned(EqualTo(("__partition",), 3)) == set()
    assert planned(EqualTo(("__topic",), "persistent://public/default/other")) == set()
    hour_ms = 3_600_000
    now_ms = SystemClock().now_ms()
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    assert planned(GreaterThan(("__publishTime",), in_an_hour)) <= {ledgers[-1]}
    assert planned(startingTime=str(now_ms + hour_ms)) <= {ledgers[-1]}
    assert planned(endingTime=str(now_ms - hour_ms)) == set()
    first = f'{{"{topic}": "{ledgers[1]}:3"}}'
    assert planned(startingOffsets=first) == set(ledgers[1:])
    assert numbers(log.rows(topic, startingOffsets=first))[0] == ids.index(
        next(each for each in ids if (each.ledger_id(), each.entry_id()) == (ledgers[1], 3))
    )
    assert (
        numbers(log.rows(topic, endingOffsets=first))[-1]
        == numbers(log.rows(topic, startingOffsets=first))[0]
    )


def test_what_is_pruned_is_not_asked_of_bookies(
    log: Log, client: pulsar.Client, topic: str
) -> None:
    ids = publish(client, topic)
    one = ids[0].ledger_id()

    def entries_read(bounds: Bounds) -> int:
        plan = log.plan(topic, bounds)
        settings = ReadOptions.parse(log.options(topic)).log
        with EntryReader(settings, plan.bookies) as reader:
            for task in plan.tasks:
                for ranged in task:
                    for _ in reader.read(ranged):
                        pass
            return reader.entries

    assert entries_read(Bounds()) == ENTRIES
    assert entries_read(Bounds([EqualTo(("__ledgerId",), one)])) == sum(
        each.ledger_id() == one for each in ids
    )


def test_times_are_exact(log: Log, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, 3)
    time.sleep(0.01)  # publish times are in ms: the next ones are later
    publish(client, topic, 2)
    times = [round(row["__publishTime"].timestamp() * 1000) for row in log.rows(topic)]
    assert len(log.rows(topic, startingTime=str(times[3]))) == times[3:].count(times[3]) + sum(
        each > times[3] for each in times
    )
    assert len(log.rows(topic, endingTime=str(times[2]))) == 3


def test_ranges_of_any_size_have_every_message_once(
    log: Log, client: pulsar.Client, topic: str
) -> None:
    """Chunked messages between others, cut by ranges of a few entries."""
    with (
        closing(
            client.create_producer(
                topic, batching_enabled=False, chunking_enabled=True, send_timeout_millis=SEND_MS
            )
        ) as chunked,
        closing(client.create_producer(topic, batching_enabled=True)) as plain,
    ):
        sent = []
        for index in range(4):
            plain.send(b"small %d" % index)
            large = bytes([65 + index]) * (11 << 20)
            chunked.send(large)
            sent += [b"small %d" % index, large]
    whole = log.rows(topic)
    assert [row["value"] for row in whole] == sent
    in_pieces = log.rows(topic, partition_bytes="1024")
    assert in_pieces == whole
    assert len(log.plan(topic, partition_bytes="1024").tasks) > 8


def test_partitioned_topics_and_patterns(log: Log, client: pulsar.Client, topic: str) -> None:
    url = f"{brokers(log.cluster)[0].http_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    httpx.put(url, json=3, timeout=30).raise_for_status()
    publish(client, topic, 9)
    rows = log.rows(topic)
    assert sorted(numbers(rows)) == list(range(9))
    assert {row["__partition"] for row in rows} == {0, 1, 2}
    assert {row["__topic"] for row in rows} == {f"{topic}-partition-{n}" for n in range(3)}
    name = topic.rpartition("/")[2]
    assert len(log.rows("", topicsPattern=f"public/default/{name[:-2]}.*")) == 9
    assert len(log.rows("", topics=f"{name}-partition-0, {topic}-partition-1")) == 6


def test_mistakes_name_the_option(log: Log, topic: str) -> None:
    cases: list[tuple[dict[str, str], type[Exception], str]] = [
        ({}, PreconditionFailed, "exactly one of"),
        ({"topic": "a", "topics": "b"}, PreconditionFailed, "exactly one of"),
        ({"topics": "a,,b"}, PreconditionFailed, "empty name"),
        ({"topic": "a", "startingOffsets": "soon"}, PreconditionFailed, "startingOffsets"),
        ({"topic": "a", "startingTime": "-1"}, PreconditionFailed, "startingTime"),
        ({"topic": "a", "partition.bytes": "1M"}, PreconditionFailed, "partition.bytes"),
        ({"topic": "a", "metadata.url": "local:/x"}, PreconditionFailed, "cluster"),
        ({"topic": topic}, TopicNotFound, "does not exist"),
    ]
    for options, error, text in cases:
        with pytest.raises(error, match=text):
            PulsarDataSource({**log.options(""), **options}).schema()


def test_a_deleted_ledger_is_reported(log: Log, client: pulsar.Client, topic: str) -> None:
    ids = publish(client, topic)
    start = f'{{"{topic}": "{ids[0].ledger_id()}:0"}}'
    url = f"{brokers(log.cluster)[0].http_url}/admin/v2/{topic.replace('://', '/')}/truncate"
    httpx.delete(url, timeout=30).raise_for_status()
    publish(client, topic, 3)
    with pytest.raises(PersistenceError, match="failOnDataLoss"):
        log.rows(topic, startingOffsets=start)
    assert numbers(log.rows(topic, startingOffsets=start, failOnDataLoss="false")) == [0, 1, 2]
    assert numbers(log.rows(topic)) == [0, 1, 2]
