"""Deletions of what holds other things, while clients create some: nothing is left unreachable."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.broker import running_broker
from tests.support.stalled_store import StalledStore
from tests.unit.ledger.stage import publish

from magnetar.admin.deletion import (
    LocalRemover,
    delete_namespace,
    delete_partitioned,
    delete_topic,
)
from magnetar.broker.catalog.deletion_mark import BeingDeleted
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import Conflict, MetadataError, NotFound, TopicNotFound
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.backlog_record import record_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import BadRevision, Check, Operation, Put
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

NAMESPACE = NamespaceName("public", "ns")
RECORD = f"/namespaces/{NAMESPACE}"
LOGS = f"/managed-ledgers/{NAMESPACE}/"
NAME = parse_topic(f"persistent://{NAMESPACE}/t")
SETTINGS = compose(BrokerSettings, force_delete_namespace=True)

Broker = tuple[BrokerService, StalledStore]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    store = StalledStore()
    async with running_broker(SETTINGS, store) as (service, _):
        await service.resources.create_namespace(NAMESPACE, default_policies(service.cluster))
        yield service, store


async def topics_left(store: StalledStore) -> list[str]:
    return [record.key for record in await store.list(LOGS)]


async def test_no_topic_is_created_in_a_namespace_that_is_being_deleted(broker: Broker) -> None:
    service, store = broker
    store.hold(RECORD, deletes_only=True)
    deleting = asyncio.ensure_future(
        delete_namespace(service, LocalRemover(service), NAMESPACE, force=False)
    )
    await store.begun.wait()
    for name in (NAME, parse_topic(f"non-persistent://{NAMESPACE}/t")):
        with pytest.raises(TopicNotFound, match="is being deleted"):
            await service.topics.get_or_open(name, create=True)
    with pytest.raises(TopicNotFound, match="is being deleted"):
        await service.topics.create_partitioned(NAME, 2, {})
    with pytest.raises(BeingDeleted, match="repeat its deletion"):
        await service.resources.update_policies(NAMESPACE, lambda now: now | {"properties": {}})
    store.release()
    await deleting
    assert not await topics_left(store)
    with pytest.raises(TopicNotFound, match="Namespace not found"):
        await service.topics.get_or_open(NAME, create=True)


async def test_a_topic_whose_creation_is_under_way_is_seen_or_refused(broker: Broker) -> None:
    """Its namespace was looked at before the mark; the record is written after the deletion."""
    service, store = broker
    store.hold(LOGS)
    creating = asyncio.ensure_future(service.topics.get_or_open(NAME, create=True))
    await store.begun.wait()
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=False)
    store.release()
    with pytest.raises(TopicNotFound):
        await creating
    assert not await topics_left(store)


async def test_a_topic_that_comes_first_keeps_its_namespace(broker: Broker) -> None:
    service, store = broker
    store.hold(RECORD)
    deleting = asyncio.ensure_future(
        delete_namespace(service, LocalRemover(service), NAMESPACE, force=False)
    )
    await store.begun.wait()  # it was found to be empty, and is about to be marked
    topic = await service.topics.get_or_open(NAME, create=True)
    assert isinstance(topic, PersistentTopic)
    await publish(topic.managed_ledger, b"receipted")
    store.release()
    with pytest.raises(Conflict, match="Cannot delete non empty namespace"):
        await deleting
    await service.topics.unload(NAME)
    topic = await service.topics.get_or_open(NAME, create=False)
    assert isinstance(topic, PersistentTopic)
    assert topic.managed_ledger.entries_total == 1
    other = parse_topic(f"persistent://{NAMESPACE}/other")
    await service.topics.get_or_open(other, create=True)  # the mark was taken back


async def test_a_deletion_that_was_killed_is_finished_by_the_next(broker: Broker) -> None:
    service, store = broker
    await service.topics.create_partitioned(
        parse_topic(f"persistent://{NAMESPACE}/parted"), 2, {"k": "v"}
    )
    await service.topics.get_or_open(NAME, create=True)
    store.hold(LOGS, deletes_only=True)
    deleting = asyncio.ensure_future(
        delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    )
    await store.begun.wait()
    deleting.cancel()
    await asyncio.wait([deleting])
    store.release()
    with pytest.raises(TopicNotFound, match="is being deleted"):
        await service.topics.get_or_open(parse_topic(f"persistent://{NAMESPACE}/x"), create=True)
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    assert not await topics_left(store)
    assert not await store.list(f"/partitioned-topics/{NAMESPACE}/")
    assert await store.get(RECORD) is None


async def cut_short(service: BrokerService, name: TopicName) -> int:
    """The topic's deletion ends, with its broker, once its record is marked; its ledger's id."""
    topic = await service.topics.get_or_open(name, create=True)
    assert isinstance(topic, PersistentTopic)
    ledger_id, _ = await publish(topic.managed_ledger, b"x")
    await service.topics.unload(name)
    key = managed_ledger_key(ledger_name(name))
    record = await service.store.get(key)
    assert record is not None
    marked = replace(decode_managed_ledger(key, record.value), deleted=True)
    await service.store.put(key, encode(marked))
    return ledger_id


async def test_a_namespace_takes_topics_with_it_whose_deletion_was_interrupted(
    broker: Broker,
) -> None:
    service, store = broker
    await service.topics.create_partitioned(PARTED, 2, {})
    ledgers = [await cut_short(service, name) for name in (NAME, PARTED.partition(1))]
    assert await service.topics.names(NAMESPACE, "persistent") == [PARTED.partition(0)]
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    assert not await topics_left(store)
    for ledger_id in ledgers:
        assert await store.get(ledger_key(ledger_id)) is None


async def test_a_repeated_deletion_of_a_topic_finishes_one_that_was_interrupted(
    broker: Broker,
) -> None:
    service, store = broker
    ledger_id = await cut_short(service, NAME)
    await delete_topic(service, NAME, force=False)
    assert not await topics_left(store)
    assert await store.get(ledger_key(ledger_id)) is None
    with pytest.raises(NotFound, match="not found"):
        await delete_topic(service, NAME, force=False)


async def test_opening_a_topic_that_exists_writes_and_checks_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, store = broker
    await service.topics.get_or_open(NAME, create=True)
    await service.topics.unload(NAME)
    reads: list[str] = []
    get = store.get

    async def counted(key: str) -> Any:
        reads.append(key)
        return await get(key)

    monkeypatch.setattr(store, "get", counted)
    before = await store.revision()
    await service.topics.get_or_open(NAME, create=True)
    assert await store.revision() == before
    assert reads == [f"{LOGS}persistent/t"]


async def test_creation_follows_policies_that_change_meanwhile(broker: Broker) -> None:
    """A bundle is split, say: the record's revision in memory is not the store's any more."""
    service, store = broker
    store.hold(LOGS)
    creating = asyncio.ensure_future(service.topics.get_or_open(NAME, create=True))
    await store.begun.wait()
    await service.resources.update_policies(NAMESPACE, lambda now: now | {"properties": {"a": "b"}})
    store.release()
    assert await creating is service.topics.loaded(NAME)


async def created(service: BrokerService, name: TopicName) -> None:
    topic = await service.topics.get_or_open(name, create=True)
    assert isinstance(topic, PersistentTopic)
    await publish(topic.managed_ledger, b"receipted")


async def made_anew(service: BrokerService, store: StalledStore) -> None:
    """As if another broker had deleted the namespace, and a client had created it again."""
    for record in await store.list(f"/managed-ledgers/{NAMESPACE}/"):
        await store.delete(record.key)
    for record in await store.list(f"/partitioned-topics/{NAMESPACE}/"):
        await store.delete(record.key)
    await store.delete(RECORD)
    await service.resources.create_namespace(NAMESPACE, default_policies(service.cluster))


async def is_whole(service: BrokerService, name: TopicName) -> bool:
    await service.topics.unload(name)
    topic = await service.topics.get_or_open(name, create=False)
    assert isinstance(topic, PersistentTopic)
    return topic.managed_ledger.entries_total == 1


async def test_of_two_deletions_the_slower_spares_topics_created_after_the_quicker(
    broker: Broker,
) -> None:
    """A client repeated a request that is under way still, then created the namespace again."""
    service, store = broker
    other = parse_topic(f"persistent://{NAMESPACE}/u")
    for name in (NAME, other):
        await created(service, name)
        await service.topics.unload(name)
    store.hold(f"{LOGS}persistent/t")
    slower = asyncio.ensure_future(
        delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    )
    await store.begun.wait()
    store.holds = None  # that write is on its way; others land
    await made_anew(service, store)
    await created(service, other)
    store.release()
    with pytest.raises(Conflict, match="repeat this one"):
        await slower
    assert await is_whole(service, other)


async def test_of_two_deletions_the_slower_spares_partitions_created_after_the_quicker(
    broker: Broker,
) -> None:
    service, store = broker
    await service.topics.create_partitioned(PARTED, 2, {})
    store.hold(PARTED_RECORD)
    slower = asyncio.ensure_future(
        delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    )
    await store.begun.wait()
    store.holds = None
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    await service.resources.create_namespace(NAMESPACE, default_policies(service.cluster))
    await service.topics.create_partitioned(PARTED, 2, {})
    await created(service, PARTED.partition(1))
    store.release()
    with pytest.raises(Conflict, match="repeat this one"):
        await slower
    assert await service.resources.partitions(PARTED) == 2
    assert await is_whole(service, PARTED.partition(1))


async def test_what_belongs_to_a_namespace_is_deleted_under_its_mark_alone(
    broker: Broker,
) -> None:
    service, store = broker
    await created(service, NAME)
    documents = service.policies.documents
    await documents.update(NAME, lambda old: old.having("maxConsumers", 3))
    await store.put(record_key(str(NAMESPACE)), b"{}")
    record = await store.get(RECORD)
    assert record is not None
    former = Check(RECORD, record.revision - 1)
    with pytest.raises(BadRevision):
        await documents.forget_namespace(NAMESPACE, former)
    with pytest.raises(BadRevision):
        await service.resources.forget_backlog(NAMESPACE, former)
    assert (await documents.read(NAME)).get("maxConsumers") == 3
    assert await store.get(record_key(str(NAMESPACE))) is not None
    mark = Check(RECORD, record.revision)
    await documents.forget_namespace(NAMESPACE, mark)
    await service.resources.forget_backlog(NAMESPACE, mark)
    assert (await documents.read(NAME)).empty
    assert await store.get(record_key(str(NAMESPACE))) is None


# -- partitioned topics ----------------------------------------------------------------------------

PARTED = parse_topic(f"persistent://{NAMESPACE}/parted")
PARTED_RECORD = f"/partitioned-topics/{NAMESPACE}/persistent/parted"


async def test_no_partition_is_created_of_a_topic_that_is_being_deleted(broker: Broker) -> None:
    service, store = broker
    await service.topics.create_partitioned(PARTED, 2, {})
    store.hold(PARTED_RECORD, deletes_only=True)
    deleting = asyncio.ensure_future(
        delete_partitioned(service, LocalRemover(service), PARTED, force=False)
    )
    await store.begun.wait()  # its partitions are deleted
    with pytest.raises(TopicNotFound, match="is being deleted"):
        await service.topics.get_or_open(PARTED.partition(0), create=True)
    with pytest.raises(BeingDeleted):
        await service.resources.grow_partitions(PARTED, 4)
    with pytest.raises(BeingDeleted):
        await service.resources.update_partitioned_properties(PARTED, lambda old: old)
    store.release()
    await deleting
    assert not await topics_left(store)


async def test_partitions_that_are_added_before_the_mark_are_deleted_too(broker: Broker) -> None:
    service, store = broker
    await service.topics.create_partitioned(PARTED, 2, {})
    store.hold(PARTED_RECORD)
    deleting = asyncio.ensure_future(
        delete_partitioned(service, LocalRemover(service), PARTED, force=False)
    )
    await store.begun.wait()
    store.holds = None  # other writes land, the mark is on its way still
    await service.resources.grow_partitions(PARTED, 4)
    await service.topics.create_partitions(PARTED, 2, 4)
    assert len(await topics_left(store)) == 4
    store.release()
    await deleting
    assert await service.resources.partitions(PARTED) == 0
    assert not await topics_left(store)


async def test_a_partitioned_topic_whose_deletion_fails_can_be_used_and_deleted_again(
    broker: Broker,
) -> None:
    service, store = broker
    await service.topics.create_partitioned(PARTED, 2, {})
    store.hold(f"{LOGS}persistent/parted-partition-1")
    store.refusing = True
    with pytest.raises(MetadataError, match="refuses"):
        await delete_partitioned(service, LocalRemover(service), PARTED, force=True)
    store.release()
    store.refusing = False
    await service.topics.get_or_open(PARTED.partition(0), create=True)  # the mark was taken back
    await delete_partitioned(service, LocalRemover(service), PARTED, force=True)
    assert not await topics_left(store)
    with pytest.raises(NotFound, match="Partitioned Topic not found"):
        await delete_partitioned(service, LocalRemover(service), PARTED, force=True)


# -- tenants ---------------------------------------------------------------------------------------


async def test_no_namespace_is_created_in_a_tenant_that_was_found_empty(broker: Broker) -> None:
    service, store = broker
    resources = service.resources
    await resources.create_tenant("acme", {"adminRoles": [], "allowedClusters": []})
    store.hold("/tenants/acme", deletes_only=True)
    deleting = asyncio.ensure_future(resources.delete_tenant("acme"))
    await store.begun.wait()
    namespace = NamespaceName("acme", "ns")
    await resources.create_namespace(namespace, default_policies(service.cluster))
    store.release()
    with pytest.raises(Conflict, match="still has active namespaces"):
        await deleting
    assert await resources.tenants() == ["acme", "public"]


async def test_a_tenant_that_goes_first_refuses_the_namespace(broker: Broker) -> None:
    service, store = broker
    resources = service.resources
    await resources.create_tenant("acme", {"adminRoles": [], "allowedClusters": []})
    store.hold("/namespaces/acme/")
    namespace = NamespaceName("acme", "ns")
    creating = asyncio.ensure_future(
        resources.create_namespace(namespace, default_policies(service.cluster))
    )
    await store.begun.wait()
    await resources.delete_tenant("acme")
    store.release()
    with pytest.raises(NotFound, match="Tenant does not exist"):
        await creating
    assert not await resources.namespace_exists(namespace)


async def test_the_transaction_that_creates_a_topic_checks_its_namespace(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a broker without any watch relies on."""
    service, store = broker
    written: list[tuple[Operation, ...]] = []
    transact = store.transact

    async def noted(operations: Any) -> int:
        written.append(tuple(operations))
        return await transact(operations)

    monkeypatch.setattr(store, "transact", noted)
    await service.topics.get_or_open(NAME, create=True)
    record = await store.get(RECORD)
    assert record is not None
    [operations] = [each for each in written if isinstance(each[0], Put)]
    assert Check(RECORD, record.revision) in operations
    assert Check(f"/partitioned-topics/{NAMESPACE}/persistent/t", 0) in operations
