"""Deletions over REST while others use, delete or create the same topics."""

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from magnetar.admin.deletion import (
    delete_namespace,
    delete_partitioned,
    delete_topic,
    refuse_namespace_in_use,
    refuse_topic_in_use,
)
from magnetar.broker.deletion_mark import is_marked
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.policies.store import policies_key
from magnetar.broker.resources import partitioned_key
from magnetar.broker.schema.model import SchemaInfo, SchemaType
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
def test_every_client_keeps_its_topic(producers: int, consumers: int, text: str) -> None:
    refuse_topic_in_use(0, 0)
    with pytest.raises(PreconditionFailed, match=text):
        refuse_topic_in_use(producers, consumers)


def once(do: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
    """The first time only."""
    left = [do]

    async def call() -> None:
        if left:
            await left.pop()()

    return call


async def parts_of(admin: Admin) -> list[str]:
    return [each.local for each in await admin.service.topics.names(NAMESPACE, "persistent")]


# -- one topic


async def test_a_topic_that_goes_while_it_is_deleted_is_not_found_in_the_same_words(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = admin.service
    missing = await admin.call("DELETE", TOPIC)
    await admin.topic("a")
    await service.topics.unload(topic_name("a"))
    exists = service.topics.exists
    go = once(lambda: service.topics.delete(topic_name("a"), force=True))

    async def overtaken(name: TopicName, **how: Any) -> bool:
        found = await exists(name, **how)
        await go()
        return found

    monkeypatch.setattr(service.topics, "exists", overtaken)
    late = await admin.call("DELETE", TOPIC)
    assert (late.status_code, late.json()) == (missing.status_code, missing.json())
    assert late.status_code == 404


async def test_a_topic_is_spared_where_the_mark_it_is_deleted_under_is_lost(admin: Admin) -> None:
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


# -- partitioned topics


@pytest.mark.parametrize("client", ["producer", "consumer"])
@pytest.mark.parametrize("part", [0, 2])
async def test_a_client_of_any_partition_keeps_all_of_them(
    admin: Admin, client: str, part: int
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 3)
    if client == "producer":
        await admin.producer(f"p-partition-{part}")
    else:
        await admin.consumer("s", SubType.Exclusive, f"p-partition-{part}")
    with pytest.raises(PreconditionFailed, match="Topic has 1 client connected"):
        await delete_partitioned(admin.service, P, force=False)
    assert len(await parts_of(admin)) == 3
    assert await admin.service.resources.partitions(P) == 3
    await delete_partitioned(admin.service, P, force=True)
    assert await parts_of(admin) == []


async def test_a_client_that_comes_before_the_mark_keeps_all_partitions_and_takes_the_mark_back(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = admin.service
    await admin.done("PUT", PARTS + "/partitions", 3)
    transact = service.store.transact
    come = once(lambda: admin.producer("p-partition-1"))

    async def overtaken(operations: Any) -> int:
        if any(each.key == partitioned_key(P) for each in operations):
            await come()
        return await transact(operations)

    monkeypatch.setattr(service.store, "transact", overtaken)
    with pytest.raises(PreconditionFailed):
        await delete_partitioned(service, P, force=False)
    assert len(await parts_of(admin)) == 3
    # It can be used again: new partitions may be made.
    await admin.done("POST", PARTS + "/partitions", 5)


async def test_a_partition_that_is_gone_already_does_not_stop_the_deletion(admin: Admin) -> None:
    await admin.done("PUT", PARTS + "/partitions", 3)
    for part in (0, 1):
        await admin.service.topics.delete(P.partition(part), force=True)
    await delete_partitioned(admin.service, P, force=False)
    assert await parts_of(admin) == []
    assert await admin.service.resources.partitions(P) == 0
    with pytest.raises(NotFound):
        await delete_partitioned(admin.service, P, force=False)


async def test_with_a_partitioned_topic_go_its_policies_and_its_schema(admin: Admin) -> None:
    service = admin.service
    await admin.done("PUT", PARTS + "/partitions", 2)
    await (await admin.topic("p-partition-0")).add_schema(
        SchemaInfo(SchemaType.STRING, b"", {}, "p")
    )
    await service.policies.update(P, lambda own: own.having(MESSAGE_TTL.name, 5))
    assert await service.schemas.latest(P) is not None
    await delete_partitioned(service, P, force=False)
    assert await service.store.get(policies_key(P)) is None
    assert await service.schemas.latest(P) is None


async def test_a_partitioned_topic_is_spared_where_the_mark_of_its_namespace_is_lost(
    admin: Admin,
) -> None:
    await admin.done("PUT", PARTS + "/partitions", 2)
    record = await admin.service.store.get(namespace_key(NAMESPACE))
    assert record is not None
    before = await admin.service.resources.partitions(P)
    with pytest.raises(BadRevision):
        await delete_partitioned(
            admin.service, P, force=True, under=Check(record.key, record.revision + 1)
        )
    assert await admin.service.resources.partitions(P) == before == 2
    assert len(await parts_of(admin)) == 2


async def test_partitions_are_deleted_under_the_mark_of_their_topic(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted and created anew by another, the topic has partitions that are not this one's."""
    service = admin.service
    await admin.done("PUT", PARTS + "/partitions", 2)
    key = partitioned_key(P)
    stored = await service.store.get(key)
    assert stored is not None
    delete = service.topics.delete

    async def create_anew() -> None:
        await service.store.delete(key)
        await service.store.put(key, stored.value)

    anew = once(create_anew)

    async def overtaken(name: TopicName, **how: Any) -> None:
        await anew()
        await delete(name, **how)

    monkeypatch.setattr(service.topics, "delete", overtaken)
    with pytest.raises(Conflict, match="repeat this one"):
        await delete_partitioned(service, P, force=True)
    assert len(await parts_of(admin)) == 2


# -- namespaces


async def test_a_namespace_goes_though_another_deletes_its_topics_at_the_same_time(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = admin.service
    service.settings = _forcing(service.settings)
    await admin.done("PUT", PARTS + "/partitions", 2)
    await admin.topic("a")
    listed = service.resources.partitioned_topics
    names = service.topics.names

    async def gone_after(namespace: NamespaceName, domain: str) -> list[TopicName]:
        found = await listed(namespace, domain)
        if P in found and await _marked(admin):
            await go_partitioned()
        return found

    async def names_gone_after(
        namespace: NamespaceName, domain: str, **how: Any
    ) -> list[TopicName]:
        found = await names(namespace, domain, **how)
        if how.get("half_deleted") and found:
            await go_topic()
        return found

    async def delete_partitions() -> None:
        for part in range(2):
            await service.topics.delete(P.partition(part), force=True)
        await service.store.delete(partitioned_key(P))

    go_partitioned = once(delete_partitions)
    go_topic = once(lambda: service.topics.delete(topic_name("a"), force=True))
    monkeypatch.setattr(service.resources, "partitioned_topics", gone_after)
    monkeypatch.setattr(service.topics, "names", names_gone_after)
    await delete_namespace(service, NAMESPACE, force=True)
    assert not await service.resources.namespace_exists(NAMESPACE)


async def test_a_namespaces_topics_of_both_domains_go_with_it(admin: Admin) -> None:
    service = admin.service
    service.settings = _forcing(service.settings)
    await admin.topic("a")
    await admin.done("PUT", PARTS + "/partitions", 2)
    await admin.done("PUT", "~/non-persistent/t1/n1/v")
    await admin.done("PUT", "~/non-persistent/t1/n1/vp/partitions", 2)
    await delete_namespace(service, NAMESPACE, force=True)
    assert list(service.topics) == []
    left = [each.key for each in await service.store.list("/") if str(NAMESPACE) in each.key]
    assert left == []


async def test_a_namespace_that_was_made_anew_keeps_its_partitioned_topics(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slower deletion of the former one must not take what is in the new one."""
    service = admin.service
    service.settings = _forcing(service.settings)
    await admin.done("PUT", PARTS + "/partitions", 2)
    key = namespace_key(NAMESPACE)
    stored = await service.store.get(key)
    assert stored is not None
    transact = service.store.transact
    anew = once(lambda: service.store.put(key, stored.value))

    async def overtaken(operations: Any) -> int:
        if any(each.key == partitioned_key(P) for each in operations):
            await anew()
        return await transact(operations)

    monkeypatch.setattr(service.store, "transact", overtaken)
    with pytest.raises(Conflict, match="repeat this one"):
        await delete_namespace(service, NAMESPACE, force=True)
    assert len(await parts_of(admin)) == 2
    assert await service.resources.partitions(P) == 2
    await admin.done("POST", PARTS + "/partitions", 3)


async def test_a_topic_that_cannot_be_deleted_keeps_the_namespace_and_its_record_unmarked(
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
            await delete_namespace(service, NAMESPACE, force=True)
    assert await service.resources.namespace_exists(NAMESPACE)
    assert not await _marked(admin)
    await admin.topic("b")
    await delete_namespace(service, NAMESPACE, force=True)


@pytest.mark.parametrize(
    ("there", "allowed", "force", "topics", "error"),
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
async def test_what_keeps_a_namespace(
    admin: Admin,
    there: bool,
    allowed: bool,
    force: bool,
    topics: list[str],
    error: type[Exception] | None,
) -> None:
    service = admin.service
    service.settings = _forcing(service.settings, allowed=allowed)
    namespace = NAMESPACE if there else NamespaceName("t1", "none")
    names = [topic_name(local) for local in topics]
    expected = contextlib.nullcontext() if error is None else pytest.raises(error)
    with expected:
        await refuse_namespace_in_use(service, namespace, names, force=force)


def _forcing(settings: Any, *, allowed: bool = True) -> Any:
    return dataclasses.replace(settings, force_delete_namespace=allowed)


async def _marked(admin: Admin) -> bool:
    record = await admin.service.store.get(namespace_key(NAMESPACE))
    return record is not None and is_marked(msgspec.json.decode(record.value))
