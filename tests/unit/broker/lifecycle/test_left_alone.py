"""What rounds leave as it is: topics without the policy, at rest, without storage, or not known."""

import asyncio
from typing import Any

import pytest
from tests.unit.broker.lifecycle.test_compacted_topics import compacted_to
from tests.unit.broker.lifecycle.test_not_known import write
from tests.unit.broker.lifecycle.world import ENTRIES_PER_LEDGER, NAMESPACE, World, named, world
from tests.unit.broker.session.stage import Client

from magnetar.broker.lifecycle.effect import Supposed, on_loaded
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies.namespaces import FollowedNamespaces
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import ServerError
from magnetar.core.log import FIELDS
from magnetar.ledger.metadata import ledger_key
from magnetar.policies.lifecycle import (
    BACKLOG_QUOTA,
    INACTIVE_TOPICS,
    MESSAGE_TTL,
    SUBSCRIPTION_EXPIRATION,
)
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

MINUTE_MS = 60_000
LIGHT = "non-persistent://public/default/light"
UNUSED = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": True,
}
KEEPS_AWAY = {
    "destination_storage": {"limitSize": 1, "limitTime": -1, "policy": "producer_exception"}
}


async def each_round(w: World) -> None:
    await w.upkeep.trim()
    await w.upkeep.expire_messages()
    await w.upkeep.check_quotas()
    await w.upkeep.expire_subscriptions()
    await w.upkeep.delete_unused()


@pytest.mark.parametrize("why", ["no policy", "rests"])
async def test_the_use_of_a_subscription_is_recorded_only_where_it_counts(why: str) -> None:
    async with world() as w:
        client = Client(w).connect()
        topic = await w.topic("t", "s")
        await client.consumes()
        cursor = topic.subscriptions["s"].cursor
        if why == "rests":
            await w.set(SUBSCRIPTION_EXPIRATION, 10)
            w.service.open_topics.suspend()
        before = cursor.last_active_ms
        w.clock.advance(60 * MINUTE_MS)
        await w.upkeep.expire_subscriptions()
        assert cursor.last_active_ms == before
        w.service.open_topics.resume()
        await w.set(SUBSCRIPTION_EXPIRATION, 10)
        await w.upkeep.expire_subscriptions()
        assert cursor.last_active_ms == w.service.clock.now_ms() > before
        client.session.lost(None)


async def test_rounds_pass_over_topics_without_storage_that_are_in_use(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as w:
        client = Client(w).connect()
        await client.consumes(topic=LIGHT)
        await client.produces(topic=LIGHT)
        topic = await w.topic("t", "s")
        for policy, value in (
            (MESSAGE_TTL, 60),
            (SUBSCRIPTION_EXPIRATION, 1),
            (BACKLOG_QUOTA, KEEPS_AWAY),
            (INACTIVE_TOPICS, UNUSED),
        ):
            await w.set(policy, value)
        w.clock.advance(10 * MINUTE_MS)
        caplog.set_level("WARNING", "magnetar.lifecycle")
        await each_round(w)
        assert [each.message for each in caplog.records] == []
        assert topic.subscriptions == {}
        assert set(client.session.producers) == set(client.session.consumers) == {1}
        client.session.lost(None)


async def test_a_subscription_stays_where_it_is_no_longer_known_what_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record becomes unreadable, and the watch has not reported it when the round begins."""
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        w.clock.advance(10 * MINUTE_MS)
        records = w.service.policies._records
        assert isinstance(records, FollowedNamespaces)
        with monkeypatch.context() as patch:
            patch.setattr(records._following, "_put", lambda _: None)
            await write(w, namespace_key(NAMESPACE), b"{")
            for _ in range(100):
                await asyncio.sleep(0)
        assert topic.policies.known
        await w.upkeep.expire_subscriptions()
        assert not topic.policies.known
        assert set(topic.subscriptions) == {"s"}


async def test_the_time_without_use_begins_with_the_last_round_that_saw_a_use() -> None:
    async with world() as w:
        await w.set(INACTIVE_TOPICS, UNUSED)
        topic = await w.topic("t", "s")
        w.clock.advance(10 * MINUTE_MS)
        await w.upkeep.delete_unused()
        assert topic.last_active_ms == w.service.clock.now_ms()
        w.clock.advance(MINUTE_MS // 2)
        await topic.delete_subscription("s")
        w.clock.advance(MINUTE_MS // 2 - 1)
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(named("t")) is topic
        w.clock.advance(1)
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(named("t")) is None


async def test_the_time_without_use_of_a_compacted_topic_begins_when_it_is_none_any_more() -> None:
    async with world() as w:
        await w.set(INACTIVE_TOPICS, UNUSED)
        topic = await w.topic("t")
        (place,) = await w.publish(topic)
        await compacted_to(w, topic, place)
        w.clock.advance(10 * MINUTE_MS)
        await w.upkeep.delete_unused()
        assert topic.last_active_ms == w.service.clock.now_ms()
        assert w.service.topics.loaded(named("t")) is topic


async def test_producers_on_their_way_to_a_topic_above_its_quota_are_sent_away_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them has its epoch stored, the other waits for it: the topic has none at all."""
    async with world() as w:
        first, waiting = Client(w).connect(), Client(w).connect()
        topic = await w.topic("t", "s")
        await w.publish(topic)
        store, go_on = PersistentTopic._store_epoch, asyncio.Event()

        async def slowly(topic: PersistentTopic, epoch: int) -> None:
            await go_on.wait()
            await store(topic, epoch)

        monkeypatch.setattr(PersistentTopic, "_store_epoch", slowly)
        command = pb.CommandProducer(topic=topic.full_name, producer_id=1, request_id=1)
        command.producer_access_mode = pb.Exclusive
        first.say(CommandType.PRODUCER, command)
        await waiting.produces(2, producer_access_mode=pb.WaitForExclusive)
        assert (len(topic.producers), topic.producers.waiting_count) == (0, 1)
        await w.set(BACKLOG_QUOTA, KEEPS_AWAY)
        await w.upkeep.check_quotas()
        assert (await waiting.hears(CommandType.CLOSE_PRODUCER)).producer_id == 2
        go_on.set()
        assert (await first.hears(CommandType.ERROR)).error == ServerError.SERVICE_NOT_READY
        assert (len(topic.producers), topic.producers.waiting_count) == (0, 0)
        for each in (first, waiting):
            each.session.lost(None)


async def test_no_ledger_is_said_to_go_where_a_cursor_cannot_be_read() -> None:
    async with world(retention_minutes=-1, retention_size_mb=-1) as w:
        topic = await w.topic("t", "s")
        places = await w.publish(topic, 2 * ENTRIES_PER_LEDGER + 1)
        cursor = topic.subscriptions["s"].cursor
        cursor.ack(*places[-1])
        await cursor.flush()
        assert cursor.log is not None
        lost = cursor.log.ledger_id
        await w.service.topics.unload(topic.name)
        assert await w.service.store.delete(ledger_key(lost))
        topic = await w.topic()
        assert list(topic.managed_ledger.broken_cursors) == ["s"]
        tried = Supposed({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, 0, {})
        assert (await on_loaded(topic, w.service.policies, tried)).deletes.ledgers == 0
        await topic.delete_subscription("s")
        assert (await on_loaded(topic, w.service.policies, tried)).deletes.ledgers >= 2


def fields_of(record: Any) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, FIELDS)
    return fields


async def test_a_failure_names_its_topic_and_what_was_not_done(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world() as w:
        topics = [await w.topic(local, "s") for local in "ab"]
        for topic in topics:
            await w.publish(topic)
        await w.set(MESSAGE_TTL, 60)
        w.clock.advance(10 * MINUTE_MS)

        async def fails(_topic: PersistentTopic, _limits: Any) -> int:
            raise ValueError("a bug")

        monkeypatch.setattr("magnetar.broker.lifecycle.enforcement.expire", fails)
        caplog.set_level("WARNING", "magnetar.lifecycle")
        await w.upkeep.expire_messages()
        said = [(each.levelname, each.message, fields_of(each)["topic"]) for each in caplog.records]
        expected = [("ERROR", "messages not expired", topic.full_name) for topic in topics]
        assert said == expected
