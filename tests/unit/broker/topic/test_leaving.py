"""Topics that are closed, drained or deleted: each once, completely, and not beside a successor."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.held_store import deletes, puts
from tests.unit.broker.topic.movable import movable
from tests.unit.broker.topic.stage import ELSEWHERE, NAMESPACE, Stage, stage
from tests.unit.broker.topic.test_opening import CREATION, MEMORY, T, named, refused, stored_names
from tests.unit.ledger.stage import turns

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.ownership.bundles import RING_END, Bundle, requested
from magnetar.broker.policies.store import policies_key
from magnetar.broker.topic import open_topics, registry
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MetadataError, NotFound, PreconditionFailed, ServiceNotReady
from magnetar.core.hashing import bundle_hash
from magnetar.core.ids import EARLIEST
from magnetar.core.names import TopicName
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import CURSORS_PREFIX, MANAGED_LEDGERS_PREFIX
from magnetar.metadata.store import BadRevision, Check
from magnetar.policies.caps import MAX_CONSUMERS
from magnetar.schemas.model import SchemaInfo, SchemaType

WHOLE = Bundle(NAMESPACE, 0, RING_END)
STRING = SchemaInfo(SchemaType.STRING, b"")
DEADLINE_S = 20.0


class Ends:
    """Holds back the ends of topics, by name, and counts the requests to end each."""

    def __init__(self) -> None:
        self.began: dict[str, asyncio.Event] = {}
        self.go: dict[str, asyncio.Event] = {}
        self.times: dict[str, int] = {}

    def hold(self, local: str) -> None:
        self.began[local], self.go[local] = asyncio.Event(), asyncio.Event()

    async def wait(self, topic: Topic) -> None:
        local = topic.name.local
        self.times[local] = self.times.get(local, 0) + 1
        if local in self.go:
            self.began[local].set()
            await self.go[local].wait()


@asynccontextmanager
async def held_ends(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Stage, Ends]]:
    """A broker whose topics drain when the test lets them."""
    ends, drain = Ends(), PersistentTopic.drain

    async def held(self: PersistentTopic) -> None:
        await ends.wait(self)
        await drain(self)

    async with stage() as s:
        monkeypatch.setattr(PersistentTopic, "drain", held)
        yield s, ends
        monkeypatch.undo()


# -- unloading


async def test_a_topic_is_closed_once_however_many_ask_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with held_ends(monkeypatch) as (s, ends):
        topic = await s.topic()
        ends.hold("t")
        unloading = [asyncio.ensure_future(s.service.topics.unload(T)) for _ in range(3)]
        await ends.began["t"].wait()
        await turns(20)
        await refused(s.topic(), ServiceNotReady, "being moved or deleted")
        ends.go["t"].set()
        await asyncio.gather(*unloading)
        assert ends.times == {"t": 1}
        assert await s.topic() is not topic


async def test_an_unload_ends_even_if_its_caller_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with held_ends(monkeypatch) as (s, ends):
        topic = await s.topic()
        _, sink = await s.producer(topic)
        ends.hold("t")
        unloading = asyncio.ensure_future(s.service.topics.unload(T))
        await ends.began["t"].wait()
        unloading.cancel()
        await asyncio.wait([unloading])
        ends.go["t"].set()
        async with asyncio.timeout(DEADLINE_S):
            while not sink.sent_away:
                await turns(1)
        assert (await s.topic()).serving


@pytest.mark.parametrize("error", [ServiceNotReady("no"), RuntimeError("a bug")])
@pytest.mark.parametrize("how", ["unload", "drain", "stop"])
async def test_a_topic_that_fails_to_close_keeps_no_name_and_no_other_topic(
    monkeypatch: pytest.MonkeyPatch, error: Exception, how: str
) -> None:
    async with stage() as s:
        broken, other = await s.topic("broken"), await s.topic("other")
        _, sink = await s.producer(other)

        close = ManagedLedger.close

        async def fails(self: ManagedLedger) -> None:
            await close(self)
            if self is broken.managed_ledger:
                raise error

        monkeypatch.setattr(ManagedLedger, "close", fails)
        opened = s.service.open_topics
        if how == "unload":
            await s.service.topics.unload(broken.name)
            await s.service.topics.unload(other.name)
        elif how == "drain":
            await opened.drain(WHOLE)
            opened.dismiss(WHOLE.holds, None)
        else:
            await s.service.topics.close()
        assert len(sink.sent_away) == 1
        assert (len(opened), opened.is_leaving(broken.full_name)) == (0, False)
        monkeypatch.undo()


async def test_all_topics_are_closed_when_the_broker_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_topics, "CLOSED_AT_ONCE_MAX", 2)
    async with held_ends(monkeypatch) as (s, ends):
        topics = [await s.topic(f"t{each}") for each in range(5)]
        for each in range(5):
            ends.hold(f"t{each}")
        closing = asyncio.ensure_future(s.service.topics.close())
        await turns(50)
        assert len(ends.times) == 2, "so many at once"
        for go in ends.go.values():
            go.set()
        await closing
        assert set(ends.times.values()) == {1}
        assert not any(topic.serving for topic in topics)
        assert s.factory.opened == {}


# -- moving


async def test_a_drain_skips_topics_that_are_being_closed_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closed twice, a topic would free its name while its log still has a writer."""
    monkeypatch.setattr(open_topics, "CLOSED_AT_ONCE_MAX", 1)
    async with held_ends(monkeypatch) as (s, ends):
        for each in "ab":
            await s.topic(each)
            ends.hold(each)
        draining = asyncio.ensure_future(s.service.open_topics.drain(WHOLE))
        await ends.began["a"].wait()
        unloading = asyncio.ensure_future(s.service.topics.unload(named("b")))
        await ends.began["b"].wait()
        ends.go["a"].set()
        await turns(20)
        await refused(s.topic("b"), ServiceNotReady)
        assert not draining.done(), "the next owner would cut the closing short"
        ends.go["b"].set()
        await asyncio.gather(draining, unloading)
        assert ends.times == {"a": 1, "b": 1}
        await s.topic("b")
        s.service.open_topics.dismiss(WHOLE.holds, ELSEWHERE)


async def test_a_drain_waits_for_a_deletion_under_way_in_its_bundle() -> None:
    """Without the bundle, it would end half-way: the topic is gone, and its data stays."""
    async with stage() as s:
        await s.topic()
        held = s.store.hold(puts(MANAGED_LEDGERS_PREFIX))
        deleting = asyncio.ensure_future(s.service.topics.delete(T, force=True))
        await held.reached.wait()
        opened, middle = s.service.open_topics, bundle_hash(str(T)) + 1
        await opened.drain(Bundle(NAMESPACE, middle, RING_END))
        draining = asyncio.ensure_future(opened.drain(Bundle(NAMESPACE, 0, middle)))
        await turns(20)
        assert not draining.done()
        held.go.set()
        await asyncio.gather(draining, deleting)
        assert await stored_names(s) == set()


async def test_no_client_of_a_topic_that_is_drained_twice_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A standalone opens the topic again while a slow one keeps the first unload at work."""
    async with held_ends(monkeypatch) as (s, ends):
        one = requested({"numBundles": 1})
        await s.service.resources.update_policies(NAMESPACE, lambda own: {**own, "bundles": one})
        await s.topic("slow")
        ends.hold("slow")
        _, first = await s.producer(await s.topic())
        unloading = [asyncio.ensure_future(s.service.topics.ownership.unload(WHOLE))]
        await ends.began["slow"].wait()
        async with asyncio.timeout(DEADLINE_S):
            while str(T) in s.service.open_topics or s.service.open_topics.is_leaving(str(T)):
                await turns(1)
        _, second = await s.producer(await s.topic())
        unloading.append(asyncio.ensure_future(s.service.topics.ownership.unload(WHOLE)))
        await turns(20)
        ends.go["slow"].set()
        await asyncio.gather(*unloading)
        assert (len(first.sent_away), len(second.sent_away)) == (1, 1)


async def test_a_drained_topic_notifies_its_clients_when_it_is_dismissed_and_once() -> None:
    async with stage() as s:
        opened = s.service.open_topics
        ends: dict[str, tuple[object, list[object]]] = {}
        for local in "abc":
            topic = await s.topic(local)
            producer, sink = await s.producer(topic)
            ends[local] = (producer, sink.sent_away)  # type: ignore[assignment]
        await opened.drain(WHOLE)
        assert len(opened) == 0
        assert all(sent == [] for _, sent in ends.values())

        def inside(*locals_: str) -> set[str]:
            return {f"persistent://public/default/{each}" for each in locals_}

        opened.dismiss(lambda topic: str(topic.name) in inside("a"), ELSEWHERE)
        opened.abandon(lambda topic: str(topic.name) in inside("b"))
        assert [sent for _, sent in ends.values()] == [
            [(ends["a"][0], ELSEWHERE)],
            [(ends["b"][0], None)],
            [],
        ]
        opened.dismiss(WHOLE.holds, ELSEWHERE)
        opened.dismiss(WHOLE.holds, None)
        opened.abandon(WHOLE.holds)
        assert [len(sent) for _, sent in ends.values()] == [1, 1, 1]
        assert ends["c"][1] == [(ends["c"][0], ELSEWHERE)]


async def test_an_abandonment_concerns_the_topics_of_its_bundle_alone() -> None:
    async with stage() as s:
        opened = s.service.open_topics
        lost, kept = await s.topic("lost"), await s.topic("kept")
        before = opened.abandonments
        opened.abandon(lambda topic: topic is lost)
        assert (lost.serving, kept.serving) == (False, True)
        assert list(opened) == [kept]
        assert opened.abandonments == before + 1
        (load,) = opened.loads(WHOLE.holds)
        assert load.ring_position == kept.ring_position
        assert opened.loads(lambda _: False) == []
        opened.suspend()
        assert not kept.serving
        opened.resume()
        assert (kept.serving, lost.serving) == (True, False)


# -- deleting


async def test_a_topic_is_deleted_with_its_log_its_cursors_its_schemas_and_policies() -> None:
    async with stage() as s:
        topics, topic = s.service.topics, await s.topic()
        producer, sink = await s.producer(topic)
        _, consumer, at = await s.attach(topic)
        await topic.add_schema(STRING)
        await s.service.policies.update(T, lambda own: own.having(MAX_CONSUMERS.name, 5))
        assert await s.store.get(policies_key(T)) is not None
        await refused(topics.delete(T, force=False), PreconditionFailed, "active")
        assert (sink.told, at.closed) == ([], [])
        await topics.delete(T, force=True)
        assert sink.sent_away == [(producer, None)]
        assert at.closed == [consumer.spec.consumer_id]
        assert not topic.serving
        assert s.factory.opened == {}
        assert (await topics.exists(T), await s.store.list(CURSORS_PREFIX)) == (False, [])
        assert await s.service.schemas.latest(T) is None
        assert await s.store.get(policies_key(T)) is None
        again = await s.topic()
        assert (again.subscriptions, again.managed_ledger.entries_total) == ({}, 0)


async def test_a_partition_leaves_what_belongs_to_its_topic() -> None:
    async with stage() as s:
        topics = s.service.topics
        await topics.create_partitioned(T, 2, {})
        part = await topics.get_or_open(T.partition(0), create=True)
        await part.add_schema(STRING)
        await s.service.policies.update(T, lambda own: own.having(MAX_CONSUMERS.name, 5))
        await topics.delete(T.partition(0), force=True)
        assert await s.service.schemas.latest(T) is not None
        await turns(20)
        assert s.service.policies.own_value(T, MAX_CONSUMERS) == 5
        assert await stored_names(s) == {"t-partition-1"}


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("name", [T, MEMORY], ids=["persistent", "non-persistent"])
async def test_the_deletion_of_a_missing_topic_creates_nothing(
    name: TopicName, force: bool
) -> None:
    async with stage() as s:
        heard: list[TopicName] = []
        s.service.topics.add_listener(NAMESPACE, lambda topic, _: heard.append(topic))
        await refused(s.service.topics.delete(name, force=force), NotFound, "Topic not found")
        assert (await stored_names(s), heard, len(s.service.topics)) == (set(), [], 0)


async def test_a_deletion_waits_for_an_opening_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would otherwise delete the log beside its new writer."""
    async with stage() as s:
        topics = s.service.topics
        held = s.store.hold(CREATION)
        opening = asyncio.ensure_future(s.topic())
        await held.reached.wait()
        with monkeypatch.context() as patch:
            patch.setattr(registry, "OPEN_TIMEOUT_S", 0.01)
            await refused(topics.delete(T, force=True), ServiceNotReady, "being moved or deleted")
        deleting = asyncio.ensure_future(topics.delete(T, force=True))
        await turns(30)
        assert not deleting.done()
        held.go.set()
        topic = await opening
        await deleting
        assert not topic.serving
        assert await stored_names(s) == set()


async def test_only_the_owner_deletes_a_topic_that_is_open() -> None:
    async with stage() as s:
        ownership, topics = movable(s.service), s.service.topics
        topic = await s.topic()
        ownership.away.add(T)
        await refused(topics.delete(T, force=True), ServiceNotReady, "another broker")
        assert topic.serving
        assert await stored_names(s) == {"t"}


async def test_a_topic_under_deletion_is_neither_opened_nor_deleted_again() -> None:
    async with stage() as s:
        topics = s.service.topics
        await s.topic()
        held = s.store.hold(puts(MANAGED_LEDGERS_PREFIX))
        deleting = asyncio.ensure_future(topics.delete(T, force=True))
        await held.reached.wait()
        deleting.cancel()
        await asyncio.wait([deleting])
        await refused(s.topic(), ServiceNotReady, "being moved or deleted")
        await refused(topics.delete(T, force=True), ServiceNotReady, "being moved or deleted")
        held.go.set()
        async with asyncio.timeout(DEADLINE_S):
            while s.service.open_topics.is_leaving(str(T)):
                await turns(1)
        assert await stored_names(s) == set()
        assert (await s.topic()).serving


async def test_a_deletion_that_was_cut_short_is_seen_and_finished_by_the_next() -> None:
    async with stage() as s:
        topics = s.service.topics
        await s.topic("kept")
        await (await s.topic()).create_subscription("s", EARLIEST, {})
        s.store.lose(deletes(CURSORS_PREFIX), lands=False)
        await refused(topics.delete(T, force=True), MetadataError, "could not be written")
        s.store.away = False
        kept = [named("kept")]
        assert (await topics.exists(T), await topics.exists(T, half_deleted=True)) == (False, True)
        assert await topics.names(NAMESPACE, "persistent") == kept
        assert await topics.names(NAMESPACE, "persistent", half_deleted=True) == [*kept, T]
        await topics.delete(T, force=True)
        assert await topics.names(NAMESPACE, "persistent", half_deleted=True) == kept


async def test_a_deletion_within_another_needs_the_mark_of_that_one() -> None:
    async with stage() as s:
        topics = s.service.topics
        await s.topic()
        revision = await s.store.put("/mark", b"1")
        await s.store.put("/mark", b"2")
        with pytest.raises(BadRevision):
            await topics.delete(T, force=True, under=Check("/mark", revision))
        assert await stored_names(s) == {"t"}
        await topics.delete(T, force=True, under=Check("/mark", revision + 1))
        assert await stored_names(s) == set()


async def test_a_topic_is_deleted_for_disuse_only_while_it_is_unused() -> None:
    async with stage() as s:
        topics, topic = s.service.topics, await s.topic()
        await topic.create_subscription("s", EARLIEST, {})
        await refused(topics.delete_if(topic, lambda _: False), PreconditionFailed, "in use again")
        await topics.unload(T)
        again = await s.topic()
        await refused(topics.delete_if(topic, lambda _: True), PreconditionFailed, "in use again")
        assert await stored_names(s) == {"t"}
        judged: list[Topic] = []

        def holds(asked: Topic) -> bool:
            judged.append(asked)
            return True

        await topics.delete_if(again, holds)
        assert (judged, again.serving, await stored_names(s)) == ([again], False, set())


async def test_a_non_persistent_topic_exists_while_it_is_open() -> None:
    async with stage() as s:
        topics = s.service.topics
        topic = await s.nonpersistent()
        await s.nonpersistent("u")
        await s.topic("t")
        assert await topics.names(NAMESPACE, "non-persistent") == [
            MEMORY,
            named("u", "non-persistent"),
        ]
        assert await topics.names(NAMESPACE, "persistent") == [T]
        _, consumer, at = await s.attach(topic)
        topics.drop_idle(MEMORY)
        assert topics.loaded(MEMORY) is topic, "it has a client"
        await refused(topics.delete(MEMORY, force=False), PreconditionFailed)
        await topics.delete(MEMORY, force=True)
        assert at.closed == [consumer.spec.consumer_id]
        assert (await topics.exists(MEMORY), await topics.exists(T)) == (False, True)
        topics.drop_idle(MEMORY)  # late
        topics.drop_idle(T)
        assert topics.loaded(T) is not None, "its log is open"
        topics.drop_idle(named("u", "non-persistent"))
        assert await topics.names(NAMESPACE, "non-persistent") == []
        assert ledger_name(T) in s.factory.opened
