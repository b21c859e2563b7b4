"""Topics' own policies in the metadata store."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.catalog.resources import CAS_ATTEMPTS_MAX, Resources, partitioned_key
from magnetar.broker.policies.store import (
    FORMAT,
    NONE,
    Change,
    TopicPolicies,
    TopicPolicyStore,
    decode_policies,
    policies_key,
    topic_of_key,
)
from magnetar.core.clock import SystemClock
from magnetar.core.errors import Conflict, MetadataError, NotFound
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.managed_ledger.record import ManagedLedgerRecord, managed_ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision, Check, Operation

TOPIC = parse_topic("persistent://t/n/a")
PARTITIONED = parse_topic("persistent://t/n/p")
LEDGER_KEY = managed_ledger_key("t/n/persistent/a")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


async def make_topic(store: MemoryStore, *, deleted: bool = False) -> None:
    record = ManagedLedgerRecord(created_ms=1, modified_ms=1, deleted=deleted)
    await store.put(LEDGER_KEY, encode(record))


def change(name: str, value: object, *, is_global: bool = False) -> Change:
    return lambda own: own.having(name, value, is_global=is_global)


async def test_what_was_set_is_read_and_what_is_left_empty_goes(store: MemoryStore) -> None:
    await make_topic(store)
    policies = TopicPolicyStore(store)
    assert await policies.read(TOPIC) == NONE
    await policies.update(TOPIC, lambda own: own.having("message_ttl", 60))
    await policies.update(TOPIC, lambda own: own.having("message_ttl", 90, is_global=True))
    assert await policies.read(TOPIC) == TopicPolicies(
        FORMAT, {"message_ttl": 60}, {"message_ttl": 90}
    )
    record = await store.get("/topic-policies/t/n/persistent/a")
    assert record is not None
    assert msgspec.json.decode(record.value) == {
        "version": 1,
        "local": {"message_ttl": 60},
        "global": {"message_ttl": 90},
    }
    for is_global in (False, True):
        await policies.update(TOPIC, change("message_ttl", None, is_global=is_global))
    assert await store.get(policies_key(TOPIC)) is None


async def test_partitions_have_those_of_their_topic(store: MemoryStore) -> None:
    resources, policies = Resources(store), TopicPolicyStore(store)
    await store.put("/namespaces/t/n", b"{}")
    await resources.create_partitioned(PARTITIONED, 3)
    await policies.update(PARTITIONED.partition(2), lambda own: own.having("max_producers", 5))
    for name in (PARTITIONED, PARTITIONED.partition(0)):
        assert (await policies.read(name)).local == {"max_producers": 5}
    await policies.forget(PARTITIONED.partition(1))
    assert not (await policies.read(PARTITIONED)).empty
    await policies.forget(PARTITIONED)  # this broker believes that it is deleted
    assert not (await policies.read(PARTITIONED)).empty
    await store.delete(partitioned_key(PARTITIONED))
    await policies.forget(PARTITIONED)
    assert (await policies.read(PARTITIONED)).empty


async def test_a_topic_that_does_not_exist_has_none(store: MemoryStore) -> None:
    policies = TopicPolicyStore(store)
    with pytest.raises(NotFound, match="Topic persistent://t/n/a not found"):
        await policies.update(TOPIC, lambda own: own.having("message_ttl", 60))
    await make_topic(store, deleted=True)
    with pytest.raises(NotFound):
        await policies.update(TOPIC, lambda own: own.having("message_ttl", 60))
    assert await store.get(policies_key(TOPIC)) is None


async def test_none_is_written_for_a_topic_that_is_deleted_meanwhile(store: MemoryStore) -> None:
    await make_topic(store)

    class Deleting(MemoryStore):
        """Deletes the topic just before the transaction."""

        async def transact(self, operations):
            await store.delete(LEDGER_KEY)
            return await store.transact(operations)

    deleting = Deleting(SystemClock())
    deleting.get = store.get  # type: ignore[method-assign]
    with pytest.raises(NotFound):
        await TopicPolicyStore(deleting).update(TOPIC, lambda own: own.having("message_ttl", 1))
    assert await store.get(policies_key(TOPIC)) is None


async def test_changes_at_once_are_all_kept(store: MemoryStore) -> None:
    await make_topic(store)
    policies = TopicPolicyStore(store)
    names = [f"policy_{number}" for number in range(8)]
    await asyncio.gather(*(policies.update(TOPIC, change(name, 1)) for name in names))
    assert sorted((await policies.read(TOPIC)).local) == names


@pytest.mark.parametrize("changes", [CAS_ATTEMPTS_MAX - 1, CAS_ATTEMPTS_MAX])
async def test_a_change_is_tried_as_often_as_bounded(store: MemoryStore, changes: int) -> None:
    await make_topic(store)
    policies, other = TopicPolicyStore(store), TopicPolicyStore(store)
    transact = store.transact
    left = list(range(changes))

    async def overtaken(operations: Sequence[Operation]) -> int:
        store.transact = transact  # type: ignore[method-assign]
        if left:
            await other.update(TOPIC, change("other", left.pop() + 1))
            store.transact = overtaken  # type: ignore[method-assign]
        return await transact(operations)

    store.transact = overtaken  # type: ignore[method-assign]
    if changes < CAS_ATTEMPTS_MAX:
        record = await policies.update(TOPIC, change("mine", 5))
        assert record == await store.get(policies_key(TOPIC))
        assert (await policies.read(TOPIC)).local == {"other": 1, "mine": 5}
    else:
        with pytest.raises(Conflict, match="being changed by others"):
            await policies.update(TOPIC, change("mine", 5))
        assert (await policies.read(TOPIC)).local == {"other": 1}


async def test_a_change_that_changes_nothing_writes_nothing(store: MemoryStore) -> None:
    await make_topic(store)
    policies = TopicPolicyStore(store)
    assert await policies.update(TOPIC, change("message_ttl", None)) is None
    record = await policies.update(TOPIC, change("message_ttl", 5))
    revision = await store.revision()
    assert await policies.update(TOPIC, change("message_ttl", 5)) == record
    assert await policies.update(TOPIC, lambda own: own) == record
    assert await store.revision() == revision
    assert await policies.update(TOPIC, change("message_ttl", None)) is None
    assert await store.get(policies_key(TOPIC)) is None


@pytest.mark.parametrize("former", [True, False])
async def test_a_record_that_another_made_or_deleted_meanwhile_is_not_overwritten(
    store: MemoryStore, former: bool
) -> None:
    await make_topic(store)
    policies, other = TopicPolicyStore(store), TopicPolicyStore(store)
    if former:
        await policies.update(TOPIC, change("other", 1))
    transact = store.transact

    async def overtaken(operations: Sequence[Operation]) -> int:
        store.transact = transact  # type: ignore[method-assign]
        await other.update(TOPIC, change("other", None if former else 2))
        return await transact(operations)

    store.transact = overtaken  # type: ignore[method-assign]
    await policies.update(TOPIC, change("mine", 5))
    assert (await policies.read(TOPIC)).local == (
        {"mine": 5} if former else {"other": 2, "mine": 5}
    )


async def test_the_last_policy_is_not_deleted_with_one_that_another_set_meanwhile(
    store: MemoryStore,
) -> None:
    await make_topic(store)
    policies, other = TopicPolicyStore(store), TopicPolicyStore(store)
    await policies.update(TOPIC, change("mine", 5))
    transact = store.transact

    async def overtaken(operations: Sequence[Operation]) -> int:
        store.transact = transact  # type: ignore[method-assign]
        await other.update(TOPIC, change("other", 2))
        return await transact(operations)

    store.transact = overtaken  # type: ignore[method-assign]
    await policies.update(TOPIC, change("mine", None))
    assert (await policies.read(TOPIC)).local == {"other": 2}


async def test_a_partitioned_topic_keeps_its_policies_only_while_it_is_there(
    store: MemoryStore,
) -> None:
    policies = TopicPolicyStore(store)
    key = partitioned_key(PARTITIONED)
    await store.put(key, b'{"partitions":2}')
    transact = store.transact

    async def deleted_meanwhile(operations: Sequence[Operation]) -> int:
        await store.delete(key)
        return await transact(operations)

    store.transact = deleted_meanwhile  # type: ignore[method-assign]
    with pytest.raises(NotFound):
        await policies.update(PARTITIONED.partition(1), change("message_ttl", 5))
    assert await store.get(policies_key(PARTITIONED)) is None


def test_one_policy_of_one_level_changes_and_no_other() -> None:
    own = TopicPolicies(FORMAT, {"a": 1, "b": 2}, {"b": 3, "c": 4})
    assert own.having("b", 5) == TopicPolicies(FORMAT, {"a": 1, "b": 5}, {"b": 3, "c": 4})
    assert own.having("b", None) == TopicPolicies(FORMAT, {"a": 1}, {"b": 3, "c": 4})
    changed = own.having("b", 5, is_global=True)
    assert changed == TopicPolicies(FORMAT, {"a": 1, "b": 2}, {"b": 5, "c": 4})
    assert changed.having("c", None, is_global=True).replicated == {"b": 5}
    assert [own.get("b"), own.get("b", is_global=True), own.get("c")] == [2, 3, None]
    empty = TopicPolicies(FORMAT)
    assert empty.empty
    assert not empty.having("a", 0).empty
    assert not empty.having("a", 0, is_global=True).empty


async def test_a_topic_that_is_stored_nowhere_is_forgotten_though_one_of_its_name_is_stored(
    store: MemoryStore,
) -> None:
    await make_topic(store)
    volatile = parse_topic("non-persistent://t/n/a")
    policies = TopicPolicyStore(store)
    for topic in (volatile, TOPIC):
        await policies.update(topic, change("message_ttl", 5))
    await policies.forget(volatile)
    assert await policies.read(volatile) == NONE
    assert (await policies.read(TOPIC)).local == {"message_ttl": 5}


async def test_what_is_set_for_a_fleeting_topic_while_its_former_policies_go_stays(
    store: MemoryStore,
) -> None:
    """No record shows that the topic exists again."""
    fleeting = parse_topic("non-persistent://t/n/f")
    policies, other = TopicPolicyStore(store), TopicPolicyStore(store)
    await policies.update(fleeting, change("former", 1))
    transact = store.transact

    async def overtaken(operations: Sequence[Operation]) -> int:
        store.transact = transact  # type: ignore[method-assign]
        await other.update(fleeting, change("next", 2))
        return await transact(operations)

    store.transact = overtaken  # type: ignore[method-assign]
    await policies.forget(fleeting)
    assert (await policies.read(fleeting)).local["next"] == 2


async def test_a_topic_that_is_stored_nowhere_may_have_policies(store: MemoryStore) -> None:
    volatile = parse_topic("non-persistent://t/n/v")
    policies = TopicPolicyStore(store)
    await policies.update(volatile, change("message_ttl", 5))
    assert (await policies.read(volatile)).local == {"message_ttl": 5}
    assert await policies.read(parse_topic("persistent://t/n/v")) == NONE
    await policies.forget(volatile)
    assert await policies.read(volatile) == NONE


async def test_what_a_newer_version_wrote_is_kept_or_refused(store: MemoryStore) -> None:
    await make_topic(store)
    policies = TopicPolicyStore(store)
    await policies.update(TOPIC, lambda own: own.having("not_known_here", {"a": [1]}))
    await policies.update(TOPIC, lambda own: own.having("message_ttl", 1))
    assert (await policies.read(TOPIC)).get("not_known_here") == {"a": [1]}
    await store.put(policies_key(TOPIC), b'{"version":2,"local":{}}')
    with pytest.raises(MetadataError, match="has format 2; this version reads up to 1"):
        await policies.read(TOPIC)
    with pytest.raises(MetadataError, match="holds no policies"):
        decode_policies("/k", b"[]")


async def test_a_namespaces_are_forgotten_with_it(store: MemoryStore) -> None:
    await make_topic(store)
    policies = TopicPolicyStore(store)
    await policies.update(TOPIC, lambda own: own.having("message_ttl", 1))
    mark = Check("/mark", await store.put("/mark", b""))
    await policies.forget_namespace(NamespaceName("t", "other"), mark)
    assert not (await policies.read(TOPIC)).empty
    with pytest.raises(BadRevision):  # another deletion owns the namespace, or it was created again
        await policies.forget_namespace(NamespaceName("t", "n"), Check("/mark", mark.expected - 1))
    assert not (await policies.read(TOPIC)).empty
    await policies.forget_namespace(NamespaceName("t", "n"), mark)
    assert (await policies.read(TOPIC)).empty


@given(st.text(min_size=1), st.sampled_from(["persistent", "non-persistent"]))
def test_keys_name_their_topic(local: str, domain: str) -> None:
    topic = TopicName(domain, "t", "n", local)
    assert topic_of_key(policies_key(topic)) == topic
    assert policies_key(topic) != partitioned_key(topic)


def test_other_keys_name_none() -> None:
    with pytest.raises(MetadataError, match="no key of a topic's policies"):
        topic_of_key("/topic-policies/t/n")
