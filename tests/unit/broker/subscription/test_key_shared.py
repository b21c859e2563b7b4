"""Key_Shared over a real managed ledger in memory."""

import pytest

from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType
from magnetar.core.errors import ConsumerAssignError, ConsumerBusy

KEY_SHARED = SubType.Key_Shared
STICKY = KeySharedMode.STICKY


def by_key(sink):
    """The texts of each key in the order in which they came."""
    keys: dict[str, list[int]] = {}
    for key, text in zip(sink.keys, sink.texts, strict=True):
        keys.setdefault(key, []).append(int(text))
    return keys


async def test_each_key_goes_to_one_consumer_in_order(rig):
    subscription = await rig.subscription()
    _, first = await rig.attach(subscription, "a", KEY_SHARED)
    _, second = await rig.attach(subscription, "b", KEY_SHARED)
    await rig.publish_texts(400, keys=40)
    await rig.settle()
    one, other = by_key(first), by_key(second)
    assert not one.keys() & other.keys()
    assert one
    assert other
    for key, texts in (one | other).items():
        assert texts == list(range(int(key[1:]), 400, 40))


async def test_entries_without_a_key_spread(rig, make_entry):
    subscription = await rig.subscription()
    _, first = await rig.attach(subscription, "a", KEY_SHARED)
    _, second = await rig.attach(subscription, "b", KEY_SHARED)
    for each in range(40):
        await rig.publish(make_entry(str(each), sequence_id=each))
    await rig.settle()
    assert len(first.delivered) + len(second.delivered) == 40
    assert first.delivered
    assert second.delivered


async def test_a_hash_drains_before_its_new_owner_gets_it(rig):
    subscription = await rig.subscription()
    first, first_sink = await rig.attach(subscription, "a", KEY_SHARED)
    await rig.publish_texts(100, keys=50)
    await rig.settle()
    _, second_sink = await rig.attach(subscription, "b", KEY_SHARED)
    stats = subscription.stats()
    draining = stats.consumers[0].draining_hashes_count
    assert draining > 0
    assert stats.consumers[0].draining_hashes_unacked_messages == 2 * draining
    await rig.publish_texts(100, keys=50)
    await rig.settle()
    assert second_sink.delivered == []
    assert len(first_sink.delivered) == 100 + 2 * (50 - draining)
    assert subscription.stats().msg_in_replay == 2 * draining
    assert all(
        each.blocked_attempts == 2 for each in subscription.stats().consumers[0].draining_hashes
    )
    for position in first_sink.positions:
        subscription.ack_one(first, *position)
    await rig.settle()
    assert len(second_sink.delivered) == 2 * draining
    assert all(texts == sorted(texts) for texts in by_key(second_sink).values())
    stats = subscription.stats()
    assert stats.draining_hashes_count == 0
    assert stats.consumers[0].draining_hashes_cleared_total == draining


async def test_a_draining_hash_is_free_when_its_holder_leaves(rig):
    subscription = await rig.subscription()
    first, first_sink = await rig.attach(subscription, "a", KEY_SHARED)
    await rig.publish_texts(100, keys=50)
    await rig.settle()
    _, second_sink = await rig.attach(subscription, "b", KEY_SHARED)
    await rig.publish_texts(100, keys=50)
    await rig.settle()
    subscription.remove_consumer(first)
    await rig.settle()
    assert len(second_sink.delivered) == 200
    assert by_key(second_sink) == {f"k{key}": list(range(key, 200, 50)) for key in range(50)}
    assert first_sink.closed == []


async def test_out_of_order_delivery_does_not_wait(rig):
    policy = KeySharedSpec(allow_out_of_order=True)
    subscription = await rig.subscription()
    await rig.attach(subscription, "a", KEY_SHARED, key_shared=policy)
    await rig.publish_texts(100, keys=50)
    await rig.settle()
    _, second_sink = await rig.attach(subscription, "b", KEY_SHARED, key_shared=policy)
    await rig.publish_texts(100, keys=50)
    await rig.settle()
    assert second_sink.delivered


async def test_one_consumer_without_permits_does_not_hold_up_the_other(rig):
    subscription = await rig.subscription()
    slow, slow_sink = await rig.attach(subscription, "slow", KEY_SHARED, permits=1)
    _, fast_sink = await rig.attach(subscription, "fast", KEY_SHARED, permits=10_000)
    await rig.publish_texts(600, keys=30)
    await rig.settle()
    assert len(slow_sink.delivered) == 1
    waiting = subscription.stats().msg_in_replay
    assert len(fast_sink.delivered) == 599 - waiting
    assert len(by_key(fast_sink)) == 30 - len({*slow_sink.keys}) - (waiting - 19) // 20
    subscription.flow(slow, 1000)
    await rig.settle()
    assert len(slow_sink.delivered) == 1 + waiting
    assert all(texts == sorted(texts) for texts in by_key(slow_sink).values())
    assert not by_key(slow_sink).keys() & by_key(fast_sink).keys()


async def test_look_ahead_is_bounded(rig):
    limits = SubscriptionLimits(look_ahead_per_consumer=30, look_ahead_per_subscription=50)
    subscription = await rig.subscription(limits=limits)
    slow, slow_sink = await rig.attach(subscription, "slow", KEY_SHARED, permits=0)
    _, fast_sink = await rig.attach(subscription, "fast", KEY_SHARED, permits=10_000)
    await rig.publish_texts(1000, keys=30)
    await rig.settle()
    assert subscription.stats().msg_in_replay == 50
    seen = len(fast_sink.delivered)
    assert seen < 500
    subscription.flow(slow, 10_000)
    await rig.settle()
    assert len(slow_sink.delivered) + len(fast_sink.delivered) == 1000
    assert subscription.stats().msg_in_replay == 0


async def test_nack_goes_back_to_the_same_consumer_and_counts(rig):
    subscription = await rig.subscription()
    first, first_sink = await rig.attach(subscription, "a", KEY_SHARED)
    second, second_sink = await rig.attach(subscription, "b", KEY_SHARED)
    await rig.publish_texts(60, keys=20)
    await rig.settle()
    before = by_key(first_sink)
    first_sink.take()
    second_sink.take()
    subscription.redeliver(first)
    await rig.settle()
    assert by_key(first_sink) == before
    assert {each.redelivery_count for each in first_sink.delivered} == {1}
    assert second_sink.delivered == []
    assert second.unacked + first.unacked == 60


async def test_an_acked_head_does_not_stop_its_line(rig):
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", KEY_SHARED, permits=2)
    positions = await rig.publish_texts(6, keys=1)
    await rig.settle()
    subscription.redeliver(consumer)
    subscription.ack_one(consumer, *positions[0])
    sink.take()
    subscription.flow(consumer, 10)
    await rig.settle()
    assert sink.texts == ["1", "2", "3", "4", "5"]


async def test_skipped_positions_leave_their_lines(rig):
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", KEY_SHARED, permits=3)
    await rig.attach(subscription, "b", KEY_SHARED, permits=0)
    await rig.publish_texts(30, keys=10)
    await rig.settle()
    await subscription.skip(20)
    assert subscription.stats().msg_in_replay <= 10
    sink.take()
    subscription.flow(consumer, 100)
    await rig.settle()
    assert sink.texts == [text for text in sink.texts if int(text) >= 20]
    assert sink.texts


async def test_sticky_ranges(rig):
    subscription = await rig.subscription()
    low = KeySharedSpec(STICKY, ((0, 20_000), (20_001, 32_767)))
    high = KeySharedSpec(STICKY, ((32_768, 65_535),))
    _, low_sink = await rig.attach(subscription, "low", KEY_SHARED, key_shared=low)
    await rig.publish_texts(100, keys=50)
    await rig.settle()
    assert 0 < len(low_sink.delivered) < 100
    assert subscription.stats().msg_in_replay == 100 - len(low_sink.delivered)
    consumer, _ = rig.consumer("x", KEY_SHARED, key_shared=KeySharedSpec(STICKY, ((9, 70),)))
    with pytest.raises(ConsumerAssignError, match="Range conflict with consumer"):
        await subscription.add_consumer(consumer)
    _, high_sink = await rig.attach(subscription, "high", KEY_SHARED, key_shared=high)
    assert len(low_sink.delivered) + len(high_sink.delivered) == 100
    assert subscription.stats().consumers[1].key_hash_range_arrays == [(32_768, 65_535)]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (None, "Must specify key shared meta for consumer."),
        (KeySharedSpec(STICKY), "Ranges for KeyShared policy must not be empty."),
        (KeySharedSpec(STICKY, ((5, 4),)), "Fixed hash range start > end for range: [5,4]"),
        (
            KeySharedSpec(STICKY, ((1, 9), (9, 12))),
            "Consumer's own ranges conflict: [1,9] overlaps with [9,12]",
        ),
    ],
)
async def test_sticky_refusals(rig, spec, text):
    subscription = await rig.subscription()
    policy = KeySharedSpec(STICKY, ((40_000, 50_000),))
    await rig.attach(subscription, "a", KEY_SHARED, key_shared=policy)
    consumer, _ = rig.consumer("b", KEY_SHARED, key_shared=spec)
    with pytest.raises((ConsumerAssignError, ConsumerBusy)) as refused:
        await subscription.add_consumer(consumer)
    if spec is None:
        text = (
            "Subscription is of different type. Active subscription key_shared mode of 'STICKY' "
            "is different than the connecting consumer's key_shared mode 'AUTO_SPLIT'."
        )
    assert refused.value.message == text
    assert len(subscription.consumers) == 1


async def test_policies_must_agree(rig):
    subscription = await rig.subscription()
    await rig.attach(subscription, "a", KEY_SHARED)
    consumer, _ = rig.consumer("b", KEY_SHARED, key_shared=KeySharedSpec(allow_out_of_order=True))
    with pytest.raises(ConsumerBusy, match="does not allow out of order delivery while"):
        await subscription.add_consumer(consumer)


async def test_the_state_shows_which_positions_wait_for_which_consumer(rig):
    subscription = await rig.subscription()
    await rig.attach(subscription, "a", KEY_SHARED)
    await rig.publish_texts(50, keys=50)
    await rig.settle()
    await rig.attach(subscription, "b", KEY_SHARED)
    await rig.publish_texts(50, keys=50)
    await rig.settle()
    state = subscription.state()
    assert state["waiting"] == len(state["draining"]) == len(state["waiting_heads"])
    assert {holder for holder, _ in state["draining"].values()} == {"a"}
