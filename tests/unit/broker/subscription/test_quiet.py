"""Dispatchers that can hand nothing over, or whose consumers come back: no spin and no stall."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from tests.support.memory_bookie import MemoryBookie

from magnetar.bookie.api import StoredEntry
from magnetar.broker.dispatch.metadata import (
    count_and_chunk,
    count_and_key,
    kept_messages,
    message_count,
    publish_time_ms,
    sticky_key_of,
)
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.settings import ManagedLedgerSettings

KINDS = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared])
WAIT_S = 20.0


class SlowBookie(MemoryBookie):
    """A bookie whose reads wait on the test's command."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.reached = asyncio.Event()

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        self.reached.set()
        await self.go_on.wait()
        return await super().read_entries(ledger_id, first, last, bytes_max=bytes_max, fence=fence)

    def stall(self) -> None:
        self.go_on.clear()
        self.reached.clear()


@pytest.fixture
def bookie() -> SlowBookie:
    return SlowBookie()


@pytest.fixture
async def stored(open_rig: Callable[..., AsyncIterator[Any]], bookie: SlowBookie) -> Any:
    async for each in open_rig(ManagedLedgerSettings(cache_bytes_max=0), bookie):
        yield each


def is_quiet(subscription: Any) -> bool:
    """Whether no later turn is due: what cannot move is not tried again and again."""
    subscription.dispatcher.dispatch()
    return not subscription.dispatcher._turn_due


# -- no spin


@pytest.mark.parametrize("kind", list(SubType))
async def test_a_dispatcher_that_cannot_hand_over_waits_to_be_woken(rig, kind) -> None:
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", kind, permits=0)
    assert is_quiet(subscription), "there is nothing"
    await rig.publish_texts(9, keys=2)
    await rig.settle()
    assert is_quiet(subscription), "there are no permits"
    subscription.flow(consumer, 3)
    await rig.settle()
    assert (len(sink.delivered), is_quiet(subscription)) == (3, True)
    subscription.flow(consumer, 3)
    sink.writable = False
    subscription.flow(consumer, 3)
    assert is_quiet(subscription), "the socket is full"
    subscription.remove_consumer(consumer)
    assert is_quiet(subscription), "there is nobody"


@KINDS
async def test_a_dispatcher_at_its_cap_waits_for_acks(rig, kind) -> None:
    limits = SubscriptionLimits(max_unacked_per_subscription=4)
    subscription = await rig.subscription(limits=limits)
    _, sink = await rig.attach(subscription, "a", kind)
    await rig.publish_texts(9, keys=2)
    await rig.settle()
    assert (len(sink.delivered), is_quiet(subscription)) == (4, True)


@KINDS
async def test_a_dispatcher_whose_entries_are_read_again_waits_for_them(
    stored, bookie: SlowBookie, kind
) -> None:
    positions = await stored.publish_texts(9, keys=1)
    subscription = await stored.subscription()
    consumer, sink = await stored.attach(subscription, "a", kind, permits=5)
    assert len(sink.take()) == 5
    bookie.stall()
    subscription.redeliver(consumer, positions[:5])
    subscription.flow(consumer, 100)
    await bookie.reached.wait()
    assert is_quiet(subscription)
    bookie.go_on.set()
    await stored.settle()
    assert sink.take() == [str(number) for number in range(9)]


@KINDS
async def test_entries_that_can_be_sent_at_once_take_one_write(rig, kind) -> None:
    await rig.publish_texts(40, keys=1)
    subscription = await rig.subscription()
    _, sink = await rig.attach(subscription, "a", kind, permits=30)
    assert (len(sink.delivered), sink.calls) == (30, 1)


# -- no stall


@KINDS
async def test_an_ack_during_a_replay_does_not_stop_later_entries(
    stored, bookie: SlowBookie, kind
) -> None:
    positions = await stored.publish_texts(6, keys=1)
    subscription = await stored.subscription()
    consumer, sink = await stored.attach(subscription, "a", kind, permits=4)
    assert len(sink.take()) == 4
    bookie.stall()
    subscription.redeliver(consumer, positions[:4])
    subscription.flow(consumer, 100)
    await bookie.reached.wait()
    subscription.ack_one(consumer, *positions[0])
    subscription.ack_one(consumer, *positions[2])
    bookie.go_on.set()
    await stored.settle()
    assert sink.take() == ["1", "3", "4", "5"]


@KINDS
async def test_an_ack_through_another_consumer_frees_exactly_its_entry(rig, kind) -> None:
    positions = await rig.publish_texts(5, keys=1)
    subscription = await rig.subscription()
    holder, sink = await rig.attach(subscription, "a", kind)
    other, other_sink = await rig.attach(subscription, "b", kind)
    assert (len(sink.delivered), len(other_sink.delivered)) == (5, 0)
    for number, left in ((3, 4), (3, 4), (2, 3)):
        subscription.ack_one(other, *positions[number])
        assert (holder.unacked, holder.pending_count, other.unacked) == (left, left, 0)
        assert subscription.dispatcher.unacked == left
    held = {entry_id for _, entry_id, _ in holder.pending_items()}
    assert held == {positions[number][1] for number in (0, 1, 4)}


@KINDS
async def test_a_part_of_a_batch_that_another_consumer_acknowledges_counts_for_its_holder(
    rig, make_entry, kind
) -> None:
    (place,) = await rig.publish(make_entry("batch", batch=4, key="k"))
    subscription = await rig.subscription()
    holder, _ = await rig.attach(subscription, "a", kind)
    other, _ = await rig.attach(subscription, "b", kind)
    subscription.ack(other, [(*place, 0b0110, 4)])
    assert (holder.unacked, other.unacked, subscription.dispatcher.unacked) == (2, 0, 2)
    subscription.ack(other, [(*place, 0, 4)])
    assert (holder.unacked, holder.pending_count, subscription.cursor.backlog) == (0, 0, 0)


async def test_the_chunks_of_a_message_are_not_kept_for_a_consumer_that_left(
    rig, make_entry
) -> None:
    subscription = await rig.subscription()
    first, _ = await rig.attach(subscription, "a", SubType.Shared)
    await rig.publish(make_entry("x0", chunk=("x", 0, 3)))
    await rig.settle()
    subscription.remove_consumer(first)
    _, sink = await rig.attach(subscription, "b", SubType.Shared)
    chunks = [make_entry(f"x{number}", chunk=("x", number, 3)) for number in (1, 2)]
    await rig.publish(*chunks)
    await rig.settle()
    assert sink.texts == ["x0", "x1", "x2"]


async def test_chunks_that_another_turn_brings_count_against_the_cap_of_their_owner(
    rig, make_entry
) -> None:
    subscription = await rig.subscription(limits=SubscriptionLimits(max_unacked_per_consumer=2))
    owner, sink = await rig.attach(subscription, "a", SubType.Shared)
    (first,) = await rig.publish(make_entry("x0", chunk=("x", 0, 4)))
    await rig.settle()
    _, other_sink = await rig.attach(subscription, "b", SubType.Shared)
    chunks = [make_entry(f"x{number}", chunk=("x", number, 4)) for number in (1, 2, 3)]
    await rig.publish(*chunks)
    await rig.settle()
    assert (sink.texts, other_sink.texts) == (["x0", "x1"], [])
    assert (owner.unacked, owner.blocked) == (2, True)
    subscription.ack_one(owner, *first)
    await rig.settle()
    assert (sink.texts, other_sink.texts) == (["x0", "x1", "x2"], [])


@KINDS
async def test_a_skipped_position_waits_no_more(rig, kind) -> None:
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", kind, permits=20)
    await rig.publish_texts(30, keys=4)
    await rig.settle()
    consumer.permits = 0
    subscription.redeliver(consumer)
    assert subscription.stats().msg_in_replay == 20
    await subscription.skip(7)
    assert subscription.stats().msg_in_replay == 13
    await subscription.skip(100)
    assert subscription.stats().msg_in_replay == 0
    sink.take()
    subscription.flow(consumer, 100)
    await rig.settle()
    assert sink.take() == []


@pytest.mark.parametrize("kind", list(SubType))
async def test_of_a_batch_that_was_acknowledged_in_part_the_rest_is_sent_and_counted(
    rig, make_entry, kind
) -> None:
    (place,) = await rig.publish(make_entry("batch", batch=4, key="k"))
    subscription = await rig.subscription()
    subscription.cursor.ack_batch(*place, 0b0110, 4)
    consumer, sink = await rig.attach(subscription, "a", kind, permits=10)
    (delivery,) = sink.delivered
    assert (delivery.message_count, delivery.ack_set) == (4, 0b0110)
    assert (consumer.permits, consumer.messages_out) == (8, 2)
    if kind.individual_only:
        assert (consumer.unacked, subscription.dispatcher.unacked) == (2, 2)


@pytest.mark.parametrize("leaves", ["before", "after"])
async def test_an_abandoned_hand_over_does_not_delay_the_next(rig, leaves: str) -> None:
    await rig.publish_texts(3)
    limits = SubscriptionLimits(failover_switch_delay_s=0.02)
    subscription = await rig.subscription(limits=limits)
    first, first_sink = await rig.attach(subscription, "a", SubType.Failover)
    assert subscription.dispatcher.state()["switching"]
    got = asyncio.Event()
    consumer, sink = rig.consumer("b", SubType.Failover)
    sink.on_deliver = lambda _: got.set()
    if leaves == "before":
        subscription.remove_consumer(first)
        assert not subscription.dispatcher.state()["switching"]
        await subscription.add_consumer(consumer)
    else:
        await subscription.add_consumer(consumer)
        subscription.remove_consumer(first)
    subscription.flow(consumer, 10)
    await asyncio.wait_for(got.wait(), WAIT_S)
    await rig.settle()
    assert (sink.texts, first_sink.texts) == (["0", "1", "2"], [])


async def test_a_closed_dispatcher_hands_over_nothing_later(rig) -> None:
    await rig.publish_texts(3)
    limits = SubscriptionLimits(failover_switch_delay_s=0.01)
    subscription = await rig.subscription(limits=limits)
    _, sink = await rig.attach(subscription, "a", SubType.Failover)
    dispatcher = subscription.dispatcher
    dispatcher.close()
    assert not dispatcher.state()["switching"]
    loop = asyncio.get_running_loop()
    passed = asyncio.Event()
    loop.call_later(0.03, passed.set)
    await passed.wait()
    assert sink.delivered == []


# -- entries whose metadata cannot be read


def test_an_entry_that_cannot_be_understood_is_one_message_without_key_or_chunk() -> None:
    for data in (b"", b"\x0e\x01", b"\xff" * 20):
        entry = Entry(1, 1, data)
        assert message_count(entry) == 1
        assert count_and_key(entry) == (1, b"")
        assert count_and_chunk(entry) == (1, None)
        assert kept_messages(entry) is None
        assert sticky_key_of(entry) == b""
        assert publish_time_ms(data) == 0


def test_the_metadata_of_an_entry(make_entry) -> None:
    def of(**how: Any) -> Entry:
        return Entry(1, 1, make_entry("x", **how))

    assert message_count(of(batch=7)) == 7
    assert count_and_key(of(batch=7, key="k")) == (7, b"k")
    assert count_and_key(of(sequence_id=5)) == (1, b"p-5")
    assert publish_time_ms(of(time_ms=77).data) == 77
    chunks: Sequence[tuple[int, int, Any]] = [
        (0, 1, None),
        (0, 2, ("u", False)),
        (1, 2, ("u", True)),
        (1, 3, ("u", False)),
        (2, 3, ("u", True)),
    ]
    for index, count, chunk in chunks:
        assert count_and_chunk(of(chunk=("u", index, count))) == (1, chunk)
    assert count_and_chunk(of(batch=3)) == (3, None)
