"""Deletions over REST while other requests use, delete or create the same topics."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.support.settings import changed

from magnetar.admin.deletion import (
    LocalRemover,
    delete_namespace,
    delete_partitioned,
    delete_topic,
    refuse_namespace_in_use,
    refuse_topic_in_use,
)
from magnetar.broker.catalog.deletion_mark import is_marked
from magnetar.broker.catalog.resources import partitioned_key
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies.store import policies_key
from magnetar.broker.subscription.spec import SubType
from magnetar.core.errors import (
    Conflict,
    MagnetarError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
)
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.store import BadRevision, Check
from magnetar.policies.lifecycle import MESSAGE_TTL
from magnetar.schemas.model import SchemaInfo, SchemaType

from .support import Admin, topic_name

TOPIC = "~/persistent/t1/n1/a"
PARTS = "~/persistent/t1/n1/p"
NAMESPACE = NamespaceName("t1", "n1")
P = topic_name("p")


@pytest.mark.parametrize(
    ("producers", "consumers", "text"),
    [
        (1, 0, "Topic has 1 client connected Including 0 consumers, 1 producers"),
        (0, 1, "Topic has 1 client connected Including 1 consumers, 0 producers"),
        (2, 3, "Topic has 5 clients connected Including 3 consumers, 2 producers"),
    ],
)
def test_every_client_prevents_the_deletion_of_its_topic(
    producers: int, consumers: int, text: str
) -> None:
    refuse_topic_in_use(0, 0)
    with pytest.raises(PreconditionFailed, match=text):
        refuse_topic_in_use(producers, consumers)


def once(action: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
    """Returns a function that runs the action on its first call only."""
    pending = [action]

    async def call() -> None:
        if pending:
            await pending.pop()()

    return call


async def parts_of(admin: Admin) -> list[str]:
    return [name.local for name in await admin.service.topics.names(NAMESPACE, "persistent")]


async def test_a_topic_that_another_request_deletes_first_is_not_found(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = admin.service
    missing = await admin.call("DELETE", TOPIC)
    await admin.topic("a")
    await service.topics.unload(topic_name("a"))
    exists = service.topics.exists
    delete_first = once(lambda: service.topics.delete(topic_name("a"), force=True))

    async def overtaken(name: TopicName, **how: Any) -> bool:
        existed = await exists(name, **how)
        await delete_first()
        return existed

    monkeypatch.setattr(service.topics, "exists", overtaken)
    late = await admin.call("DELETE", TOPIC)
    assert (late.status_code, late.json()) == (missing.status_code, missing.json())
    assert late.status_code == 404


async def test_a_topic_is_kept_if_the_mark_of_its_deletion_is_invalid(admin: Admin) -> None:
    await admin.topic("a")
    record = await admin.service.store.get(namespace_key(NAMESPACE))
    assert record is not None
    name = topic_name("a")
    with pytest.raises(BadRevision):
        await delete_topic(
            admin.service, name, force=True, under=Check(record.key, record.revision + 1)
        )
    assert await admin.service.topics.exists(name)
    await delete_topic(admin.service, name, force=True, under=Check(record.key, record.revision))
    assert not await admin.service.topics.exists(name)


@pytest.mark.parametrize("client", ["producer", "consumer"])
@pytest.mark.parametrize("part", [0, 2])
async def test_a_client_of_any_partition_prevents_the_deletion_of_all(
    admin: Admin, client: str, part: int
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 3)
    if client == "producer":
        await admin.producer(f"p-partition-{part}")
    else:
        await admin.consumer("s", SubType.Exclusive, f"p-partition-{part}")
    with pytest.raises(PreconditionFailed, match="Topic has 1 client connected"):
        await delete_partitioned(admin.service, LocalRemover(admin.service), P, force=False)
    assert len(await parts_of(admin)) == 3
    assert await admin.service.resources.partitions(P) == 3
    await delete_partitioned(admin.service, LocalRemover(admin.service), P, force=True)
    assert await parts_of(admin) == []


async def test_a_client_that_connects_before_the_mark_prevents_the_deletion_and_removes_the_mark(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = admin.service
    await admin.done("PUT", PARTS + "/partitions", 3)
    transact = service.store.transact
    connect = once(lambda: admin.producer("p-partition-1"))

    async def overtaken(operations: Any) -> int:
        if any(operation.key == partitioned_key(P) for operation in operations):
            await connect()
        return await transact(operations)

    monkeypatch.setattr(service.store, "transact", overtaken)
    with pytest.raises(PreconditionFailed):
        await delete_partitioned(service, LocalRemover(service), P, force=False)
    assert len(await parts_of(admin)) == 3
    # The topic is usable again: partitions can be added.
    await admin.done("POST", PARTS + "/partitions", 5)


async def test_a_missing_partition_does_not_stop_the_deletion(admin: Admin) -> None:
    await admin.done("PUT", PARTS + "/partitions", 3)
    for part in (0, 1):
        await admin.service.topics.delete(P.partition(part), force=True)
    await delete_partitioned(admin.service, LocalRemover(admin.service), P, force=False)
    assert await parts_of(admin) == []
    assert await admin.service.resources.partitions(P) == 0
    with pytest.raises(NotFound):
        await delete_partitioned(admin.service, LocalRemover(admin.service), P, force=False)


async def test_the_policies_and_schema_of_a_partitioned_topic_are_deleted_with_it(
    admin: Admin,
) -> None:
    service = admin.service
    await admin.done("PUT", PARTS + "/partitions", 2)
    await (await admin.topic("p-partition-0")).add_schema(
        SchemaInfo(SchemaType.STRING, b"", {}, "p")
    )
    await service.policies.update(P, lambda own: own.having(MESSAGE_TTL.name, 5))
    assert await service.schemas.latest(P) is not None
    await delete_partitioned(service, LocalRemover(service), P, force=False)
    assert await service.store.get(policies_key(P)) is None
    assert await service.schemas.latest(P) is None


async def test_a_partitioned_topic_is_kept_if_the_mark_of_its_namespace_is_invalid(
    admin: Admin,
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 2)
    record = await admin.service.store.get(namespace_key(NAMESPACE))
    assert record is not None
    before = await admin.service.resources.partitions(P)
    with pytest.raises(BadRevision):
        await delete_partitioned(
            admin.service,
            LocalRemover(admin.service),
            P,
            force=True,
            under=Check(record.key, record.revision + 1),
        )
    assert await admin.service.resources.partitions(P) == before == 2
    assert len(await parts_of(admin)) == 2


async def test_partitions_are_deleted_with_the_mark_of_their_topic(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the topic was deleted and created again, its partitions are not those to delete."""
    service = admin.service
    await admin.done("PUT", PARTS + "/partitions", 2)
    key = partitioned_key(P)
    stored = await service.store.get(key)
    assert stored is not None
    delete = service.topics.delete

    async def recreate_topic() -> None:
        await service.store.delete(key)
        await service.store.put(key, stored.value)

    recreate = once(recreate_topic)

    async def overtaken(name: TopicName, **how: Any) -> None:
        await recreate()
        await delete(name, **how)

    monkeypatch.setattr(service.topics, "delete", overtaken)
    with pytest.raises(Conflict, match="repeat this one"):
        await delete_partitioned(service, LocalRemover(service), P, force=True)
    assert len(await parts_of(admin)) == 2


async def test_a_namespace_is_deleted_although_another_request_deletes_its_topics(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = admin.service
    service.settings = _forcing(service.settings)
    await admin.done("PUT", PARTS + "/partitions", 2)
    await admin.topic("a")
    listed = service.resources.partitioned_topics
    names = service.topics.names

    under_mark: list[list[TopicName]] = []

    async def gone_after(namespace: NamespaceName, domain: str) -> list[TopicName]:
        topics = await listed(namespace, domain)
        if P in topics and await _marked(admin):
            under_mark.append(topics)
        if len(under_mark) == 2:  # checked with the mark, and about to be deleted
            await delete_partitioned_first()
        return topics

    async def names_gone_after(
        namespace: NamespaceName, domain: str, **how: Any
    ) -> list[TopicName]:
        topics = await names(namespace, domain, **how)
        if how.get("half_deleted") and topics:
            await delete_topic_first()
        return topics

    async def delete_partitions() -> None:
        for part in range(2):
            await service.topics.delete(P.partition(part), force=True)
        await service.store.delete(partitioned_key(P))

    delete_partitioned_first = once(delete_partitions)
    delete_topic_first = once(lambda: service.topics.delete(topic_name("a"), force=True))
    monkeypatch.setattr(service.resources, "partitioned_topics", gone_after)
    monkeypatch.setattr(service.topics, "names", names_gone_after)
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    assert len(under_mark) == 2
    assert not await service.resources.namespace_exists(NAMESPACE)


async def test_the_topics_of_both_domains_are_deleted_with_their_namespace_despite_clients(
    admin: Admin,
) -> None:
    service = admin.service
    service.settings = _forcing(service.settings)
    await admin.producer("a")
    await admin.done("PUT", PARTS + "/partitions", 2)
    await admin.consumer("s", SubType.Shared, "p-partition-1")
    await admin.done("PUT", "~/non-persistent/t1/n1/v")
    await admin.done("PUT", "~/non-persistent/t1/n1/vp/partitions", 2)
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    assert list(service.topics) == []
    records = await service.store.list("/")
    assert [record.key for record in records if str(NAMESPACE) in record.key] == []


async def test_a_namespace_that_was_created_again_keeps_its_partitioned_topics(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow deletion of the former namespace must not delete topics of the new one."""
    service = admin.service
    service.settings = _forcing(service.settings)
    await admin.done("PUT", PARTS + "/partitions", 2)
    key = namespace_key(NAMESPACE)
    stored = await service.store.get(key)
    assert stored is not None
    transact = service.store.transact
    recreate = once(lambda: service.store.put(key, stored.value))

    async def overtaken(operations: Any) -> int:
        if any(operation.key == partitioned_key(P) for operation in operations):
            await recreate()
        return await transact(operations)

    monkeypatch.setattr(service.store, "transact", overtaken)
    with pytest.raises(Conflict, match="repeat this one"):
        await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    assert len(await parts_of(admin)) == 2
    assert await service.resources.partitions(P) == 2
    await admin.done("POST", PARTS + "/partitions", 3)


async def test_a_topic_that_cannot_be_deleted_keeps_the_namespace_and_removes_its_mark(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = admin.service
    service.settings = _forcing(service.settings)
    await admin.topic("a")

    async def fails(name: TopicName, **_: Any) -> None:
        raise MagnetarError("cannot be deleted now")

    with monkeypatch.context() as failing:
        failing.setattr(service.topics, "delete", fails)
        with pytest.raises(MagnetarError, match="cannot be deleted now"):
            await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    assert await service.resources.namespace_exists(NAMESPACE)
    assert not await _marked(admin)
    await admin.topic("b")
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)


@pytest.mark.parametrize(
    ("exists", "allowed", "force", "topics", "error"),
    [
        (False, True, True, [], NotFound),
        (False, False, False, ["a"], NotFound),
        (True, False, True, [], NotAllowed),
        (True, True, True, ["a"], None),
        (True, False, False, [], None),
        (True, False, False, ["a"], Conflict),
        (True, True, False, ["a"], Conflict),
        (True, True, False, ["__change_events"], None),
    ],
)
async def test_which_conditions_refuse_the_deletion_of_a_namespace(
    admin: Admin,
    exists: bool,
    allowed: bool,
    force: bool,
    topics: list[str],
    error: type[Exception] | None,
) -> None:
    service = admin.service
    service.settings = _forcing(service.settings, allowed=allowed)
    namespace = NAMESPACE if exists else NamespaceName("t1", "none")
    names = [topic_name(local) for local in topics]
    expected = contextlib.nullcontext() if error is None else pytest.raises(error)
    with expected:
        await refuse_namespace_in_use(service, namespace, names, force=force)


def _forcing(settings: Any, *, allowed: bool = True) -> Any:
    return changed(settings, force_delete_namespace=allowed)


async def _marked(admin: Admin) -> bool:
    record = await admin.service.store.get(namespace_key(NAMESPACE))
    return record is not None and is_marked(msgspec.json.decode(record.value))


async def test_consumers_of_every_subscription_prevent_the_deletion_of_a_topic(
    admin: Admin,
) -> None:
    await admin.done("PUT", TOPIC + "/subscription/idle")
    for subscription in ("s", "t"):
        await admin.consumer(subscription, SubType.Shared)
    answer = await admin.call("DELETE", TOPIC)
    assert answer.status_code == 412
    assert "2 clients connected Including 2 consumers, 0 producers" in answer.json()["reason"]
