"""One transaction after another over two brokers, with an event at each of its steps.

A transaction takes a message of a source, acks it, and sends it to a target. Before a step, a topic
or the coordinator is unloaded, or a participant is deleted; or the response of the step is lost,
and the client repeats the request on a new connection (apache/pulsar#19629).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from tests.support.brokers import Cluster, Node, bundle_of, find, other
from tests.support.raw_client import Received
from tests.support.transactional import SHARED, TransactionalClient, Txn

from magnetar.admin.deletion import delete_topic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.transactions.assignment import assign_partition
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.encoder import encode_send

from .test_transactions import TOPICS, coordinator_of, transactional

SOURCE, TARGET, OTHER = TOPICS[:3]
SUBSCRIPTION: Final = "moves"
STEPS: Final = ("begin", "add", "add_subscription", "ack", "send", "end")
Event = Callable[[str], Awaitable[None]]


@dataclass
class Move:
    """One transaction, step by step."""

    addresses: tuple[tuple[str, int], ...]
    number: int
    commit: bool
    lost: str = ""
    """The step whose first response the client does not get."""
    txn: Txn = (0, 0)
    received: list[Received] = field(default_factory=list)
    """What it takes and acks."""

    @property
    def moved(self) -> list[bytes]:
        """The payloads that it sends."""
        return [each.payload for each in self.received]

    async def run(self, before: Event) -> None:
        """Runs all steps, each on connections of its own."""
        for step in STEPS:
            await before(step)
            for _ in range(2 if step == self.lost else 1):
                async with TransactionalClient(*self.addresses) as client:
                    await getattr(self, f"_{step}")(client)

    async def _begin(self, client: TransactionalClient) -> None:
        self.txn = await client.begin()

    async def _add(self, client: TransactionalClient) -> None:
        await client.add(self.txn, TARGET, OTHER)

    async def _add_subscription(self, client: TransactionalClient) -> None:
        await client.add_subscription(self.txn, SOURCE, SUBSCRIPTION)

    async def _ack(self, client: TransactionalClient) -> None:
        if self.received:  # acked before, without an answer: it is not delivered again
            connection = await client.at(SOURCE)
            consumer = await connection.consumer(SOURCE, SUBSCRIPTION, kind=SHARED)
            connection.flow(consumer, 10)
            await client.ack(connection, consumer, self.txn, self.received)
            return
        connection, consumer, received = await client.receive(SOURCE, 1, SUBSCRIPTION)
        await client.ack(connection, consumer, self.txn, received)
        self.received = received

    async def _send(self, client: TransactionalClient) -> None:
        ids: dict[str, Any] = {
            "txnid_most_bits": self.txn[0],
            "txnid_least_bits": self.txn[1],
        }
        for topic in (TARGET, OTHER):
            connection = await client.at(topic)
            producer = await connection.producer(topic, f"mover{self.number}")
            metadata = pb.MessageMetadata(
                producer_name=f"mover{self.number}", sequence_id=0, publish_time=1, **ids
            )
            send = pb.CommandSend(producer_id=producer, sequence_id=0, **ids)
            connection.write(encode_send(send, metadata, self.moved[0]))
            await connection.receipted(producer, 1)

    async def _end(self, client: TransactionalClient) -> None:
        await client.end(self.txn, commit=self.commit)


def addresses_of(cluster: Cluster) -> tuple[tuple[str, int], ...]:
    return tuple(("127.0.0.1", node.port) for node in cluster.nodes)


async def opened(cluster: Cluster, topic: str) -> tuple[Node, PersistentTopic]:
    """The topic at its owner, opened if need be."""
    node = await find(cluster, topic)
    found = await node.service.topics.get_or_open(parse_topic(topic), create=False)
    assert isinstance(found, PersistentTopic)
    return node, found


async def moved_coordinator(cluster: Cluster) -> None:
    """Moves coordinator 0 to the other broker."""
    owner = await coordinator_of(cluster)
    bundle = bundle_of(owner, str(assign_partition(0)))
    await owner.ownership.unload(bundle, other(cluster, owner).broker_id)


async def all_read(cluster: Cluster, topic: str) -> list[bytes]:
    """What a new subscription reads, up to the last message."""
    _, found = await opened(cluster, topic)
    async with TransactionalClient(*addresses_of(cluster)) as client:
        count = found.subscriptions["s"].backlog
        _, _, received = await client.receive(topic, count)
    assert found.managed_ledger.horizon is None
    return [each.payload for each in received]


@pytest.mark.parametrize("commit", [True, False])
async def test_unloads_of_coordinator_topic_and_subscription_at_each_step(commit: bool) -> None:
    async with transactional() as (cluster, client):
        await client.receive(SOURCE, 0, SUBSCRIPTION)
        moves = []
        for number, (at, what) in enumerate(
            (step, what) for step in STEPS for what in ("coordinator", SOURCE, TARGET)
        ):
            await client.send(SOURCE, None, str(number).encode())

            async def before(step: str, at: str = at, what: str = what) -> None:
                if step != at:
                    return
                if what == "coordinator":
                    await moved_coordinator(cluster)
                else:
                    node, _ = await opened(cluster, what)
                    await node.service.topics.unload(parse_topic(what))

            moves.append(Move(addresses_of(cluster), number, commit))
            async with asyncio.timeout(60):
                await moves[-1].run(before)
        expected = [move.moved[0] for move in moves] if commit else []
        for topic in (TARGET, OTHER):
            assert await all_read(cluster, topic) == expected
        if commit:
            assert sorted(expected, key=int) == [str(n).encode() for n in range(len(moves))]
        _, source = await opened(cluster, SOURCE)
        cursor = source.subscriptions[SUBSCRIPTION].cursor
        assert (cursor.pending, cursor.backlog) == (None, 0 if commit else len(moves))


@pytest.mark.parametrize("commit", [True, False])
async def test_19629_each_response_may_be_lost_once(commit: bool) -> None:
    """apache/pulsar#19629: a repeated request was refused, and the messages were sent twice."""
    async with transactional(deduplication=True) as (cluster, client):
        await client.receive(SOURCE, 0, SUBSCRIPTION)
        moves = []
        for number, step in enumerate(STEPS):
            await client.send(SOURCE, None, str(number).encode())
            moves.append(Move(addresses_of(cluster), number, commit, lost=step))
            await moves[-1].run(_nothing)
        expected = [move.moved[0] for move in moves] if commit else []
        for topic in (TARGET, OTHER):
            assert await all_read(cluster, topic) == expected
        _, source = await opened(cluster, SOURCE)
        cursor = source.subscriptions[SUBSCRIPTION].cursor
        assert (cursor.pending, cursor.backlog) == (None, 0 if commit else len(moves))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("what", [TARGET, SOURCE, SUBSCRIPTION])
async def test_a_participant_is_deleted_before_the_end(
    what: str, again: bool, commit: bool
) -> None:
    """The others end as decided, and one that is created again has no part in it."""
    async with transactional() as (cluster, client):
        await client.receive(SOURCE, 0, SUBSCRIPTION)
        await client.send(SOURCE, None, b"moved")

        async def before(step: str) -> None:
            if step != "end":
                return
            if what == SUBSCRIPTION:
                _, topic = await opened(cluster, SOURCE)
                await topic.delete_subscription(SUBSCRIPTION, force=True)
                if again:
                    await client.receive(SOURCE, 0, SUBSCRIPTION)
                return
            node = await find(cluster, what)
            await delete_topic(node.service, parse_topic(what), force=True)
            if again:
                await client.receive(what, 0, "s")
                await client.receive(what, 0, SUBSCRIPTION)
                await client.send(what, None, b"later")

        move = Move(addresses_of(cluster), 0, commit)
        async with asyncio.timeout(60):
            await move.run(before)
        moved = [b"moved"] if commit else []
        assert await all_read(cluster, OTHER) == moved
        if what != TARGET:
            assert await all_read(cluster, TARGET) == moved
        elif again:
            assert await all_read(cluster, TARGET) == [b"later"]
        if what == SUBSCRIPTION and again:
            _, _, received = await client.receive(SOURCE, 1, SUBSCRIPTION)
            assert [each.payload for each in received] == [b"moved"]
        elif what == SOURCE and again:
            _, _, received = await client.receive(SOURCE, 1, SUBSCRIPTION)
            assert [each.payload for each in received] == [b"later"]
        elif what == TARGET:
            _, source = await opened(cluster, SOURCE)
            cursor = source.subscriptions[SUBSCRIPTION].cursor
            assert (cursor.pending, cursor.backlog) == (None, 0 if commit else 1)


async def _nothing(_step: str) -> None:
    """No event."""


async def test_a_coordinator_that_comes_back_knows_what_another_broker_has_decided() -> None:
    """A former instance of it, which is still in memory, must not answer."""
    async with transactional() as (cluster, client):
        first = await coordinator_of(cluster)
        await client.begin()  # loads it there
        await moved_coordinator(cluster)
        txn = await client.begin()
        await client.add(txn, TARGET)
        await client.send(TARGET, txn, b"a")
        await moved_coordinator(cluster)
        assert await coordinator_of(cluster) is first
        await client.add(txn, OTHER)
        await client.end(txn, commit=True)
        assert await all_read(cluster, TARGET) == [b"a"]
