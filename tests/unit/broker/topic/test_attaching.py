"""What happens between a consumer's request and its place: rest, cancellation, broken cursors."""

import asyncio

import pytest
from tests.support.held_store import puts
from tests.unit.broker.topic.stage import hold_sign_of_life, request, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.admission import check_key_shared
from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType
from magnetar.core.errors import ConsumerBusy, MagnetarError, PreconditionFailed, ServiceNotReady
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.record import CURSORS_PREFIX
from magnetar.policies.caps import MAX_CONSUMERS_PER_SUBSCRIPTION


async def test_a_consumer_that_waits_for_a_dead_one_does_not_attach_to_a_suspended_topic() -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription, _, sink = await s.attach(topic, request(sub_type=SubType.Exclusive))
        asked, go = hold_sign_of_life(sink, alive=False)
        attaching = asyncio.ensure_future(s.attach(topic, request(sub_type=SubType.Exclusive)))
        await asked.wait()
        topic.suspend()
        go.set()
        with pytest.raises(ServiceNotReady):
            await attaching
        assert list(subscription.consumers) == []


async def test_a_subscription_is_created_even_if_its_client_disconnects() -> None:
    """Otherwise its cursor would hold data back unnoticed."""
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


@pytest.mark.parametrize("kind", ["persistent", "non-persistent"])
async def test_a_subscription_admits_as_many_consumers_as_its_cap(kind: str) -> None:
    async with stage() as s:
        topic = await (s.topic() if kind == "persistent" else s.nonpersistent())
        await s.set(MAX_CONSUMERS_PER_SUBSCRIPTION, 2, topic)
        for _ in range(2):
            await s.attach(topic)
        with pytest.raises(ConsumerBusy, match="Subscription reached max consumers limit"):
            await s.attach(topic)
        assert len(topic.subscriptions["s"].consumers) == 2


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_consumers_of_a_key_shared_subscription_agree_on_order(active: bool, wanted: bool) -> None:
    def spec(allowed: bool, mode: KeySharedMode = KeySharedMode.AUTO_SPLIT) -> KeySharedSpec:
        return KeySharedSpec(mode, allow_out_of_order=allowed)

    if active is wanted:
        check_key_shared(spec(active), spec(wanted))
    else:
        with pytest.raises(ConsumerBusy, match="out of order delivery"):
            check_key_shared(spec(active), spec(wanted))
    with pytest.raises(ConsumerBusy, match="mode"):
        check_key_shared(spec(active), spec(wanted, KeySharedMode.STICKY))
