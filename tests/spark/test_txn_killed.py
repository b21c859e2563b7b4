"""A stream over topics with transactions, while their brokers die by kill -9 and records vanish."""

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.spark.test_stream_read import micro_batch
from tests.support.cluster_processes import brokers, running_cluster
from tests.support.transactional import TransactionalClient, Txn

from magnetar.cluster.local.cluster import LocalCluster
from magnetar_spark.source import PulsarDataSource
from magnetar_spark.stream import PulsarStreamReader

TOPICS = [f"persistent://public/default/t{number}" for number in range(2)]
ROUNDS = 24
KILL_EVERY = 4
POLL_S = 0.05
TEST_TIMEOUT_S = 300


def stream_of(cluster: LocalCluster) -> PulsarStreamReader:
    """Reads without a broker's REST: the bookies alone know the ends."""
    source = PulsarDataSource(
        {
            "metadata.url": cluster.metadata_url,
            "topics": ",".join(TOPICS),
            "startingOffsets": "earliest",
        }
    )
    reader = source.streamReader(source.schema())
    assert isinstance(reader, PulsarStreamReader)
    return reader


class Query(threading.Thread):
    """A streaming query that plans a micro-batch after another, until `finish`."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(name="query")
        self._cluster = cluster
        self._reader = stream_of(cluster)
        self._last = threading.Event()
        self.batches: list[tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            start = self._reader.initialOffset()
            while True:
                last = self._last.is_set()
                if self._reader.latestOffset(start, ReadAllAvailable()) != start:
                    rows, end = micro_batch(self._reader, start)
                    self.batches.append((start, rows, end))
                    start = end
                elif last:
                    return
                self._last.wait(POLL_S)
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self.error = error

    def finish(self) -> list[dict[str, Any]]:
        """Reads to the end; all rows."""
        self._last.set()
        self.join(TEST_TIMEOUT_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return [row for _, rows, _ in self.batches for row in rows]

    def check_repeated(self) -> None:
        """A restarted query reads the same rows between the same offsets."""
        for start, rows, end in self.batches:
            reader = stream_of(self._cluster)
            partitions = reader.partitions(start, end)
            repeated = [
                row
                for partition in partitions
                for batch in reader.read(partition)
                for row in batch.to_pylist()
            ]
            assert repeated == rows, (start, end)


async def created(cluster: LocalCluster, topic: str) -> None:
    """Creates the topic, with a subscription that reads nothing."""
    addresses = [(broker.host, broker.ports["port"]) for broker in brokers(cluster)]
    async with TransactionalClient(*addresses) as client:
        await client.receive(topic, 0)


async def write(cluster: LocalCluster, rng: random.Random) -> list[bytes]:
    """Transactions over all topics, up to two open at once; returns the committed payloads."""
    committed: list[bytes] = []
    addresses = [(broker.host, broker.ports["port"]) for broker in brokers(cluster)]
    async with TransactionalClient(*addresses) as client:
        await client.coordinators()
        held: tuple[Txn, bytes] | None = None
        for number in range(ROUNDS):
            txn = await client.begin(coordinator=number % 16)
            await client.add(txn, *TOPICS)
            payload, plain = b"in %d" % number, b"plain %d" % number
            for topic in TOPICS:
                await client.send(topic, txn, payload)
                await client.send(topic, None, plain)
            committed.append(plain)
            if held is None and rng.random() < 0.3:
                held = (txn, payload)
                continue
            committed += await _end(cluster, client, rng, txn, payload, number)
            if held is not None and rng.random() < 0.5:
                committed += await _end(cluster, client, rng, *held, number)
                held = None
        if held is not None:
            committed += await _end(cluster, client, rng, *held, 0)
        for topic in TOPICS:
            await client.send(topic, None, b"last")
    return [*committed, b"last"]


async def _end(
    cluster: LocalCluster,
    client: TransactionalClient,
    rng: random.Random,
    txn: Txn,
    payload: bytes,
    number: int,
) -> list[bytes]:
    commit = rng.random() < 0.6
    ending = asyncio.create_task(client.end(txn, commit=commit))
    if number % KILL_EVERY == KILL_EVERY - 1:
        victim = rng.choice(brokers(cluster)).name
        await asyncio.sleep(rng.random() / 20)
        await asyncio.to_thread(cluster.kill, victim)
        await asyncio.to_thread(cluster.start, victim)
        await asyncio.to_thread(cluster.wait_ready, [victim])
    await ending
    return [payload] if commit else []


@pytest.mark.timeout(TEST_TIMEOUT_S)
def test_a_stream_has_each_committed_message_once_though_brokers_are_killed(
    tmp_path: Path,
) -> None:
    with running_cluster(
        tmp_path,
        bookies=3,
        brokers=2,
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        ledger_rollover_min_minutes=0,
        ledger_entries_max=10,
        retention_minutes=-1,
        retention_size_mb=-1,
        transactions=True,
        transaction_outcome_retention_s=0,
        session_timeout_ms=2_000,
    ) as cluster:
        for topic in TOPICS:
            asyncio.run(created(cluster, topic))
        query = Query(cluster)
        query.start()
        try:
            committed = asyncio.run(write(cluster, random.Random(7)))
            for broker in brokers(cluster):
                # A stop closes the ledgers: then the last entries are known to be confirmed.
                cluster.stop(broker.name)
        finally:
            rows = query.finish()
        for topic in TOPICS:
            values = [row["value"] for row in rows if row["__topic"] == topic]
            assert sorted(values) == sorted(committed)
            positions = [
                (row["__ledgerId"], row["__entryId"]) for row in rows if row["__topic"] == topic
            ]
            assert positions == sorted(positions)
        query.check_repeated()
        assert len(query.batches) > 1
