"""Opening topics: once, only if this broker owns them, and anew if another broker may have
written."""

import asyncio
from collections.abc import Awaitable

import pytest
from tests.support.held_store import puts
from tests.unit.broker.topic.movable import movable
from tests.unit.broker.topic.stage import NAMESPACE, Stage, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.catalog.resources import NAMESPACES_PREFIX
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.policies.store import policies_key
from magnetar.broker.topic import ledgers, registry
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import (
    MagnetarError,
    NotAllowed,
    PersistenceError,
    ServiceNotReady,
    TopicNotFound,
)
from magnetar.core.names import TopicName, parse_topic
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX
from magnetar.metadata.store import Check
from magnetar.policies.caps import MAX_CONSUMERS, MAX_TOPICS

CREATION = puts(MANAGED_LEDGERS_PREFIX)
DEADLINE_S = 20.0


def named(local: str, domain: str = "persistent") -> TopicName:
    return parse_topic(f"{domain}://public/default/{local}")


T, MEMORY = named("t"), named("t", "non-persistent")


async def refused(
    what: Awaitable[object], error: type[MagnetarError], text: str | None = None
) -> None:
    """Fails unless `what` is refused with that error."""
    with pytest.raises(error, match=text):
        async with asyncio.timeout(DEADLINE_S):
            await what


async def stored_names(s: Stage) -> set[str]:
    skip = len(f"{MANAGED_LEDGERS_PREFIX}{NAMESPACE}/persistent/")
    return {each.key[skip:] for each in await s.store.list(MANAGED_LEDGERS_PREFIX)}


# -- owned


@pytest.mark.parametrize("name", [T, MEMORY], ids=["persistent", "non-persistent"])
async def test_a_topic_of_another_broker_is_neither_served_nor_created(name: TopicName) -> None:
    async with stage() as s:
        ownership, topics = movable(s.service), s.service.topics
        ownership.away.add(name)
        await refused(topics.get_or_open(name, create=True), ServiceNotReady, "another broker")
        assert await stored_names(s) == set()
        ownership.away.clear()
        topic = await topics.get_or_open(name, create=True)
        ownership.away.add(name)
        await refused(topics.get_or_open(name, create=True), ServiceNotReady, "another broker")
        ownership.away.clear()
        assert await topics.get_or_open(name, create=False) is topic


async def test_a_topic_whose_turn_comes_after_its_bundle_went_is_not_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        ownership, topics = movable(s.service), s.service.topics
        monkeypatch.setattr(topics, "_gate", asyncio.Semaphore(1))
        held = s.store.hold(CREATION)
        first = asyncio.ensure_future(s.topic("a"))
        await held.reached.wait()
        second = asyncio.ensure_future(s.topic("b"))
        await turns(20)
        ownership.away.add(named("b"))
        held.go.set()
        await first
        await refused(second, ServiceNotReady)
        assert await stored_names(s) == {"a"}


@pytest.mark.parametrize("back", [True, False], ids=["owned again", "not owned"])
async def test_a_topic_whose_bundle_went_while_it_was_opened_is_read_again(back: bool) -> None:
    """Another owner may have written to its log after it was read."""
    async with stage() as s:
        ownership, topics = movable(s.service), s.service.topics
        held = s.store.hold(CREATION)
        opening = asyncio.ensure_future(s.topic())
        await held.reached.wait()
        if back:
            s.service.open_topics.abandon(lambda _: True)
        else:
            ownership.away.add(T)
        held.go.set()
        await refused(opening, ServiceNotReady)
        assert topics.loaded(T) is None
        assert s.factory.opened == {}, "its log is read again by the next request"
        ownership.away.clear()
        assert (await s.topic()).serving


async def test_a_log_whose_topic_could_not_be_opened_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another broker may own it and write to it before the next request here."""
    async with stage(entry_metadata=("index",)) as s:
        await s.publish(await s.topic(), "a")
        await s.service.topics.unload(T)

        async def unreadable(*_: object) -> None:
            raise PersistenceError("no bookie answers")

        with monkeypatch.context() as patch:
            patch.setattr(ManagedLedger, "read_entry", unreadable)
            await refused(s.topic(), PersistenceError, "no bookie answers")
        assert (s.factory.opened, s.service.topics.loaded(T)) == ({}, None)
        assert (await s.topic()).managed_ledger.entries_total == 1


async def test_a_request_right_after_an_opening_has_failed_starts_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It once waited for the failed one for ever, without a yield."""
    async with stage() as s:
        topics = s.service.topics
        later: list[asyncio.Task[object]] = []
        opened = topics._topic_ledgers.open

        async def absent(name: TopicName, *, create: bool) -> object:
            if create:
                return await opened(name, create=create)
            # Its turn comes after this task has ended, and before what waits for this task.
            later.append(asyncio.ensure_future(topics.get_or_open(name, create=True)))
            raise TopicNotFound(f"Topic {name} not found")

        monkeypatch.setattr(topics._topic_ledgers, "open", absent)
        await refused(topics.get_or_open(T, create=False), TopicNotFound)
        async with asyncio.timeout(DEADLINE_S):
            assert await later[0] is topics.loaded(T)
        assert topics._open.opening == {}


async def test_a_topic_that_another_broker_fenced_is_closed_and_opened_again() -> None:
    async with stage() as s:
        ownership = movable(s.service)
        topic = await s.topic()
        _, sink = await s.producer(topic)
        await s.publish(topic, "a")
        other = ManagedLedgerFactory(s.store, s.client, s.clock)
        await (await other.open(ledger_name(T))).set_properties({"other": "1"})
        await other.abandon()
        again: PersistentTopic | None = None
        await s.service.topics.create(named("elsewhere"), {})
        topic.managed_ledger.append([b"late"], lambda *_: None)
        async with asyncio.timeout(DEADLINE_S):
            while not topic.fenced:
                await turns(1)
            again = await s.topic()
        assert again is not topic
        assert again.properties == {"other": "1"}
        assert len(sink.sent_away) == 1
        await turns(50)
        assert ownership.doubted == [T], "the claim is checked"
        assert s.service.topics.loaded(T) is again


async def test_a_fenced_topic_is_closed_even_if_its_owner_is_not_known() -> None:
    """Its clients would otherwise stay with a topic that takes nothing."""
    async with stage() as s:
        ownership = movable(s.service)
        topic = await s.topic()
        _, sink = await s.producer(topic)
        ownership.answers_doubt = False
        s.service.topics._fenced(T)
        async with asyncio.timeout(DEADLINE_S):
            while not sink.sent_away:
                await turns(1)
        assert s.service.topics.loaded(T) is None


# -- once


async def test_a_request_that_ends_cancels_no_opening_that_others_wait_for() -> None:
    async with stage() as s:
        held = s.store.hold(CREATION)
        requests = [asyncio.ensure_future(s.topic()) for _ in range(3)]
        await held.reached.wait()
        requests[0].cancel()
        await asyncio.wait([requests[0]])
        held.go.set()
        topics = await asyncio.gather(*requests[1:])
        assert topics[0] is topics[1] is s.service.topics.loaded(T)
        assert not s.service.open_topics.opening


async def test_an_opening_that_takes_too_long_is_given_up_by_its_requests_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        monkeypatch.setattr(registry, "OPEN_TIMEOUT_S", 0.01)
        held = s.store.hold(CREATION)
        with pytest.raises(TimeoutError):
            await s.topic()
        monkeypatch.undo()
        again = asyncio.ensure_future(s.topic())
        await turns(20)
        assert not again.done()
        held.go.set()
        assert (await again).serving


async def test_a_request_that_may_create_does_not_get_the_refusal_of_one_that_may_not() -> None:
    async with stage() as s:
        topics = s.service.topics
        asking = asyncio.ensure_future(topics.get_or_open(T, create=False))
        await asyncio.sleep(0)
        topic = await topics.get_or_open(T, create=True)
        await refused(asking, TopicNotFound, "does not exist")
        assert topics.loaded(T) is topic
        await refused(topics.get_or_open(named("none"), create=False), TopicNotFound)
        # The creation itself is refused, and so is every request that waits for it.
        nowhere = parse_topic("persistent://public/nowhere/t")
        for name in (nowhere, nowhere.partition(1)):
            answers = await asyncio.gather(
                *(topics.get_or_open(name, create=True) for _ in range(2)), return_exceptions=True
            )
            assert [type(each) for each in answers] == [TopicNotFound] * 2
        assert await stored_names(s) == {"t"}


async def test_a_stopping_broker_opens_no_topic() -> None:
    async with stage() as s:
        topics = s.service.topics
        held = s.store.hold(CREATION)
        opening = asyncio.ensure_future(s.topic())
        await held.reached.wait()
        await topics.close()
        held.go.set()
        await refused(opening, ServiceNotReady, "shutting down")
        assert (s.factory.opened, len(topics)) == ({}, 0)
        for name in (T, MEMORY):
            await refused(topics.get_or_open(name, create=True), ServiceNotReady)


# -- created


async def test_a_created_topic_is_announced_and_an_opened_one_is_not() -> None:
    async with stage() as s:
        topics = s.service.topics
        heard: list[tuple[str, bool]] = []

        def listener(name: TopicName, exists: bool) -> None:
            heard.append((name.local, exists))

        topics.add_listener(NAMESPACE, listener)
        await s.topic("plain")
        await topics.create_partitioned(named("parts"), 1, {})
        await s.service.resources.update_policies(
            NAMESPACE, lambda document: {**document, MAX_TOPICS.document: 9}
        )
        await s.topic("counted")
        created = [(each, True) for each in ("plain", "parts-partition-0", "counted")]
        assert heard == created
        for each in ("plain", "parts-partition-0", "counted"):
            await topics.unload(named(each))
            await s.topic(each)
        assert heard == created
        await topics.delete(named("plain"), force=True)
        await s.nonpersistent("memory")
        await s.nonpersistent("memory")
        topics.drop_idle(named("memory", "non-persistent"))
        expected = [*created, ("plain", False), ("memory", True), ("memory", False)]
        assert heard == expected
        topics.remove_listener(NAMESPACE, listener)
        await s.topic("unheard")
        assert heard == expected


async def test_a_topic_is_created_with_its_properties() -> None:
    async with stage() as s:
        topics = s.service.topics
        topic = await topics.create(T, {"a": "1"})
        assert topic.properties == {"a": "1"}
        before = await s.store.revision()
        assert await topics.create(T, {}) is topic
        assert await s.store.revision() == before, "there is nothing to write"
        assert topic.properties == {"a": "1"}
        await topics.unload(T)
        assert (await s.topic()).properties == {"a": "1"}


async def test_an_existing_topic_is_opened_without_a_write_or_a_check() -> None:
    """Opening must not depend on who changes the namespace's policies at that moment."""
    async with stage() as s:
        await s.publish(await s.topic(), "a")
        await s.service.topics.unload(T)
        await s.service.resources.update_policies(
            NAMESPACE, lambda document: {**document, MAX_TOPICS.document: 1}
        )
        before = await s.store.revision()
        assert (await s.topic()).managed_ledger.entries_total == 1
        assert await s.store.revision() == before


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_created_topic_has_no_policies_of_a_former_one(partitions: int) -> None:
    """A deletion that was cut short may have left them."""
    async with stage() as s:
        policies, topics = s.service.policies, s.service.topics
        await s.topic()
        await policies.update(T, lambda own: own.having(MAX_CONSUMERS.name, 5))
        record = await s.store.get(policies_key(T))
        assert record is not None
        await topics.delete(T, force=True)
        await s.store.put(record.key, record.value)
        await turns(20)
        assert policies.own_value(T, MAX_CONSUMERS) == 5
        if partitions:
            await topics.create_partitioned(T, partitions, {})
        else:
            await s.topic()
        await turns(20)
        assert policies.own_value(T, MAX_CONSUMERS) is None
        await policies.update(T, lambda own: own.having(MAX_CONSUMERS.name, 6))
        await topics.unload(T.partition(0) if partitions else T)
        await topics.get_or_open(T.partition(0) if partitions else T, create=True)
        await turns(20)
        assert policies.own_value(T, MAX_CONSUMERS) == 6, "an opened one keeps its own"


@pytest.mark.parametrize("changed", [NAMESPACES_PREFIX, "/partitioned-topics/"])
async def test_a_creation_reads_again_what_changed_under_it(changed: str) -> None:
    async with stage() as s:
        topics, resources = s.service.topics, s.service.resources
        held = s.store.hold(CREATION)
        await refused(s.topic("t-partition-1"), NotAllowed, "Partition metadata not found")
        await resources.create_partitioned(T, 2)
        opening = asyncio.ensure_future(topics.get_or_open(T.partition(1), create=False))
        await held.reached.wait()
        if changed == NAMESPACES_PREFIX:
            await resources.update_policies(NAMESPACE, lambda document: {**document, "x": 1})
        else:
            await resources.grow_partitions(T, 3)
        held.go.set()
        assert (await opening).name == T.partition(1)


async def test_a_topic_that_became_partitioned_meanwhile_is_not_created_beside_its_partitions() -> (
    None
):
    async with stage() as s:
        held = s.store.hold(CREATION)
        opening = asyncio.ensure_future(s.topic())
        await held.reached.wait()
        await s.service.resources.create_partitioned(T, 2)
        held.go.set()
        await refused(opening, NotAllowed, "is a partitioned topic")
        assert await stored_names(s) == set()


@pytest.mark.parametrize("cap", [1, 2])
async def test_a_namespace_takes_as_many_topics_as_its_cap_and_no_more(cap: int) -> None:
    async with stage() as s:
        await s.service.resources.update_policies(
            NAMESPACE, lambda document: {**document, MAX_TOPICS.document: cap}
        )
        for number in range(cap):
            await s.topic(f"t{number}")
        await refused(s.topic("more"), NotAllowed, "Exceed maximum number of topics")
        with pytest.raises(MagnetarError, match="Exceed maximum number of topics"):
            await s.service.topics.create_partitioned(named("parts"), 1, {})
        await s.nonpersistent("more")
        await s.topic("__change_events")
        await s.service.topics.delete(named("t0"), force=True)
        await s.topic("more")


async def test_a_creation_under_constant_change_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with stage() as s:
        attempts: list[str] = []
        transact = s.store.transact

        async def overtaken(operations: object) -> int:
            if any(CREATION(each) for each in operations):  # type: ignore[attr-defined]
                attempts.append("creation")
                await s.store.put(f"{NAMESPACES_PREFIX}{NAMESPACE}", b"{}")
            return await transact(operations)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(s.store, "transact", overtaken)
            await refused(s.topic(), ServiceNotReady, "keep changing")
        assert len(attempts) == ledgers.CREATION_ATTEMPTS_MAX
        assert await stored_names(s) == set()


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_what_may_be_created_as_a_partition(domain: str) -> None:
    async with stage() as s:
        topics = s.service.topics
        parts, other = named("parts", domain), named("other", domain)
        await topics.create_partitioned(parts, 2, {"a": "1"})
        assert await s.service.resources.partitioned_properties(parts) == {"a": "1"}
        # A declared partition is created by every use of it.
        if domain == "persistent":
            assert await stored_names(s) == {"parts-partition-0", "parts-partition-1"}
            await topics.delete(parts.partition(1), force=True)
        await topics.get_or_open(parts.partition(1), create=False)
        await refused(topics.get_or_open(parts.partition(2), create=True), TopicNotFound)
        await refused(topics.get_or_open(parts, create=True), NotAllowed, "partitioned topic")
        await refused(topics.get_or_open(other, create=False), TopicNotFound)
        await refused(topics.get_or_open(other.partition(0), create=True), NotAllowed)
        nowhere = parse_topic(f"{domain}://public/nowhere/t")
        await refused(topics.get_or_open(nowhere, create=True), TopicNotFound, "nowhere")
        await refused(topics.create_partitioned(nowhere, 2, {}), TopicNotFound, "nowhere")
        assert await s.service.resources.partitions(nowhere) == 0


async def test_partitions_of_other_brokers_are_declared_and_not_opened() -> None:
    async with stage() as s:
        ownership, topics = movable(s.service), s.service.topics
        ownership.away.add(T.partition(1))
        await topics.create_partitioned(T, 3, {})
        assert await stored_names(s) == {f"t-partition-{each}" for each in range(3)}
        assert {topic.name for topic in topics} == {T.partition(0), T.partition(2)}
        await s.service.resources.grow_partitions(T, 5)
        ownership.away.add(T.partition(4))
        await topics.create_partitions(T, 3, 5)
        assert await topics.exists(T.partition(4))
        assert topics.loaded(T.partition(4)) is None
        assert topics.loaded(T.partition(3)) is not None


async def test_no_topic_in_memory_appears_in_a_namespace_whose_deletion_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deletion has listed the topics by then, so it would leave this one behind."""
    async with stage() as s:
        resources = s.service.resources
        marked, go, asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        partitions_check = resources.partitions_check

        async def overtaken(name: TopicName) -> tuple[int, Check]:
            asked.set()
            await marked.wait()
            return await partitions_check(name)

        async def check() -> None: ...

        async def empty(_: Check) -> None:
            marked.set()
            await go.wait()

        monkeypatch.setattr(resources, "partitions_check", overtaken)
        opening = asyncio.ensure_future(s.nonpersistent())
        await asked.wait()
        deleting = asyncio.ensure_future(resources.namespace_deletion(NAMESPACE).run(check, empty))
        await refused(opening, TopicNotFound, "being deleted")
        assert s.service.topics.loaded(MEMORY) is None
        go.set()
        await deleting


async def test_no_partition_is_created_while_its_namespace_or_topic_is_deleted() -> None:
    async with stage() as s:
        topics, resources = s.service.topics, s.service.resources
        part, declare = T.partition(0), topics._topic_ledgers.declare
        await resources.create_partitioned(T, 2)

        class Kept(Exception):
            """Ends a deletion under its mark."""

        async def empty(_: Check) -> None:
            await refused(topics.get_or_open(part, create=True), TopicNotFound, "being deleted")
            await refused(declare(part), TopicNotFound, "being deleted")
            await refused(topics.create_partitioned(T, 2, {}), MagnetarError)
            raise Kept

        async def check() -> None: ...

        for deletion in (
            resources.partitioned_deletion(T),
            resources.namespace_deletion(NAMESPACE),
        ):
            with pytest.raises(Kept):
                await deletion.run(check, empty)
            assert await stored_names(s) == set()
        await declare(part)
        await declare(part)
        assert await stored_names(s) == {part.local}
