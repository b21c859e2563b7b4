"""Decisions from the records in memory: they follow changes, need no read, and fail closed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.resources import Resources
from magnetar.broker.policies.namespaces import FollowedNamespaces
from magnetar.broker.security.authorizer import Authorizer
from magnetar.broker.security.denials import Denials
from magnetar.broker.security.needs import (
    AnyRoleNeed,
    NamespaceNeed,
    NamespaceOperation,
    SuperUserNeed,
    TenantAdminNeed,
    TopicNeed,
    TopicOperation,
)
from magnetar.broker.security.principal import Principal
from magnetar.broker.security.rules import Rules
from magnetar.core.clock import SystemClock
from magnetar.core.errors import ServiceNotReady
from magnetar.core.log import FIELDS
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.core.tasks import TaskSet
from magnetar.metadata.memory import MemoryStore

NAMESPACE = NamespaceName("t1", "n1")
TOPIC = parse_topic("persistent://t1/n1/a")
PRODUCE = TopicNeed(TOPIC, TopicOperation.PRODUCE)
APP, ADMIN, SUPER = Principal("app"), Principal("admin"), Principal("super")
DEADLINE_S = 20


@dataclass(slots=True)
class Broker:
    """The authorizer of one broker, and the resources that another broker changes."""

    store: MemoryStore
    resources: Resources
    authorizer: Authorizer
    tasks: TaskSet
    changes: list[tuple[str, NamespaceName | None]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    up_to_date: bool = True

    def note(self, tenant: str, namespace: NamespaceName | None) -> None:
        self.changes.append((tenant, namespace))
        self.changed.set()

    async def until(self, principal: Principal, need: Any, *, allowed: bool) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.authorizer.allowed_now(principal, need) is not allowed:
                self.changed.clear()
                await self.changed.wait()

    async def grant(self, role: str, *actions: str) -> None:
        def change(document: dict[str, Any]) -> dict[str, Any]:
            auth = document["auth_policies"]
            return document | {"auth_policies": auth | {"namespace_auth": {role: list(actions)}}}

        await self.resources.update_policies(NAMESPACE, change)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    clock = SystemClock()
    store = MemoryStore(clock)
    tasks = TaskSet("test")
    resources = Resources(store)
    await resources.create_tenant("t1", {"adminRoles": ["admin"], "allowedClusters": []})
    await resources.create_namespace(NAMESPACE, default_policies("c"))
    rules = Rules(frozenset({"super"}))
    authorizer = Authorizer(store, rules, Denials(), up_to_date=lambda: this_broker.up_to_date)
    this_broker = Broker(store, resources, authorizer, tasks)
    authorizer.listen(this_broker.note)
    records = FollowedNamespaces(store)
    tasks.start(records.run(), "follow")
    await records.ready()
    await authorizer.start(records, tasks)
    yield this_broker
    await tasks.stop()
    await store.close()


async def test_a_grant_and_its_revocation_by_another_broker_apply_here(broker: Broker) -> None:
    assert not await broker.authorizer.allowed(APP, PRODUCE)
    await broker.grant("app", "produce")
    await broker.until(APP, PRODUCE, allowed=True)
    assert broker.changes[-1] == ("t1", NAMESPACE)
    await broker.grant("other", "produce")
    await broker.until(APP, PRODUCE, allowed=False)


async def test_the_admins_of_a_tenant_are_followed(broker: Broker) -> None:
    need = TenantAdminNeed("t1")
    assert await broker.authorizer.allowed(ADMIN, need)
    await broker.resources.update_tenant("t1", {"adminRoles": ["app"]})
    await broker.until(ADMIN, need, allowed=False)
    assert await broker.authorizer.allowed(APP, PRODUCE)
    assert broker.changes[-1] == ("t1", None)
    await broker.store.delete("/tenants/t1")
    await broker.until(APP, PRODUCE, allowed=False)


async def test_a_change_of_other_policies_changes_no_rights(broker: Broker) -> None:
    assert not await broker.authorizer.allowed(APP, PRODUCE)
    broker.changes.clear()
    await broker.resources.update_policies(NAMESPACE, lambda document: document | {"x": 1})
    await broker.grant("app", "produce")
    await broker.until(APP, PRODUCE, allowed=True)
    assert broker.changes == [("t1", NAMESPACE)]


async def test_a_deleted_namespace_grants_nothing(broker: Broker) -> None:
    await broker.grant("app", "produce")
    await broker.until(APP, PRODUCE, allowed=True)
    await broker.store.delete("/namespaces/t1/n1")
    await broker.until(APP, PRODUCE, allowed=False)


async def test_both_roles_of_a_proxied_request_need_the_right(broker: Broker) -> None:
    await broker.grant("app", "produce")
    await broker.until(APP, PRODUCE, allowed=True)
    allowed = broker.authorizer.allowed_now
    assert allowed(Principal("super", "app"), PRODUCE)
    assert not allowed(Principal("proxy", "app"), PRODUCE)
    assert not allowed(Principal("app", "proxy"), PRODUCE)
    assert not allowed(Principal("super", "app"), SuperUserNeed())
    assert broker.authorizer.is_super_user(Principal("super", "super"))
    assert not broker.authorizer.is_super_user(Principal("super", "app"))


async def test_an_unknown_tenant_is_refused_like_any_other(broker: Broker) -> None:
    need = NamespaceNeed(NamespaceName("nowhere", "n"), NamespaceOperation.GET_TOPICS)
    assert broker.authorizer.allowed_now(APP, need) is False
    assert broker.authorizer.allowed_now(SUPER, need) is True


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("/tenants/t1", b"{"),
        ("/tenants/t1", b'{"adminRoles": 7}'),
        ("/namespaces/t1/n1", b"[]"),
        ("/namespaces/t1/n1", b'{"auth_policies": {"namespace_auth": [1]}}'),
        ("/namespaces/t1/n1", b'{"auth_policies": {"destination_auth": {"x": 1}}}'),
    ],
)
async def test_a_record_that_cannot_be_read_permits_nothing(
    broker: Broker, key: str, value: bytes
) -> None:
    await broker.grant("app", "produce")
    await broker.until(APP, PRODUCE, allowed=True)
    await broker.store.put(key, value)
    refused = False
    async with asyncio.timeout(DEADLINE_S):
        while not refused:
            try:
                await broker.authorizer.allowed(APP, PRODUCE)
            except ServiceNotReady:
                refused = True
            else:
                broker.changed.clear()
                await broker.changed.wait()
    assert await broker.authorizer.allowed(SUPER, PRODUCE), "super users repair it"


async def test_before_the_records_are_loaded_only_super_users_are_served() -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    authorizer = Authorizer(store, Rules(frozenset({"super"})), Denials())
    assert authorizer.allowed_now(APP, PRODUCE) is None
    with pytest.raises(ServiceNotReady):
        await authorizer.allowed(APP, PRODUCE)
    assert await authorizer.allowed(SUPER, PRODUCE)
    assert await authorizer.allowed(APP, AnyRoleNeed())
    assert authorizer.allowed_now(APP, SuperUserNeed()) is False
    await store.close()


async def test_without_a_lease_grants_may_be_outdated(broker: Broker) -> None:
    await broker.grant("app", "produce")
    await broker.until(APP, PRODUCE, allowed=True)
    broker.up_to_date = False
    with pytest.raises(ServiceNotReady):
        await broker.authorizer.allowed(APP, PRODUCE)
    assert await broker.authorizer.allowed(SUPER, PRODUCE)


async def test_a_failing_listener_stops_no_other(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(tenant: str, namespace: NamespaceName | None) -> None:
        raise RuntimeError("planted")

    unlisten = broker.authorizer.listen(fail)
    heard: list[str] = []
    broker.authorizer.listen(lambda tenant, _: heard.append(tenant))
    await broker.grant("app", "produce")
    await broker.until(APP, PRODUCE, allowed=True)
    assert heard == ["t1"]
    assert "planted" in caplog.text
    unlisten()
    unlisten()


def test_a_refusal_is_counted_always_and_its_cause_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    denials = Denials()
    for _ in range(3):
        denials.record(APP, PRODUCE, "10.0.0.7")
    denials.record(Principal("proxy", "other"), SuperUserNeed(), "")
    assert [getattr(each, FIELDS) for each in caplog.records] == [
        {"role": "app", "original": None, "needs": f"PRODUCE on {TOPIC}", "peer": "10.0.0.7"},
        {"role": "proxy", "original": "other", "needs": "super user", "peer": ""},
    ]
    assert denials.by_kind == {"topic": 3, "super_user": 1}
