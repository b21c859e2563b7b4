"""What happens between a consumer's request and its place: rest, cancellation, broken cursors."""

import asyncio

import pytest
from tests.support.held_store import puts
from tests.unit.ledger.stage import turns
from tests.unit.topic.stage import request, stage

from magnetar.broker.subscription.spec import SubType
from magnetar.core.errors import MagnetarError, PreconditionFailed, ServiceNotReady
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.record import CURSORS_PREFIX


async def test_a_consumer_that_waits_for_a_dead_one_is_not_let_into_a_topic_that_rests() -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription, _, sink = await s.attach(topic, request(sub_type=SubType.Exclusive))
        asked, go = asyncio.Event(), asyncio.Event()

        async def is_alive() -> bool:
            asked.set()
            await go.wait()
            return False

        sink.is_alive = is_alive  # type: ignore[method-assign]
        attaching = asyncio.ensure_future(s.attach(topic, request(sub_type=SubType.Exclusive)))
        await asked.wait()
        topic.suspend()
        go.set()
        with pytest.raises(ServiceNotReady):
            await attaching
        assert list(subscription.consumers) == []


async def test_a_subscription_is_there_although_its_creator_has_gone_away() -> None:
    """Its cursor would hold data back, and nobody could see it."""
    async with stage() as s:
        topic = await s.topic()
        held = s.store.hold(puts(CURSORS_PREFIX))
        creating = asyncio.ensure_future(topic.create_subscription("s", EARLIEST, {}))
        await held.reached.wait()
        creating.cancel()
        await asyncio.wait([creating])
        held.go.set()
        await turns(30)
        assert set(topic.subscriptions) == set(topic.managed_ledger.cursors) == {"s"}


async def test_a_topic_with_a_subscription_that_cannot_be_read_is_in_use() -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await s.publish(topic, "a", "b", "c")
        subscription, consumer, _ = await s.attach(topic)
        answers: list[object] = []
        subscription.ack(consumer, [(*places[1], None, 0)], False, answers.append)
        while not answers:
            await turns(1)
        log = subscription.cursor.log
        assert log is not None
        await s.service.topics.unload(topic.name)
        await s.bookie.delete_ledger(log.ledger_id)
        again = await s.topic()
        assert set(again.broken_subscriptions) == {"s"}
        assert again.subscriptions == {}
        with pytest.raises(PreconditionFailed):
            again.check_deletable(force=False)
        with pytest.raises(MagnetarError):
            await s.attach(again)
        await again.delete_subscription("s")
        assert again.broken_subscriptions == {}
        again.check_deletable(force=False)
