"""A consumer's pending entries, and statistics whose counters never decrease."""

import asyncio

import msgspec
import pytest

from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import (
    GoneConsumers,
    SubscriptionStats,
    consumer_stats,
    instant,
    total,
)


@pytest.fixture
def consumer(make_consumer):
    return make_consumer("c", SubType.Shared)[0]


def test_a_held_entry_is_released_once(consumer) -> None:
    consumer.hold(1, 5, 3, sticky_hash=7)
    consumer.hold(1, 6, 1)
    consumer.hold(2, 0, 1)
    assert consumer.pending_count == 3
    packed = consumer.held(1, 5)
    assert packed == consumer.release(1, 5) > 3
    assert (consumer.held(1, 5), consumer.release(1, 5)) == (0, 0)
    assert (consumer.held(3, 0), consumer.release(3, 0)) == (0, 0)
    assert {each[:2] for each in consumer.pending_items()} == {(1, 6), (2, 0)}
    consumer.release(1, 6)
    assert set(consumer.pending) == {2}


@pytest.mark.parametrize(
    ("permits", "blocked", "writable", "available"),
    [
        (1, False, True, True),
        (0, False, True, False),
        (-1, False, True, False),
        (1, True, True, False),
        (1, False, False, False),
    ],
)
def test_a_consumer_takes_an_entry_only_with_permits_unblocked_and_writable(
    consumer, permits: int, blocked: bool, writable: bool, available: bool
) -> None:
    consumer.permits, consumer.blocked, consumer.sink.writable = permits, blocked, writable
    assert consumer.available is available


def test_rates_are_of_the_time_since_the_last_update(consumer) -> None:
    rates, start = consumer.rates, consumer.rates._at
    consumer.messages_out, consumer.bytes_out = 20, 200
    consumer.acked_messages, consumer.redelivered_messages = 10, 6
    rates.update(consumer, start)
    assert rates.out == 0, "no time has passed"
    rates.update(consumer, start + 2)
    assert (rates.out, rates.throughput, rates.ack, rates.redeliver) == (10, 100, 5, 3)
    consumer.messages_out, consumer.acked_messages = 30, 11
    rates.update(consumer, start + 12)
    assert (rates.out, rates.throughput, rates.ack, rates.redeliver) == (1, 0, 0.1, 0)


def test_times_are_formatted_as_java_does() -> None:
    assert [instant(ms) for ms in (0, 1_000, 1_001, 1_767_225_600_120)] == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:01Z",
        "1970-01-01T00:00:01.001Z",
        "2026-01-01T00:00:00.120Z",
    ]


def test_a_subscription_sums_up_attached_and_detached_consumers(consumer, make_consumer) -> None:
    gone, other = GoneConsumers(), make_consumer("d", SubType.Shared)[0]
    for each, messages, size, last in ((consumer, 3, 30, 500), (other, 4, 40, 400)):
        each.messages_out, each.bytes_out = messages, size
        each.last_acked_ms, each.last_consumed_ms, each.last_flow_ms = last, last + 1, last + 2
    gone.add(consumer)
    gone.add(other)
    assert (gone.messages_out, gone.bytes_out) == (7, 70)
    assert (gone.last_acked_ms, gone.last_consumed_ms, gone.last_flow_ms) == (500, 501, 502)
    there = make_consumer("e", SubType.Shared)[0]
    there.messages_out, there.bytes_out, there.unacked = 5, 50, 2
    there.last_acked_ms, there.last_consumed_ms, there.last_flow_ms = 450, 700, 450
    there.rates.out, there.rates.throughput = 1.5, 15.0
    there.rates.ack, there.rates.redeliver = 2.5, 3.5
    stats = SubscriptionStats()
    parts = [consumer_stats(there), consumer_stats(there)]
    total(stats, parts, gone)
    assert stats.consumers is parts
    assert (stats.msg_out_counter, stats.bytes_out_counter) == (17, 170)
    assert (stats.msg_rate_out, stats.msg_throughput_out) == (3.0, 30.0)
    assert (stats.message_ack_rate, stats.msg_rate_redeliver) == (5.0, 7.0)
    assert stats.unacked_messages == 4
    assert stats.last_acked_timestamp == 500
    assert stats.last_consumed_timestamp == 700
    assert stats.last_consumed_flow_timestamp == 502
    there.last_flow_ms = 503
    total(stats, [consumer_stats(there)], gone)
    assert stats.last_consumed_flow_timestamp == 503


def test_a_consumer_that_was_sent_nothing_has_no_average(consumer) -> None:
    consumer.average_messages = 2.6
    assert consumer_stats(consumer).avg_messages_per_entry == 0
    consumer.first_sent_ms = 1
    found = consumer_stats(consumer)
    assert found.avg_messages_per_entry == 3
    assert (found.consumer_name, found.available_permits) == ("c", 0)
    assert found.app_id is msgspec.UNSET


async def test_counters_of_a_subscription_do_not_go_back_when_a_consumer_leaves(rig) -> None:
    await rig.publish_texts(6)
    subscription = await rig.subscription()
    first, _ = await rig.attach(subscription, "a", SubType.Shared, permits=4)
    second, _ = await rig.attach(subscription, "b", SubType.Shared, permits=0)
    before = subscription.stats()
    subscription.remove_consumer(first)
    await asyncio.sleep(0)
    after = subscription.stats()
    assert before.msg_out_counter == after.msg_out_counter == 4
    assert before.bytes_out_counter == after.bytes_out_counter > 0
    assert (before.unacked_messages, after.unacked_messages) == (4, 0)
    subscription.flow(second, 10)
    await rig.settle()
    assert subscription.stats().msg_out_counter == 10
