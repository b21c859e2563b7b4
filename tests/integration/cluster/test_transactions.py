"""Transactions over the brokers of a cluster: their topics, coordinators, and deaths of each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.brokers import Cluster, Node, find, other, running_cluster
from tests.support.settings import changed
from tests.support.transactional import EndRefused, TransactionalClient, Txn

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.transactions.assignment import assign_partition
from magnetar.core.errors import ServerError
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose
from magnetar.transactions.model import TransactionRecord, TxnId, TxnState
from magnetar.transactions.records import decode_record, record_key

TOPICS = [f"persistent://public/default/t{number}" for number in range(8)]
SETTINGS = compose(BrokerSettings, transactions=True, shutdown_timeout_ms=5_000)
WITHIN_S = 30.0


@asynccontextmanager
async def transactional(
    *, deduplication: bool = False
) -> AsyncIterator[tuple[Cluster, TransactionalClient]]:
    settings = changed(SETTINGS, deduplication=deduplication)
    async with running_cluster(2, bundles=8, settings=settings) as cluster:
        addresses = [("127.0.0.1", node.port) for node in cluster.nodes]
        async with TransactionalClient(*addresses) as client:
            assert await client.coordinators() == 16
            for topic in TOPICS:
                await client.receive(topic, 0)  # the subscription keeps everything
            yield cluster, client


async def coordinator_of(cluster: Cluster, number: int = 0) -> Node:
    return await find(cluster, str(assign_partition(number)))


async def topic_of(cluster: Cluster, node: Node) -> str:
    """A topic that the broker serves."""
    for topic in TOPICS:
        if await find(cluster, topic) is node:
            return topic
    raise AssertionError("the broker serves none of the topics")


async def record_of(cluster: Cluster, txn: Txn) -> TransactionRecord:
    key = record_key(TxnId(*txn))
    stored = await cluster.store.get(key)
    assert stored is not None
    return decode_record(key, stored.value)


async def payloads(client: TransactionalClient, topic: str, count: int) -> list[bytes]:
    _, _, received = await client.receive(topic, count)
    return [each.payload for each in received]


@pytest.mark.parametrize("commit", [True, False])
async def test_the_end_reaches_topics_and_subscriptions_of_all_brokers(commit: bool) -> None:
    async with transactional() as (cluster, client):
        served = {(await find(cluster, topic)).port for topic in TOPICS}
        assert len(served) == 2, "one broker serves all topics: the test shows nothing"
        for topic in TOPICS:
            await client.send(topic, None, b"input")
        txn = await client.begin()
        await client.add(txn, *TOPICS)
        for topic in TOPICS:
            await client.add_subscription(txn, topic, "inputs")
            connection, consumer, inputs = await client.receive(topic, 1, "inputs")
            await client.ack(connection, consumer, txn, inputs)
            await client.send(topic, txn, b"output")
            await client.send(topic, None, b"later")
        await client.end(txn, commit=commit)
        expected = [b"input", b"output", b"later"] if commit else [b"input", b"later"]
        for topic in TOPICS:
            assert await payloads(client, topic, len(expected)) == expected
            opened = (await find(cluster, topic)).service.open_topics.get(topic)
            assert isinstance(opened, PersistentTopic)
            cursor = opened.subscriptions["inputs"].cursor
            # The output and the later message; or the input and the later message.
            assert (cursor.pending, cursor.backlog) == (None, 2)


async def test_an_open_transaction_continues_when_its_coordinator_dies() -> None:
    async with transactional() as (cluster, client):
        first = await coordinator_of(cluster)
        topic = await topic_of(cluster, other(cluster, first))
        txn = await client.begin()
        await client.add(txn, topic)
        await client.send(topic, txn, b"before")
        await first.kill()
        await client.send(topic, txn, b"after")
        await client.end(txn, commit=True)
        assert (await coordinator_of(cluster)) is not first
        assert await payloads(client, topic, 2) == [b"before", b"after"]
        assert await client.begin() > txn  # no id is used twice


async def test_a_decision_is_carried_out_by_the_next_owner_of_the_coordinator() -> None:
    async with transactional() as (cluster, client):
        first = await coordinator_of(cluster)
        second = other(cluster, first)
        topic = await topic_of(cluster, second)
        txn = await client.begin()
        await client.add(txn, topic)
        await client.send(topic, txn, b"aborted")
        await client.send(topic, None, b"plain")
        second.view.cut_off = True  # the abort cannot become durable
        ending = asyncio.create_task(client.end(txn, commit=False))
        async with asyncio.timeout(WITHIN_S):
            while (await record_of(cluster, txn)).state is TxnState.OPEN:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await record_of(cluster, txn)).state is TxnState.ABORTING
        assert not ending.done()
        await first.kill()
        second.view.cut_off = False
        await ending
        assert await payloads(client, topic, 1) == [b"plain"]
        async with TransactionalClient(("127.0.0.1", second.port)) as another:
            await another.end(txn, commit=False)
        async with TransactionalClient(("127.0.0.1", second.port)) as another:
            with pytest.raises(EndRefused) as refused:
                await another.end(txn, commit=True)
        assert refused.value.code == ServerError.INVALID_TXN_STATUS


async def test_messages_of_a_topic_that_moves_keep_their_transaction() -> None:
    async with transactional() as (cluster, client):
        first = await coordinator_of(cluster)
        second = other(cluster, first)
        topic = await topic_of(cluster, second)
        committed, aborted = await client.begin(), await client.begin()
        for txn in (committed, aborted):
            await client.add(txn, topic)
        await client.send(topic, committed, b"committed")
        await client.send(topic, aborted, b"aborted")
        await second.kill()
        await client.send(topic, committed, b"committed, moved")
        await client.end(committed, commit=True)
        await client.end(aborted, commit=False)
        await client.send(topic, None, b"plain")
        assert await find(cluster, topic) is first
        assert await payloads(client, topic, 3) == [b"committed", b"committed, moved", b"plain"]


async def test_a_transaction_whose_coordinator_dies_ends_at_its_deadline_without_a_client() -> None:
    async with transactional() as (cluster, client):
        first = await coordinator_of(cluster)
        topic = await topic_of(cluster, other(cluster, first))
        txn = await client.begin(timeout_ms=1_000)
        await client.add(txn, topic)
        await client.send(topic, txn, b"late")
        await client.send(topic, None, b"plain")
        await first.kill()
        # Another broker claims the coordinator by itself, and aborts.
        async with asyncio.timeout(60):
            assert await payloads(client, topic, 1) == [b"plain"]
        assert (await record_of(cluster, txn)).state.outcome is not None
