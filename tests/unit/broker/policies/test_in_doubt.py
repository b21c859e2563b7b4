"""Policies while records are late, cannot be read or are changed by others."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.unit.ledger.cluster import virtual

from magnetar.broker.catalog.namespace_policies import AUTH, TOPIC_AUTH
from magnetar.broker.catalog.resources import Resources, partitioned_key
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies import applied_policies as applied_module
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.broker.policies.namespaces import FollowedNamespaces
from magnetar.broker.policies.notifier import TOPICS_PER_TURN, PolicyNews
from magnetar.broker.policies.store import FORMAT, TopicPolicies, policies_key
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError, NotFound
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.record import ManagedLedgerRecord, managed_ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import Record
from magnetar.policies.caps import MAX_PRODUCERS, MAX_TOPICS
from magnetar.policies.lifecycle import MESSAGE_TTL, RETENTION
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

TOPIC = parse_topic("persistent://t/n/a")
OTHER = parse_topic("persistent://t/n/b")
NAMESPACE = TOPIC.namespace
KEY = policies_key(TOPIC)
LEDGER_KEY = managed_ledger_key("t/n/persistent/a")
SETTINGS = compose(
    BrokerSettings, message_ttl_s=100, producers_per_topic_max=7, topics_per_namespace_max=9
)
DAY = {"retentionTimeInMinutes": 1_440, "retentionSizeInMB": -1}
NONE = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


@dataclass
class Stage:
    """The policies of a broker over a store that others write as well."""

    store: MemoryStore = field(default_factory=lambda: MemoryStore(SystemClock()))
    tasks: TaskSet = field(default_factory=lambda: TaskSet("test"))
    changes: list[tuple[str, str | None]] = field(default_factory=list)

    async def start(self) -> None:
        self.resources = Resources(self.store)
        self.policies = BrokerPolicies(
            self.store,
            SETTINGS,
            self.resources,
            lambda namespace, topic: self.changes.append(
                (str(namespace), None if topic is None else topic.local)
            ),
        )
        await self.namespace()
        self.namespaces = FollowedNamespaces(self.store)
        self.tasks.start(self.namespaces.run(), "follow namespaces")
        await self.namespaces.ready()
        await self.policies.start(self.namespaces, self.tasks)
        await self.topic()

    async def namespace(self, **policies: Any) -> None:
        await self.store.put(namespace_key(NAMESPACE), msgspec.json.encode(policies))
        await self.settle()

    async def topic(self, local: str = "a", *, deleted: bool = False) -> None:
        record = ManagedLedgerRecord(created_ms=1, modified_ms=1, deleted=deleted)
        await self.store.put(managed_ledger_key(f"t/n/persistent/{local}"), encode(record))

    async def own(self, topic: TopicName = TOPIC, **policies: Any) -> None:
        """Written by another broker."""
        value = msgspec.json.encode(TopicPolicies(FORMAT, policies))
        await self.raw(policies_key(topic), value)

    async def raw(self, key: str, value: bytes) -> None:
        await self.store.put(key, value)
        await self.settle()

    async def settle(self) -> None:
        """Returns when the watches have delivered."""
        for _ in range(10):
            await asyncio.sleep(0)

    def value(self, policy: Any, topic: TopicName = TOPIC) -> Any:
        return self.policies.value(topic, policy)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    await stage.start()
    yield stage
    await stage.store.close()
    await stage.tasks.stop()


# -- what cannot be read, or acted on


async def test_a_namespace_that_is_on_its_way_has_what_the_broker_says_and_is_not_known(
    stage: Stage,
) -> None:
    late = parse_topic("persistent://t/late/a")
    assert stage.value(MESSAGE_TTL, late) == 100
    assert not stage.policies.known(late)
    await stage.store.put(
        namespace_key(late.namespace), msgspec.json.encode({"message_ttl_in_seconds": 5})
    )
    await stage.settle()
    assert stage.value(MESSAGE_TTL, late) == 5
    assert stage.policies.known(late)


async def test_a_namespace_whose_record_cannot_be_read_is_not_known_until_it_is_put_right(
    stage: Stage,
) -> None:
    await stage.namespace(message_ttl_in_seconds=5)
    assert (stage.value(MESSAGE_TTL), stage.policies.known(TOPIC)) == (5, True)
    await stage.raw(namespace_key(NAMESPACE), b"{")
    assert (stage.value(MESSAGE_TTL), stage.policies.known(TOPIC)) == (100, False)
    await stage.namespace(message_ttl_in_seconds=6)
    assert (stage.value(MESSAGE_TTL), stage.policies.known(TOPIC)) == (6, True)


@pytest.mark.parametrize("odd", ["soon", -5, {"a": 1}])
async def test_a_value_that_cannot_be_acted_on_leaves_what_is_above_and_nothing_is_deleted(
    stage: Stage, odd: object
) -> None:
    await stage.namespace(message_ttl_in_seconds=odd)
    assert stage.value(MESSAGE_TTL) == 100
    assert not stage.policies.known(TOPIC)
    assert not stage.policies.known(OTHER)
    await stage.namespace(message_ttl_in_seconds=50)
    assert stage.policies.known(TOPIC)
    await stage.own(message_ttl=odd)
    assert stage.value(MESSAGE_TTL) == 50
    assert not stage.policies.known(TOPIC)
    assert not stage.policies.known(TOPIC.partition(1)), "a partition has its parent's"
    assert stage.policies.known(OTHER), "the others say nothing odd"
    await stage.own(message_ttl=3)
    assert (stage.value(MESSAGE_TTL), stage.policies.known(TOPIC)) == (3, True)


async def test_an_odd_value_of_what_deletes_nothing_leaves_the_rest_known(stage: Stage) -> None:
    await stage.namespace(max_producers_per_topic="many")
    await stage.own(max_producers="more")
    assert stage.value(MAX_PRODUCERS) == 7
    assert stage.policies.known(TOPIC)


async def test_a_record_of_a_newer_format_leaves_what_was_known_before(stage: Stage) -> None:
    await stage.own(retention=DAY)
    assert stage.value(RETENTION) == DAY
    await stage.raw(KEY, b'{"version":2,"local":{}}')
    assert (stage.value(RETENTION), stage.policies.known(TOPIC)) == (DAY, False)
    await stage.store.delete(KEY)
    await stage.settle()
    assert (stage.value(RETENTION), stage.policies.known(TOPIC)) == (NONE, True)


async def test_a_key_that_names_no_topic_disturbs_nobody(stage: Stage) -> None:
    heard: list[str] = []
    stage.policies.listen(TOPIC, lambda: heard.append("a"))
    await stage.raw("/topic-policies/t/n", b"{}")
    await stage.raw("/namespaces/odd", b"{}")
    await stage.own(message_ttl=5)
    assert stage.value(MESSAGE_TTL) == 5
    assert heard == ["a"]


async def test_what_only_namespaces_have_is_theirs_whatever_a_topic_says(stage: Stage) -> None:
    await stage.own(max_topics=1)
    assert stage.value(MAX_TOPICS) == 9
    assert stage.policies.own_value(TOPIC, MAX_TOPICS) is None
    assert stage.policies.topics_with(MAX_TOPICS) == []
    await stage.own(OTHER, message_ttl=5)
    assert stage.policies.topics_with(MESSAGE_TTL) == [OTHER]
    assert stage.policies.own_value(OTHER.partition(3), MESSAGE_TTL) == 5


# -- asked of the store


async def test_what_is_confirmed_is_what_the_store_has_though_the_watch_is_late(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.own(message_ttl=5)
    await stage.namespace(message_ttl_in_seconds=50)
    assert stage.value(MESSAGE_TTL) == 5
    with monkeypatch.context() as late:
        # The hub is silent: no watch hears of these.
        late.setattr(stage.store._hub, "publish", lambda *_: None)
        await stage.store.put(
            namespace_key(NAMESPACE), msgspec.json.encode({"message_ttl_in_seconds": 60})
        )
        await stage.store.delete(KEY)
    await stage.settle()
    assert stage.value(MESSAGE_TTL) == 5, "nobody has told"
    await stage.policies.of(TOPIC).confirm()
    assert stage.value(MESSAGE_TTL) == 60
    value = msgspec.json.encode(TopicPolicies(FORMAT, {"message_ttl": 7}))
    with monkeypatch.context() as late:
        late.setattr(stage.store._hub, "publish", lambda *_: None)
        await stage.store.put(KEY, value)
    await stage.policies.confirm(TOPIC.partition(2))
    assert stage.value(MESSAGE_TTL) == 7


async def test_a_record_that_was_written_while_it_was_requested_is_not_taken_for_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.own(message_ttl=5)
    get = stage.store.get

    async def overtaken(key: str) -> Record | None:
        found = await get(key)
        if key == KEY:
            await stage.own(message_ttl=6)
            return None
        return found

    monkeypatch.setattr(stage.store, "get", overtaken)
    await stage.policies.confirm(TOPIC)
    assert stage.value(MESSAGE_TTL) == 6


async def test_what_cannot_be_confirmed_is_an_error(stage: Stage) -> None:
    with pytest.raises(NotFound, match="Namespace not found: t/none"):
        await stage.policies.confirm(parse_topic("persistent://t/none/a"))
    unstarted = BrokerPolicies(stage.store, SETTINGS, stage.resources)
    with pytest.raises(NotFound):
        await unstarted.confirm(TOPIC)
    assert not unstarted.known(TOPIC)


def test_a_store_that_does_not_answer_confirms_nothing() -> None:
    async def scenario() -> None:
        stage = Stage()
        await stage.start()

        async def never(key: str) -> Record | None:
            await asyncio.Event().wait()
            return None

        stage.store.get = never  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(MetadataError, match="could not be asked for in time"):
            await stage.policies.confirm(TOPIC)
        assert loop.time() - began == pytest.approx(applied_module.CONFIRM_TIMEOUT_S)
        await stage.store.close()
        await stage.tasks.stop()

    virtual(scenario())


# -- topics that come and go


async def test_a_change_made_here_holds_when_it_returns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.store._hub, "publish", lambda *_: None)
    await stage.policies.update(TOPIC, lambda own: own.having("message_ttl", 5))
    assert stage.value(MESSAGE_TTL) == 5
    with pytest.raises(NotFound):
        await stage.policies.update(OTHER, lambda own: own.having("message_ttl", 5))


async def test_a_topic_begins_without_policies_unless_they_are_its_own(stage: Stage) -> None:
    await stage.own(OTHER, message_ttl=5)
    await stage.policies.begin(OTHER)
    assert stage.value(MESSAGE_TTL, OTHER) == 100
    assert await stage.store.get(policies_key(OTHER)) is None
    await stage.own(message_ttl=5)
    await stage.policies.begin(TOPIC)
    assert stage.value(MESSAGE_TTL) == 5, "it is there already: another was quicker"
    volatile = parse_topic("non-persistent://t/n/v")
    await stage.own(volatile, message_ttl=5)
    await stage.policies.begin(volatile)
    assert stage.value(MESSAGE_TTL, volatile) == 5


async def test_permissions_on_a_topic_go_with_it_and_no_others(stage: Stage) -> None:
    granted = {str(TOPIC): {"r": ["produce"]}, str(OTHER): {"r": ["consume"]}}
    await stage.namespace(**{AUTH: {TOPIC_AUTH: granted, "x": 1}})
    await stage.store.delete(LEDGER_KEY)
    await stage.own(message_ttl=5)
    await stage.policies.forget(TOPIC)
    await stage.settle()
    record = await stage.store.get(namespace_key(NAMESPACE))
    assert record is not None
    assert msgspec.json.decode(record.value) == {
        AUTH: {TOPIC_AUTH: {str(OTHER): {"r": ["consume"]}}, "x": 1}
    }
    assert await stage.store.get(KEY) is None
    # Nothing is granted on it any more: its namespace's record stays as it is.
    await stage.policies.forget(TOPIC)
    assert await stage.store.get(namespace_key(NAMESPACE)) == record


async def test_permissions_are_left_to_the_deletion_of_their_namespace(stage: Stage) -> None:
    """A change of its record would make it start over."""
    granted = {str(TOPIC): {"r": ["produce"]}}
    await stage.namespace(**{AUTH: {TOPIC_AUTH: granted}, "deleted": True})
    before = await stage.store.get(namespace_key(NAMESPACE))
    await stage.store.delete(LEDGER_KEY)
    await stage.own(message_ttl=5)
    await stage.policies.forget(TOPIC)
    assert await stage.store.get(KEY) is None
    assert await stage.store.get(namespace_key(NAMESPACE)) == before


async def test_permissions_that_the_watch_has_not_reported_go_with_their_topic(
    stage: Stage,
) -> None:
    await stage.tasks.stop()
    granted = {AUTH: {TOPIC_AUTH: {str(TOPIC): {"r": ["produce"]}}}}
    await stage.store.put(namespace_key(NAMESPACE), encode(granted))
    await stage.policies.forget(TOPIC)
    record = await stage.store.get(namespace_key(NAMESPACE))
    assert record is not None
    assert msgspec.json.decode(record.value) == {AUTH: {TOPIC_AUTH: {}}}


async def test_a_topic_is_forgotten_though_its_namespace_has_gone(stage: Stage) -> None:
    await stage.namespace(**{AUTH: {TOPIC_AUTH: {str(TOPIC): {"r": ["produce"]}}}})
    await stage.store.delete(LEDGER_KEY)
    gone = stage.store.delete(namespace_key(NAMESPACE))
    forgetting = asyncio.ensure_future(stage.policies.forget(TOPIC))
    await gone
    await forgetting


@pytest.mark.parametrize("there", ["topic", "partitioned"])
async def test_a_late_end_does_not_take_what_a_new_topic_has(stage: Stage, there: str) -> None:
    """Created between the look and the deletion: the transaction finds it."""
    await stage.store.delete(LEDGER_KEY)
    await stage.own(message_ttl=5)
    transact = stage.store.transact

    async def overtaken(operations: Any) -> int:
        if there == "topic":
            await stage.topic()
        else:
            await stage.store.put(partitioned_key(TOPIC), b'{"partitions":2}')
        return await transact(operations)

    stage.store.transact = overtaken  # type: ignore[method-assign]
    await stage.policies.documents.forget(TOPIC)
    assert await stage.store.get(KEY) is not None


async def test_the_policies_of_a_topic_that_is_half_deleted_go(stage: Stage) -> None:
    await stage.topic(deleted=True)
    await stage.own(message_ttl=5)
    await stage.policies.documents.forget(TOPIC)
    assert await stage.store.get(KEY) is None


# -- notifications


async def test_each_listener_is_notified_once_and_the_failure_of_one_affects_no_other(
    stage: Stage,
) -> None:
    heard: list[str] = []

    def fails() -> None:
        heard.append("fails")
        raise ValueError("a mistake")

    endings = [
        stage.policies.listen(TOPIC, fails),
        stage.policies.listen(TOPIC.partition(1), lambda: heard.append("part")),
        stage.policies.listen(OTHER, lambda: heard.append("other")),
    ]
    await stage.own(message_ttl=5)
    assert heard == ["fails", "part"]
    assert stage.changes[-1] == ("t/n", "a"), "the topics that are open hear of it by this"
    heard.clear()
    stage.changes.clear()
    await stage.namespace(message_ttl_in_seconds=5)
    assert heard == ["fails", "part", "other"]
    assert stage.changes == [("t/n", None)]
    heard.clear()
    await stage.store.put(namespace_key(NamespaceName("t", "elsewhere")), b"{}")
    await stage.settle()
    assert heard == []
    for end in endings:
        end()
        end()
    assert stage.policies._listeners == {}


async def test_one_of_two_listeners_ends_alone(stage: Stage) -> None:
    heard: list[str] = []
    first = stage.policies.of(TOPIC).listen(lambda: heard.append("1"))
    stage.policies.of(TOPIC).listen(lambda: heard.append("2"))
    first()
    await stage.own(message_ttl=5)
    assert heard == ["2"]


def test_a_walk_over_many_topics_lets_others_run() -> None:
    async def scenario() -> None:
        told: list[int] = []

        @dataclass
        class Topic:
            name: TopicName
            number: int

            @property
            def full_name(self) -> str:
                return str(self.name)

            def policies_changed(self) -> None:
                told.append(self.number)

        topics = [Topic(TOPIC, number) for number in range(2 * TOPICS_PER_TURN + 1)]
        tasks = TaskSet("test")
        news = PolicyNews(lambda: topics, lambda _: None, tasks)
        news.changed(NAMESPACE, None)
        counts = []
        for _ in range(4):
            await asyncio.sleep(0)
            counts.append(len(told))
        assert counts == [256, 512, 513, 513]
        await tasks.stop()

    asyncio.run(scenario())
