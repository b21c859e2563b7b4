"""What the rounds do to topics, in time that a test moves."""

from typing import Any

import pytest
from tests.unit.broker.lifecycle.world import ENTRIES_PER_LEDGER, named, world

from magnetar.broker.lifecycle.enforcement import refusal
from magnetar.broker.lifecycle.quota import PULSAR_TEXT
from magnetar.core.errors import ServerError
from magnetar.policies.lifecycle import (
    BACKLOG_QUOTA,
    INACTIVE_TOPICS,
    MESSAGE_TTL,
    PERSISTENCE,
    RETENTION,
    SUBSCRIPTION_EXPIRATION,
)

MINUTE_MS = 60_000


def retention(minutes: int, size_mb: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size_mb}


def quota(kind: str, limit: int, action: str) -> dict[str, Any]:
    field = "limitSize" if kind == "destination_storage" else "limitTime"
    return {kind: {"limitSize": -1, "limitTime": -1, field: limit, "policy": action}}


# -- retention


async def test_retention_changes_at_once_on_loaded_topics() -> None:
    async with world(retention_minutes=-1, retention_size_mb=-1) as w:
        topic = await w.topic()
        await w.publish(topic, 12)  # without subscriptions, everything is consumed
        assert w.stored(topic)[0] == 3
        await w.upkeep.trim()
        assert w.stored(topic)[0] == 3
        await w.set(RETENTION, retention(0, 0))
        await topic.managed_ledger.trim()  # waits for the one that the change began
        assert w.stored(topic)[0] == 1  # the newest may grow: only closed ones go


async def test_the_topics_own_retention_is_before_the_namespaces() -> None:
    async with world() as w:
        await w.set(RETENTION, retention(0, 0))
        topic, other = await w.topic("t"), await w.topic("other")
        await w.set(RETENTION, retention(-1, -1), topic)
        for each in (topic, other):
            await w.publish(each, 11)
        await w.upkeep.trim()
        assert (w.stored(topic)[0], w.stored(other)[0]) == (3, 1)


async def test_retention_by_time_counts_from_the_close_of_a_ledger() -> None:
    async with world() as w:
        await w.set(RETENTION, retention(10, -1))
        topic = await w.topic()
        await w.publish(topic, 6, every_ms=MINUTE_MS)  # the first was closed after 5 minutes
        for minutes, ledgers in ((9, 2), (1, 1)):
            w.clock.advance(minutes * MINUTE_MS)
            await w.upkeep.trim()
            assert w.stored(topic)[0] == ledgers


async def test_an_idle_topics_data_goes_too() -> None:
    async with world(ledger_rollover_max_minutes=240) as w:
        topic = await w.topic()
        await w.publish(topic, 2)
        w.clock.advance(239 * MINUTE_MS)
        await w.upkeep.trim()
        assert w.stored(topic)[0] == 1
        w.clock.advance(2 * MINUTE_MS)
        await w.upkeep.trim()
        await topic.managed_ledger.roll_over()  # waits for the one that the round began
        await w.upkeep.trim()
        assert w.stored(topic) == (0, 0)


# -- TTL


async def test_a_ttl_acknowledges_for_every_subscription_also_without_consumers() -> None:
    async with world() as w:
        topic = await w.topic("t", "behind", "ahead", "done")
        places = await w.publish(topic, 20, every_ms=1_000)
        topic.subscriptions["ahead"].cursor.ack_cumulative(places[7])
        topic.subscriptions["ahead"].cursor.ack(*places[9])
        topic.subscriptions["done"].cursor.ack_cumulative(places[-1])
        await w.set(MESSAGE_TTL, 9)
        await w.upkeep.expire_messages()  # after 19 s, messages of 10 s and more are too old
        behind, ahead, done = (topic.subscriptions[n] for n in ("behind", "ahead", "done"))
        assert behind.cursor.mark_delete == ahead.cursor.mark_delete == places[9]
        assert [each.expired_total for each in (behind, ahead, done)] == [10, 1, 0]
        stats = behind.stats()
        assert (stats.msg_backlog, stats.msg_expired, stats.total_msg_expired) == (10, 10, 10)
        assert stats.last_expire_timestamp == w.clock.now_ms()
        assert done.last_expire_ms == 0  # nothing of it was looked at
        behind.update_rates()
        assert behind.stats().msg_rate_expired == 1.0  # 10 in the 10 s of a period
        behind.update_rates()
        assert behind.stats().msg_rate_expired == 0.0
        await w.upkeep.expire_messages()
        assert behind.stats().total_msg_expired == 10


async def test_no_ttl_expires_nothing() -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.publish(topic, 3)
        w.clock.advance(10**12)
        await w.upkeep.expire_messages()
        assert topic.subscriptions["s"].cursor.backlog == 3


async def test_what_expired_is_deleted() -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.publish(topic, 12)
        await w.set(MESSAGE_TTL, 1)
        w.clock.advance(5_000)
        await w.upkeep.expire_messages()
        await topic.managed_ledger.trim()
        assert w.stored(topic)[0] == 1


# -- backlog quotas


@pytest.mark.parametrize(
    ("action", "code"), [("producer_request_hold", 7), ("producer_exception", 8)]
)
@pytest.mark.parametrize("kind", ["destination_storage", "message_age"])
async def test_a_quota_keeps_producers_away_until_the_backlog_is_less(
    action: str, code: int, kind: str
) -> None:
    async with world() as w:
        topic = await w.topic("t", "slow", "fast")
        places = await w.publish(topic, 10, every_ms=1_000, size_bytes=1_000)
        topic.subscriptions["fast"].cursor.ack_cumulative(places[-1])
        limit = 9_000 if kind == "destination_storage" else 8
        await w.set(BACKLOG_QUOTA, quota(kind, limit, action))
        refused = await refusal(topic)
        assert refused is not None
        assert (refused.code, refused.message) == (ServerError(code), PULSAR_TEXT)
        await w.upkeep.check_quotas()
        assert topic.subscriptions["slow"].cursor.backlog == 10  # nothing is lost
        topic.subscriptions["slow"].cursor.ack_cumulative(places[4])
        assert await refusal(topic) is None
        await w.upkeep.check_quotas()


@pytest.mark.parametrize("kind", ["destination_storage", "message_age"])
async def test_an_eviction_takes_the_oldest_of_the_slowest(kind: str) -> None:
    async with world() as w:
        topic = await w.topic("t", "slow", "middle", "fast")
        places = await w.publish(topic, 30, every_ms=1_000, size_bytes=1_000)
        middle, fast = topic.subscriptions["middle"], topic.subscriptions["fast"]
        middle.cursor.ack_cumulative(places[11])
        fast.cursor.ack_cumulative(places[25])
        entry = topic.managed_ledger.bytes_total // 30
        limit = 20 * entry if kind == "destination_storage" else 20
        await w.set(BACKLOG_QUOTA, quota(kind, limit, "consumer_backlog_eviction"))
        assert await refusal(topic) is None
        await w.upkeep.check_quotas()
        backlogs = {name: each.cursor.backlog for name, each in topic.subscriptions.items()}
        # To nine tenths of the limit; by age the message of exactly 18 s ago stays.
        left = 18 if kind == "destination_storage" else 19
        assert backlogs == {"slow": left, "middle": min(left, 18), "fast": 4}
        counters = topic.counters
        evictions = (counters.evictions_by_size, counters.evictions_by_age)
        assert evictions == ((1, 0) if kind == "destination_storage" else (0, 1))
        assert topic.subscriptions["slow"].expired_total == 0
        await w.upkeep.check_quotas()
        assert topic.subscriptions["slow"].cursor.backlog == left


async def test_a_topic_without_a_durable_subscription_has_no_backlog() -> None:
    async with world() as w:
        topic = await w.topic("t")
        await w.publish(topic, 3)
        await w.set(BACKLOG_QUOTA, quota("destination_storage", 1, "producer_exception"))
        assert await refusal(topic) is None


# -- copies


async def test_new_ledgers_have_the_copies_that_the_policy_says() -> None:
    async with world(bookies=3) as w:
        topic = await w.topic()

        async def copies() -> tuple[int, int, int]:
            newest = topic.managed_ledger.ledgers[-1].ledger_id
            found = (await w.ledgers.open(newest, recover=False)).metadata
            return found.ensemble_size, found.write_quorum, found.ack_quorum

        await w.publish(topic)
        assert await copies() == (1, 1, 1)
        spread = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
        await w.set(PERSISTENCE, dict(zip(spread, (3, 2, 1), strict=True)))
        await w.publish(topic, ENTRIES_PER_LEDGER - 1)
        assert await copies() == (1, 1, 1)  # until its next rollover
        await w.publish(topic)
        assert await copies() == (3, 2, 1)
        await w.set(PERSISTENCE, dict(zip(spread, (2, 2, 2), strict=True)), topic)
        await w.service.topics.unload(topic.name)  # or at once, so
        topic = await w.topic()
        await w.publish(topic)
        assert await copies() == (2, 2, 2)


# -- subscriptions and topics


async def test_subscriptions_that_nobody_uses_go() -> None:
    async with world() as w:
        topic = await w.topic("t", "old")
        await w.set(SUBSCRIPTION_EXPIRATION, 10)
        w.clock.advance(9 * MINUTE_MS)
        await topic.create_subscription("new", topic.managed_ledger.last_confirmed, {})
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"old", "new"}
        w.clock.advance(MINUTE_MS + 1)
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"new"}
        assert set(topic.managed_ledger.cursors) == {"new"}


def inactive(mode: str, *, deletes: bool = True) -> dict[str, Any]:
    return {
        "inactiveTopicDeleteMode": mode,
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": deletes,
    }


async def test_topics_that_nobody_uses_go_by_their_own_policy() -> None:
    async with world(delete_inactive_topics=False) as w:
        for local in ("plain", "subscribed", "behind", "kept", "retained"):
            topic = await w.topic(local)
            if local != "plain":
                await w.publish(topic, 2)
            if local in ("subscribed", "behind"):
                await topic.create_subscription("s", topic.managed_ledger.first_position, {})
        done = await w.topic("subscribed")
        await done.subscriptions["s"].clear_backlog()
        await w.set(RETENTION, retention(60, -1), await w.topic("retained"))
        w.clock.advance(MINUTE_MS)
        await w.upkeep.delete_unused()
        assert len(w.service.topics) == 5  # the broker deletes none
        await w.set(INACTIVE_TOPICS, inactive("delete_when_no_subscriptions"))
        await w.set(
            INACTIVE_TOPICS,
            inactive("delete_when_no_subscriptions", deletes=False),
            await w.topic("kept"),
        )
        w.clock.advance(MINUTE_MS)
        await w.upkeep.delete_unused()
        left = {topic.name.local for topic in w.service.topics}
        assert left == {"subscribed", "behind", "kept", "retained"}
        await w.set(INACTIVE_TOPICS, inactive("delete_when_subscriptions_caught_up"))
        w.clock.advance(MINUTE_MS)
        await w.upkeep.delete_unused()
        left = {topic.name.local for topic in w.service.topics}
        assert left == {"behind", "kept", "retained"}
        w.clock.advance(60 * MINUTE_MS)
        await w.upkeep.delete_unused()
        assert {topic.name.local for topic in w.service.topics} == {"behind", "kept"}


async def test_a_topic_is_looked_at_again_at_its_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who comes between the round's look and the deletion keeps the topic."""
    async with world() as w:
        topic = await w.topic()
        w.clock.advance(10 * MINUTE_MS)
        delete_if = w.service.topics.delete_if

        async def late(one: Any, holds: Any) -> None:
            await topic.create_subscription("s", topic.managed_ledger.last_confirmed, {})
            await delete_if(one, holds)

        monkeypatch.setattr(w.service.topics, "delete_if", late)
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(named("t")) is topic
        assert set(topic.subscriptions) == {"s"}
