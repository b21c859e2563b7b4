"""Which topics exist, which are created by use, and what a topic that leaves admits."""

import asyncio
from collections.abc import Mapping

import pytest
from tests.support.held_store import puts
from tests.unit.broker.topic.stage import NAMESPACE, Stage, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.catalog.resources import partitioned_key
from magnetar.broker.ownership.bundles import RING_END, Bundle
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError, ServiceNotReady, TopicNotFound
from magnetar.core.names import TopicName, parse_topic
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX
from magnetar.policies.admission import AUTO_TOPIC_CREATION

PLAIN = {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
PARTITIONED = {
    "allowAutoTopicCreation": True,
    "topicType": "partitioned",
    "defaultNumPartitions": 3,
}
NEVER = {"allowAutoTopicCreation": False}


def named(local: str) -> TopicName:
    return parse_topic(f"persistent://public/default/{local}")


async def creates(s: Stage, how: Mapping[str, object]) -> None:
    """Sets what the first use of a topic of the namespace creates."""
    await s.service.resources.update_policies(
        NAMESPACE, lambda document: {**document, AUTO_TOPIC_CREATION.document: how}
    )


# -- partitions


async def test_the_first_use_of_a_topic_creates_what_the_policy_says() -> None:
    async with stage() as s:
        topics = s.service.topics
        await creates(s, PLAIN)
        assert await topics.partitions_or_create(named("plain"), auto_create=True) == 0
        assert not await topics.exists(named("plain")), "its first client creates it"
        assert not await s.service.resources.partitions(named("plain"))
        with pytest.raises(TopicNotFound):
            await topics.partitions_or_create(named("plain"), auto_create=False)
        await s.topic("plain")
        await creates(s, PARTITIONED)
        assert await topics.partitions_or_create(named("plain"), auto_create=True) == 0
        assert await topics.partitions_or_create(named("parts"), auto_create=True) == 3
        for index in range(3):
            assert await topics.exists(named("parts").partition(index))
        await creates(s, NEVER)
        assert await topics.partitions_or_create(named("plain"), auto_create=True) == 0
        assert await topics.partitions_or_create(named("parts"), auto_create=False) == 3
        with pytest.raises(TopicNotFound):
            await topics.partitions_or_create(named("none"), auto_create=True)
        assert not await topics.exists(named("none"))


async def test_two_clients_that_use_a_topic_first_get_the_same_partitions() -> None:
    async with stage() as s:
        await creates(s, PARTITIONED)
        counts = await asyncio.gather(
            *(
                s.service.topics.partitions_or_create(named("parts"), auto_create=True)
                for _ in range(3)
            )
        )
        assert counts == [3, 3, 3]


async def test_the_partitions_of_a_partition_are_those_of_a_topic_that_exists() -> None:
    async with stage() as s:
        topics = s.service.topics
        await creates(s, NEVER)
        await topics.create_partitioned(named("parts"), 2, {})
        for index in range(2):
            part = named("parts").partition(index)
            assert await topics.partitions_or_create(part, auto_create=True) == 0
        with pytest.raises(TopicNotFound):
            await topics.partitions_or_create(named("parts").partition(2), auto_create=True)
        # One that is missing is created by its first client, whatever auto-creation says.
        await topics.delete(named("parts").partition(0), force=True)
        for auto_create in (True, False):
            part = named("parts").partition(0)
            assert await topics.partitions_or_create(part, auto_create=auto_create) == 0
        await topics.get_or_open(part, create=False)
        # A deletion was interrupted: the partitioned topic is deleted, its second partition is not.
        await topics.delete(named("parts").partition(0), force=True)
        await s.store.delete(partitioned_key(named("parts")))
        with pytest.raises(TopicNotFound):
            await topics.partitions_or_create(named("parts").partition(0), auto_create=True)
        part = named("parts").partition(1)
        assert await topics.partitions_or_create(part, auto_create=True) == 0


# -- leaving


async def test_a_topic_that_is_being_closed_is_not_opened_beside_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log would have two writers."""
    async with stage() as s:
        topic = await s.topic()
        closing, go = asyncio.Event(), asyncio.Event()
        close = PersistentTopic.close

        async def slow(self: PersistentTopic) -> None:
            closing.set()
            await go.wait()
            await close(self)

        monkeypatch.setattr(PersistentTopic, "close", slow)
        unloading = asyncio.ensure_future(s.service.topics.unload(topic.name))
        await closing.wait()
        with pytest.raises(ServiceNotReady, match="being moved or deleted"):
            await s.service.topics.get_or_open(topic.name, create=True)
        with pytest.raises(ServiceNotReady, match="being moved or deleted"):
            await s.service.topics.delete(topic.name, force=True)
        go.set()
        await unloading
        assert await s.topic() is not topic


async def test_a_drain_closes_the_topics_of_its_bundle_and_no_other() -> None:
    async with stage() as s:
        topics = {each: await s.topic(f"t{each}") for each in range(8)}
        middle = sorted(topic.ring_position for topic in topics.values())[4]
        for bundle in (Bundle(NAMESPACE, 0, middle), Bundle(NAMESPACE, middle, RING_END)):
            inside = {each for each, topic in topics.items() if bundle.holds(topic)}
            assert 0 < len(inside) < 8
            await s.service.topics._open.drain(bundle)
            assert {each for each, topic in topics.items() if not topic.serving} == inside
            s.service.topics._open.dismiss(bundle.holds, None)
            topics = {each: await s.topic(f"t{each}") for each in range(8)}
            assert all(topic.serving for topic in topics.values())


async def test_a_drain_waits_for_topics_of_its_bundle_that_are_being_opened() -> None:
    async with stage() as s:
        held = s.store.hold(puts(MANAGED_LEDGERS_PREFIX))
        opening = asyncio.ensure_future(s.topic())
        await held.reached.wait()
        bundle = Bundle(NAMESPACE, 0, RING_END)
        draining = asyncio.ensure_future(s.service.topics._open.drain(bundle))
        await turns(30)
        assert not draining.done()
        held.go.set()
        await draining
        async with asyncio.timeout(20):
            await asyncio.wait([opening])
        error = opening.exception()
        assert isinstance(error, MagnetarError) or not opening.result().serving
        s.service.topics._open.dismiss(bundle.holds, None)
