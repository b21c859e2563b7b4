"""Nothing is deleted while the policies in force are uncertain."""

import asyncio

import msgspec
import pytest
from tests.unit.broker.lifecycle.world import ENTRIES_PER_LEDGER, NAMESPACE, World, named, world

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies.store import Change, policies_key
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.ids import EARLIEST
from magnetar.core.names import TopicName
from magnetar.metadata.store import MetadataUnavailable
from magnetar.policies.lifecycle import (
    INACTIVE_TOPICS,
    MESSAGE_TTL,
    RETENTION,
    SUBSCRIPTION_EXPIRATION,
)

WEEK = {"retentionTimeInMinutes": 7 * 1440, "retentionSizeInMB": -1}
SHORT = {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}


async def filled(w: World, *, aged: bool = True) -> PersistentTopic:
    """Returns a topic with consumed ledgers that only retention has kept."""
    topic = await w.topic()
    await w.set(RETENTION, WEEK)
    await w.publish(topic, ENTRIES_PER_LEDGER * 3)
    await topic.managed_ledger.roll_over()
    if aged:
        w.clock.advance(3_600_000)
    return topic


async def write(w: World, key: str, value: bytes) -> None:
    """Writes the record as another broker would; this broker learns of it by its watch."""
    record = await w.service.store.get(key)
    await w.service.store.put(key, value, expected=0 if record is None else record.revision)


async def seen(w: World) -> None:
    """What was written is known here."""
    await w.service.policies.confirm(named("t"))
    for topic in w.service.topics:
        topic.policies_changed()


async def rounds(w: World, topic: PersistentTopic) -> None:
    await w.upkeep.expire_messages()
    await w.upkeep.check_quotas()
    await w.upkeep.trim()
    topic.managed_ledger.trim_soon()
    await topic.managed_ledger.trim()
    await w.upkeep.expire_subscriptions()
    await w.upkeep.delete_unused()


def strange_documents() -> list[bytes]:
    good = default_policies("standalone")
    values: list[object] = [
        {"retentionTimeInMinutes": 10},
        {"retentionTimeInMinutes": "10", "retentionSizeInMB": 1},
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 100},
        [],
        "a week",
    ]
    documents = [msgspec.json.encode({**good, "retention_policies": value}) for value in values]
    return [*documents, b"{", msgspec.json.encode([1])]


@pytest.mark.parametrize("value", strange_documents())
async def test_a_namespace_that_is_not_understood_loses_nothing(value: bytes) -> None:
    async with world() as w:
        topic = await filled(w)
        before = topic.managed_ledger.entries_total
        await write(w, namespace_key(NAMESPACE), value)
        await seen(w)
        assert not topic.policies.known
        await rounds(w, topic)
        assert topic.managed_ledger.entries_total == before
        # After the record is repaired, deletion continues.
        good = {**default_policies("standalone"), "retention_policies": SHORT}
        await write(w, namespace_key(NAMESPACE), msgspec.json.encode(good))
        await seen(w)
        await rounds(w, topic)
        assert topic.managed_ledger.entries_total == 0


async def test_a_document_of_an_older_version_is_understood() -> None:
    async with world() as w:
        topic = await filled(w)
        old = {"bundles": default_policies("standalone")["bundles"], "retention_policies": SHORT}
        await write(w, namespace_key(NAMESPACE), msgspec.json.encode(old))
        await seen(w)
        assert topic.policies.known
        await rounds(w, topic)
        assert topic.managed_ledger.entries_total == 0


@pytest.mark.parametrize("value", [b'{"version":99,"local":{}}', b"nothing", b'{"local":{}}'])
async def test_a_topics_record_of_a_newer_version_loses_nothing(value: bytes) -> None:
    async with world() as w:
        topic = await filled(w)
        before = topic.managed_ledger.entries_total
        await w.set(RETENTION, SHORT)
        await topic.managed_ledger.roll_over()
        other = await filled_again(w, before)
        await write(w, policies_key(other.name), value)
        await w.service.policies.confirm(other.name)
        other.policies_changed()
        assert not other.policies.known
        w.clock.advance(3_600_000)
        await rounds(w, other)
        assert other.managed_ledger.entries_total == before


async def filled_again(w: World, count: int) -> PersistentTopic:
    topic = await w.topic("other")
    await w.publish(topic, count)
    await topic.managed_ledger.roll_over()
    return topic


async def told_late(w: World, name: TopicName, change: Change) -> None:
    """Another broker changes a topic's policies, and the watch here says nothing of it."""
    following = w.service.policies._following

    def nothing(*_: object) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_put", nothing)
        patch.setattr(following, "_gone", nothing)
        await w.service.policies.documents.update(name, change)
        for _ in range(100):
            await asyncio.sleep(0)


async def test_what_another_broker_has_set_is_requested_before_anything_goes() -> None:
    async with world() as w:
        topic = await filled(w, aged=False)
        await topic.create_subscription("s", EARLIEST, {})
        await topic.create_subscription("done", topic.managed_ledger.last_confirmed, {})
        await w.set(RETENTION, SHORT)
        await w.set(MESSAGE_TTL, 60)
        before = topic.managed_ledger.entries_total
        await told_late(
            w,
            topic.name,
            lambda own: own.having(RETENTION.name, WEEK).having(MESSAGE_TTL.name, 1_000_000),
        )
        w.clock.advance(3_600_000)
        assert topic.policies.value(RETENTION) == SHORT
        assert topic.policies.value(MESSAGE_TTL) == 60
        await w.upkeep.expire_messages()
        assert topic.subscriptions["s"].cursor.backlog == before
        await topic.subscriptions["s"].clear_backlog()
        await rounds(w, topic)
        assert topic.managed_ledger.entries_total == before
        assert topic.policies.value(RETENTION) == WEEK


async def test_a_policy_that_another_broker_removed_does_not_hold_any_more() -> None:
    async with world() as w:
        topic = await filled(w, aged=False)
        before = topic.managed_ledger.entries_total
        await w.set(RETENTION, SHORT, topic)
        await told_late(w, topic.name, lambda own: own.having(RETENTION.name, None))
        w.clock.advance(3_600_000)
        assert topic.policies.value(RETENTION) == SHORT
        await rounds(w, topic)
        assert topic.managed_ledger.entries_total == before
        assert topic.policies.value(RETENTION) == WEEK


async def test_nothing_goes_while_the_store_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as w:
        topic = await filled(w)
        await topic.create_subscription("s", EARLIEST, {})
        await w.set(RETENTION, SHORT)
        await w.set(MESSAGE_TTL, 60)

        async def away(_key: str) -> None:
            raise MetadataUnavailable("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(w.service.store, "get", away)
            before = topic.subscriptions["s"].cursor.backlog
            await w.upkeep.expire_messages()
            await w.upkeep.trim()
            assert topic.subscriptions["s"].cursor.backlog == before > 0
        await w.upkeep.expire_messages()
        assert topic.subscriptions["s"].cursor.backlog == 0


async def test_nothing_expires_on_a_topic_that_rests() -> None:
    """Its lease ran out: another broker may serve it by now."""
    async with world() as w:
        topic = await filled(w)
        await topic.create_subscription("s", EARLIEST, {})
        await w.set(MESSAGE_TTL, 60)
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        before = topic.subscriptions["s"].cursor.backlog
        w.clock.advance(3_600_000)
        w.service.open_topics.suspend()
        await w.upkeep.expire_messages()
        await w.upkeep.expire_subscriptions()
        assert topic.subscriptions["s"].cursor.backlog == before > 0
        w.service.open_topics.resume()
        await w.upkeep.expire_messages()
        assert topic.subscriptions["s"].cursor.backlog == 0


async def test_the_brokers_own_topics_are_left_alone() -> None:
    async with world() as w:
        topic = await w.topic("__change_events", "s")
        await w.publish(topic, 3)
        await w.set(MESSAGE_TTL, 60)
        await w.set(SUBSCRIPTION_EXPIRATION, 1)
        unused = {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        }
        await w.set(INACTIVE_TOPICS, unused)
        w.clock.advance(3_600_000)
        await rounds(w, topic)
        assert topic.subscriptions["s"].cursor.backlog == 3
        await topic.subscriptions["s"].clear_backlog()
        await w.upkeep.delete_unused()
        assert w.service.topics.loaded(topic.name) is topic
