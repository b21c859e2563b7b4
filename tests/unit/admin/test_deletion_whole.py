"""A deletion takes all that belongs to a topic, even if cut short, and nothing of the next one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from tests.support.held_store import HeldStore, deletes, puts
from tests.support.settings import changed

from magnetar.admin.app import create_app
from magnetar.admin.deletion import LocalRemover, delete_namespace, delete_partitioned
from magnetar.admin.metrics.page import MetricsPage
from magnetar.broker.balance.quotas import QUOTAS, ResourceQuota, with_bundle
from magnetar.broker.catalog.deletion_mark import ATTEMPTS_MAX
from magnetar.broker.catalog.namespace_policies import default_policies, granted_on_topics
from magnetar.broker.catalog.resources import partitioned_key
from magnetar.broker.policies.store import policies_key
from magnetar.broker.schema.registry import SCHEMAS_PREFIX
from magnetar.core.errors import Conflict, MetadataError, ServiceNotReady
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.store import Check
from magnetar.policies.caps import MAX_CONSUMERS
from magnetar.schemas.model import SchemaInfo, SchemaType

from .support import Admin, start_service, stop_service, topic_name

NAMESPACE = NamespaceName("t1", "n1")
A = topic_name("a")
P = topic_name("p")
STRING = SchemaInfo(SchemaType.STRING, b"")
PERMISSIONS = "~/persistent/t1/n1/{}/permissions/guest"


@pytest.fixture
async def held() -> AsyncIterator[tuple[Admin, HeldStore]]:
    """The admin REST of a broker whose store can go away."""
    store = HeldStore()
    service = await start_service(store=store)
    service.settings = changed(service.settings, force_delete_namespace=True)
    page = MetricsPage(service)
    transport = httpx.ASGITransport(create_app(service, page))
    async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
        yield Admin(service, page, http), store
    store.away = False
    await stop_service(service)


async def belongings(admin: Admin, name: TopicName) -> tuple[bool, bool, bool]:
    """Whether the topic has a schema, policies of its own, and permissions of its own."""
    service = admin.service
    document = await service.resources.policies(NAMESPACE)
    return (
        await service.schemas.latest(name) is not None,
        await service.store.get(policies_key(name)) is not None,
        str(name) in granted_on_topics(document),
    )


async def furnish(admin: Admin, name: TopicName, local: str) -> None:
    await (await admin.topic(local)).add_schema(STRING)
    await admin.service.policies.update(name, lambda own: own.having(MAX_CONSUMERS.name, 5))
    await admin.done("POST", PERMISSIONS.format(name.local), ["consume"])
    assert await belongings(admin, name) == (True, True, True)


async def test_a_partitioned_topic_that_is_created_again_at_once_keeps_its_schema(
    held: tuple[Admin, HeldStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients create it again by use as soon as its record is gone."""
    admin, store = held
    service = admin.service
    await service.topics.create_partitioned(P, 2, {})
    await furnish(admin, P, "p-partition-0")
    delete = store.delete

    async def overtaken(key: str, *, expected: int | None = None) -> bool:
        done = await delete(key, expected=expected)
        if key == partitioned_key(P):
            await service.topics.create_partitioned(P, 2, {})
            await furnish(admin, P, "p-partition-0")
        return done

    monkeypatch.setattr(store, "delete", overtaken)
    await delete_partitioned(service, LocalRemover(service), P, force=True)
    assert await belongings(admin, P) == (True, True, True)


@pytest.mark.parametrize("start", ["/schemas/", "/topic-policies/", "/namespaces/"])
@pytest.mark.parametrize("then", ["deleted", "created"])
async def test_what_a_deletion_that_was_cut_short_has_left_does_not_pass_to_the_next_topic(
    held: tuple[Admin, HeldStore], start: str, then: str
) -> None:
    admin, store = held
    await furnish(admin, A, "a")
    store.lose(puts(start) if start == "/namespaces/" else deletes(start), lands=False)
    with pytest.raises(MetadataError):
        await admin.service.topics.delete(A, force=True)
    store.away = False
    assert not await admin.service.topics.exists(A)
    if then == "deleted":
        await admin.done("DELETE", "~/persistent/t1/n1/a?force=true")
    else:
        await admin.topic("a")
    assert await belongings(admin, A) == (False, False, False)


@pytest.mark.parametrize("many", [1, ATTEMPTS_MAX + 1])
async def test_a_namespace_with_permissions_on_topics_is_deleted_at_once(
    held: tuple[Admin, HeldStore], many: int
) -> None:
    admin, _ = held
    service = admin.service
    for each in range(many):
        await admin.topic(f"t{each}")
        await admin.done("POST", PERMISSIONS.format(f"t{each}"), ["consume"])
    emptied: list[Check] = []

    class Counted(LocalRemover):
        async def remove(self, names: Sequence[TopicName], mark: Check) -> None:
            emptied.append(mark)
            await super().remove(names, mark)

    await delete_namespace(service, Counted(service), NAMESPACE, force=True)
    assert len(emptied) == 1, "it did not start over"
    assert not await service.resources.namespace_exists(NAMESPACE)


async def test_permissions_of_topics_that_a_failed_deletion_of_their_namespace_deleted_are_gone(
    held: tuple[Admin, HeldStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, _ = held
    service = admin.service
    await service.topics.create_partitioned(P, 2, {})
    await furnish(admin, P, "p-partition-0")
    for local in ("a", "b"):
        await furnish(admin, topic_name(local), local)
    delete = service.topics.delete

    async def fails(name: TopicName, **how: Any) -> None:
        if name.local == "b":
            raise ServiceNotReady("not now")
        await delete(name, **how)

    monkeypatch.setattr(service.topics, "delete", fails)
    with pytest.raises(ServiceNotReady):
        await delete_namespace(service, LocalRemover(service), NAMESPACE, force=True)
    document = await service.resources.policies(NAMESPACE)
    assert set(granted_on_topics(document)) == {str(topic_name("b"))}
    assert await belongings(admin, topic_name("b")) == (True, True, True)


async def test_a_refused_deletion_of_a_namespace_takes_no_permissions(
    held: tuple[Admin, HeldStore],
) -> None:
    admin, _ = held
    await furnish(admin, A, "a")
    with pytest.raises(Conflict):
        await delete_namespace(admin.service, LocalRemover(admin.service), NAMESPACE, force=False)
    assert await belongings(admin, A) == (True, True, True)


async def test_schemas_of_topics_that_do_not_exist_go_with_their_namespace(
    held: tuple[Admin, HeldStore],
) -> None:
    admin, store = held
    service = admin.service
    schema = {"type": "STRING", "schema": "", "properties": {}}
    for topic in ("x", "y%25z"):
        await admin.done("POST", f"~/schemas/t1/n1/{topic}/schema", schema)
    assert len(await store.children(f"{SCHEMAS_PREFIX}{NAMESPACE}/")) == 2
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=False)
    assert await store.list(f"{SCHEMAS_PREFIX}{NAMESPACE}/") == []


async def test_a_late_deletion_of_a_namespace_takes_no_quota_of_the_next(
    held: tuple[Admin, HeldStore],
) -> None:
    admin, store = held
    service = admin.service
    bundle = f"{NAMESPACE}/0x00000000_0x40000000"
    quotas = with_bundle(None, bundle, ResourceQuota(1.0), {bundle: None})
    await QUOTAS.change(store, lambda _: quotas)
    late = store.hold(puts(QUOTAS.key))
    deleting = asyncio.ensure_future(
        delete_namespace(service, LocalRemover(service), NAMESPACE, force=False)
    )
    await late.reached.wait()
    await delete_namespace(service, LocalRemover(service), NAMESPACE, force=False)
    await service.resources.create_namespace(NAMESPACE, default_policies("standalone"))
    await QUOTAS.change(store, lambda _: quotas)
    late.go.set()
    with pytest.raises(Conflict, match="repeat this one"):
        await deleting
    assert await QUOTAS.read(store) == quotas
