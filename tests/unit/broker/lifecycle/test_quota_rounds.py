"""Rounds over topics beyond their quota, and their reports; rounds that end early."""

import asyncio
from typing import Any

import pytest
from tests.unit.broker.lifecycle.test_not_known import write
from tests.unit.broker.lifecycle.world import ENTRIES_PER_LEDGER, NAMESPACE, World, named, world
from tests.unit.broker.session.stage import Client

from magnetar.broker.lifecycle import enforcement, upkeep
from magnetar.broker.lifecycle.enforcement import furthest_behind, refusal
from magnetar.broker.lifecycle.quota import QuotaType
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies.applied_policies import AppliedPolicies
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.log import FIELDS
from magnetar.managed_ledger.cursor import Cursor
from magnetar.policies.lifecycle import (
    BACKLOG_QUOTA,
    INACTIVE_TOPICS,
    MESSAGE_TTL,
    RETENTION,
    SUBSCRIPTION_EXPIRATION,
)

MINUTE_MS = 60_000
EXCEEDED = "backlog quota exceeded, producers are blocked"
BELOW = "backlog is below its quota again"


def quota(limit: int, action: str = "producer_exception", kind: str = "size") -> dict[str, Any]:
    by_size = kind == "size"
    value = {
        "limitSize": limit if by_size else -1,
        "limitTime": -1 if by_size else limit,
        "policy": action,
    }
    return {"destination_storage" if by_size else "message_age": value}


class Log:
    """What the rounds say, with its fields."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("WARNING", "magnetar.lifecycle")
        self._caplog = caplog

    def said(self) -> list[tuple[str, dict[str, Any]]]:
        said = [(each.message, getattr(each, FIELDS)) for each in self._caplog.records]
        self._caplog.clear()
        return said


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def reader(topic: PersistentTopic, name: str = "reader") -> Any:
    """A subscription that holds no data."""
    cursor = topic.managed_ledger.new_non_durable_cursor(name, EARLIEST)
    topic.subscriptions[name] = subscription = topic._subscription(name, cursor)
    return subscription


# -- what operators hear


async def test_the_log_says_once_that_a_quota_is_exceeded_and_once_that_it_is_not(
    log: Log,
) -> None:
    async with world() as w:
        topic, other = await w.topic("t", "slow", "fast"), await w.topic("other", "s")
        reader(topic)
        places = await w.publish(topic, 4, size_bytes=100)
        topic.subscriptions["fast"].cursor.ack_cumulative(places[3])
        await w.publish(other, 1)
        await w.set(BACKLOG_QUOTA, quota(300))
        backlog_bytes = topic.managed_ledger.index.bytes_after(*EARLIEST)
        await w.upkeep.check_quotas()
        expected = {
            "topic": topic.full_name,
            "subscription": "slow",
            "quota": "destination_storage",
            "limit": 300,
            "backlog_bytes": backlog_bytes,
        }
        assert log.said() == [(EXCEEDED, expected)]
        await w.upkeep.check_quotas()
        assert log.said() == []
        topic.subscriptions["slow"].cursor.ack_cumulative(places[2])
        await w.upkeep.check_quotas()
        ((text, fields),) = log.said()
        assert (text, fields["backlog_bytes"]) == (BELOW, backlog_bytes - backlog_bytes * 3 // 4)
        await w.upkeep.check_quotas()
        assert log.said() == []


async def test_a_quota_that_is_set_again_is_logged_again(log: Log) -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.publish(topic, 4, size_bytes=100)
        await w.set(BACKLOG_QUOTA, quota(300))
        await w.upkeep.check_quotas()
        assert [text for text, _ in log.said()] == [EXCEEDED]
        await w.set(BACKLOG_QUOTA, {})
        await w.upkeep.check_quotas()
        await w.set(BACKLOG_QUOTA, quota(300))
        await w.upkeep.check_quotas()
        assert [text for text, _ in log.said()] == [EXCEEDED]


async def test_an_eviction_says_what_it_took_and_of_whom(log: Log) -> None:
    async with world() as w:
        topic = await w.topic("t", "slow", "fast")
        kept = reader(topic)
        places = await w.publish(topic, 10, size_bytes=100)
        topic.subscriptions["fast"].cursor.ack_cumulative(places[8])
        size = topic.managed_ledger.bytes_total
        await w.set(BACKLOG_QUOTA, quota(size // 2, "consumer_backlog_eviction"))
        await w.upkeep.check_quotas()
        ((text, fields),) = log.said()
        assert (text, fields["subscription"]) == ("backlog evicted", "slow")
        left = topic.subscriptions["slow"].cursor.backlog
        assert 4 <= left < 5
        assert (fields["entries"], fields["backlog_bytes"]) == (10 - left, size)
        assert (kept.cursor.backlog, topic.subscriptions["fast"].cursor.backlog) == (10, 1)


def test_a_round_without_trouble_says_nothing_and_one_that_is_cut_off_ends(log: Log) -> None:
    class Topic:
        full_name = "t"

    async def cut_off(_topic: Any) -> None:
        raise asyncio.CancelledError

    async def fine(_topic: Any) -> None:
        """Nothing is wrong."""

    async def scenario() -> None:
        some: Any = [Topic(), Topic()]
        await upkeep.Upkeep._for_each(some, fine, "not done")
        assert log.said() == []
        with pytest.raises(asyncio.CancelledError):
            await upkeep.Upkeep._for_each(some, cut_off, "not done")
        assert log.said() == []

    asyncio.run(scenario())


async def test_a_clock_that_jumps_is_said_once_and_so_is_its_return(log: Log) -> None:
    async with world() as w:
        await w.upkeep.trim()
        assert log.said() == []
        w.clock.skew_ms = 3_600_000
        for _ in range(2):
            await w.upkeep.trim()
        ((text, fields),) = log.said()
        assert "the wall clock has jumped" in text
        assert fields["apart_s"] == 3_600
        w.clock.skew_ms = 0
        for _ in range(2):
            await w.upkeep.trim()
        ((text, _),) = log.said()
        assert "clocks agree again" in text


# -- blocked producers


async def test_producers_of_a_topic_above_its_quota_are_sent_away_and_of_no_other() -> None:
    async with world() as w:
        client = Client(w).connect()
        topic, other = await w.topic("t", "s"), await w.topic("other", "s")
        for number, each in enumerate((topic, other), 1):
            await client.produces(number, each.full_name)
        await w.publish(topic, 4, size_bytes=100)
        await w.set(BACKLOG_QUOTA, quota(300))
        await w.upkeep.check_quotas()
        told: list[Any] = [each.message for each in client.told()]
        assert [each.producer_id for each in told] == [1]
        assert (len(topic.producers), len(other.producers)) == (0, 1)
        assert await refusal(topic) is not None
        assert await refusal(other) is None


async def test_each_quota_of_a_topic_counts_by_itself() -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.publish(topic, 4, every_ms=10_000, size_bytes=100)
        both = quota(10**6) | quota(20, kind="age")
        await w.set(BACKLOG_QUOTA, both)
        limits = enforcement.limits_on(topic)
        assert await enforcement.check_quotas(topic, limits) == {QuotaType.AGE}
        assert await refusal(topic) is not None
        await w.set(BACKLOG_QUOTA, quota(300) | quota(20, kind="age"))
        limits = enforcement.limits_on(topic)
        assert await enforcement.check_quotas(topic, limits) == set(QuotaType)
        await w.set(BACKLOG_QUOTA, quota(300) | quota(1_000, kind="age"))
        limits = enforcement.limits_on(topic)
        assert await enforcement.check_quotas(topic, limits) == {QuotaType.SIZE}
        evicts = quota(20, "consumer_backlog_eviction", "age")
        await w.set(BACKLOG_QUOTA, evicts)
        assert await refusal(topic) is None, "an eviction makes room"


@pytest.mark.parametrize("kept", [True, False], ids=["still exceeded", "no longer exceeded"])
async def test_a_quota_is_judged_after_the_eviction_of_another(kept: bool) -> None:
    """Producers are not blocked for a backlog that the same round has evicted."""
    async with world() as w:
        client = Client(w).connect()
        topic = await w.topic("t", "s")
        await client.produces(1, topic.full_name)
        await w.publish(topic, 10, every_ms=10_000, size_bytes=100)
        size = topic.managed_ledger.bytes_total
        evicts = quota(size // 2, "consumer_backlog_eviction")
        await w.set(BACKLOG_QUOTA, evicts | quota(20 if kept else 60, kind="age"))
        exceeded = await enforcement.check_quotas(topic, enforcement.limits_on(topic))
        assert 0 < topic.subscriptions["s"].cursor.backlog <= 5
        assert exceeded == ({QuotaType.AGE} if kept else set())
        assert len(topic.producers) == (0 if kept else 1)


async def test_the_one_that_is_furthest_behind_holds_data() -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        reader(topic)
        places = await w.publish(topic, 3, size_bytes=100)
        topic.subscriptions["s"].cursor.ack_cumulative(places[1])
        assert furthest_behind(topic)[0] == "s"
        await topic.delete_subscription("s")
        assert furthest_behind(topic) == ("", 0)
        await w.set(BACKLOG_QUOTA, quota(1))
        assert await enforcement.check_quotas(topic, enforcement.limits_on(topic)) == set()


# -- what changes while a round asks the store


class Meanwhile:
    """Something that happens while a round asks the store whether all is as it believes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.what: Any = None
        confirm = AppliedPolicies.confirm

        async def confirmed(policies: AppliedPolicies) -> None:
            await confirm(policies)
            if self.what is not None:
                what, self.what = self.what, None
                await what()

        monkeypatch.setattr(AppliedPolicies, "confirm", confirmed)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    return Meanwhile(monkeypatch)


async def aged(w: World, *subscriptions: str) -> tuple[PersistentTopic, list[Position]]:
    topic = await w.topic("t", *subscriptions)
    places = await w.publish(topic, 6, size_bytes=100)
    w.clock.advance(10 * MINUTE_MS)
    return topic, places


@pytest.mark.parametrize("policy", ["ttl", "quota"])
@pytest.mark.parametrize("what", ["ended", "rests", "another value", "unknown"])
async def test_what_changed_while_the_store_was_asked_counts(
    policy: str, what: str, meanwhile: Meanwhile
) -> None:
    async with world() as w:
        topic, _ = await aged(w, "s", "going")
        subscription, going = topic.subscriptions["s"], topic.subscriptions["going"]
        evicts = quota(200, "consumer_backlog_eviction")
        await w.set(*((MESSAGE_TTL, 60) if policy == "ttl" else (BACKLOG_QUOTA, evicts)))

        async def change() -> None:
            if what == "ended":
                going.end()
            elif what == "rests":
                w.service.open_topics.suspend()
            elif what == "unknown":
                await write(w, namespace_key(NAMESPACE), b"{")
                await w.service.policies.confirm(topic.name)
            elif policy == "ttl":
                await w.set(MESSAGE_TTL, 10**6)
            else:
                await w.set(BACKLOG_QUOTA, quota(10**6, "consumer_backlog_eviction"))

        meanwhile.what = change
        if policy == "ttl":
            await w.upkeep.expire_messages()
        else:
            await w.upkeep.check_quotas()
        assert going.cursor.backlog == 6
        assert (subscription.cursor.backlog < 6) is (what == "ended")
        counters = topic.counters
        evictions = counters.evictions_by_size + counters.evictions_by_age
        assert evictions == (policy == "quota" and what == "ended")


@pytest.mark.parametrize("what", ["rests", "used", "kept"])
async def test_a_subscription_is_judged_again_after_the_store_was_asked(
    what: str, meanwhile: Meanwhile
) -> None:
    async with world() as w:
        topic, _ = await aged(w, "s")
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        client = Client(w).connect()

        async def change() -> None:
            if what == "rests":
                w.service.open_topics.suspend()
            elif what == "used":
                await client.consumes()
            else:
                topic.subscriptions["s"].cursor.last_active_ms = w.clock.now_ms()

        meanwhile.what = change
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"s"}
        client.session.lost(None)


@pytest.mark.parametrize("minutes", [10, 1_000])
async def test_a_use_is_recorded_ten_times_in_the_time_after_which_it_would_expire(
    minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    intervals: list[int] = []
    record = Cursor.record_use

    async def noted(cursor: Cursor, interval_ms: int) -> None:
        intervals.append(interval_ms)
        await record(cursor, interval_ms)

    monkeypatch.setattr(Cursor, "record_use", noted)
    async with world() as w:
        client = Client(w).connect()
        await w.topic("t", "s")
        await client.consumes()
        await w.set(SUBSCRIPTION_EXPIRATION, minutes)
        await w.upkeep.expire_subscriptions()
        assert intervals == [minutes * MINUTE_MS // 10]
        client.session.lost(None)


async def test_a_policy_that_is_removed_while_the_store_is_asked_expires_nothing(
    meanwhile: Meanwhile, log: Log
) -> None:
    async with world() as w:
        topic, _ = await aged(w, "s", "other")
        await w.set(SUBSCRIPTION_EXPIRATION, 1, topic)

        async def change() -> None:
            await w.set(SUBSCRIPTION_EXPIRATION, None, topic)

        meanwhile.what = change
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"s", "other"}
        assert log.said() == []


async def test_a_topic_at_rest_keeps_its_ledgers_and_gets_no_new_one() -> None:
    async with world(ledger_rollover_max_minutes=60) as w:
        topic = await w.topic("t")
        await w.publish(topic, 2 * ENTRIES_PER_LEDGER + 1)
        before = w.stored(topic)
        w.service.open_topics.suspend()
        w.clock.advance(100 * MINUTE_MS)
        await w.upkeep.trim()
        for _ in range(100):
            await asyncio.sleep(0)
        assert w.stored(topic) == before
        w.service.open_topics.resume()
        for _ in range(3):
            await w.upkeep.trim()
            for _ in range(100):
                await asyncio.sleep(0)
        assert w.stored(topic) == (0, 0)


async def test_a_reader_is_no_subscription_that_expires() -> None:
    async with world() as w:
        topic, _ = await aged(w, "s")
        kept = reader(topic)
        kept.cursor.last_active_ms = w.clock.now_ms() - 10 * MINUTE_MS
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        await w.upkeep.expire_subscriptions()
        assert topic.subscriptions == {"reader": kept}


async def test_a_topic_is_judged_again_after_the_store_was_asked(meanwhile: Meanwhile) -> None:
    async with world() as w:
        topic = await w.topic("t")
        unused = {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        }
        await w.set(INACTIVE_TOPICS, unused)

        async def change() -> None:
            await w.set(RETENTION, {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})

        w.clock.advance(10 * MINUTE_MS)
        meanwhile.what = change
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(named("t")) is topic
        await w.set(RETENTION, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(named("t")) is None


async def test_a_subscription_whose_time_is_yet_to_come_is_used_now() -> None:
    """Its last use was noted by a clock that is ahead: it expires in its time from now on."""
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.set(SUBSCRIPTION_EXPIRATION, 10)
        cursor = topic.subscriptions["s"].cursor
        cursor.last_active_ms = w.clock.now_ms() + 10**9
        await w.upkeep.expire_subscriptions()
        assert cursor.last_active_ms == w.service.clock.now_ms()
        w.clock.advance(10 * MINUTE_MS)
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"s"}
        w.clock.advance(1)
        await w.upkeep.expire_subscriptions()
        assert topic.subscriptions == {}
