"""Non-persistent topics: receipts at once, subscriptions that end with their last consumer."""

import asyncio

import pytest
from tests.unit.broker.topic.stage import (
    ELSEWHERE,
    hold_sign_of_life,
    new_producer,
    request,
    run_of,
    stage,
)
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.producer import AccessMode
from magnetar.core.errors import (
    ConsumerBusy,
    MetadataError,
    PreconditionFailed,
    ServiceNotReady,
    SubscriptionNotFound,
)


async def test_a_run_is_answered_at_once_with_and_without_consumers() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        producer, sink = await s.producer(topic)
        s.clock.advance(3)
        topic.publish(producer, run_of(producer, "nobody", first=4, batch=2))
        assert sink.receipts == [([4], 0, 0)]
        _, _, one = await s.attach(topic, request("a"))
        _, _, two = await s.attach(topic, request("b"))
        topic.publish(producer, run_of(producer, "x", "y", first=5))
        assert (one.texts, two.texts) == (["x", "y"], ["x", "y"])
        counters = topic.counters
        assert (counters.messages_in, counters.entries_in) == (4, 3)
        assert (producer.messages_in, producer.bytes_in) == (4, counters.bytes_in)
        assert counters.last_published_ms == s.clock.now_ms()


async def test_a_subscription_lives_as_long_as_it_has_a_consumer() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, first, _ = await s.attach(topic)
        same, second, _ = await s.attach(topic)
        assert same is subscription
        topic.remove_consumer(subscription, first)
        assert topic.subscriptions == {"s": subscription}
        topic.remove_consumer(subscription, second)
        assert topic.subscriptions == {}
        again, third, _ = await s.attach(topic)
        assert again is not subscription
        topic.remove_consumer(subscription, third)  # not of that one
        assert topic.subscriptions == {"s": again}
        assert await topic.create_subscription("s") is again


async def test_a_consumer_that_is_refused_leaves_no_subscription() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, first, _ = await s.attach(topic, request(sub_type=SubType.Exclusive))
        with pytest.raises(ConsumerBusy):
            await s.attach(topic, request(sub_type=SubType.Exclusive))
        assert topic.subscriptions == {"s": subscription}
        assert subscription.consumers == [first]


async def test_a_consumer_does_not_join_a_subscription_that_went_while_it_waited() -> None:
    """It would be attached to nothing that is published."""
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, first, sink = await s.attach(topic, request(sub_type=SubType.Exclusive))
        asked, go = hold_sign_of_life(sink, alive=False)
        attaching = asyncio.ensure_future(s.attach(topic, request(sub_type=SubType.Exclusive)))
        await asked.wait()
        topic.remove_consumer(subscription, first)
        assert topic.subscriptions == {}
        other, _, _ = await s.attach(topic, request(sub_type=SubType.Shared))
        go.set()
        with pytest.raises(ServiceNotReady):
            await attaching
        assert topic.subscriptions == {"s": other}
        assert subscription.consumers == []


async def test_a_consumer_whose_topic_closes_while_it_waits_is_refused() -> None:
    """Its connection would get nothing, and no notice that the topic has moved."""
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, _, _ = await s.attach(topic, request(sub_type=SubType.Exclusive))
        asked, go = hold_sign_of_life(subscription.consumers[0].sink, alive=False)
        attaching = asyncio.ensure_future(s.attach(topic, request(sub_type=SubType.Exclusive)))
        await asked.wait()
        await topic.drain()
        go.set()
        with pytest.raises(ServiceNotReady):
            await attaching
        assert subscription.consumers == []


async def test_which_consumers_may_unsubscribe() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, first, at = await s.attach(topic)
        _, second, there = await s.attach(topic)
        with pytest.raises(MetadataError):
            await topic.unsubscribe(subscription, first, force=False)
        with pytest.raises(ConsumerBusy):
            await topic.delete_subscription("s")
        assert len(subscription.consumers) == 2
        await topic.unsubscribe(subscription, first, force=True)
        assert (at.closed, there.closed) == ([], [second.spec.consumer_id])
        assert topic.subscriptions == {}
        with pytest.raises(SubscriptionNotFound):
            await topic.delete_subscription("s", force=True)
        subscription, first, _ = await s.attach(topic)
        await topic.unsubscribe(subscription, first, force=False)
        assert (topic.subscriptions, subscription.closed) == ({}, True)


async def test_a_suspended_topic_admits_no_client() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        producer, sink = await s.producer(topic)
        topic.suspend()
        assert (producer.ready, topic.serving) == (False, False)
        for attempt in (s.producer(topic), s.attach(topic)):
            with pytest.raises(ServiceNotReady):
                await attempt
        topic.resume()
        assert (producer.ready, topic.serving) == (True, True)
        assert sink.told == []
        await s.attach(topic)


@pytest.mark.parametrize("how", ["close", "drain", "abandon"])
async def test_all_consumers_are_disconnected_when_it_ends(how: str) -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        producer, sink = await s.producer(topic)
        _, consumer, at = await s.attach(topic)
        destination = None
        if how == "close":
            await topic.close()
        elif how == "abandon":
            topic.abandon()
        else:
            destination = ELSEWHERE
            await topic.drain()
            assert (sink.sent_away, at.closed, producer.ready) == ([], [], False)
            topic.dismiss(destination)
        assert sink.sent_away == [(producer, destination)]
        assert (at.closed, at.destinations) == ([consumer.spec.consumer_id], [destination])
        for attempt in (s.producer(topic), s.attach(topic)):
            with pytest.raises(ServiceNotReady):
                await attempt


async def test_a_producer_whose_topic_closes_while_it_attaches_is_refused() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        holder, sink = await s.producer(topic, name="p")
        asked, go = hold_sign_of_life(sink, alive=False)
        attaching = asyncio.ensure_future(s.producer(topic, name="p"))
        await asked.wait()
        await topic.drain()
        go.set()
        with pytest.raises(ServiceNotReady):
            await attaching
        assert not len(topic.producers)
        assert holder.closed


async def test_an_exclusive_producer_has_the_topic_to_itself_while_it_is_loaded() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        producer, sink = await s.producer(topic, mode=AccessMode.EXCLUSIVE)
        assert producer.topic_epoch == 0
        waiting = new_producer(sink, mode=AccessMode.WAIT_FOR_EXCLUSIVE)
        await topic.add_producer(waiting)
        topic.remove_producer(producer)
        await turns(10)
        assert (sink.ready, waiting.topic_epoch) == ([waiting], 1)


async def test_a_topic_in_use_is_deleted_only_by_force() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        topic.check_deletable(force=False)
        s.clock.advance(7)
        subscription, consumer, _ = await s.attach(topic)
        assert topic.last_active_ms == s.clock.now_ms()
        with pytest.raises(PreconditionFailed):
            topic.check_deletable(force=False)
        topic.check_deletable(force=True)
        s.clock.advance(7)
        topic.remove_consumer(subscription, consumer)
        assert topic.last_active_ms == s.clock.now_ms()
        topic.check_deletable(force=False)
        s.clock.advance(7)
        producer, _ = await s.producer(topic)
        assert topic.last_active_ms == s.clock.now_ms()
        with pytest.raises(PreconditionFailed):
            topic.check_deletable(force=False)
        s.clock.advance(7)
        topic.remove_producer(producer)
        assert topic.last_active_ms == s.clock.now_ms()
