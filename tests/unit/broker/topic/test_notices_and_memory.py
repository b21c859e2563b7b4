"""What stats say of a subscription, what holds for its next consumers, and what its end frees."""

import gc
import weakref

import msgspec
import pytest
from tests.unit.broker.topic.stage import request, run_of, stage
from tests.unit.broker.topic.test_consuming import TYPES, stored
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import (
    ConsumerStats,
    GoneConsumers,
    SubscriptionStats,
    consumer_stats,
    total,
)
from magnetar.core.errors import ServiceNotReady
from magnetar.core.ids import EARLIEST
from magnetar.policies.caps import MAX_UNACKED_PER_CONSUMER
from magnetar.policies.rates import SUBSCRIPTION_DISPATCH_RATE

# -- notices


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


async def test_expired_entries_are_counted_and_rated(monkeypatch: pytest.MonkeyPatch) -> None:
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


# -- the next type, and freed objects


async def test_other_limits_hold_for_the_consumers_of_the_next_type() -> None:
    async with stage() as s:
        topic = await s.topic()
        await stored(topic, s, *"abcdefghij")
        subscription, first, _ = await s.attach(topic, permits=0)
        await s.set(MAX_UNACKED_PER_CONSUMER, 4, topic)
        subscription.remove_consumer(first)
        _, _, sink = await s.attach(topic, request(sub_type=SubType.Key_Shared))
        assert len(sink.texts) == 4


async def test_a_nonpersistent_batch_takes_a_permit_for_each_of_its_messages() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, consumer, sink = await s.attach(topic, permits=4)
        producer, _ = await s.producer(topic)
        topic.publish(producer, run_of(producer, "three", batch=3))
        topic.publish(producer, run_of(producer, "three more", batch=3))
        topic.publish(producer, run_of(producer, "one"))
        assert sink.texts == ["three", "three more"], "a batch is not cut"
        assert (consumer.permits, subscription.dropped, consumer.messages_out) == (-2, 1, 6)


@TYPES
@pytest.mark.parametrize("limited", [True, False])
async def test_ended_objects_are_freed_without_the_garbage_collector(
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


# -- numbers


async def test_a_consumer_is_shown_with_each_of_its_numbers_under_its_own_name() -> None:
    async with stage() as s:
        topic = await s.topic()
        asked = request(name="reads")
        asked.spec.metadata, asked.spec.app_id = {"a": "1"}, "me"
        _, consumer, _ = await s.attach(topic, asked)
        consumer.messages_out, consumer.bytes_out, consumer.permits = 1, 2, 3
        consumer.unacked, consumer.average_messages, consumer.blocked = 4, 5.4, True
        consumer.last_acked_ms, consumer.last_consumed_ms = 1_006, 1_007
        consumer.first_sent_ms, consumer.first_flow_ms, consumer.last_flow_ms = 8, 9, 10
        consumer.connected_since_ms = 1_011
        consumer.rates.out, consumer.rates.throughput = 12.0, 13.0
        consumer.rates.ack, consumer.rates.redeliver = 14.0, 15.0
        shown = msgspec.to_builtins(consumer_stats(consumer))
        wanted = {
            "msgOutCounter": 1,
            "bytesOutCounter": 2,
            "availablePermits": 3,
            "unackedMessages": 4,
            "avgMessagesPerEntry": 5,
            "blockedConsumerOnUnackedMsgs": True,
            "lastAckedTimestamp": 1_006,
            "lastAckedTime": "1970-01-01T00:00:01.006Z",
            "lastConsumedTimestamp": 1_007,
            "lastConsumedTime": "1970-01-01T00:00:01.007Z",
            "firstMessagesSentTimestamp": 8,
            "firstConsumedFlowTimestamp": 9,
            "lastConsumedFlowTimestamp": 10,
            "connectedSince": "1970-01-01T00:00:01.011Z",
            "msgRateOut": 12.0,
            "msgThroughputOut": 13.0,
            "messageAckRate": 14.0,
            "msgRateRedeliver": 15.0,
            "consumerName": "reads",
            "address": "/127.0.0.1:40712",
            "clientVersion": "test",
            "metadata": {"a": "1"},
            "appId": "me",
        }
        assert {name: shown[name] for name in wanted} == wanted


def test_a_subscription_sums_up_every_number_of_its_consumers() -> None:
    summed = (
        "msg_rate_out",
        "msg_throughput_out",
        "msg_rate_redeliver",
        "message_ack_rate",
        "bytes_out_counter",
        "msg_out_counter",
        "unacked_messages",
        "draining_hashes_count",
        "draining_hashes_cleared_total",
        "draining_hashes_unacked_messages",
    )
    latest = ("last_acked_timestamp", "last_consumed_timestamp", "last_consumed_flow_timestamp")
    names = (*summed, *latest)
    one, two = ConsumerStats(), ConsumerStats()
    for place, name in enumerate(names):
        setattr(one, name, 1 + place)
        setattr(two, name, 100 * (1 + place))
    stats = SubscriptionStats()
    total(stats, [two, one], GoneConsumers())
    for place, name in enumerate(summed):
        assert getattr(stats, name) == 101 * (1 + place), name
    for place, name in enumerate(latest, len(summed)):
        assert getattr(stats, name) == 100 * (1 + place), name


async def test_drops_make_a_rate_of_the_time_since_the_last_one() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, _, _ = await s.attach(topic, permits=0)
        producer, _ = await s.producer(topic)
        for seconds, dropped, rate in ((2, 6, 3.0), (5, 5, 1.0), (1, 0, 0.0)):
            if dropped:
                topic.publish(producer, run_of(producer, *["x"] * dropped))
            s.clock.advance(seconds * 1000)
            subscription.update_rates()
            assert subscription.stats().msg_drop_rate == rate
            subscription.update_rates()  # no time has passed
            assert subscription.stats().msg_drop_rate == rate
        stats = subscription.stats()
        assert (stats.type, stats.key_shared_mode) == ("Shared", msgspec.UNSET)


async def test_before_its_first_consumer_a_subscription_is_of_no_type() -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription = await topic.create_subscription("s", EARLIEST, {})
        assert (subscription.stats().type, subscription.stats().consumers) == ("None", [])
        assert (subscription.topic, subscription.name) == (topic.full_name, "s")


async def test_a_redelivery_request_of_a_detached_consumer_has_no_effect() -> None:
    async with stage() as s:
        topic = await s.topic()
        await stored(topic, s, "a", "b")
        asked = request(sub_type=SubType.Exclusive)
        subscription, first, _ = await s.attach(topic, asked)
        subscription.remove_consumer(first)
        _, _, sink = await s.attach(topic, request(sub_type=SubType.Exclusive))
        subscription.redeliver(first)
        await turns(30)
        assert sink.texts == ["a", "b"]


async def test_an_ended_non_persistent_subscription_admits_no_consumer() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, consumer, _ = await s.attach(topic)
        subscription.end()
        with pytest.raises(ServiceNotReady):
            await subscription.add_consumer(consumer)
