"""Brokers that share one metadata store: who serves what, and what clients are told."""

import asyncio

import pytest
from tests.support.brokers import (
    CONNECT,
    FAILED,
    HOST,
    NAMESPACE,
    REDIRECT,
    TOPIC,
    WITHIN_S,
    ask,
    bundle_of,
    find,
    other,
    running_cluster,
)
from tests.support.late_store import LateStore
from tests.support.raw_client import RawClient, Refused

from magnetar.broker.ownership.records import Urls
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import ServerError
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

NAME = parse_topic(TOPIC)


async def test_a_bundle_has_one_owner_whoever_is_asked() -> None:
    async with running_cluster(3) as cluster:
        topics = [f"{TOPIC}{index}" for index in range(40)]
        for topic in topics:
            owners = {(await find(cluster, topic, by=node)).broker_id for node in cluster.nodes}
            assert len(owners) == 1
        owned = [set(node.ownership.owned()) for node in cluster.nodes]
        assert sum(map(len, owned)) == len(set().union(*owned)) == 4
        # The fewest bundles first: nobody has two more than another.
        assert max(map(len, owned)) - min(map(len, owned)) <= 1


async def test_a_client_at_the_wrong_broker_is_asked_to_look_up_again() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        wrong = other(cluster, owner)
        client = await wrong.client()
        with pytest.raises(Refused) as refused:
            await client.producer(TOPIC)
        assert refused.value.code == ServerError.SERVICE_NOT_READY
        assert refused.value.text == (
            f"Namespace bundle for topic ({TOPIC}) not served by this instance:"
            f"{wrong.broker_id}. Please redo the lookup. "
            f"Request is denied: namespace={NAMESPACE}"
        )
        with pytest.raises(Refused, match="not served by this instance"):
            await client.consumer(TOPIC, "s")


async def test_who_has_fewer_bundles_is_named_and_takes_the_bundle_when_asked() -> None:
    async with running_cluster() as cluster:
        first, second = cluster.nodes
        client = await first.client()
        # On a tie whoever is asked takes it.
        topics = [f"{TOPIC}{index}" for index in range(100)]
        one = topics[0]
        answer = await ask(client, one)
        assert (answer.response, answer.brokerServiceUrl) == (CONNECT, first.url)
        assert answer.authoritative
        assert not answer.proxy_through_service_url
        another = next(t for t in topics if bundle_of(first, t) != bundle_of(first, one))
        answer = await ask(client, another)
        assert (answer.response, answer.brokerServiceUrl) == (REDIRECT, second.url)
        assert answer.authoritative
        at_second = await second.client()
        answer = await ask(at_second, another, authoritative=True)
        assert (answer.response, answer.brokerServiceUrl) == (CONNECT, second.url)
        answer = await ask(client, another)
        assert (answer.response, answer.brokerServiceUrl) == (CONNECT, second.url)


async def test_brokers_that_claim_at_the_same_moment_agree() -> None:
    async with running_cluster(3, bundles=16) as cluster:
        clients = [await node.client() for node in cluster.nodes]
        topics = [f"{TOPIC}{index}" for index in range(60)]
        # With authority each of them wants every bundle for itself.
        await asyncio.gather(
            *(ask(client, topic, authoritative=True) for topic in topics for client in clients)
        )
        for topic in topics:
            owners = [node for node in cluster.nodes if node.ownership.owns(parse_topic(topic))]
            assert len(owners) == 1
            answers = [await ask(client, topic) for client in clients]
            assert {answer.brokerServiceUrl for answer in answers} == {owners[0].url}


async def test_listeners_have_their_own_addresses() -> None:
    urls = {
        "public": Urls("pulsar://example.test:6650", "http://example.test:8080", "pulsar+ssl://e:1")
    }
    async with running_cluster(1) as cluster:
        node = await cluster.broker(listeners=urls)
        await cluster.everybody_sees(2)
        await node.ownership.claims.acquire(bundle_of(node))
        for asked in cluster.nodes:
            client = await asked.client()
            answer = await ask(client, listener="public")
            assert answer.brokerServiceUrl == "pulsar://example.test:6650"
            assert answer.brokerServiceUrlTls == "pulsar+ssl://e:1"
            answer = await ask(client, listener="nosuch")
            assert answer.response == FAILED
            assert answer.message == "the broker do not have nosuch listener"
            assert int(answer.error) == ServerError.SERVICE_NOT_READY


async def test_a_missing_namespace_is_no_transition() -> None:
    async with running_cluster() as cluster:
        client = await cluster.nodes[0].client()
        answer = await ask(client, "persistent://public/nosuch/t")
        assert answer.response == FAILED
        assert int(answer.error) == ServerError.TOPIC_NOT_FOUND


async def test_an_unload_tells_clients_where_the_bundle_went() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        new = other(cluster, owner)
        client = await owner.client()
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, "s")
        client.send(producer, 0, b"before")
        await client.receipted(producer, 1)
        client.flow(consumer, 10)
        received = await client.receive(consumer)
        await client.ack(consumer, [(received.ledger_id, received.entry_id)])
        bundle = bundle_of(owner)
        assert await owner.ownership.unload(bundle, new.broker_id) == new.broker_id
        assert bundle not in owner.ownership.owned()
        closings = await client.closings(2)
        assert {command.assignedBrokerServiceUrl for command in closings} == {new.url}
        # The new owner serves it at once, without another look-up.
        client = await new.client()
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, "s")
        client.send(producer, 0, b"after")
        await client.receipted(producer, 1)
        client.flow(consumer, 10)
        assert (await client.receive(consumer)).payload == b"after"
        assert await find(cluster, by=owner) is new


async def test_an_unload_without_another_broker_frees_the_bundle() -> None:
    async with running_cluster(1) as cluster:
        (node,) = cluster.nodes
        await find(cluster)
        client = await node.client()
        await client.producer(TOPIC)
        assert await node.ownership.unload(bundle_of(node)) is None
        (closing,) = await client.closings(1)
        assert not closing.assignedBrokerServiceUrl
        assert not node.ownership.owned()
        assert await find(cluster) is node


async def test_a_split_disturbs_nobody() -> None:
    async with running_cluster(bundles=1) as cluster:
        owner = await find(cluster)
        client = await owner.client()
        topics = [f"{TOPIC}{index}" for index in range(20)]
        producers = {topic: await client.producer(topic) for topic in topics}
        consumers = {topic: await client.consumer(topic, "s") for topic in topics}
        for topic in topics:
            client.send(producers[topic], 0, b"a")
            client.flow(consumers[topic], 10)
            await client.receive(consumers[topic])
        parts = await owner.ownership.split(bundle_of(owner), "topic_count_equally_divide")
        assert len(parts) == 2
        assert set(owner.ownership.owned()) == set(parts)
        for topic in topics:
            client.send(producers[topic], 1, b"b")
            received = await client.receive(consumers[topic])
            assert received.payload == b"b"
            # A write of the record, under the claim of the part.
            await client.ack(consumers[topic], [(received.ledger_id, received.entry_id)])
            loaded = owner.service.topics.loaded(parse_topic(topic))
            assert isinstance(loaded, PersistentTopic)
            await loaded.managed_ledger.set_properties({"k": "v"})
        assert not client.closed_commands
        assert len({bundle_of(owner, topic) for topic in topics}) == 2
        for part in parts:
            assert [await find(cluster, by=node) for node in cluster.nodes] == [owner, owner]
            assert part in owner.ownership.owned()


async def test_writes_under_way_live_through_a_split() -> None:
    async with running_cluster(1, bundles=1) as cluster:
        (node,) = cluster.nodes
        await find(cluster)
        topic = await node.service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)

        async def write() -> None:
            for index in range(200):
                await topic.managed_ledger.set_properties({"at": str(index)})

        async def split() -> None:
            for _ in range(6):
                await node.ownership.split(bundle_of(node))

        await asyncio.gather(write(), split())
        assert not topic.fenced
        assert topic.managed_ledger.properties["at"] == "199"
        assert len(node.ownership.owned()) == 7


async def test_a_broker_that_stops_hands_its_bundles_over() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        new = other(cluster, owner)
        client = await owner.client()
        await client.producer(TOPIC)
        stopping = asyncio.ensure_future(owner.stop())
        await asyncio.wait_for(client.lost.wait(), WITHIN_S)
        assert [c.assignedBrokerServiceUrl for c in client.closed_commands] == [new.url]
        await stopping
        assert await find(cluster, by=new) is new
        assert [broker.broker_id for broker in new.ownership.brokers.living()] == [new.broker_id]


async def test_a_look_up_is_held_while_a_bundle_moves() -> None:
    store = LateStore()
    async with running_cluster(store=store) as cluster:
        owner = await find(cluster)
        new = other(cluster, owner)
        client = await owner.client()
        producer = await client.producer(TOPIC)
        client.send(producer, 0, b"so that there is a ledger to close")
        await client.receipted(producer, 1)
        store.hold()
        moving = asyncio.ensure_future(owner.ownership.unload(bundle_of(owner), new.broker_id))
        await store.landed.wait()
        asking = asyncio.ensure_future(ask(client))
        done, _ = await asyncio.wait([asking], timeout=0.2)
        assert not done
        store.answering.set()
        answer = await asking
        assert (answer.response, answer.brokerServiceUrl) == (CONNECT, new.url)
        await moving


async def test_who_watches_topics_hears_of_those_of_other_brokers() -> None:
    async with running_cluster() as cluster:
        owner = await find(cluster)
        watching = await other(cluster, owner).client()
        await watching.request(
            CommandType.WATCH_TOPIC_LIST,
            pb.CommandWatchTopicList(
                namespace=str(NAMESPACE), watcher_id=1, topics_pattern="public/default/.*"
            ),
        )
        client = await owner.client()
        await client.producer(TOPIC)
        update = await asyncio.wait_for(watching.topic_updates.get(), WITHIN_S)
        assert list(update.new_topics) == [TOPIC]
        await owner.service.topics.delete(NAME, force=True)
        update = await asyncio.wait_for(watching.topic_updates.get(), WITHIN_S)
        assert list(update.deleted_topics) == [TOPIC]


async def test_partitions_are_made_whoever_owns_them() -> None:
    async with running_cluster(2, bundles=8) as cluster:
        asked, name = cluster.nodes[0], parse_topic("persistent://public/default/parts")
        await asked.service.topics.create_partitioned(name, 16, {})
        names = await asked.service.topics.names(NAMESPACE, "persistent")
        assert names == sorted(name.partition(index) for index in range(16))
        for index in range(16):
            partition = str(name.partition(index))
            owner = await find(cluster, partition)
            client = await RawClient.connect(HOST, owner.port)
            producer = await client.producer(partition)
            client.send(producer, 0, b"x")
            await client.receipted(producer, 1)
            await client.close()
