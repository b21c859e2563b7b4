"""Spark and the jobs on topics whose messages a broker stored in transactions."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.conftest import Log
from tests.spark.test_stream_read import micro_batch
from tests.support.cluster_processes import brokers
from tests.support.compact_rig import CompactRig
from tests.support.compaction import messages
from tests.support.transactional import TransactionalClient, Txn

from magnetar.cluster.local.cluster import LocalCluster
from magnetar_spark.source import PulsarDataSource

QUERY_TIMEOUT_S = 150


def texts(first: int, count: int) -> list[bytes]:
    return [f"{number:03d}".encode() for number in range(first, first + count)]


@pytest.fixture
def transact(cluster: LocalCluster) -> Callable[..., None]:
    """Runs a function with a client of the cluster's broker."""

    def transact(act: Callable[[TransactionalClient], Awaitable[None]]) -> None:
        async def acted() -> None:
            (broker,) = brokers(cluster)
            async with TransactionalClient((broker.host, broker.ports["port"])) as client:
                await client.coordinators()
                await act(client)

        asyncio.run(acted())

    return transact


class Story:
    """Two open transactions among other messages, over several ledgers, and their ends."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.first: Txn = (0, 0)
        self.second: Txn = (0, 0)

    async def begin(self, client: TransactionalClient) -> None:
        ended, self.first, self.second = [await client.begin() for _ in range(3)]
        for txn in (ended, self.first, self.second):
            await client.add(txn, self.topic)
        await client.send(self.topic, None, *texts(0, 25))
        await client.send(self.topic, ended, *texts(25, 5))
        await client.send(self.topic, None, *texts(30, 5))
        await client.end(ended, commit=False)
        await client.send(self.topic, self.first, *texts(35, 30))
        await client.send(self.topic, None, *texts(65, 5))
        await client.send(self.topic, self.second, *texts(70, 30))
        await client.send(self.topic, self.first, *texts(100, 5))
        await client.send(self.topic, None, *texts(105, 5))

    async def abort_second(self, client: TransactionalClient) -> None:
        await client.end(self.second, commit=False)

    async def commit_first(self, client: TransactionalClient) -> None:
        await client.end(self.first, commit=True)

    before = texts(0, 25) + texts(30, 5)
    whole = before + texts(35, 35) + texts(100, 10)


def values(rows: list[dict[str, object]]) -> list[object]:
    return [row["value"] for row in rows]


def test_batches_and_streams_read_up_to_an_open_transaction_without_aborted_messages(
    log: Log, topic: str, transact: Callable[..., None]
) -> None:
    story = Story(topic)
    transact(story.begin)
    source = PulsarDataSource(log.options(topic, startingOffsets="earliest"))
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    assert values(log.rows(topic)) == story.before
    rows, end = micro_batch(stream, start)
    assert values(rows) == story.before
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    transact(story.abort_second)
    assert values(log.rows(topic)) == story.before
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    transact(story.commit_first)
    assert values(log.rows(topic)) == story.whole
    more, _ = micro_batch(stream, end)
    assert values(rows + more) == story.whole
    again = PulsarDataSource(log.options(topic, startingOffsets="earliest"))
    restarted = again.streamReader(again.schema())
    repeated, _ = micro_batch(restarted, end)
    assert repeated == more


def test_a_query_of_spark_continues_behind_a_transaction_with_every_message_once(
    spark: SparkSession, log: Log, topic: str, transact: Callable[..., None], tmp_path: Path
) -> None:
    story = Story(topic)
    transact(story.begin)

    def run() -> list[bytes]:
        reader = spark.readStream.format("pulsar")
        for name, value in log.options(topic, startingOffsets="earliest").items():
            reader = reader.option(name, value)
        query = (
            reader.schema("value binary, __ledgerId long, __entryId long")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        rows.sort(key=lambda row: (row["__ledgerId"], row["__entryId"]))
        return [bytes(row["value"]) for row in rows]

    assert run() == story.before
    transact(story.abort_second)
    assert run() == story.before
    transact(story.commit_first)
    assert run() == story.whole


def test_compaction_keeps_the_committed_values(
    log: Log,
    cluster: LocalCluster,
    topic: str,
    transact: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rig = CompactRig(log, cluster, tmp_path / "store")
    txns: list[Txn] = []

    async def begin(client: TransactionalClient) -> None:
        txns.extend([await client.begin() for _ in range(2)])
        for txn in txns:
            await client.add(txn, topic)
        await client.send(topic, None, *texts(0, 25), key="a")
        await client.send(topic, None, *texts(25, 1), key="b")
        await client.send(topic, txns[0], *texts(26, 1), key="a")
        await client.end(txns[0], commit=False)
        await client.send(topic, txns[1], *texts(27, 1), key="b")
        await client.send(topic, None, *texts(28, 1), key="a")

    async def commit(client: TransactionalClient) -> None:
        await client.end(txns[1], commit=True)
        await client.send(topic, None, *texts(29, 1), key="c")

    def compacted() -> dict[str | None, bytes | None]:
        assert rig.compact("--topic", topic, capsys=capsys)["code"] == 0
        return {key: value for _, _, key, value in messages(rig.artifact(topic))}

    transact(begin)
    assert compacted() == {"a": b"024", "b": b"025"}
    transact(commit)
    assert compacted() == {"b": b"027", "a": b"028", "c": b"029"}
