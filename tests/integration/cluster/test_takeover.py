"""Brokers that die, stop, or lose touch with the store: who takes over, what the old one can do.

The old owner of a bundle may know nothing of its end. Nothing that it is sent afterwards may be
receipted and then be missing, or acknowledged and then come again.
"""

import asyncio

import pytest
from tests.support.brokers import (
    CONNECT,
    TOPIC,
    WITHIN_S,
    Cluster,
    Node,
    answered,
    ask,
    bundle_of,
    find,
    other,
    running_cluster,
)
from tests.support.raw_client import RawClient, Refused

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import ServerError
from magnetar.core.names import parse_topic

NAME = parse_topic(TOPIC)
LONG_TTL_S = 60.0
DOUBTED_TTL_S = 4.0
"""Of a lease that a test sees run out by its holder's clock, and not before."""
SHARED = 1


async def publish(client: RawClient, producer: int, *payloads: bytes, first: int = 0) -> None:
    for index, payload in enumerate(payloads, first):
        client.send(producer, index, payload)
    await client.receipted(producer, first + len(payloads))


async def attached(node: Node) -> RawClient:
    """A client of the broker; the subscription that `read_all` uses is there from now on."""
    client = await node.client()
    await client.consumer(TOPIC, "reader", consumer_id=99, kind=SHARED)
    return client


async def read_all(node: Node, subscription: str = "reader") -> list[bytes]:
    """What the topic holds, read at this broker."""
    client = await node.client()
    topic = await node.service.topics.get_or_open(NAME, create=False)
    assert isinstance(topic, PersistentTopic)
    consumer = await client.consumer(TOPIC, subscription, kind=SHARED)
    client.flow(consumer, 1_000)
    count = topic.managed_ledger.entries_total
    payloads = [(await client.receive(consumer)).payload for _ in range(count)]
    await client.close()
    return payloads


async def lose(cluster: Cluster, owner: Node) -> Node:
    """The owner is paused, its lease runs out, and another broker takes the bundle over."""
    owner.pause()
    await owner.expire()
    new = other(cluster, owner)
    client = await new.client()
    answer = await ask(client, authoritative=True)
    assert (answer.response, answer.brokerServiceUrl) == (CONNECT, new.url)
    await client.close()
    return new


async def test_the_bundles_of_a_broker_that_was_killed_are_free_before_its_lease_ends() -> None:
    async with running_cluster(3, ttl_s=LONG_TTL_S) as cluster:
        owner = await find(cluster)
        client = await attached(owner)
        producer = await client.producer(TOPIC)
        await publish(client, producer, b"a", b"b")
        await owner.kill()
        async with asyncio.timeout(LONG_TTL_S / 2):
            new = await find(cluster)
        assert new is not owner
        assert await read_all(new) == [b"a", b"b"]
        client = await new.client()
        await publish(client, await client.producer(TOPIC), b"c")


async def test_a_broker_that_does_not_answer_keeps_its_bundles_until_its_lease_ends() -> None:
    async with running_cluster(2, ttl_s=LONG_TTL_S) as cluster:
        owner = await find(cluster)
        new = other(cluster, owner)
        owner.pause()
        client = await new.client()
        # It still takes connections, so it may live: clients are sent there.
        assert (await ask(client)).brokerServiceUrl == owner.url
        await owner.expire()
        async with asyncio.timeout(WITHIN_S):
            while (await ask(client)).brokerServiceUrl != new.url:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_broker_that_comes_again_at_once_frees_what_it_had() -> None:
    async with running_cluster(1, ttl_s=LONG_TTL_S) as cluster:
        (node,) = cluster.nodes
        await find(cluster)
        await node.kill()
        again = await cluster.broker(port=node.port)
        assert again.broker_id == node.broker_id
        assert await find(cluster, by=again) is again


async def test_a_paused_owner_gets_nothing_receipted_after_the_topic_was_opened_elsewhere() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        client = await attached(owner)
        producer = await client.producer(TOPIC)
        await publish(client, producer, b"before")
        new = await lose(cluster, owner)
        at_new = await new.client()
        await publish(at_new, await at_new.producer(TOPIC), b"new")
        client.send(producer, 1, b"too late")
        await client.closings(1)
        assert set(client.receipts[producer]) == {0}
        assert await read_all(new) == [b"before", b"new"]
        # Who comes back there is refused, whatever the old owner believes of itself.
        with pytest.raises(Refused):
            await client.producer(TOPIC)
        owner.go_on()


async def test_what_a_paused_owner_receipts_before_that_is_found() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        client = await attached(owner)
        producer = await client.producer(TOPIC)
        await publish(client, producer, b"before")
        new = await lose(cluster, owner)
        # The bundle has its new owner, but nobody has opened the topic there.
        await publish(client, producer, b"after", first=1)
        assert await read_all(new) == [b"before", b"after"]
        client.send(producer, 2, b"too late")
        await client.closings(1)
        assert set(client.receipts[producer]) == {0, 1}
        owner.go_on()


async def test_a_paused_owner_can_make_no_new_ledger() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        client = await owner.client()
        producer = await client.producer(TOPIC)
        new = await lose(cluster, owner)
        client.send(producer, 0, b"into a ledger that is to be made")
        await client.closings(1)
        assert not client.receipts[producer]
        assert await read_all(new) == []
        owner.go_on()


@pytest.mark.parametrize("opened", [True, False], ids=["opened elsewhere", "not opened yet"])
@pytest.mark.parametrize("with_ledger", [True, False], ids=["cursor ledger", "none yet"])
async def test_an_ack_at_a_paused_owner_is_kept_or_refused(opened: bool, with_ledger: bool) -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        client = await owner.client()
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, "s")
        await publish(client, producer, b"a", b"b")
        client.flow(consumer, 10)
        first, second = await client.receive(consumer), await client.receive(consumer)
        if with_ledger:
            await client.ack(consumer, [(first.ledger_id, first.entry_id)])
        new = await lose(cluster, owner)
        if opened:
            await new.service.topics.get_or_open(NAME, create=False)
        positions = [(one.ledger_id, one.entry_id) for one in (first, second)]
        acked = with_ledger and not opened
        if acked:
            await client.ack(consumer, positions[1:])
        else:
            with pytest.raises(Refused):
                await client.ack(consumer, positions[1:] if with_ledger else positions)
        topic = await new.service.topics.get_or_open(NAME, create=False)
        assert isinstance(topic, PersistentTopic)
        backlog = topic.managed_ledger.cursors["s"].backlog
        assert backlog == (0 if acked else 1 if with_ledger else 2)
        owner.go_on()


async def test_an_owner_that_hears_of_its_loss_sends_its_clients_away() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        client = await owner.client()
        await client.producer(TOPIC)
        await client.consumer(TOPIC, "s")
        bundle = bundle_of(owner)
        new = await lose(cluster, owner)
        owner.go_on()
        closings = await client.closings(2)
        assert not any(closing.assignedBrokerServiceUrl for closing in closings)
        assert bundle not in owner.ownership.owned()
        answer = await answered(await owner.client())
        assert answer.brokerServiceUrl == new.url


async def test_while_the_lease_is_in_doubt_everything_rests_and_then_continues() -> None:
    async with running_cluster(1, ttl_s=DOUBTED_TTL_S) as cluster:
        node = await find(cluster)
        client = await node.client()
        quiet, busy = await client.producer(TOPIC), await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, "s")
        client.flow(consumer, 10)
        await publish(client, busy, b"a")
        await client.receive(consumer)
        # The store keeps the lease, but does not answer.
        node.view.leases[-1].keep(LONG_TTL_S)
        node.view.renewing = False
        await node.suspended()
        client.send(busy, 1, b"b")
        with pytest.raises(Refused) as refused:
            await client.producer(TOPIC)
        assert refused.value.code == ServerError.SERVICE_NOT_READY
        assert set(client.receipts[busy]) == {0}
        node.view.renewing = True
        (closing,) = await client.closings(1)
        assert closing.producer_id == busy  # to send again what was not taken
        await publish(client, quiet, b"c")
        assert (await client.receive(consumer)).payload == b"c"
        assert len(node.view.leases) == 1


async def test_a_lease_that_was_lost_costs_the_topics_and_they_are_opened_again() -> None:
    async with running_cluster(1) as cluster:
        node = await find(cluster)
        client = await attached(node)
        producer = await client.producer(TOPIC)
        await publish(client, producer, b"a")
        await node.expire()
        await client.closings(1)
        assert await find(cluster) is node
        assert await read_all(node) == [b"a"]
        assert len(node.view.leases) == 2
