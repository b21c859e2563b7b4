"""Rounds over a broker's topics: whom they leave alone, and that one fault stops no round."""

import asyncio

import pytest
from tests.unit.broker.lifecycle.world import NAMESPACE, world

from magnetar.broker.lifecycle.upkeep import NOTES_PER_EXPIRATION, RETURN_MS, Upkeep
from magnetar.broker.policies.namespaces import FollowedNamespaces
from magnetar.core.errors import MetadataError
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.policies.lifecycle import (
    BACKLOG_QUOTA,
    INACTIVE_TOPICS,
    MESSAGE_TTL,
    SUBSCRIPTION_EXPIRATION,
)

MINUTE_MS = 60_000
EVICT = {
    "destination_storage": {
        "limitSize": 1,
        "limitTime": -1,
        "policy": "consumer_backlog_eviction",
    }
}
UNUSED = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": True,
}


async def test_a_subscription_goes_only_after_the_store_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        records = w.service.policies._records
        assert isinstance(records, FollowedNamespaces)
        with monkeypatch.context() as patch:
            # Another broker sets it; the watch has not reported it yet.
            patch.setattr(records._following, "_put", lambda _: None)
            await w.service.resources.update_policies(
                NAMESPACE, lambda known: {**known, SUBSCRIPTION_EXPIRATION.document: 1_000}
            )
            for _ in range(100):
                await asyncio.sleep(0)
        w.clock.advance(10 * MINUTE_MS)
        assert topic.policies.value(SUBSCRIPTION_EXPIRATION) == 1
        await w.upkeep.expire_subscriptions()
        assert set(topic.subscriptions) == {"s"}
        assert topic.policies.value(SUBSCRIPTION_EXPIRATION) == 1_000


async def test_backlogs_are_cut_of_topics_that_are_served_and_known_and_of_no_other() -> None:
    async with world() as w:
        plain, own = await w.topic("t", "s"), await w.topic("__change_events", "s")
        for topic in (plain, own):
            await w.publish(topic, 7, size_bytes=100)
        await w.set(BACKLOG_QUOTA, EVICT)
        w.service.open_topics.suspend()
        await w.upkeep.check_quotas()
        assert plain.subscriptions["s"].cursor.backlog == 7
        w.service.open_topics.resume()
        await w.upkeep.check_quotas()
        assert plain.subscriptions["s"].cursor.backlog < 7
        assert own.subscriptions["s"].cursor.backlog == 7


async def test_topics_without_storage_are_in_no_ones_way() -> None:
    async with world() as w:
        light = await w.service.topics.get_or_open(
            parse_topic("non-persistent://public/default/x"),
            create=True,
        )
        topic = await w.topic("t", "s")
        await w.publish(topic, 3)
        for policy, value in (
            (MESSAGE_TTL, 60),
            (SUBSCRIPTION_EXPIRATION, 1),
            (BACKLOG_QUOTA, EVICT),
        ):
            await w.set(policy, value)
        w.clock.advance(10 * MINUTE_MS)
        await w.upkeep.trim()
        await w.upkeep.expire_messages()
        await w.upkeep.check_quotas()
        assert topic.subscriptions["s"].cursor.backlog == 0
        await w.upkeep.expire_subscriptions()
        assert topic.subscriptions == {}
        assert w.service.topics.loaded(light.name) is light
        await w.set(INACTIVE_TOPICS, UNUSED)
        await w.upkeep.delete_unused()
        w.clock.advance(10 * MINUTE_MS)
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(light.name) is None


@pytest.mark.parametrize("error_class", [MetadataError, ValueError])
async def test_a_topic_that_fails_keeps_no_other_from_its_turn(
    error_class: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.lifecycle.upkeep.CHECKED_AT_ONCE_MAX", 1)
    async with world() as w:
        topics = [await w.topic(local, "s") for local in "abc"]
        for topic in topics:
            await w.publish(topic, 2)
        await w.set(MESSAGE_TTL, 60)
        w.clock.advance(10 * MINUTE_MS)

        read = ManagedLedger.read_entry

        async def fails(ledger: ManagedLedger, position: Position) -> Entry:
            if ledger is topics[1].managed_ledger:
                # A new one each time: a parameter's traceback would keep these topics alive.
                raise error_class("no")
            return await read(ledger, position)

        monkeypatch.setattr(ManagedLedger, "read_entry", fails)
        await w.upkeep.expire_messages()
        backlogs = [topic.subscriptions["s"].cursor.backlog for topic in topics]
        assert (backlogs[0], backlogs[2]) == (0, 0)


@pytest.mark.parametrize(
    ("used_ms", "minutes", "last_ms"),
    [
        (1_000_000, 60, 1_000_000),
        (1_500_000, 60, 1_500_000),
        (999_999, 60, 999_999 + 60 * MINUTE_MS // NOTES_PER_EXPIRATION),
        (-9_000_000, 60, 1_000_000 + RETURN_MS - 60 * MINUTE_MS),
        (-9_000_000, 1, 1_000_000),
    ],
)
async def test_a_use_that_another_owner_noted_may_be_as_old_as_its_notes_and_clients_may_come_back(
    used_ms: int, minutes: int, last_ms: int
) -> None:
    async with world() as w:
        topic = await w.topic("t", "s")
        topic.loaded_ms = 1_000_000
        subscription = topic.subscriptions["s"]
        subscription.cursor.last_active_ms = used_ms
        assert Upkeep._last_use_ms(topic, subscription, minutes) == last_ms


async def test_a_cursor_is_read_again_once_its_ledger_is_back_though_nobody_subscribes() -> None:
    async with world() as w:
        topic = await w.topic("t", "away", "gone", "whole")
        positions = await w.publish(topic, 3)
        stored = {}
        for name in ("away", "gone"):
            cursor = topic.subscriptions[name].cursor
            cursor.ack(*positions[1])
            await cursor.flush()
            assert cursor.log is not None
            key = ledger_key(cursor.log.ledger_id)
            stored[name] = key, await w.service.store.get(key)
        await w.service.topics.unload(topic.name)
        for key, _ in stored.values():
            await w.service.store.delete(key)
        topic = await w.topic("t")
        await w.upkeep.restore_subscriptions()
        assert set(topic.broken_subscriptions) == {"away", "gone"}
        key, record = stored["away"]
        assert record is not None
        await w.service.store.put(key, record.value)
        w.service.open_topics.suspend()
        await w.upkeep.restore_subscriptions()
        assert "away" in topic.broken_subscriptions, "another broker may serve it already"
        w.service.open_topics.resume()
        await w.upkeep.restore_subscriptions()
        assert set(topic.broken_subscriptions) == {"gone"}
        assert topic.subscriptions["away"].backlog == 2
