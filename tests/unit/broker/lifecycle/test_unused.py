"""What counts as unused: use that only memory knows, names that come again, deletions cut short."""

import asyncio
from typing import Any

import pytest
from tests.unit.broker.lifecycle.world import World, named, world
from tests.unit.broker.subscription.conftest import new_consumer
from tests.unit.ledger.stage import turns

from magnetar.broker.policies.store import policies_key
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MetadataError
from magnetar.core.ids import EARLIEST
from magnetar.ledger.metadata import ledger_key
from magnetar.policies.lifecycle import INACTIVE_TOPICS, RETENTION, SUBSCRIPTION_EXPIRATION

DAY_MS = 86_400_000
DEADLINE_S = 20.0
MONTH_MINUTES = 30 * 1440


async def crash(w: World, topic: PersistentTopic) -> PersistentTopic:
    """Its broker ends without writing anything; loaded again."""
    w.service.open_topics.abandon(lambda each: each is topic)
    again = await w.service.topics.get_or_open(topic.name, create=False)
    assert isinstance(again, PersistentTopic)
    return again


async def test_a_subscription_in_use_outlives_its_broker() -> None:
    """Nothing came in a month, so that nothing was acknowledged, or written, in all that time."""
    async with world() as w:
        topic = await w.topic("t", "attached", "alone")
        await w.set(SUBSCRIPTION_EXPIRATION, MONTH_MINUTES)
        consumer, _ = new_consumer("a", SubType.Exclusive)
        await topic.subscriptions["attached"].add_consumer(consumer)
        for _ in range(29):
            w.clock.advance(DAY_MS)
            await w.upkeep.expire_subscriptions()
        topic = await crash(w, topic)
        w.clock.advance(DAY_MS * 2)  # both are alone; only one has been for a month
        await w.upkeep.expire_subscriptions()
        w.clock.advance(DAY_MS * 3)
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"attached"}


async def test_clients_have_time_to_return() -> None:
    """The policy is set after the crash, and knows nothing but old records."""
    async with world() as w:
        topic = await w.topic("t", "attached")
        w.clock.advance(60 * DAY_MS)
        topic = await crash(w, topic)
        await w.set(SUBSCRIPTION_EXPIRATION, MONTH_MINUTES)
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"attached"}
        w.clock.advance(9 * 60_000)
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"attached"}
        w.clock.advance(2 * 60_000)
        await w.upkeep.expire_subscriptions()
        assert not topic.subscriptions


async def test_one_that_came_under_the_same_name_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the first of two expires, a client deletes the second and creates it again."""
    async with world() as w:
        topic = await w.topic("t", "first", "second")
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        w.clock.advance(10 * 60_000)
        delete = PersistentTopic.delete_subscription

        async def slowly(self: PersistentTopic, name: str, *, force: bool = False) -> None:
            await delete(self, name, force=force)
            if name == "first":
                await delete(self, "second")
                await self.create_subscription("second", EARLIEST, {})

        monkeypatch.setattr(PersistentTopic, "delete_subscription", slowly)
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"second"}


async def test_a_subscription_that_cannot_be_deleted_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        topic = await w.topic("t", "first", "second", "third")
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        w.clock.advance(10 * 60_000)
        delete = PersistentTopic.delete_subscription

        async def refused(self: PersistentTopic, name: str, *, force: bool = False) -> None:
            if name == "first":
                raise MetadataError("the store did not answer in time")
            await delete(self, name, force=force)

        monkeypatch.setattr(PersistentTopic, "delete_subscription", refused)
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"first"}


async def test_a_policy_that_was_lifted_meanwhile_expires_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        topic = await w.topic("t", "first", "second")
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        w.clock.advance(10 * 60_000)
        delete = PersistentTopic.delete_subscription

        async def slowly(self: PersistentTopic, name: str, *, force: bool = False) -> None:
            await delete(self, name, force=force)
            await w.set(SUBSCRIPTION_EXPIRATION, 0)

        monkeypatch.setattr(PersistentTopic, "delete_subscription", slowly)
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"second"}


@pytest.mark.parametrize(
    "mode", ["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
)
async def test_a_topic_whose_only_subscription_cannot_be_read_is_in_use(mode: str) -> None:
    """The bookies of its cursor's ledger may be away; it needs the messages when they are back."""
    async with world() as w:
        topic = await w.topic("t", "sub")
        positions = await w.publish(topic, 3)
        cursor = topic.subscriptions["sub"].cursor
        cursor.ack(*positions[1])
        await cursor.flush()
        assert cursor.log is not None
        lost = cursor.log.ledger_id
        await w.service.topics.unload(topic.name)
        assert await w.service.store.delete(ledger_key(lost))
        topic = await w.topic("t")
        assert list(topic.managed_ledger.broken_cursors) == ["sub"]
        inactive = {
            "deleteWhileInactive": True,
            "maxInactiveDurationSeconds": 60,
            "inactiveTopicDeleteMode": mode,
        }
        await w.set(INACTIVE_TOPICS, inactive, topic)
        for _ in range(3):
            w.clock.advance(DAY_MS)
            await w.upkeep.delete_unused()
        assert w.service.topics.loaded(topic.name) is topic
        await topic.delete_subscription("sub")
        for _ in range(2):
            w.clock.advance(DAY_MS)
            await w.upkeep.delete_unused()
        assert w.service.topics.loaded(topic.name) is None


async def test_a_topic_created_again_begins_without_policies() -> None:
    """A former release deleted its log and was cut short before its policies."""
    kept: dict[str, Any] = {"retentionTimeInMinutes": 7, "retentionSizeInMB": -1}
    async with world() as w:
        for name in ("t", "p"):
            topic = await w.topic(name)
            await w.set(RETENTION, kept, topic)
            policies = await w.service.store.get(policies_key(named(name)))
            assert policies is not None
            await w.service.topics.delete(topic.name, force=True)
            await w.service.store.put(policies.key, policies.value)
            async with asyncio.timeout(DEADLINE_S):
                while w.service.policies.value(named(name), RETENTION) != kept:
                    await turns(1)
        topic = await w.topic("t")
        await w.service.topics.create_partitioned(named("p"), 2, {})
        for name in ("t", "p"):
            assert w.service.policies.own_value(named(name), RETENTION) is None
            assert await w.service.store.get(policies_key(named(name))) is None
        # Of one that exists they stay, however often its partitions are opened.
        await w.set(RETENTION, kept, await w.topic("p-partition-0"))
        await w.service.topics.unload(named("p-partition-1"))
        topic = await w.topic("p-partition-1")
        assert topic.policies.value(RETENTION) == kept


async def test_a_late_deletion_does_not_take_the_policies_of_the_next() -> None:
    """The deleting broker paused; the topic was created again."""
    kept: dict[str, Any] = {"retentionTimeInMinutes": 7, "retentionSizeInMB": -1}
    async with world() as w:
        topic = await w.topic("t")
        await w.set(RETENTION, kept, topic)
        await w.service.policies.forget(topic.name)
        assert topic.policies.value(RETENTION) == kept
        assert await w.service.store.get(policies_key(topic.name)) is not None
        await w.service.topics.delete(topic.name, force=True)
        assert await w.service.store.get(policies_key(topic.name)) is None
        await w.service.topics.create_partitioned(topic.name, 2, {})
        await w.set(RETENTION, kept, await w.topic("t-partition-0"))
        await w.service.policies.forget(topic.name)
        assert await w.service.store.get(policies_key(topic.name)) is not None
