"""Turns, caps and hand-overs of the dispatchers, at the exact numbers and moments."""

import asyncio
from typing import Any

import pytest

from magnetar.broker.dispatch.base import TURN_ENTRIES_MAX
from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType
from magnetar.compaction.artifact import Artifacts
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.steady_clock import SteadyClock
from magnetar.offload.cold_files import ColdFiles
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry

KINDS = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared])
UNBOUNDED = 1 << 62
BACKLOG = 9 * TURN_ENTRIES_MAX


# -- turns


@pytest.mark.parametrize("kind", list(SubType))
async def test_one_turn_hands_over_a_bounded_number_of_entries(rig, kind) -> None:
    await rig.publish_texts(BACKLOG, keys=3)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", kind, permits=1)
    await rig.settle()
    start = len(sink.delivered)
    subscription.flow(consumer, 10_000)
    first = len(sink.delivered) - start
    assert first <= TURN_ENTRIES_MAX
    for _ in range(3):
        before = len(sink.delivered)
        subscription.flow(consumer, 1)
        assert len(sink.delivered) - before <= TURN_ENTRIES_MAX
    before = len(sink.delivered)
    await asyncio.sleep(0)
    assert len(sink.delivered) - before <= TURN_ENTRIES_MAX, "one later turn is due, not four"
    for _ in range(100):
        await rig.settle()
    assert len(sink.delivered) == BACKLOG


@KINDS
async def test_replayed_and_new_entries_share_one_turn(rig, kind) -> None:
    await rig.publish_texts(3 * TURN_ENTRIES_MAX, keys=3)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", kind, permits=300)
    await rig.settle()
    subscription.redeliver(consumer)
    sink.take()
    subscription.flow(consumer, 10_000)
    assert len(sink.delivered) <= TURN_ENTRIES_MAX
    for _ in range(100):
        await rig.settle()
    assert len(sink.delivered) == 3 * TURN_ENTRIES_MAX


# -- caps


@KINDS
async def test_a_consumer_gets_as_much_as_its_cap_and_more_when_half_of_it_is_back(
    rig, kind
) -> None:
    await rig.publish_texts(30, keys=1)
    subscription = await rig.subscription(limits=SubscriptionLimits(max_unacked_per_consumer=10))
    consumer, sink = await rig.attach(subscription, "a", kind)
    assert (len(sink.delivered), consumer.unacked, consumer.blocked) == (10, 10, True)
    for place in rig.published[:4]:
        subscription.ack_one(consumer, *place)
    await rig.settle()
    assert len(sink.delivered) == 10
    subscription.ack_one(consumer, *rig.published[4])
    await rig.settle()
    assert (len(sink.delivered), consumer.unacked) == (15, 10)


@KINDS
async def test_a_subscription_gives_as_much_as_its_cap(rig, kind) -> None:
    await rig.publish_texts(30, keys=7)
    limits = SubscriptionLimits(max_unacked_per_subscription=10)
    subscription = await rig.subscription(limits=limits)
    sinks = [(await rig.attach(subscription, name, kind))[1] for name in "ab"]
    assert sum(len(sink.delivered) for sink in sinks) == 10
    assert subscription.dispatcher.blocked


@pytest.mark.parametrize("each", [True, False])
@KINDS
async def test_a_redelivery_request_makes_room_below_a_cap(rig, kind, each) -> None:
    await rig.publish_texts(30, keys=1)
    limits = SubscriptionLimits(
        max_unacked_per_consumer=10 if each else 0,
        max_unacked_per_subscription=0 if each else 10,
    )
    subscription = await rig.subscription(limits=limits)
    consumer, sink = await rig.attach(subscription, "a", kind)
    assert sink.take() == [str(number) for number in range(10)]
    subscription.redeliver(consumer, rig.published[:4])
    await rig.settle()
    assert sink.take() == [], "more than half is still held"
    subscription.redeliver(consumer, rig.published[4:5])
    await rig.settle()
    assert sorted(sink.take(), key=int) == [str(number) for number in range(5)]
    assert consumer.unacked == subscription.dispatcher.unacked == 10


@KINDS
async def test_a_consumer_that_leaves_makes_room_below_the_cap_of_all(rig, kind) -> None:
    await rig.publish_texts(30, keys=7)
    limits = SubscriptionLimits(max_unacked_per_subscription=10)
    subscription = await rig.subscription(limits=limits)
    first, _ = await rig.attach(subscription, "a", kind, permits=10)
    _, sink = await rig.attach(subscription, "b", kind)
    assert (first.unacked, sink.delivered) == (10, [])
    subscription.remove_consumer(first)
    await rig.settle()
    assert len(sink.delivered) == 10


# -- one active consumer


async def test_only_the_active_consumer_has_its_messages_sent_again(rig) -> None:
    await rig.publish_texts(5)
    subscription = await rig.subscription()
    consumers = [await rig.attach(subscription, name, SubType.Failover) for name in "ab"]
    active = subscription.dispatcher.active
    (passive,) = [one for one, _ in consumers if one is not active]
    for _, sink in consumers:
        sink.take()
    subscription.redeliver(passive, None, 3)
    await rig.settle()
    assert [sink.take() for _, sink in consumers] == [[], []]
    assert passive.epoch == 3, "it counts when it is active"
    subscription.redeliver(active)
    await rig.settle()
    got = {one: sink.take() for one, sink in consumers}
    assert (len(got[active]), got[passive]) == (5, [])


# -- look-ahead


@pytest.mark.parametrize(
    ("each", "whole", "consumers", "most"),
    [
        (10, 100, 1, 10),
        (10, 100, 3, 30),
        (10, 25, 3, 25),
        (0, 25, 3, 25),
        (10, 0, 3, 30),
        (0, 0, 3, UNBOUNDED),
    ],
)
async def test_so_many_positions_may_wait(rig, each, whole, consumers, most) -> None:
    limits = SubscriptionLimits(look_ahead_per_consumer=each, look_ahead_per_subscription=whole)
    subscription = await rig.subscription(limits=limits)
    for number in range(consumers):
        await rig.attach(subscription, str(number), SubType.Key_Shared)
    assert subscription.dispatcher.look_ahead_max == most


async def test_a_full_look_ahead_reads_nothing_more_and_continues_with_what_was_read(rig) -> None:
    await rig.publish_texts(60, keys=1)
    limits = SubscriptionLimits(look_ahead_per_subscription=5, read_entries_min=40)
    subscription = await rig.subscription(limits=limits)
    pairs = [await rig.attach(subscription, name, SubType.Key_Shared, 0) for name in "ab"]
    selector = subscription.dispatcher.selector
    owner = selector.select(selector.hash_of(b"k0"))
    (sink,) = [each for one, each in pairs if one is owner]
    (other,) = [one for one, _ in pairs if one is not owner]
    for _ in range(3):
        subscription.flow(other, 100)
        await rig.settle()
        assert (subscription.stats().msg_in_replay, sink.delivered) == (5, [])
    subscription.flow(owner, 100)
    await rig.settle()
    assert sink.take() == [str(number) for number in range(60)]


async def test_attempts_at_a_hash_that_drains_are_counted_through_joins(rig) -> None:
    subscription = await rig.subscription()
    await rig.attach(subscription, "a", SubType.Key_Shared)
    await rig.publish_texts(50, keys=50)
    await rig.settle()
    await rig.attach(subscription, "b", SubType.Key_Shared)
    await rig.publish_texts(50, keys=50)
    await rig.settle()

    def attempts() -> dict[int, int]:
        (holder,) = [each for each in subscription.stats().consumers if each.consumer_name == "a"]
        return {each.hash: each.blocked_attempts for each in holder.draining_hashes}

    before = attempts()
    assert set(before.values()) == {1}
    await rig.attach(subscription, "c", SubType.Key_Shared)
    after = attempts()
    assert before.keys() < after.keys()
    assert {each: after[each] for each in before} == before
    assert {after[each] for each in after.keys() - before.keys()} == {0}


@KINDS
async def test_when_the_last_consumer_leaves_nothing_is_held_for_it(rig, kind) -> None:
    """Its entries are read again from the log, so keeping them would waste memory."""
    await rig.publish_texts(60, keys=5)
    limits = SubscriptionLimits(max_unacked_per_subscription=30, failover_switch_delay_s=0.0)
    subscription = await rig.subscription(limits=limits)
    consumer, _ = await rig.attach(subscription, "a", kind, permits=20)
    await rig.attach(subscription, "b", kind, permits=20)
    subscription.redeliver(consumer, rig.published[:9])
    subscription.redeliver(consumer)
    for each in list(subscription.consumers):
        subscription.remove_consumer(each)
    dispatcher = subscription.dispatcher
    assert (dispatcher.unacked, dispatcher.blocked, dispatcher.waiting_count) == (0, False, 0)
    assert (len(dispatcher.counts), len(dispatcher.replays)) == (0, 0)
    assert (dispatcher.reader.buffered, dispatcher.reader.reading) == (0, False)
    assert consumer.pending == {}
    if isinstance(dispatcher, KeySharedDispatcher):
        assert (dispatcher._being_read, dispatcher.draining) == ({}, {})
        assert (len(dispatcher.waiting), dispatcher._kept._bytes) == (0, 0)
        assert dispatcher.drained_total == {}
    await rig.settle()
    assert len(rig.tasks) == 0
    _, sink = await rig.attach(subscription, "c", kind)
    assert sorted(sink.texts, key=int) == [str(number) for number in range(30)]
    assert {each.redelivery_count for each in sink.delivered} == {0}


# -- batches in a compacted log


def batch(*left: int, messages: int = 4) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.num_messages_in_batch = messages
    metadata.compacted_batch_indexes.extend(left)
    return build_entry(metadata, b"batch")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(
    ("left", "remaining", "seen"),
    [
        ((), None, None),
        ((), 0b0110, 0b0110),
        ((1, 3), None, 0b1010),
        ((1, 3), 0b0110, 0b0010),
        ((1, 3), 0b0101, 0b0101),
        ((0,), None, 0b0001),
        ((0, 3), 0b0111, 0b0001),
        ((0, 1, 2, 3), None, 0b1111),
        ((3, 4), None, 0b1000),
        ((-1, 2), None, 0b0100),
        ((9,), None, None),
    ],
)
async def test_a_reader_of_a_compacted_log_sees_what_was_left_of_a_batch(
    rig, left: tuple[int, ...], remaining: int | None, seen: int | None, durable: bool
) -> None:
    (place,) = await rig.publish(batch(*left))
    cursor: Any = (
        await rig.ledger.open_cursor("r", initial=EARLIEST)
        if durable
        else rig.ledger.new_non_durable_cursor("r", EARLIEST)
    )
    subscription = PersistentSubscription(
        "persistent://public/default/t",
        "r",
        rig.ledger,
        cursor,
        limits=SubscriptionLimits(),
        clock=SteadyClock.of(rig.clock),
        tasks=rig.tasks,
    )
    if remaining is not None:
        cursor.ack_batch(*place, remaining, 4)
    consumer, sink = rig.consumer("a", SubType.Exclusive)
    store = rig.factory._store
    consumer.compacted = await CompactedLog.open(
        rig.ledger, Artifacts(store, ColdFiles()), rig.clock
    )
    await subscription.add_consumer(consumer)
    subscription.flow(consumer, 10)
    await rig.settle()
    (delivery,) = sink.delivered
    assert delivery.ack_set == (remaining if durable else seen)
    counted = 4 if delivery.ack_set is None else delivery.ack_set.bit_count()
    assert consumer.permits == 10 - counted


# -- ranges of an exclusive reader


async def test_a_reader_of_ranges_passes_over_other_keys_without_permits_for_them(rig) -> None:
    await rig.publish_texts(60, keys=30)
    subscription = await rig.subscription()
    policy = KeySharedSpec(KeySharedMode.STICKY, ((0, 10_000),))
    consumer, sink = await rig.attach(
        subscription, "a", SubType.Exclusive, permits=60, key_shared=policy
    )
    got = len(sink.texts)
    assert 0 < got < 60
    assert consumer.permits == 60 - got
    assert subscription.cursor.read_position >= Position(*rig.published[-1])
