"""What comes by use and what does not, times that are just now, and ends that come late."""

import asyncio
from typing import Any

import pytest
from tests.unit.broker.session.stage import TOPIC, client_of, loaded
from tests.unit.broker.session.test_consuming import ack, publish_batch, unsubscribe
from tests.unit.broker.session.test_subscribing import (
    ERROR,
    SUBSCRIBE,
    SUCCESS,
    Subscribe,
    subscribe,
)
from tests.unit.ledger.stage import turns

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import ServerError
from magnetar.policies.admission import AUTO_SUBSCRIPTION_CREATION, AUTO_TOPIC_CREATION
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_consumer_creates_a_topic_only_with_auto_creation(allowed: bool) -> None:
    async with client_of() as client:
        value = {"allowAutoTopicCreation": allowed, "topicType": "non-partitioned"}
        await client.world.set(AUTO_TOPIC_CREATION, value)
        wanted = subscribe(topic=f"{TOPIC}-new", force_topic_creation=True)
        if allowed:
            await client.ask(SUBSCRIBE, wanted, SUCCESS)
            return
        error = await client.ask(SUBSCRIBE, wanted, ERROR)
        assert error.error == ServerError.TOPIC_NOT_FOUND


@pytest.mark.parametrize("there", [True, False])
async def test_a_consumer_creates_a_subscription_only_with_auto_creation(there: bool) -> None:
    async with client_of() as client:
        topic = await client.world.topic("t", *(["s"] if there else []))
        value = {"allowAutoSubscriptionCreation": False}
        await client.world.set(AUTO_SUBSCRIPTION_CREATION, value)
        await client.ask(SUBSCRIBE, subscribe(), SUCCESS if there else ERROR)
        assert len(topic.subscriptions) == there


async def test_a_cumulative_ack_of_two_messages_is_none_of_either() -> None:
    """A cumulative ack has one id: two partial batches would have no single end."""
    async with client_of(batch_index_acks=False) as client:
        topic = await loaded(client.world)
        await client.consumes(
            permits=20, initialPosition=Subscribe.Earliest, subType=Subscribe.Exclusive
        )
        await client.world.publish(topic, 2)
        places = [await publish_batch(client.world, topic, 4) for _ in range(2)]
        await client.quiet()
        both = ack(*reversed(places), cumulative=True)
        for message_id in both.message_id:
            message_id.ack_set.append(0b1100)
        cursor = topic.subscriptions["s"].cursor
        before = cursor.mark_delete
        client.say(CommandType.ACK, both)
        await client.quiet()
        assert cursor.mark_delete == before


async def test_a_late_unsubscribe_leaves_the_consumer_that_attached_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with client_of() as client:
        await client.consumes(1)
        end = PersistentTopic.unsubscribe

        async def overtaken(topic: PersistentTopic, *one: Any, **how: Any) -> None:
            await end(topic, *one, **how)
            monkeypatch.undo()
            await client.consumes(1, subscription="other")

        monkeypatch.setattr(PersistentTopic, "unsubscribe", overtaken)
        await client.ask(CommandType.UNSUBSCRIBE, unsubscribe(), SUCCESS)
        assert client.session.consumers[1].subscription.name == "other"
        assert 1 in client.session.link._framers, "messages can be sent to it"


async def test_a_late_unsubscribe_leaves_the_consumer_that_is_being_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by mutated frames: messages could not be sent to it, and the session failed."""
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.consumes(1)
        end, attach = PersistentTopic.unsubscribe, PersistentTopic.subscribe
        ended = asyncio.Event()

        async def held(topic: PersistentTopic, *what: Any) -> Any:
            await ended.wait()
            return await attach(topic, *what)

        async def overtaken(topic: PersistentTopic, *one: Any, **how: Any) -> None:
            await end(topic, *one, **how)
            monkeypatch.setattr(PersistentTopic, "subscribe", held)
            client.say(SUBSCRIBE, subscribe(subscription="other"))
            await turns(20)

        monkeypatch.setattr(PersistentTopic, "unsubscribe", overtaken)
        await client.ask(CommandType.UNSUBSCRIBE, unsubscribe(), SUCCESS)
        ended.set()
        await client.quiet()
        assert client.session.consumers[1].subscription.name == "other"
        await client.world.publish(topic, 1)
        client.told()
        client.say(CommandType.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=1))
        assert (await client.hears(CommandType.MESSAGE)).consumer_id == 1


async def test_a_refused_consumer_leaves_nothing_in_the_session() -> None:
    async with client_of() as client:
        await client.consumes(1)
        wanted = subscribe(subType=Subscribe.Exclusive)
        wanted.consumer_id = 2
        await client.ask(SUBSCRIBE, wanted, ERROR)
        assert list(client.session.link._framers) == [1]


async def test_the_end_of_a_connection_is_no_use_of_a_topic_that_had_sent_its_producer_away() -> (
    None
):
    async with client_of() as client:
        topic = await loaded(client.world)
        await client.produces()
        topic.producers.close_all()
        before = topic.last_active_ms
        client.world.clock.advance(60_000)
        client.session.lost(None)
        assert topic.last_active_ms == before


async def test_a_part_of_a_batch_acknowledges_nothing_before_it_where_parts_do_not_count() -> None:
    async with client_of(batch_index_acks=False) as client:
        topic = await loaded(client.world)
        await client.consumes(permits=20, initialPosition=Subscribe.Earliest)
        await client.world.publish(topic, 2)
        place = await publish_batch(client.world, topic, 4)
        await client.quiet()
        part = ack(place)
        part.message_id[0].ack_set.append(0b1100)
        client.say(CommandType.ACK, part)
        await client.quiet()
        assert topic.subscriptions["s"].cursor.backlog == 3
