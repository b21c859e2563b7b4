"""The records that a deletion over REST deletes, and those that it keeps."""

import asyncio

import pytest
from msgspec.structs import replace

from magnetar.admin.cluster.partitions import existing_partition_names
from magnetar.admin.deletion import forget_namespace
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies.store import policies_key
from magnetar.core.errors import Conflict
from magnetar.core.names import DOMAINS, NamespaceName, TopicName
from magnetar.managed_ledger.backlog_record import record_key
from magnetar.managed_ledger.record import decode_managed_ledger, managed_ledger_key
from magnetar.metadata.records import encode
from magnetar.metadata.store import Check, Record
from magnetar.schemas.model import SchemaInfo, SchemaType

from .support import Admin, topic_name

TOPIC = "~/persistent/t1/n1/a"
NAMESPACE = NamespaceName("t1", "n1")


async def test_a_late_deletion_keeps_the_schema_of_the_recreated_topic(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer with a schema creates the topic again as soon as it is deleted."""
    service, deleted = admin.service, asyncio.Event()
    schema = SchemaInfo(SchemaType.STRING, b"", {}, "a")
    topic = await admin.topic("a")
    await topic.add_schema(schema)
    service.topics.add_listener(topic.name.namespace, lambda *_: deleted.set())
    get = service.store.get

    async def produce_again() -> None:
        if deleted.is_set():
            deleted.clear()
            await (await admin.topic("a")).add_schema(schema)
            deleted.clear()

    async def slowly(key: str) -> Record | None:
        if key.startswith("/schemas/"):
            await produce_again()
        return await get(key)

    monkeypatch.setattr(service.store, "get", slowly)
    await admin.done("DELETE", TOPIC)
    await produce_again()
    actual = await service.schemas.latest(topic.name)
    assert actual is not None
    assert actual.schema.type is SchemaType.STRING


@pytest.mark.parametrize(
    ("topics", "refused"),
    [
        (["a", "__change_events"], True),
        (["__change_events", "a"], True),
        (["a"], True),
        (["__change_events", "x__transaction_y"], False),
        ([], False),
    ],
)
async def test_a_namespace_with_a_users_topic_is_not_empty(
    admin: Admin, topics: list[str], refused: bool
) -> None:
    namespace = "~/namespaces/t1/n1"
    for local in topics:
        await admin.topic(local)
    answer = await admin.call("DELETE", namespace)
    assert answer.status_code == (409 if refused else 204), answer.text
    assert (await admin.call("GET", namespace)).status_code == (200 if refused else 404)
    for local in topics:
        assert await admin.service.topics.exists(topic_name(local)) is refused


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_a_namespace_with_a_partitioned_topic_is_not_empty(admin: Admin, domain: str) -> None:
    """The partitions do not need to exist."""
    namespace, topic = "~/namespaces/t1/n1", f"~/{domain}/t1/n1/pt"
    await admin.done("PUT", f"{topic}/partitions", 3)
    await admin.done("PUT", "~/persistent/t1/n1/__change_events/partitions", 2)
    for item in await admin.service.topics.names(NamespaceName("t1", "n1"), "persistent"):
        await admin.service.topics.delete(item, force=True)
    answer = await admin.call("DELETE", namespace)
    assert (answer.status_code, answer.json()["reason"]) == (
        409,
        "Cannot delete non empty namespace",
    )
    await admin.done("DELETE", topic + "/partitions")
    await admin.done("DELETE", namespace)


async def test_a_tenant_with_a_namespace_is_not_deleted(admin: Admin) -> None:
    assert (await admin.call("DELETE", "~/tenants/t1")).status_code == 409
    await admin.done("GET", "~/namespaces/t1/n1")


async def half_deleted(admin: Admin, local: str) -> None:
    """Leaves a topic as an interrupted deletion does: its record is marked."""
    service = admin.service
    topic = await admin.topic(local)
    key = managed_ledger_key(topic.managed_ledger.name)
    await service.topics.unload(topic.name)
    stored = await service.store.get(key)
    assert stored is not None
    marked = replace(decode_managed_ledger(key, stored.value), deleted=True)
    await service.store.put(key, encode(marked))


@pytest.mark.parametrize("kind", ["plain", "partitioned", "half deleted"])
async def test_a_namespaces_records_are_kept_while_it_has_topics(admin: Admin, kind: str) -> None:
    """Only the namespace's record leads to them, so its deletion must be repeated."""
    if kind == "partitioned":
        await admin.service.resources.create_partitioned(topic_name("p"), 2, {})
    elif kind == "plain":
        await admin.topic("a")
    else:
        await half_deleted(admin, "a")
    before = await admin.service.store.list("/")
    record = await admin.service.store.get(namespace_key(NAMESPACE))
    assert record is not None
    with pytest.raises(Conflict, match="still has topics"):
        await forget_namespace(admin.service, NAMESPACE, Check(record.key, record.revision))
    assert await admin.service.store.list("/") == before


async def test_a_namespaces_deletion_completes_interrupted_deletions_of_its_topics(
    admin: Admin,
) -> None:
    service = admin.service
    await half_deleted(admin, "half")
    await service.store.put(policies_key(topic_name("gone")), b"{}")
    await service.store.put(record_key(str(NAMESPACE)), b"{}")
    # No record is a topic: the namespace counts as empty.
    await admin.done("DELETE", "~/namespaces/t1/n1")
    left = [item.key for item in await service.store.list("/") if f"{NAMESPACE}" in item.key]
    assert left == []


async def test_the_partitions_that_exist(admin: Admin) -> None:
    """An interrupted deletion hides a partition; a non-persistent one is created by its use."""
    service = admin.service
    for domain in ("persistent", "non-persistent"):
        await admin.done("PUT", f"~/{domain}/t1/n1/p/partitions", 4)
    stored, volatile = (TopicName(domain, "t1", "n1", "p") for domain in DOMAINS)
    await service.topics.delete(stored.partition(0), force=True)
    await half_deleted(admin, "p-partition-2")

    async def indexes(name: TopicName, **how: bool) -> list[int]:
        parts = await existing_partition_names(service, name, 4, **how)
        return [part.partition_index for part in parts]

    assert await indexes(stored) == [1, 3]
    assert await indexes(stored, half_deleted=True) == [1, 2, 3]
    assert await indexes(volatile) == [0, 1, 2, 3]
