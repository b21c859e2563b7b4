"""Caps at their limits, hashes redelivered while they drain, and skips."""

import pytest

from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.core.errors import ConsumerBusy

KINDS = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared])


@KINDS
async def test_a_cap_does_not_outlive_the_only_consumer_that_reached_it(rig, kind) -> None:
    await rig.publish_texts(30, keys=5)
    limits = SubscriptionLimits(max_unacked_per_subscription=10)
    subscription = await rig.subscription(limits=limits)
    consumer, _ = await rig.attach(subscription, "a", kind)
    assert subscription.dispatcher.blocked
    subscription.remove_consumer(consumer)
    _, sink = await rig.attach(subscription, "b", kind)
    assert len(sink.delivered) == 10


@KINDS
@pytest.mark.parametrize(
    "limits",
    [
        SubscriptionLimits(max_unacked_per_consumer=6),
        SubscriptionLimits(max_unacked_per_subscription=6),
    ],
    ids=["consumer", "subscription"],
)
async def test_parts_of_a_batch_lift_a_cap_when_half_of_it_is_free(
    rig, make_entry, kind, limits
) -> None:
    (place,) = await rig.publish(make_entry("batch", batch=6, key="k"))
    await rig.publish(make_entry("next", key="k"))
    subscription = await rig.subscription(limits=limits)
    consumer, sink = await rig.attach(subscription, "a", kind)
    assert sink.take() == ["batch"]
    subscription.ack(consumer, [(*place, 0b111100, 6)], False, None)
    await rig.settle()
    assert sink.take() == []
    subscription.ack(consumer, [(*place, 0b111000, 6)], False, None)
    await rig.settle()
    assert sink.take() == ["next"]


async def test_chunks_that_waited_stop_at_the_cap_of_the_subscription(rig, make_entry) -> None:
    subscription = await rig.subscription(limits=SubscriptionLimits(max_unacked_per_subscription=4))
    owner, sink = await rig.attach(subscription, "a", SubType.Shared, permits=1)
    chunks = [make_entry(f"c{number}", chunk=("m", number, 8)) for number in range(8)]
    await rig.publish(chunks[0])
    await rig.settle()
    assert sink.take() == ["c0"]
    _, other = await rig.attach(subscription, "b", SubType.Shared)
    await rig.publish(*chunks[1:])
    await rig.settle()
    assert (sink.take(), other.take()) == ([], [])
    subscription.flow(owner, 100)
    await rig.settle()
    assert (sink.take(), other.take()) == (["c1", "c2", "c3"], [])
    assert subscription.dispatcher.unacked == 4


async def test_a_draining_hash_that_is_sent_back_goes_to_its_new_owner(rig) -> None:
    subscription = await rig.subscription()
    first, first_sink = await rig.attach(subscription, "a", SubType.Key_Shared)
    await rig.publish_texts(50, keys=50)
    await rig.settle()
    held = dict(zip(first_sink.keys, first_sink.positions, strict=True))
    first_sink.take()
    _, second_sink = await rig.attach(subscription, "b", SubType.Key_Shared)
    draining = subscription.stats().draining_hashes_count
    assert draining > 0
    subscription.redeliver(first, list(held.values()))
    await rig.settle()
    assert subscription.stats().draining_hashes_count == 0
    assert len(second_sink.delivered) == draining
    assert len(first_sink.delivered) == 50 - draining
    assert {each.redelivery_count for each in second_sink.delivered} == {1}


@pytest.mark.parametrize("kind", list(SubType))
async def test_a_skipped_position_is_not_read(rig, kind) -> None:
    await rig.publish_texts(30, keys=5)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", kind, permits=0)
    await subscription.skip(20)
    assert subscription.cursor.read_position == (rig.published[20])
    subscription.flow(consumer, 100)
    await rig.settle()
    assert sorted(sink.texts, key=int) == [str(number) for number in range(20, 30)]


async def test_a_skip_of_what_is_read_again_leaves_room_for_other_reads(rig) -> None:
    """The bytes of skipped entries must not count against those that wait."""
    positions = await rig.publish_texts(40)
    limits = SubscriptionLimits(read_bytes_max=100)
    subscription = await rig.subscription(limits=limits)
    consumer, sink = await rig.attach(subscription, "a", SubType.Shared)
    assert len(sink.take()) == 40
    subscription.redeliver(consumer, positions)
    replays = subscription.dispatcher.replays
    await subscription.skip(20)
    assert [each for each in (*replays._wanted, *replays._ready) if each <= positions[19]] == []
    await rig.settle()
    assert sorted(sink.take(), key=int)[-20:] == [str(number) for number in range(20, 40)]


async def test_a_chunk_for_its_owner_in_another_s_turn_counts_against_the_cap_of_all(
    rig, make_entry
) -> None:
    subscription = await rig.subscription(limits=SubscriptionLimits(max_unacked_per_subscription=4))
    _, owner = await rig.attach(subscription, "a", SubType.Shared, priority=1)
    await rig.publish(make_entry("c0", chunk=("m", 0, 2)))
    await rig.settle()
    _, other = await rig.attach(subscription, "b", SubType.Shared)
    await rig.publish(
        make_entry("0"),
        make_entry("c1", chunk=("m", 1, 2)),
        *[make_entry(f"{number}") for number in range(1, 6)],
    )
    await rig.settle()
    assert (owner.texts, other.texts) == (["c0", "c1"], ["0", "1"])
    assert subscription.dispatcher.unacked == 4


async def test_a_key_continues_although_its_only_entry_was_acknowledged_while_it_was_read_again(
    rig, make_entry
) -> None:
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SubType.Key_Shared)
    (place,) = await rig.publish(make_entry("first", key="k"))
    await rig.settle()
    assert sink.take() == ["first"]
    consumer.permits = 1
    subscription.redeliver(consumer, [place])
    subscription.ack_one(consumer, *place)
    sink.take()
    subscription.flow(consumer, 100)
    await rig.publish(make_entry("next", key="k"))
    await rig.settle()
    assert sink.take() == ["next"]


async def test_nothing_is_kept_of_what_was_skipped_while_it_waited(rig) -> None:
    await rig.publish_texts(20, keys=1)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SubType.Key_Shared, permits=5)
    await rig.attach(subscription, "b", SubType.Key_Shared, permits=100)
    await rig.settle()
    subscription.redeliver(consumer)
    await subscription.skip(20)
    await rig.settle()
    dispatcher = subscription.dispatcher
    assert dispatcher.waiting_count == 0
    assert dispatcher._kept._bytes == 0
    assert dispatcher._being_read == {}
    sink.take()
    await rig.publish_texts(20, keys=1)
    subscription.flow(consumer, 100)
    await rig.settle()
    texts = [text for each in subscription.consumers for text in each.sink.texts]
    assert texts[-20:] == [str(number) for number in range(20, 40)]


async def test_a_missing_entry_is_not_mistaken_for_the_next(rig) -> None:
    ((ledger_id, entry_id),) = await rig.publish_texts(1)
    subscription = await rig.subscription()
    await rig.attach(subscription, "a", SubType.Shared, permits=0)
    take = subscription.dispatcher.replays.take
    assert take((ledger_id, entry_id + 1)) is None
    assert take((ledger_id - 1, 0)) is None


@pytest.mark.parametrize("kind", [SubType.Failover, SubType.Shared, SubType.Key_Shared])
async def test_the_limit_admits_its_number_of_consumers(rig, kind) -> None:
    limits = SubscriptionLimits(max_consumers=3, failover_switch_delay_s=0.0)
    subscription = await rig.subscription(limits=limits)
    for name in "abc":
        await rig.attach(subscription, name, kind)
    another, _ = rig.consumer("d", kind)
    with pytest.raises(ConsumerBusy):
        await subscription.add_consumer(another)
    assert len(subscription.consumers) == 3


async def test_waiting_entries_follow_their_key_to_its_new_consumer(rig) -> None:
    subscription = await rig.subscription()
    first, first_sink = await rig.attach(subscription, "a", SubType.Key_Shared, permits=0)
    await rig.attach(subscription, "reads", SubType.Key_Shared)
    await rig.publish_texts(60, keys=60)
    await rig.settle()
    second, second_sink = await rig.attach(subscription, "b", SubType.Key_Shared, permits=0)
    dispatcher = subscription.dispatcher
    owned = {first: 0, second: 0}
    for sticky_hash in dispatcher.waiting.by_hash:
        owned[dispatcher.selector.select(sticky_hash)] += 1
    assert all(owned.values())
    for consumer in (first, second):
        subscription.flow(consumer, 100)
    await rig.settle()
    assert (len(first_sink.delivered), len(second_sink.delivered)) == tuple(owned.values())
