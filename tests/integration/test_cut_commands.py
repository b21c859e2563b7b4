"""Commands whose connection is lost while the store writes: store and memory agree afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.broker import running_broker
from tests.support.stalled_store import StalledStore
from tests.unit.broker.peer import peer_of
from tests.unit.broker.producer_doubles import RecordingSink, new_producer
from tests.unit.ledger.stage import publish

from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MetadataError
from magnetar.core.ids import EARLIEST
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

TOPIC = "persistent://public/default/t"
NAME = parse_topic(TOPIC)
CURSORS = "/managed-ledgers-cursors/"
LOGS = "/managed-ledgers/"
WAIT_S = 20.0


def subscribe(request_id: int = 1, **more: Any) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=TOPIC,
        subscription="sub",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=1,
        request_id=request_id,
        initialPosition=pb.CommandSubscribe.Earliest,
        **more,
    )


def topic_of(service: BrokerService) -> PersistentTopic:
    topic = service.topics.loaded(NAME)
    assert isinstance(topic, PersistentTopic)
    return topic


async def eventually(what: Callable[[], bool]) -> None:
    """Waits for what a broker does in a later turn of the loop that it shares with the test."""
    async with asyncio.timeout(WAIT_S):
        while not what():  # noqa: ASYNC110 - nothing tells when a broker has noticed
            await asyncio.sleep(0.001)


async def test_an_unsubscribe_that_is_cut_leaves_no_subscription_without_a_cursor() -> None:
    store = StalledStore()
    async with running_broker(store=store) as (service, port):
        async with peer_of(port) as first:
            first.send(CommandType.SUBSCRIBE, subscribe())
            await first.until(CommandType.SUCCESS)
            store.hold(CURSORS, deletes_only=True)
            first.send(CommandType.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=1, request_id=2))
            await store.begun.wait()
        await eventually(lambda: not service.sessions)
        assert topic_of(service).subscriptions["sub"].closed, "it is not usable meanwhile"
        store.release()
        await eventually(lambda: "sub" not in topic_of(service).subscriptions)
        assert "sub" not in topic_of(service).managed_ledger.cursors
        async with peer_of(port) as second:
            second.send(CommandType.SUBSCRIBE, subscribe())
            await second.until(CommandType.SUCCESS)
            await publish(topic_of(service).managed_ledger, b"receipted")
        await service.topics.unload(NAME)
        topic = await service.topics.get_or_open(NAME, create=False)
        assert isinstance(topic, PersistentTopic)
        assert topic.subscriptions["sub"].cursor.backlog == 1


async def test_an_unsubscribe_that_fails_leaves_the_subscription_and_sends_its_consumer_away() -> (
    None
):
    store = StalledStore()
    async with running_broker(store=store) as (service, port), peer_of(port) as peer:
        peer.send(CommandType.SUBSCRIBE, subscribe())
        await peer.until(CommandType.SUCCESS)
        store.hold(CURSORS, deletes_only=True)
        store.refusing = True
        peer.send(CommandType.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=1, request_id=2))
        assert "refuses" in (await peer.until(CommandType.ERROR)).message
        # A client that goes on with the consumer would wait for messages for ever.
        assert (await peer.until(CommandType.CLOSE_CONSUMER)).consumer_id == 1
        store.release()
        peer.send(CommandType.SUBSCRIBE, subscribe(3))
        await peer.until(CommandType.SUCCESS)
        topic = topic_of(service)
        assert topic.subscriptions["sub"].cursor is topic.managed_ledger.cursors["sub"]
        assert len(topic.subscriptions["sub"].consumers) == 1


async def test_an_unsubscribe_beside_other_consumers_is_refused_and_detaches_nobody() -> None:
    async with running_broker() as (service, port), peer_of(port) as peer:
        for consumer_id in (1, 2):
            command = subscribe(consumer_id)
            command.consumer_id = consumer_id
            peer.send(CommandType.SUBSCRIBE, command)
            await peer.until(CommandType.SUCCESS)
        peer.send(CommandType.UNSUBSCRIBE, pb.CommandUnsubscribe(consumer_id=2, request_id=3))
        refused = await peer.until(CommandType.ERROR)
        assert refused.message == "Unconnected or shared consumer attempting to unsubscribe"
        subscription = topic_of(service).subscriptions["sub"]
        assert len(subscription.consumers) == 2
        forced = pb.CommandUnsubscribe(consumer_id=2, request_id=4, force=True)
        peer.send(CommandType.UNSUBSCRIBE, forced)
        # The other is sent away; the one that asked hears of its success.
        assert (await peer.until(CommandType.CLOSE_CONSUMER)).consumer_id == 1
        assert (await peer.until(CommandType.SUCCESS)).request_id == 4
        assert not topic_of(service).subscriptions


async def test_a_subscribe_that_is_cut_leaves_a_subscription_that_can_be_deleted() -> None:
    store = StalledStore()
    async with running_broker(store=store) as (service, port):
        store.hold(CURSORS)
        async with peer_of(port) as peer:
            peer.send(CommandType.SUBSCRIBE, subscribe())
            await store.begun.wait()
        await eventually(lambda: not service.sessions)
        store.release()
        topic = topic_of(service)
        await eventually(lambda: "sub" in topic.managed_ledger.cursors)
        await eventually(lambda: "sub" in topic.subscriptions)
        assert not topic.subscriptions["sub"].consumers
        await topic.delete_subscription("sub")
        assert not topic.managed_ledger.cursors


async def test_a_producer_that_is_cut_leaves_its_initial_subscription_visible() -> None:
    store = StalledStore()
    async with running_broker(store=store) as (service, port):
        store.hold(CURSORS)
        async with peer_of(port) as peer:
            command = pb.CommandProducer(
                topic=TOPIC, producer_id=1, request_id=1, initial_subscription_name="first"
            )
            peer.send(CommandType.PRODUCER, command)
            await store.begun.wait()
        await eventually(lambda: not service.sessions)
        store.release()
        topic = topic_of(service)
        await eventually(lambda: "first" in topic.managed_ledger.cursors)
        await eventually(lambda: "first" in topic.subscriptions)
        assert not len(topic.producers)


async def test_producers_learn_of_a_termination_whose_caller_disconnects() -> None:
    store = StalledStore()
    async with running_broker(store=store) as (service, _):
        topic = await service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        sink = RecordingSink()
        await topic.add_producer(new_producer(sink, "p"))
        store.hold(LOGS)
        terminating = asyncio.ensure_future(topic.terminate())
        await store.begun.wait()
        terminating.cancel()
        await asyncio.wait([terminating])
        store.release()
        await eventually(lambda: not len(topic.producers))
        assert [producer.name for producer in sink.sent_away] == ["p"]


async def test_a_reader_of_the_same_name_makes_way_for_a_subscription_that_is_being_created() -> (
    None
):
    store = StalledStore()
    async with running_broker(store=store) as (service, port), peer_of(port) as peer:
        topic = await service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        store.hold(CURSORS)
        creating = asyncio.ensure_future(topic.create_subscription("sub", EARLIEST, {}))
        await store.begun.wait()
        peer.send(CommandType.SUBSCRIBE, subscribe(durable=False))
        await peer.until(CommandType.SUCCESS)
        store.release()
        subscription = await creating
        assert (await peer.until(CommandType.CLOSE_CONSUMER)).consumer_id == 1
        assert topic.subscriptions == {"sub": subscription}
        assert topic.managed_ledger.cursors["sub"] is subscription.cursor
        assert subscription.cursor.durable


async def test_a_refused_consumer_leaves_no_subscription_of_a_reader() -> None:
    async with running_broker() as (service, port), peer_of(port) as peer:
        topic = await service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        await service.policies.update(NAME, lambda own: own.having("max_consumers", 1))
        peer.send(CommandType.SUBSCRIBE, subscribe())
        await peer.until(CommandType.SUCCESS)
        reader = subscribe(2, durable=False)
        reader.subscription, reader.consumer_id = "reader", 2
        peer.send(CommandType.SUBSCRIBE, reader)
        assert "max consumers" in (await peer.until(CommandType.ERROR)).message
        assert list(topic.subscriptions) == ["sub"]
        assert list(topic.managed_ledger.cursors) == ["sub"]


async def test_a_subscription_whose_deletion_fails_is_as_before() -> None:
    store = StalledStore()
    async with running_broker(store=store) as (service, _):
        topic = await service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        await topic.create_subscription("sub", EARLIEST, {})
        store.hold(CURSORS, deletes_only=True)
        store.refusing = True
        with pytest.raises(MetadataError, match="refuses"):
            await topic.delete_subscription("sub")
        assert not topic.subscriptions["sub"].closed
        store.release()
        await topic.delete_subscription("sub")
        assert not topic.subscriptions
