"""Dispatch is held back by permits, caps, suspensions, ends and clocks."""

import asyncio

import pytest

from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ConsumerNotFound, MagnetarError, ServiceNotReady

DAY_MS = 24 * 3_600_000


class JumpingClock(SystemClock):
    """A wall clock that is set during the test."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


async def test_a_single_permit_is_enough_for_a_batch_of_many(rig, make_entry):
    await rig.publish(*[make_entry(str(each), batch=10) for each in range(3)])
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SubType.Shared, permits=1)
    for got in (1, 2, 3):
        assert (len(sink.delivered), consumer.permits) == (got, -9)
        subscription.flow(consumer, 9)
        await rig.settle()
        assert len(sink.delivered) == got, "no permit is left"
        subscription.flow(consumer, 1)
        await rig.settle()


@pytest.mark.parametrize("cap", ["max_unacked_per_consumer", "max_unacked_per_subscription"])
@pytest.mark.parametrize(("most", "more"), [(4, 0), (5, 0), (6, 1), (0, 10)])
async def test_a_new_cap_applies_at_once_to_unacked_messages(rig, cap, most, more):
    await rig.publish_texts(15)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SubType.Shared, permits=5)
    assert len(sink.delivered) == 5
    subscription.set_limits(SubscriptionLimits(**{cap: most}))
    subscription.flow(consumer, 100)
    await rig.settle()
    assert len(sink.delivered) == 5 + more


@pytest.mark.parametrize("kind", list(SubType))
async def test_a_suspended_subscription_takes_acks_and_dispatches_nothing(rig, kind):
    positions = await rig.publish_texts(4)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", kind, permits=2)
    assert len(sink.delivered) == 2
    subscription.suspend()
    subscription.flow(consumer, 100)
    subscription.ack_one(consumer, *positions[0])
    await rig.publish_texts(2)
    await rig.settle()
    assert len(sink.delivered) == 2
    assert subscription.cursor.backlog == 5
    subscription.resume()
    await rig.settle()
    assert sink.texts == [str(each) for each in range(6)]


async def test_a_consumer_of_another_type_gets_nothing_while_its_subscription_rests(rig):
    await rig.publish_texts(2)
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", SubType.Exclusive, permits=0)
    subscription.remove_consumer(consumer)
    subscription.suspend()
    _, sink = await rig.attach(subscription, "b", SubType.Shared)
    assert sink.texts == []
    subscription.resume()
    await rig.settle()
    assert sink.texts == ["0", "1"]


async def test_an_entry_skipped_during_its_replay_is_neither_sent_nor_kept(rig):
    positions = await rig.publish_texts(10)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", SubType.Shared)
    sink.take()
    subscription.redeliver(consumer, positions[:4])
    await subscription.skip(6)
    sink.take()
    await rig.settle()
    assert sink.texts == []
    assert subscription.stats().msg_in_replay == 0
    assert not subscription.dispatcher.counts
    assert consumer.unacked == 4


async def test_a_consumer_that_waits_for_a_dead_one_does_not_attach_to_an_ended_subscription(rig):
    subscription = await rig.subscription()
    _, sink = await rig.attach(subscription, "a", SubType.Exclusive)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def is_alive() -> bool:
        asked.set()
        await answer.wait()
        return False

    sink.is_alive = is_alive
    consumer, _ = rig.consumer("b", SubType.Exclusive)
    adding = asyncio.ensure_future(subscription.add_consumer(consumer))
    await asked.wait()
    subscription.end()
    answer.set()
    with pytest.raises(ServiceNotReady, match="fenced"):
        await adding
    assert not consumer.attached
    other, _ = rig.consumer("c", SubType.Exclusive)
    with pytest.raises(ServiceNotReady, match="fenced"):
        await subscription.add_consumer(other)


@pytest.mark.parametrize("kind", list(SubType))
async def test_acks_of_a_consumer_that_was_sent_away_do_not_count(rig, kind):
    """A seek has disconnected it, and the message is redelivered to the next consumer."""
    positions = await rig.publish_texts(2)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", kind)
    assert len(sink.delivered) == 2
    await subscription.seek(rig.ledger.first_position)
    assert (sink.closed, consumer.attached) == ([consumer.spec.consumer_id], False)
    answers: list[MagnetarError | None] = []
    subscription.ack_one(consumer, *positions[0])
    subscription.ack(consumer, [(*positions[1], None, 0)], False, answers.append)
    assert isinstance(answers[0], ConsumerNotFound)
    assert subscription.cursor.backlog == 2
    _, again = await rig.attach(subscription, "a", kind)
    assert again.texts == ["0", "1"]


async def test_a_receipt_comes_once_the_ack_is_stored(rig):
    (position,) = await rig.publish_texts(1)
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", SubType.Shared)
    stored: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()
    subscription.ack(consumer, [(*position, None, 0)], False, stored.set_result)
    assert not stored.done()
    assert await stored is None
    assert subscription.cursor.log is not None
    assert subscription.cursor.log.last_entry >= 0


async def test_expiry_up_to_what_is_acknowledged_is_none(rig):
    positions = await rig.publish_texts(3)
    subscription = await rig.subscription()
    assert subscription.expire_up_to(rig.ledger.next_position(positions[0]))
    assert (subscription.last_expired, subscription.expired_total) == (2, 2)
    for target in (None, subscription.cursor.mark_delete):
        assert not subscription.expire_up_to(target)
        assert (subscription.last_expired, subscription.expired_total) == (0, 2)


async def test_a_wall_clock_that_is_set_ahead_expires_nothing(rig, make_entry):
    rig.clock = clock = JumpingClock()
    await rig.publish(make_entry("a", time_ms=clock.now_ms()))
    subscription = await rig.subscription()
    clock.ahead_ms = DAY_MS
    assert not await subscription.expire(3_600)
    assert subscription.cursor.backlog == 1
