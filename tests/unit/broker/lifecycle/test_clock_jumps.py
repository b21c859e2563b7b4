"""The wall clock jumps: nothing younger than its policy's age is deleted."""

import pytest
from tests.unit.broker.lifecycle.world import ENTRIES_PER_LEDGER, World, named, world

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.policies.lifecycle import (
    BACKLOG_QUOTA,
    INACTIVE_TOPICS,
    MESSAGE_TTL,
    RETENTION,
    SUBSCRIPTION_EXPIRATION,
)

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
JUMPS = (HOUR_MS, -HOUR_MS, YEAR_MS, -YEAR_MS)


async def every_round(w: World) -> None:
    await w.upkeep.expire_messages()
    await w.upkeep.check_quotas()
    await w.upkeep.trim()
    await w.upkeep.expire_subscriptions()
    await w.upkeep.delete_unused()


async def kept_for_an_hour(w: World) -> PersistentTopic:
    """What it has is kept for an hour, by each of the policies that go by age."""
    topic = await w.topic("t", "behind")
    await w.set(MESSAGE_TTL, 3600)
    await w.set(RETENTION, {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    evicts = {"limitTime": 3600, "limitSize": -1, "policy": "consumer_backlog_eviction"}
    await w.set(BACKLOG_QUOTA, {"message_age": evicts})
    await w.set(SUBSCRIPTION_EXPIRATION, 60)
    unused = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 3600,
        "deleteWhileInactive": True,
    }
    await w.set(INACTIVE_TOPICS, unused)
    return topic


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_jump_and_its_return_take_nothing(jump_ms: int) -> None:
    """Neither messages that arrived nor ledgers that closed while the clock was wrong are lost."""
    async with world() as w:
        topic = await kept_for_an_hour(w)
        await w.topic("unused")
        await w.publish(topic, ENTRIES_PER_LEDGER * 2)
        read = await topic.create_subscription("read", topic.managed_ledger.last_confirmed, {})
        w.clock.skew_ms = jump_ms
        await every_round(w)
        await w.publish(topic, ENTRIES_PER_LEDGER * 2)
        await topic.managed_ledger.roll_over()
        await read.clear_backlog()
        topic.last_active_ms = w.service.clock.now_ms()
        await every_round(w)
        w.clock.skew_ms = 0
        await every_round(w)
        assert topic.managed_ledger.entries_total == ENTRIES_PER_LEDGER * 4
        assert topic.subscriptions["behind"].cursor.backlog == ENTRIES_PER_LEDGER * 4
        assert w.service.topics.loaded(named("unused")) is not None


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_jump_pins_nothing_for_longer_than_twice_its_time(jump_ms: int) -> None:
    """Data of that time expires once its retention, counted from the clock's return, is over."""
    async with world() as w:
        topic = await w.topic("t")
        await w.set(RETENTION, {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
        w.clock.skew_ms = jump_ms
        await w.publish(topic, ENTRIES_PER_LEDGER * 2)
        await topic.managed_ledger.roll_over()
        w.clock.skew_ms = 0
        w.clock.advance(59 * 60_000)
        await w.upkeep.trim()
        assert topic.managed_ledger.entries_total == ENTRIES_PER_LEDGER * 2
        w.clock.advance(61 * 60_000)
        await w.upkeep.trim()
        await topic.managed_ledger.trim()
        assert topic.managed_ledger.entries_total == 0


async def test_a_jump_that_stays_only_delays() -> None:
    """The machine was suspended: its wall clock is right, and ages go on from where they were."""
    async with world() as w:
        topic = await kept_for_an_hour(w)
        await w.publish(topic, ENTRIES_PER_LEDGER)
        w.clock.skew_ms = YEAR_MS
        await w.upkeep.expire_messages()
        assert topic.subscriptions["behind"].cursor.backlog == ENTRIES_PER_LEDGER
        w.clock.advance(HOUR_MS + 5_000)
        await w.upkeep.expire_messages()
        assert topic.subscriptions["behind"].cursor.backlog == 0


async def test_an_unused_topic_of_the_future_goes_in_its_time() -> None:
    async with world() as w:
        await kept_for_an_hour(w)
        topic = await w.topic("unused")
        w.clock.skew_ms = YEAR_MS
        topic.last_active_ms = w.service.clock.now_ms()
        w.clock.skew_ms = 0
        await w.upkeep.delete_unused()
        w.clock.advance(HOUR_MS - 1_000)
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(named("unused")) is topic
        w.clock.advance(2_000)
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(named("unused")) is None
