"""What is known of lists while they change, and the client of the admin REST."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.operator.resource_stage import URL, Stage, resource_stage

from magnetar_operator.admin import client as admin_client
from magnetar_operator.admin.access import OPEN
from magnetar_operator.admin.client import (
    ANSWER_TIMEOUT_S,
    AT_ONCE_MAX,
    ATTEMPTS_MAX,
    REDIRECTS_MAX,
    AdminClient,
    AdminError,
    Unreachable,
)

A = "/persistent/t1/n1/a"
NAME = "t1/n1/a"


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    async with resource_stage() as stage:
        yield stage


# -- lists


async def test_a_topic_waits_for_its_tenant_and_continues_once_it_exists(
    on: Stage,
) -> None:
    """A list that was read before the tenant existed is not used afterwards."""
    on.apply("Topic", "a", {"name": "x/y/a"})
    assert await on.look("Topic", "a") is not None
    assert on.reason("Topic", "a") == "WaitingForNamespace"
    await on.ready("Tenant", "x", {})
    await on.ready("Namespace", "y", {"tenant": "x"})
    on.watches.woken.clear()
    assert await on.look("Topic", "a") is None


async def test_a_namespace_that_was_deleted_after_its_list_was_read_is_waited_for(
    on: Stage,
) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    await on.ready("Topic", "b", {"name": "t1/m/b"})
    await on.say("DELETE", "/persistent/t1/m/b")
    await on.say("DELETE", "/namespaces/t1/m")
    on.apply("Topic", "a", {"name": "t1/m/a"})
    assert await on.look("Topic", "a") is not None
    assert await on.look("Topic", "a") is not None
    assert on.reason("Topic", "a") == "WaitingForNamespace"


async def test_a_namespace_created_after_the_list_was_read_blocks_its_tenants_deletion(
    on: Stage,
) -> None:
    await on.ready("Tenant", "x", {})
    await on.look("Tenant", "x")
    await on.say("PUT", "/namespaces/x/new")
    assert await on.delete("Tenant", "x") is not None
    assert "x/new" in on.condition("Tenant", "x", "DeletionBlocked")["message"]


@pytest.mark.parametrize("kind", ["Tenant", "Namespace", "Topic"])
async def test_a_topic_deleted_after_its_list_was_read_is_created_in_the_same_reconcile(
    on: Stage, kind: str
) -> None:
    spec, path = {
        "Tenant": ({}, "/tenants/x"),
        "Namespace": ({"tenant": "t1"}, "/namespaces/t1/x"),
        "Topic": ({"name": "t1/n1/x"}, "/persistent/t1/n1/x"),
    }[kind]
    await on.ready(kind, "x", spec)
    await on.look(kind, "x")
    await on.say("DELETE", path)
    assert await on.look(kind, "x") is None
    assert on.reason(kind, "x") == "AsSpecified"
    assert len(on.notes("Recreated")) == 1
    assert await on.say("GET", path if kind != "Topic" else f"{path}/stats") is not None


async def test_a_subscription_waits_for_its_deleted_topic(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    await on.ready("Subscription", "s", {"topic": f"persistent://{NAME}"})
    await on.say("DELETE", f"{A}?force=true")
    assert await on.look("Subscription", "s") is not None
    assert on.reason("Subscription", "s") == "WaitingForTopic"


async def test_a_null_list_is_empty(on: Stage) -> None:
    on.rest.answers["/tenants"] = None
    await on.ready("Tenant", "x", {})
    assert on.rest.writes == [("PUT", "/tenants/x")]


@pytest.mark.parametrize("answer", [None, {}, {"partitions": None}])
async def test_a_topic_without_reported_partitions_is_deleted_as_unpartitioned(
    on: Stage, answer: object
) -> None:
    await on.ready("Topic", "a", {"name": "t1/n1/a"})
    on.rest.answers["/persistent/t1/n1/a/partitions"] = answer
    assert await on.delete("Topic", "a") is None
    assert ("DELETE", "/persistent/t1/n1/a") in on.rest.writes


async def test_a_tenant_may_use_its_named_clusters_or_else_all(on: Stage) -> None:
    on.rest.answers["/clusters"] = ["b", "a", "global"]
    on.apply("Tenant", "x", {"allowedClusters": ["a"]})
    await on.look("Tenant", "x")
    on.apply("Tenant", "y", {"adminRoles": ["r"]})
    await on.look("Tenant", "y")
    bodies = [json.loads(body) for (method, _), body in
            zip(on.rest.asked, on.rest.bodies, strict=True) if method == "PUT"]  # fmt: skip
    assert bodies == [
        {"adminRoles": [], "allowedClusters": ["a"]},
        {"adminRoles": ["r"], "allowedClusters": ["a", "b"]},
    ]


@pytest.mark.parametrize("clusters", [[], ["a", "b"]])
async def test_a_namespace_is_read_with_no_cluster_or_several_in_its_policies(
    on: Stage, clusters: list[str]
) -> None:
    """None of several is taken for the one that answers."""
    on.rest.answers["/clusters"] = clusters
    rates = {name: {"dispatchThrottlingRateInMsg": 5} for name in clusters}
    on.rest.answers["/namespaces/t1/n1"] = {"topicDispatchRate": rates, "bundles": None}
    spec = {"tenant": "t1", "policies": {"dispatchRate": {"messages": 5}}}
    on.apply("Namespace", "n1", spec)
    await on.look("Namespace", "n1")
    sets = [path for method, path in on.rest.writes if path.startswith("/namespaces/t1/n1/")]
    assert sets == ["/namespaces/t1/n1/dispatchRate"]


async def test_a_tenant_keeps_its_clusters_if_the_manifest_sets_only_roles(
    on: Stage,
) -> None:
    """The admin REST takes the whole document only."""
    on.rest.answers |= {
        "/clusters": ["a", "b"],
        "/tenants": ["x"],
        "/tenants/x": {"adminRoles": [], "allowedClusters": ["a"]},
    }
    on.apply("Tenant", "x", {"adminRoles": ["r"]})
    await on.look("Tenant", "x")
    (sent,) = [json.loads(body) for (method, _), body in
               zip(on.rest.asked, on.rest.bodies, strict=True) if method == "POST"]  # fmt: skip
    assert sent == {"adminRoles": ["r"], "allowedClusters": ["a"]}


async def test_the_broker_decides_the_number_of_bundles_by_default(
    on: Stage,
) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    await on.ready("Namespace", "n", {"tenant": "t1", "bundles": 8})
    bodies = [json.loads(body) for (method, _), body in
            zip(on.rest.asked, on.rest.bodies, strict=True) if method == "PUT"]  # fmt: skip
    assert bodies == [{}, {"bundles": {"numBundles": 8}}]
    on.apply("Namespace", "n", {"tenant": "t1", "bundles": 16})
    await on.look("Namespace", "n")
    assert "brokers split bundles by load" in on.condition("Namespace", "n")["message"]


async def test_a_condition_keeps_its_transition_time(on: Stage) -> None:
    first = on.now
    await on.ready("Topic", "a", {"name": NAME})
    for hours, refused in ((1, False), (2, True), (3, True), (4, False)):
        on.now = first.replace(hour=first.hour + hours)
        if refused:
            on.rest.refuse = lambda method, _: (412, "no") if method == "POST" else None
        else:
            on.rest.refuse = lambda _method, _path: None
        ttl = {"messageTTL": f"{hours}h"}
        on.apply("Topic", "a", {"name": NAME, "policies": ttl})
        await on.look("Topic", "a")
        since = {1: 12, 2: 14, 3: 14, 4: 16}[hours]
        condition = on.condition("Topic", "a")
        assert condition["status"] == str(not refused)
        assert condition["lastTransitionTime"] == f"2026-01-01T{since}:00:00Z"


# -- the clients


async def test_requests_of_all_clusters_are_counted_by_method(on: Stage) -> None:
    await on.ready("Tenant", "x", {})
    await on.ready("Tenant", "y", {"adminUrl": "http://other:8080/"})
    counted = on.opened[-1].requests()
    assert counted["GET"] == sum(method == "GET" for method, _ in on.rest.asked)
    assert counted["PUT"] == sum(method == "PUT" for method, _ in on.rest.asked) == 2
    assert on.clusters.at(URL) is on.clusters.at(f"{URL}/")
    clients = [on.clusters.at(url).client for url in (URL, "http://other:8080")]
    https = [client._http for client in clients]
    await on.opened[-1].close()
    assert all(http is not None and http.is_closed for http in https)
    assert not any(client.connected for client in clients)


async def test_endless_redirects_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)

    def moves_on(request: httpx.Request) -> httpx.Response:
        return httpx.Response(307, headers={"location": f"{request.url.path}x"})

    client = AdminClient(URL, transport=httpx.MockTransport(moves_on))
    with pytest.raises(Unreachable, match="more than 5 redirects"):
        await client.get("/x")
    assert client.requests["GET"] == REDIRECTS_MAX * ATTEMPTS_MAX
    await client.close()


@pytest.mark.parametrize(("status", "attempts"), [(499, 1), (500, 3), (503, 3)])
async def test_failures_of_a_broker_are_retried_and_refusals_are_not(
    monkeypatch: pytest.MonkeyPatch, status: int, attempts: int
) -> None:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    answer = httpx.MockTransport(lambda _: httpx.Response(status, json={"reason": "why"}))
    client = AdminClient(URL, transport=answer)
    with pytest.raises(AdminError, match="why"):
        await client.get("/x")
    assert client.requests["GET"] == attempts
    await client.close()


async def test_closing_a_client_ends_its_hanging_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_client, "CLOSE_S_MAX", 0.01)
    begun = asyncio.Event()

    async def hangs(_: httpx.Request) -> httpx.Response:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    client = AdminClient(URL, transport=httpx.MockTransport(hangs))
    task = asyncio.create_task(client.get("/x"))
    await begun.wait()
    http = client._http
    await client.close()
    assert http is not None
    assert http.is_closed
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_client_has_a_deadline_and_a_limit_of_concurrent_requests() -> None:
    client = AdminClient("http://a/")
    assert client.url == "http://a"
    assert client._slots._value == AT_ONCE_MAX
    async with client._open(OPEN) as http:
        assert http.timeout.read == ANSWER_TIMEOUT_S
