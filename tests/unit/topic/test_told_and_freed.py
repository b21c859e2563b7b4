"""What stats say of a subscription, what holds for its next consumers, and what its end frees."""

import gc
import weakref

import pytest
from tests.unit.ledger.stage import turns
from tests.unit.topic.stage import request, run_of, stage
from tests.unit.topic.test_consuming import TYPES, stored

from magnetar.broker.subscription.spec import SubType
from magnetar.policies.caps import MAX_UNACKED_PER_CONSUMER
from magnetar.policies.rates import SUBSCRIPTION_DISPATCH_RATE

# -- what is told


async def test_times_of_a_subscription_are_of_its_last_use_and_its_last_progress() -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, "a", "b")
        subscription, consumer, _ = await s.attach(topic)
        attached = s.clock.now_ms()
        assert subscription.cursor.last_active_ms == attached
        assert subscription.stats().last_mark_delete_advanced_timestamp == 0
        s.clock.advance(10)
        subscription.ack_one(consumer, *places[1])
        assert subscription.stats().last_mark_delete_advanced_timestamp == 0, "a hole"
        s.clock.advance(10)
        subscription.ack_one(consumer, *places[0])
        progressed = s.clock.now_ms()
        assert subscription.stats().last_mark_delete_advanced_timestamp == progressed
        assert subscription.stats().last_acked_timestamp == progressed
        s.clock.advance(10)
        subscription.update_rates()
        assert subscription.stats().last_mark_delete_advanced_timestamp == progressed
        subscription.remove_consumer(consumer)
        assert subscription.cursor.last_active_ms == s.clock.now_ms()
        s.clock.advance(10)
        subscription.remove_consumer(consumer)
        assert subscription.cursor.last_active_ms == s.clock.now_ms() - 10


async def test_stats_say_whether_a_subscription_is_durable_and_what_it_holds() -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, "a", "b", "c")
        durable, consumer, _ = await s.attach(topic, request(properties={"a": "1"}))
        reader, _, _ = await s.attach(topic, request("r", durable=False))
        durable.ack_one(consumer, *places[1])
        stats = durable.stats()
        assert (stats.durable, stats.is_durable, stats.type) == (True, True, "Shared")
        assert (stats.msg_backlog, stats.msg_backlog_no_delayed) == (2, 2)
        assert stats.backlog_size == durable.cursor.backlog_bytes_estimate > 0
        assert stats.non_contiguous_deleted_messages_ranges == 1
        assert stats.subscription_properties == {"a": "1"}
        assert (reader.stats().durable, reader.stats().is_durable) == (False, False)


async def test_what_expired_is_counted_and_makes_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.subscription.persistent.RATE_PERIOD_S", 10.0)
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, *"abcde")
        subscription, consumer, _ = await s.attach(topic)
        subscription.ack_one(consumer, *places[1])
        s.clock.advance(7)
        assert subscription.expire_up_to(places[2])
        stats = subscription.stats()
        assert (stats.msg_expired, stats.total_msg_expired) == (2, 2)
        assert stats.last_expire_timestamp == s.clock.now_ms()
        subscription.update_rates()
        assert subscription.stats().msg_rate_expired == pytest.approx(0.2)
        assert subscription.evict_up_to(places[3]) == 1
        assert not subscription.expire_up_to(places[3])
        assert not subscription.expire_up_to(None)
        subscription.update_rates()
        stats = subscription.stats()
        assert (stats.msg_rate_expired, stats.msg_expired, stats.total_msg_expired) == (0, 0, 2)


# -- what holds for the next type, and what is freed


async def test_other_limits_hold_for_the_consumers_of_the_next_type() -> None:
    async with stage() as s:
        topic = await s.topic()
        await stored(topic, s, *"abcdefghij")
        subscription, first, _ = await s.attach(topic, permits=0)
        await s.set(MAX_UNACKED_PER_CONSUMER, 4, topic)
        subscription.remove_consumer(first)
        _, _, sink = await s.attach(topic, request(sub_type=SubType.Key_Shared))
        assert len(sink.texts) == 4


async def test_a_fleeting_batch_takes_a_permit_for_each_of_its_messages() -> None:
    async with stage() as s:
        topic = await s.fleeting()
        subscription, consumer, sink = await s.attach(topic, permits=4)
        producer, _ = await s.producer(topic)
        topic.publish(producer, run_of(producer, "three", batch=3))
        topic.publish(producer, run_of(producer, "three more", batch=3))
        topic.publish(producer, run_of(producer, "one"))
        assert sink.texts == ["three", "three more"], "a batch is not cut"
        assert (consumer.permits, subscription.dropped, consumer.messages_out) == (-2, 1, 6)


@TYPES
@pytest.mark.parametrize("limited", [True, False])
async def test_what_ended_is_freed_without_the_garbage_collector(
    sub_type: SubType, limited: bool
) -> None:
    """The collector of a broker runs rarely: what waits for it takes memory for long."""
    async with stage() as s:
        topic = await s.topic()
        await stored(topic, s, *"abcdefghij")
        if limited:
            await s.set(SUBSCRIPTION_DISPATCH_RATE, {"dispatchThrottlingRateInMsg": 2}, topic)
        other = SubType.Shared if sub_type is not SubType.Shared else SubType.Exclusive
        subscription, first, _ = await s.attach(topic, request(sub_type=other))
        freed = [weakref.ref(subscription.dispatcher)]
        await turns(50)
        gc.collect()
        gc.disable()
        try:
            subscription.remove_consumer(first)
            _, consumer, _ = await s.attach(topic, request(sub_type=sub_type))
            await turns(50)
            assert [each() for each in freed] == [None], "the dispatcher of the other type"
            freed += [weakref.ref(subscription), weakref.ref(subscription.dispatcher)]
            await topic.delete_subscription("s", force=True)
            del subscription, first, consumer, _
            await turns(50)
            assert [each() for each in freed] == [None] * 3
        finally:
            gc.enable()
