"""Where a resource's target is, what a look reads there, and what is known of lists meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.operator.memory_kube import Refusal
from tests.operator.resource_stage import NS, URL, Stage, resource_stage
from tests.unit.admin.support import Admin, entry

from magnetar_operator.api_kinds import CLUSTER, Object
from magnetar_operator.events import SERIES_INTERVAL_S
from magnetar_operator.models.base import API_VERSION
from magnetar_operator.resources import admin_client
from magnetar_operator.resources.admin_client import (
    ANSWER_TIMEOUT_S,
    AT_ONCE_MAX,
    ATTEMPTS_MAX,
    REDIRECTS_MAX,
    AdminClient,
    AdminError,
    Unreachable,
)
from magnetar_operator.resources.desired import INACTIVE, desired_of
from magnetar_operator.resources.placing import admin_url
from magnetar_operator.resources.targets import parse_spec

A = "/persistent/t1/n1/a"
NAME = "t1/n1/a"
POLICIES = "/magnetar/persistent/t1/n1/a/policies"
TTL = {"policies": {"messageTTL": "1h"}}


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    async with resource_stage() as found:
        yield found


def resource(kind: str, name: str, **content: Any) -> Object:
    return {
        "apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": NS},
        **content,
    }  # fmt: skip


def cluster(name: str = "c", namespace: str = NS, **content: Any) -> Object:
    made = resource(CLUSTER.kind, name, **content)
    made["metadata"]["namespace"] = namespace
    return made


# -- where a target is


@pytest.mark.parametrize(
    ("content", "url"),
    [
        ({"spec": {"adminUrl": "http://a/"}, "status": {"adminUrl": "http://b"}}, "http://a"),
        ({"spec": {}, "status": {"adminUrl": "http://b/"}}, "http://b"),
        ({}, f"http://c-broker.{NS}.svc:8080"),
    ],
)
async def test_the_only_cluster_of_the_namespace_is_meant_where_none_is_named(
    on: Stage, content: Object, url: str
) -> None:
    assert admin_url(cluster(**content)) == url
    on.kube.put(cluster(**content))
    on.kube.put(cluster("far", "elsewhere"))
    on.kube.put(resource("Tenant", "x"))
    assert await on.look("Tenant", "x") is None
    status = on.status("Tenant", "x")
    assert (status["cluster"], status["clusterNamespace"], status["adminUrl"]) == ("c", NS, url)


async def test_without_a_cluster_or_with_several_the_resource_says_what_to_do(on: Stage) -> None:
    on.kube.put(resource("Tenant", "x"))
    assert await on.look("Tenant", "x") is not None
    assert on.reason("Tenant", "x") == "WaitingForCluster"
    assert "no MagnetarCluster in namespace ns" in on.condition("Tenant", "x")["message"]
    on.kube.put(cluster("b"))
    on.kube.put(cluster("a"))
    assert await on.look("Tenant", "x") is None
    assert on.reason("Tenant", "x") == "InvalidSpec"
    assert "(a, b): name one in spec.clusterRef" in on.condition("Tenant", "x")["message"]


@pytest.mark.parametrize("shown", [True, False])
async def test_a_cluster_is_found_whether_or_not_a_watch_has_shown_it(
    on: Stage, shown: bool
) -> None:
    if not shown:
        seen, on.kube.seen = on.kube.seen, lambda _one, _gone: None
        on.kube.put(cluster(spec={"adminUrl": URL}))
        on.kube.seen = seen
    else:
        on.kube.put(cluster(spec={"adminUrl": URL}))
    on.kube.put(resource("Tenant", "x", spec={}))
    await on.ready("Tenant", "y", {"clusterRef": {"name": "c"}})
    assert await on.look("Tenant", "x") is None
    asked = [one.path for one in on.kube.asked if "magnetarclusters" in one.path]
    assert bool(asked) != shown


async def test_a_named_cluster_may_be_in_another_namespace_and_is_waited_for(on: Stage) -> None:
    where = {"clusterRef": {"name": "c", "namespace": "elsewhere"}}
    on.kube.put(cluster(spec={"adminUrl": "http://wrong"}))
    on.apply("Tenant", "x", where)
    assert await on.look("Tenant", "x") is not None
    assert "no MagnetarCluster elsewhere/c" in on.condition("Tenant", "x")["message"]
    on.kube.refuse = lambda asked: (
        Refusal(403, "Forbidden", "no right") if "/elsewhere/" in asked.path else None
    )
    assert await on.look("Tenant", "x") is None
    assert on.reason("Tenant", "x") == "InvalidSpec"
    assert "may not look into namespace elsewhere: " in on.condition("Tenant", "x")["message"]
    on.kube.refuse = lambda _: None
    on.kube.put(cluster(namespace="elsewhere", spec={"adminUrl": URL}))
    assert await on.look("Tenant", "x") is None
    assert on.status("Tenant", "x")["clusterNamespace"] == "elsewhere"


async def test_a_reference_leads_to_the_cluster_of_what_it_names(on: Stage) -> None:
    on.kube.put(cluster("near", spec={"adminUrl": "http://wrong"}))
    on.kube.put(cluster(spec={"adminUrl": URL}))
    await on.ready("Namespace", "n", {"clusterRef": {"name": "c"}, "tenant": "t1"})
    on.kube.put(resource("Topic", "a", spec={"namespaceRef": {"name": "n"}}))
    on.kube.put(resource("Subscription", "s", spec={"topicRef": {"name": "a"}}))
    for kind, name in (("Topic", "a"), ("Subscription", "s")):
        assert await on.look(kind, name) is None, on.condition(kind, name)
        assert on.status(kind, name)["cluster"] == "c"
    assert on.status("Subscription", "s")["resolvedName"] == ("persistent://t1/n/a/subscription/s")


async def test_the_clusters_own_name_is_allowed_and_no_other(on: Stage) -> None:
    on.kube.put(cluster(spec={"adminUrl": URL, "clusterName": "standalone"}))
    where = {"clusterRef": {"name": "c"}}
    await on.ready("Tenant", "x", {**where, "allowedClusters": ["standalone"]})
    on.apply("Tenant", "y", {**where, "allowedClusters": ["c"]})
    await on.look("Tenant", "y")
    assert on.reason("Tenant", "y") == "Unsupported"


async def test_a_status_without_the_clusters_namespace_means_that_of_the_manifest(
    on: Stage,
) -> None:
    """As an older release wrote it."""
    on.kube.put(cluster(namespace="elsewhere", spec={"adminUrl": URL}))
    where = {"clusterRef": {"name": "c", "namespace": "elsewhere"}}
    for name in ("one", "two"):
        await on.ready("Topic", name, {**where, "name": f"t1/n1/{name}"})
        status = on.status("Topic", name)
        del status["clusterNamespace"]
        on.kube.put({**on.get("Topic", name), "status": status})
    on.restart()
    on.rest.down = True
    assert await on.delete("Topic", "one") is not None, "its cluster is there"
    on.kube.remove(CLUSTER, "c", "elsewhere")
    on.kube.put(cluster())
    assert await on.delete("Topic", "two") is None, "its cluster is gone, another is not it"


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ({"name": NAME}, True),
        ({"name": f"persistent://{NAME}"}, True),
        ({"name": f"non-persistent://{NAME}"}, False),
        ({"name": NAME, "persistent": False}, False),
        ({"name": NAME, "policies": {"inactiveTopicPolicies": {
            "deleteWhileInactive": True, "deleteMode": "delete_when_no_subscriptions",
            "maxInactiveDuration": "1h"}}}, False),
    ],
)  # fmt: skip
def test_a_stored_topic_is_kept_while_nobody_uses_it_unless_it_says_otherwise(
    spec: Object, kept: bool
) -> None:
    desired = desired_of(parse_spec({"kind": "Topic", "metadata": {"name": "a"}, "spec": spec}))
    assert (INACTIVE in desired.implied) == kept


# -- what a look reads


async def test_a_subscription_starts_where_its_manifest_says(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    admin = Admin(on.service, None, None)  # type: ignore[arg-type]
    await admin.publish([entry(b"m", number) for number in range(3)])
    topic = {"topic": f"persistent://{NAME}"}
    await on.ready("Subscription", "all", {**topic, "initialPosition": "Earliest"})
    await on.ready("Subscription", "new", topic)
    for name, backlog in (("all", 3), ("new", 0)):
        await on.look("Subscription", name)
        assert on.status("Subscription", name)["backlog"]["messages"] == backlog
    starts = [json.loads(body) for (method, path), body in
              zip(on.rest.asked, on.rest.bodies, strict=True)
              if method == "PUT" and "/subscription/" in path]  # fmt: skip
    end = 2**63 - 1
    assert starts == [
        {"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
        {"ledgerId": end, "entryId": end, "partitionIndex": -1},
    ]


@pytest.mark.parametrize("status", [404, 405])
async def test_a_cluster_that_cannot_give_all_policies_is_asked_for_each(
    on: Stage, status: int
) -> None:
    on.rest.refuse = lambda _, path: (status, "no") if path == POLICIES else None
    await on.ready("Topic", "a", {"name": NAME, **TTL})
    await on.say("POST", f"{A}/messageTTL", 5)
    for _ in range(2):
        assert await on.look("Topic", "a") is None
    assert await on.say("GET", f"{A}/messageTTL") == 3600
    assert on.rest.asked.count(("GET", POLICIES)) == 1
    assert len(on.notes("DriftRepaired")) == 1


async def test_policies_that_cannot_be_read_are_not_taken_for_unset(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME, **TTL})
    await on.look("Topic", "a")
    before = on.rest.writes
    for status in (403, 405):
        on.rest.refuse = lambda _, path, status=status: (status, "no") if path == POLICIES else None  # type: ignore[misc]
        assert await on.look("Topic", "a") is not None
        assert on.reason("Topic", "a") == "Refused"
    assert on.rest.writes == before


async def test_no_policies_at_all_are_read_as_none(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    on.rest.answers[POLICIES] = None
    assert await on.look("Topic", "a") is None
    assert on.reason("Topic", "a") == "AsSpecified"


async def test_a_plan_goes_by_what_was_applied_and_what_is_ignored(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME, "policies": {
        "messageTTL": "1h", "maxProducersPerTopic": 3}})  # fmt: skip
    await on.say("POST", f"{A}/messageTTL", 5)
    on.apply("Topic", "a", {"name": NAME, **TTL}, plan="true", ignore_drift="messageTTL")
    await on.look("Topic", "a")
    (step,) = on.status("Topic", "a")["plan"]
    assert step["text"].startswith("remove maxProducersPerTopic (was 3)")


async def test_a_property_that_is_refused_is_no_policy_that_is(on: Stage) -> None:
    on.rest.refuse = lambda method, path: (
        (412, "no") if method == "PUT" and path.endswith("/properties") else None
    )
    on.apply("Topic", "a", {"name": NAME, **TTL, "properties": {"team": "red"}})
    assert await on.look("Topic", "a") is not None
    assert on.reason("Topic", "a") == "Refused"
    assert on.reason("Topic", "a", "PolicyReady") == "AsSpecified"


# -- lists


async def test_a_topic_of_a_tenant_that_is_not_there_waits_and_goes_on_once_all_is(
    on: Stage,
) -> None:
    """What was read of the tenant before it was there is not believed afterwards."""
    on.apply("Topic", "a", {"name": "x/y/a"})
    assert await on.look("Topic", "a") is not None
    assert on.reason("Topic", "a") == "WaitingForNamespace"
    await on.ready("Tenant", "x", {})
    await on.ready("Namespace", "y", {"tenant": "x"})
    on.watches.woken.clear()
    assert await on.look("Topic", "a") is None


async def test_a_namespace_that_went_since_its_list_was_read_is_waited_for(on: Stage) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    await on.ready("Topic", "b", {"name": "t1/m/b"})
    await on.say("DELETE", "/persistent/t1/m/b")
    await on.say("DELETE", "/namespaces/t1/m")
    on.apply("Topic", "a", {"name": "t1/m/a"})
    assert await on.look("Topic", "a") is not None
    assert await on.look("Topic", "a") is not None
    assert on.reason("Topic", "a") == "WaitingForNamespace"


async def test_a_namespace_that_appeared_since_the_list_was_read_holds_its_tenant(
    on: Stage,
) -> None:
    await on.ready("Tenant", "x", {})
    await on.look("Tenant", "x")
    await on.say("PUT", "/namespaces/x/new")
    assert await on.delete("Tenant", "x") is not None
    assert "x/new" in on.condition("Tenant", "x", "DeletionBlocked")["message"]


@pytest.mark.parametrize("kind", ["Tenant", "Namespace", "Topic"])
async def test_what_went_since_its_list_was_read_is_made_again_in_one_look(
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


async def test_a_subscription_whose_topic_went_waits_for_it(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    await on.ready("Subscription", "s", {"topic": f"persistent://{NAME}"})
    await on.say("DELETE", f"{A}?force=true")
    assert await on.look("Subscription", "s") is not None
    assert on.reason("Subscription", "s") == "WaitingForTopic"


async def test_a_list_that_is_null_is_an_empty_one(on: Stage) -> None:
    on.rest.answers["/tenants"] = None
    await on.ready("Tenant", "x", {})
    assert on.rest.writes == [("PUT", "/tenants/x")]


async def test_a_tenant_may_use_the_clusters_it_names_else_all_there_are(on: Stage) -> None:
    on.rest.answers["/clusters"] = ["b", "a", "global"]
    on.apply("Tenant", "x", {"allowedClusters": ["a"]})
    await on.look("Tenant", "x")
    on.apply("Tenant", "y", {"adminRoles": ["r"]})
    await on.look("Tenant", "y")
    made = [json.loads(body) for (method, _), body in
            zip(on.rest.asked, on.rest.bodies, strict=True) if method == "PUT"]  # fmt: skip
    assert made == [
        {"adminRoles": [], "allowedClusters": ["a"]},
        {"adminRoles": ["r"], "allowedClusters": ["a", "b"]},
    ]


async def test_how_many_bundles_there_are_is_the_brokers_affair_unless_it_is_said(
    on: Stage,
) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    await on.ready("Namespace", "n", {"tenant": "t1", "bundles": 8})
    made = [json.loads(body) for (method, _), body in
            zip(on.rest.asked, on.rest.bodies, strict=True) if method == "PUT"]  # fmt: skip
    assert made == [{}, {"bundles": {"numBundles": 8}}]
    on.apply("Namespace", "n", {"tenant": "t1", "bundles": 16})
    await on.look("Namespace", "n")
    assert "brokers split bundles by load" in on.condition("Namespace", "n")["message"]


async def test_a_condition_keeps_the_time_since_which_it_is_so(on: Stage) -> None:
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
        found = on.condition("Topic", "a")
        assert found["status"] == str(not refused)
        assert found["lastTransitionTime"] == f"2026-01-01T{since}:00:00Z"


# -- deletion, of other releases and in time


async def test_a_duplicate_of_an_older_release_deletes_nothing(on: Stage) -> None:
    """It recorded the target as if it had made it, and said Duplicate."""
    await on.ready("Topic", "two", {"name": NAME})
    one = on.get("Topic", "two")
    one["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "Duplicate"}]
    on.kube.put(one)
    on.restart()
    assert await on.delete("Topic", "two") is None
    assert len(await on.say("GET", "/persistent/t1/n1")) == 1


async def test_a_topic_of_the_same_name_elsewhere_is_nobodys_resource_here(on: Stage) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    await on.ready("Topic", "a", {"name": "t1/m/a"})
    one = on.get("Topic", "a")
    on.kube.put({**one, "status": {**one["status"], "adminUrl": "http://other:8080"}})
    await on.delete("Namespace", "m")
    message = on.condition("Namespace", "m", "DeletionBlocked")["message"]
    assert "nobody's resources, to be deleted by hand: persistent://t1/m/a" in message


async def test_what_holds_a_deletion_up_for_long_is_one_event(on: Stage) -> None:
    on.rest.refuse = lambda method, _: (412, "in use") if method == "DELETE" else None
    await on.ready("Topic", "a", {"name": NAME})
    await on.delete("Topic", "a")
    for _ in range(3):
        on.now = on.now.fromtimestamp(on.now.timestamp() + SERIES_INTERVAL_S, on.now.tzinfo)
        await on.look("Topic", "a")
    written = [one for one in on.kube.writes if "/events" in one.path]
    assert len(written) == 1


# -- the clients


async def test_requests_of_all_clusters_are_counted_by_method(on: Stage) -> None:
    await on.ready("Tenant", "x", {})
    await on.ready("Tenant", "y", {"adminUrl": "http://other:8080/"})
    counted = on.clusters.requests()
    assert counted["GET"] == sum(method == "GET" for method, _ in on.rest.asked)
    assert counted["PUT"] == sum(method == "PUT" for method, _ in on.rest.asked) == 2
    assert on.clusters.at(URL) is on.clusters.at(f"{URL}/")
    clients = [on.clusters.at(url).client for url in (URL, "http://other:8080")]
    await on.clusters.close()
    assert all(each._http.is_closed for each in clients)


async def test_redirects_without_an_end_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)

    def moves_on(request: httpx.Request) -> httpx.Response:
        return httpx.Response(307, headers={"location": f"{request.url.path}x"})

    client = AdminClient(URL)
    client._http = httpx.AsyncClient(transport=httpx.MockTransport(moves_on))
    with pytest.raises(Unreachable, match="more than 5 redirects"):
        await client.get("/x")
    assert client.requests["GET"] == REDIRECTS_MAX * ATTEMPTS_MAX
    await client.close()


@pytest.mark.parametrize(("status", "attempts"), [(499, 1), (500, 3), (503, 3)])
async def test_what_a_broker_failed_at_is_asked_again_and_what_it_refuses_is_not(
    monkeypatch: pytest.MonkeyPatch, status: int, attempts: int
) -> None:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    client = AdminClient(URL)
    answer = httpx.MockTransport(lambda _: httpx.Response(status, json={"reason": "why"}))
    client._http = httpx.AsyncClient(transport=answer)
    with pytest.raises(AdminError, match="why"):
        await client.get("/x")
    assert client.requests["GET"] == attempts
    await client.close()


async def test_a_request_that_hangs_is_ended_with_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_client, "CLOSE_S_MAX", 0.01)
    begun = asyncio.Event()

    async def hangs(_: httpx.Request) -> httpx.Response:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    client = AdminClient(URL)
    client._http = httpx.AsyncClient(transport=httpx.MockTransport(hangs))
    task = asyncio.create_task(client.get("/x"))
    await begun.wait()
    await client.close()
    assert client._http.is_closed
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_client_asks_with_a_deadline_and_so_many_at_once() -> None:
    client = AdminClient("http://a/")
    assert client.url == "http://a"
    assert client._http.timeout.read == ANSWER_TIMEOUT_S
    assert client._slots._value == AT_ONCE_MAX
    await client.close()
