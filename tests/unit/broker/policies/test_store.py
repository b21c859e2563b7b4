"""Topics' own policies in the metadata store."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from magnetar.broker.resources import Resources, partitioned_key
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MetadataError, NotFound
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.managed_ledger.record import ManagedLedgerRecord, encode, managed_ledger_key
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import BadRevision, Check

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
    await policies.forget(PARTITIONED)  # who thinks that it has gone
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
    with pytest.raises(BadRevision):  # another deletion has the namespace, or it was made anew
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
