"""Subscriptions of non-persistent topics."""

import asyncio

import pytest

from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.nonpersistent import NonPersistentSubscription
from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ConsumerAssignError, ConsumerBusy, ServiceNotReady


@pytest.fixture
def subscription():
    return NonPersistentSubscription(
        "non-persistent://public/default/t",
        "s",
        limits=SubscriptionLimits(),
        clock=SystemClock(),
    )


@pytest.fixture
def attach(subscription, make_consumer):
    async def attach(name, sub_type, permits=100, **spec):
        consumer, sink = make_consumer(name, sub_type, **spec)
        await subscription.add_consumer(consumer)
        subscription.flow(consumer, permits)
        return consumer, sink

    return attach


async def test_entries_without_permits_are_dropped_and_counted(
    subscription, attach, make_entry, monkeypatch
):
    subscription.publish([make_entry("nobody", batch=3)])
    consumer, sink = await attach("a", SubType.Exclusive, permits=3)
    subscription.publish([make_entry(str(each)) for each in range(5)])
    assert sink.texts == ["0", "1", "2"]
    assert sink.positions == [(0, 0)] * 3
    sink.writable = False
    subscription.flow(consumer, 5)
    subscription.publish([make_entry("full")])
    assert subscription.dropped == 3 + 2 + 1
    now_s = subscription.clock.monotonic()
    subscription._rated = (0, now_s - 2)
    monkeypatch.setattr(subscription.clock, "monotonic", lambda: now_s)
    subscription.update_rates()
    stats = subscription.stats()
    assert stats.msg_drop_rate == pytest.approx(3)
    assert (stats.msg_out_counter, stats.type, stats.is_durable) == (3, "Exclusive", False)


async def test_shared_dispatch_rotates_within_a_priority(subscription, attach, make_entry):
    _, low = await attach("low", SubType.Shared, permits=3, priority=1)
    _, first = await attach("a", SubType.Shared, permits=2)
    _, second = await attach("b", SubType.Shared, permits=2)
    subscription.publish([make_entry(str(each)) for each in range(8)])
    assert (first.texts, second.texts) == (["0", "2"], ["1", "3"])
    assert low.texts == ["4", "5", "6"]
    assert subscription.dropped == 1


async def test_failover_moves_on_at_once(subscription, attach, make_entry):
    await attach("b", SubType.Failover)
    await attach("a", SubType.Failover)
    active = subscription.active
    other = next(each for each in subscription.consumers if each is not active)
    assert active.sink.active[-1] is True
    subscription.publish([make_entry("1")])
    subscription.remove_consumer(active)
    assert other.sink.active[-1] is True
    subscription.publish([make_entry("2")])
    assert (active.sink.texts, other.sink.texts) == (["1"], ["2"])


async def test_key_shared_keeps_keys_together(subscription, attach, make_entry):
    _, first = await attach("a", SubType.Key_Shared)
    _, second = await attach("b", SubType.Key_Shared)
    subscription.publish([make_entry(str(each), key=f"k{each % 20}") for each in range(100)])
    assert len(first.texts) + len(second.texts) == 100
    assert not set(first.keys) & set(second.keys)
    assert sum(len(each.key_hash_range_arrays) for each in subscription.stats().consumers) > 50


async def test_refusals(subscription, attach, make_consumer):
    _, sink = await attach("a", SubType.Exclusive)
    with pytest.raises(ConsumerBusy, match="Exclusive consumer is already connected"):
        await attach("b", SubType.Exclusive)
    with pytest.raises(ConsumerBusy, match="Subscription is of different type"):
        await attach("b", SubType.Shared)
    sink.alive = False
    second, _ = await attach("b", SubType.Exclusive)
    assert subscription.consumers == [second]
    subscription.remove_consumer(second)
    sticky = KeySharedSpec(KeySharedMode.STICKY, ((1, 9),))
    await attach("c", SubType.Key_Shared, key_shared=sticky)
    with pytest.raises(ConsumerAssignError, match="Range conflict with consumer"):
        await attach("d", SubType.Key_Shared, key_shared=sticky)
    with pytest.raises(ConsumerBusy, match="key_shared mode of 'STICKY'"):
        await attach("d", SubType.Key_Shared)
    subscription.end()
    with pytest.raises(ServiceNotReady):
        await attach("e", SubType.Shared)


async def test_acks_and_redeliveries_are_taken_and_forgotten(subscription, attach):
    consumer, sink = await attach("a", SubType.Shared)
    answered = asyncio.get_running_loop().create_future()
    subscription.ack_one(consumer, 0, 0)
    subscription.ack(consumer, [(0, 0, None, 0)], False, answered.set_result)
    assert answered.result() is None
    subscription.redeliver(consumer, None, 4)
    subscription.on_writable(consumer)
    assert consumer.epoch == 4
    subscription.end()
    assert sink.closed == [consumer.spec.consumer_id]
    assert not subscription.consumers


async def test_a_subscription_deleted_during_an_attach_admits_no_consumer(
    subscription, attach, make_consumer
):
    """The consumer waits for the answer of the one whose place it wants."""
    _, sink = await attach("a", SubType.Exclusive)
    asked, answered = asyncio.Event(), asyncio.Event()

    async def is_alive():
        asked.set()
        await answered.wait()
        return False

    sink.is_alive = is_alive
    second, _ = make_consumer("b", SubType.Exclusive)
    attaching = asyncio.ensure_future(subscription.add_consumer(second))
    await asked.wait()
    subscription.end()
    answered.set()
    with pytest.raises(ServiceNotReady):
        await attaching
    assert not subscription.consumers
