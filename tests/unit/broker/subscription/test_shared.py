"""Shared over a real managed ledger in memory."""

import asyncio

import pytest

from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.core.errors import MagnetarError, NotAllowed

SHARED = SubType.Shared


async def test_round_robin_of_at_most_twenty(rig):
    subscription = await rig.subscription()
    _, first = await rig.attach(subscription, "a", SHARED)
    _, second = await rig.attach(subscription, "b", SHARED)
    await rig.publish_texts(100)
    await rig.settle()
    assert (len(first.delivered), len(second.delivered)) == (60, 40)
    assert sorted(first.texts + second.texts, key=int) == [str(each) for each in range(100)]
    assert first.calls + second.calls == 2
    await rig.publish_texts(1)
    await rig.settle()
    await rig.publish_texts(1)
    await rig.settle()
    assert (len(first.delivered), len(second.delivered)) == (61, 41)


async def test_better_priority_first_then_the_next_level(rig):
    await rig.publish_texts(30)
    subscription = await rig.subscription()
    low_consumer, low = await rig.attach(subscription, "low", SHARED, permits=0, priority=1)
    high_consumer, high = await rig.attach(subscription, "high", SHARED, permits=0, priority=0)
    high_consumer.permits = 10
    subscription.flow(low_consumer, 15)
    await rig.settle()
    assert (len(high.delivered), len(low.delivered)) == (10, 15)
    assert high.texts == [str(each) for each in range(10)]


async def test_entries_of_a_detached_consumer_are_redelivered_to_others(rig):
    positions = await rig.publish_texts(10)
    subscription = await rig.subscription()
    first, first_sink = await rig.attach(subscription, "a", SHARED, permits=10)
    second, second_sink = await rig.attach(subscription, "b", SHARED)
    assert len(first_sink.delivered) == 10
    subscription.ack_one(first, *positions[3])
    subscription.remove_consumer(first)
    await rig.settle()
    assert second_sink.texts == ["0", "1", "2", "4", "5", "6", "7", "8", "9"]
    # Leaving is not a failed delivery: it does not count.
    assert {each.redelivery_count for each in second_sink.delivered} == {0}
    assert second.unacked == 9


async def test_when_all_left_the_next_one_starts_behind_mark_delete(rig):
    positions = await rig.publish_texts(10)
    subscription = await rig.subscription()
    first, _ = await rig.attach(subscription, "a", SHARED)
    subscription.ack_one(first, *positions[0])
    subscription.ack_one(first, *positions[5])
    subscription.remove_consumer(first)
    _, sink = await rig.attach(subscription, "b", SHARED)
    assert sink.texts == ["1", "2", "3", "4", "6", "7", "8", "9"]


async def test_nack_counts_and_comes_first(rig):
    positions = await rig.publish_texts(10)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SHARED, permits=5)
    sink.take()
    subscription.redeliver(consumer, [positions[2], positions[4], (99, 99), positions[7]])
    await rig.settle()
    assert consumer.unacked == 3
    subscription.flow(consumer, 4)
    await rig.settle()
    assert [
        (each.redelivery_count, text) for each, text in zip(sink.delivered, sink.texts, strict=True)
    ] == [(1, "2"), (1, "4"), (0, "5"), (0, "6")]
    subscription.redeliver(consumer)
    subscription.flow(consumer, 100)
    await rig.settle()
    counts = dict(zip(sink.texts, [each.redelivery_count for each in sink.delivered], strict=True))
    assert counts == {
        "0": 1,
        "1": 1,
        "2": 2,
        "3": 1,
        "4": 2,
        "5": 1,
        "6": 1,
        "7": 0,
        "8": 0,
        "9": 0,
    }
    assert consumer.redelivered_messages == 2 + 7


async def test_an_acked_position_is_not_sent_again(rig):
    positions = await rig.publish_texts(6)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SHARED, permits=6)
    subscription.redeliver(consumer)
    subscription.ack_one(consumer, *positions[2])
    sink.take()
    subscription.flow(consumer, 100)
    await rig.settle()
    assert sink.texts == ["0", "1", "3", "4", "5"]
    assert subscription.stats().msg_in_replay == 0


async def test_an_ack_through_another_consumer_settles_the_holder(rig):
    positions = await rig.publish_texts(4)
    subscription = await rig.subscription()
    first, _ = await rig.attach(subscription, "a", SHARED)
    second, _ = await rig.attach(subscription, "b", SHARED)
    assert first.unacked == 4
    subscription.ack_one(second, *positions[1])
    assert (first.unacked, first.pending_count, second.unacked) == (3, 3, 0)


async def test_cumulative_ack_is_refused(rig):
    positions = await rig.publish_texts(1)
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", SHARED)
    answers: list[MagnetarError | None] = []
    subscription.ack(consumer, [(*positions[0], None, 0)], True, answers.append)
    assert isinstance(answers[0], NotAllowed)
    assert subscription.cursor.backlog == 1


async def test_batch_index_acks_lower_what_is_held(rig, make_entry):
    (position,) = await rig.publish(make_entry("b", batch=10))
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SHARED)
    assert (consumer.unacked, consumer.permits) == (10, 990)
    # Without the batch's size, as Java's client sends it.
    subscription.ack(consumer, [(*position, 0b1111111100, 0)])
    assert consumer.unacked == 8
    subscription.ack(consumer, [(*position, 0b0000001111, 10)])
    assert consumer.unacked == 2
    sink.take()
    subscription.redeliver(consumer, [position])
    await rig.settle()
    assert [(each.ack_set, each.redelivery_count) for each in sink.delivered] == [(0b1100, 1)]
    assert (consumer.unacked, consumer.permits) == (2, 988)
    subscription.ack(consumer, [(*position, 0b1111110011, 10)])
    assert (consumer.unacked, subscription.cursor.backlog) == (0, 0)


async def test_cap_per_consumer_lifts_at_half(rig):
    await rig.publish_texts(40)
    limits = SubscriptionLimits(max_unacked_per_consumer=10)
    subscription = await rig.subscription(limits=limits)
    consumer, sink = await rig.attach(subscription, "a", SHARED)
    assert (len(sink.delivered), consumer.blocked) == (10, True)
    for position in sink.positions[:4]:
        subscription.ack_one(consumer, *position)
    await rig.settle()
    assert len(sink.delivered) == 10
    assert subscription.stats().consumers[0].blocked_consumer_on_unacked_msgs
    subscription.ack_one(consumer, *sink.positions[4])
    await rig.settle()
    assert (len(sink.delivered), consumer.unacked) == (15, 10)


async def test_cap_per_subscription_lifts_at_half(rig):
    await rig.publish_texts(40)
    limits = SubscriptionLimits(max_unacked_per_subscription=10)
    subscription = await rig.subscription(limits=limits)
    consumer, sink = await rig.attach(subscription, "a", SHARED, permits=6)
    other, other_sink = await rig.attach(subscription, "b", SHARED)
    assert len(sink.delivered) + len(other_sink.delivered) == 10
    assert subscription.stats().blocked_subscription_on_unacked_msgs
    subscription.remove_consumer(consumer)
    await rig.settle()
    assert len(other_sink.delivered) == 10
    assert other.unacked == 10
    assert len(set(other_sink.positions)) == 10


async def test_skipped_positions_leave_holders_and_replay(rig):
    positions = await rig.publish_texts(10)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SHARED, permits=6)
    subscription.redeliver(consumer, positions[:2])
    await subscription.skip(4)
    assert subscription.cursor.mark_delete == positions[3]
    assert (consumer.unacked, subscription.stats().msg_in_replay) == (2, 0)
    sink.take()
    subscription.flow(consumer, 100)
    await rig.settle()
    assert sink.texts == ["6", "7", "8", "9"]


async def test_stats_and_state(rig):
    positions = await rig.publish_texts(10)
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", SHARED, permits=8)
    subscription.ack_one(consumer, *positions[0])
    subscription.ack_one(consumer, *positions[2])
    stats = subscription.stats()
    assert (stats.msg_backlog, stats.unacked_messages, stats.msg_out_counter) == (8, 6, 8)
    assert stats.non_contiguous_deleted_messages_ranges == 1
    assert stats.type == "Shared"
    assert stats.consumers[0].address == "/127.0.0.1:40712"
    subscription.remove_consumer(consumer)
    assert subscription.stats().msg_out_counter == 8
    assert subscription.state()["waiting"] == 0


@pytest.mark.parametrize("turn", range(3))
async def test_a_large_backlog_is_shared_out_over_many_turns(rig, turn):
    await rig.publish_texts(3000)
    subscription = await rig.subscription()
    consumers = [await rig.attach(subscription, f"c{each}", SHARED, permits=0) for each in range(3)]
    for consumer, _ in consumers:
        subscription.flow(consumer, 1500)
    for _ in range(200):
        await asyncio.sleep(0)
        await rig.settle()
    got = [position for _, sink in consumers for position in sink.positions]
    assert len(got) == len(set(got)) == 3000
