"""What clients see of a topic whose metadata writes were not answered."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.support.broker import HOST, running_broker
from tests.support.held_store import HeldStore, deletes, puts
from tests.support.raw_client import RawClient, Refused
from tests.unit.ledger.stage import publish, turns

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MetadataError, ServerError
from magnetar.core.ids import EARLIEST
from magnetar.core.names import parse_topic
from magnetar.managed_ledger.record import CURSORS_PREFIX, MANAGED_LEDGERS_PREFIX
from magnetar.metadata.store import MetadataUnavailable, Operation

TOPIC = "persistent://public/default/t"
NAME = parse_topic(TOPIC)
WITHIN_S = 20.0
NOT_READY = int(ServerError.SERVICE_NOT_READY)
TERMINATED = int(ServerError.TOPIC_TERMINATED_ERROR)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.cursors.SETTLE_RETRY_S", 0.01)
    monkeypatch.setattr("magnetar.managed_ledger.managed_ledger.TERMINATE_RETRY_S", 0.01)


@pytest.mark.parametrize("landed", [True, False], ids=["deleted", "not deleted"])
async def test_a_subscription_is_served_again_when_it_is_known_whether_it_was_deleted(
    landed: bool,
) -> None:
    store = HeldStore()
    async with running_broker(store=store) as (service, port):
        topic = await service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        subscription = await topic.create_subscription("sub", EARLIEST, {})
        ledger_id, _ = await publish(topic.managed_ledger, *[b"x"] * 5)
        subscription.cursor.ack(ledger_id, 2)
        await subscription.cursor.flush()
        store.lose(deletes(CURSORS_PREFIX), lands=landed)
        with pytest.raises(MetadataUnavailable):
            await topic.delete_subscription("sub")
        client = await RawClient.connect(HOST, port)
        with pytest.raises(Refused) as refused:
            await client.consumer(TOPIC, "sub", kind=1)
        assert refused.value.code == NOT_READY
        store.away = False
        async with asyncio.timeout(WITHIN_S):
            while topic.managed_ledger.cursor_in_doubt("sub"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert ("sub" in topic.subscriptions) is not landed
        await client.consumer(TOPIC, "sub", kind=1)
        serving = topic.subscriptions["sub"]
        assert serving.cursor is topic.managed_ledger.cursors["sub"]
        assert serving.cursor.is_acked(ledger_id, 2) is not landed
        await publish(topic.managed_ledger, b"y")
        await service.topics.unload(NAME)
        again = await service.topics.get_or_open(NAME, create=False)
        assert isinstance(again, PersistentTopic)
        assert again.subscriptions["sub"].cursor.backlog == (6 if landed else 5)
        await client.close()


async def test_a_second_deletion_of_a_subscription_in_doubt_leaves_nothing() -> None:
    store = HeldStore()
    async with running_broker(store=store) as (service, _):
        topic = await service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        await topic.create_subscription("sub", EARLIEST, {})
        store.lose(deletes(CURSORS_PREFIX), lands=False)
        with pytest.raises(MetadataUnavailable):
            await topic.delete_subscription("sub")
        store.away = False
        await topic.delete_subscription("sub")
        assert not topic.subscriptions
        assert not topic.managed_ledger.cursors
        assert not await store.list(CURSORS_PREFIX)


async def test_a_deletion_that_comes_while_a_doubt_is_settled_leaves_nothing() -> None:
    """A subscription without a cursor would receipt acks that nothing stores."""
    store = HeldStore()
    async with running_broker(store=store) as (service, port):
        topic = await service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        await topic.create_subscription("sub", EARLIEST, {})
        store.lose(deletes(CURSORS_PREFIX), lands=False)
        with pytest.raises(MetadataUnavailable):
            await topic.delete_subscription("sub")
        asked = store.hold(puts(CURSORS_PREFIX))
        store.away = False
        await asked.reached.wait()
        deleting = asyncio.ensure_future(topic.delete_subscription("sub"))
        await turns()
        asked.go.set()
        await deleting
        await turns(50)
        assert not topic.subscriptions
        assert not topic.managed_ledger.cursors
        assert not topic.fenced
        client = await RawClient.connect(HOST, port)
        await client.consumer(TOPIC, "sub", kind=1)
        assert topic.subscriptions["sub"].cursor is topic.managed_ledger.cursors["sub"]
        await client.close()


async def test_of_two_deletions_at_once_the_first_of_which_fails_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = HeldStore()
    async with running_broker(store=store) as (service, _):
        topic = await service.topics.get_or_open(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        await topic.create_subscription("sub", EARLIEST, {})
        transact, refusals, refusing = store.transact, [MetadataError("refused")], asyncio.Event()
        second = store.hold(deletes(CURSORS_PREFIX))

        async def refused_once(operations: Sequence[Operation]) -> int:
            if refusals:
                await refusing.wait()
                raise refusals.pop()
            return await transact(operations)

        monkeypatch.setattr(store, "transact", refused_once)
        both = [asyncio.ensure_future(topic.delete_subscription("sub")) for _ in range(2)]
        await turns()
        refusing.set()
        await second.reached.wait()
        await asyncio.wait(both[:1])
        second.go.set()
        await asyncio.wait(both)
        assert isinstance(both[0].exception(), MetadataError)
        assert both[1].exception() is None
        assert not topic.subscriptions
        assert not topic.managed_ledger.cursors


async def test_producers_of_a_topic_whose_termination_failed_get_topic_terminated() -> None:
    store = HeldStore()
    async with running_broker(store=store) as (service, port):
        client = await RawClient.connect(HOST, port)
        producer = await client.producer(TOPIC)
        client.send(producer, 0, b"a")
        await client.receipted(producer, 1)
        topic = await service.topics.get_or_open(NAME, create=False)
        assert isinstance(topic, PersistentTopic)
        store.lose(puts(MANAGED_LEDGERS_PREFIX), lands=False)
        with pytest.raises(MetadataUnavailable):
            await topic.terminate()
        client.send(producer, 1, b"b")
        async with asyncio.timeout(WITHIN_S):
            while not client.closed_by_server:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(Refused) as refused:
            await client.producer(TOPIC)
        assert refused.value.code == TERMINATED
        store.away = False
        async with asyncio.timeout(WITHIN_S):
            while topic.managed_ledger.terminated_at is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await client.close()
