"""The place of a resource's target, its observation, and cached lists."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.memory_kube import Refusal
from tests.operator.resource_stage import NS, URL, Stage, resource_stage
from tests.unit.admin.support import Admin, entry

from magnetar_operator.admin import client as admin_client
from magnetar_operator.catalog.references import References, admin_url, parse_spec
from magnetar_operator.catalog.state import INACTIVE, desired_of
from magnetar_operator.kube.events import SERIES_INTERVAL_S
from magnetar_operator.kube.kinds import API_VERSION, CLUSTER, Object

A = "/persistent/t1/n1/a"
NAME = "t1/n1/a"
POLICIES = "/magnetar/persistent/t1/n1/a/policies"
TTL = {"policies": {"messageTTL": "1h"}}


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(admin_client, "BACKOFF_FIRST_S", 0.0)
    async with resource_stage() as stage:
        yield stage


def resource(kind: str, name: str, **content: Any) -> Object:
    return {
        "apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, "namespace": NS},
        **content,
    }  # fmt: skip


def cluster(name: str = "c", namespace: str = NS, **content: Any) -> Object:
    obj = resource(CLUSTER.kind, name, **content)
    obj["metadata"]["namespace"] = namespace
    return obj


# -- the place of a target


@pytest.mark.parametrize(
    ("content", "url"),
    [
        ({"spec": {"adminUrl": "http://a/"}, "status": {"adminUrl": "http://b"}}, "http://a"),
        ({"spec": {}, "status": {"adminUrl": "http://b/"}}, "http://b"),
        ({}, f"http://c-broker.{NS}.svc:8080"),
    ],
)
async def test_the_only_cluster_of_the_namespace_is_the_default(
    on: Stage, content: Object, url: str
) -> None:
    assert admin_url(cluster(**content)) == url
    on.kube.put(cluster(**content))
    on.kube.put(cluster("far", "elsewhere"))
    on.kube.put(resource("Tenant", "x"))
    assert await on.look("Tenant", "x") is None
    status = on.status("Tenant", "x")
    assert (status["cluster"], status["clusterNamespace"], status["adminUrl"]) == ("c", NS, url)


async def test_without_a_cluster_or_with_several_the_message_names_the_remedy(on: Stage) -> None:
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
async def test_a_cluster_is_found_before_the_watch_reports_it(on: Stage, shown: bool) -> None:
    if not shown:
        seen, on.kube.seen = on.kube.seen, lambda _one, _gone: None
        on.kube.put(cluster(spec={"adminUrl": URL}))
        on.kube.seen = seen
    else:
        on.kube.put(cluster(spec={"adminUrl": URL}))
    on.kube.put(resource("Tenant", "x", spec={}))
    await on.ready("Tenant", "y", {"clusterRef": {"name": "c"}})
    assert await on.look("Tenant", "x") is None
    paths = [request.path for request in on.kube.asked if "magnetarclusters" in request.path]
    assert bool(paths) != shown


async def test_a_named_cluster_may_be_in_another_namespace_and_is_waited_for(on: Stage) -> None:
    place_fields = {"clusterRef": {"name": "c", "namespace": "elsewhere"}}
    on.kube.put(cluster(spec={"adminUrl": "http://wrong"}))
    on.apply("Tenant", "x", place_fields)
    assert await on.look("Tenant", "x") is not None
    assert "no MagnetarCluster elsewhere/c" in on.condition("Tenant", "x")["message"]
    on.kube.refuse = lambda asked: (
        Refusal(403, "Forbidden", "no right") if "/elsewhere/" in asked.path else None
    )
    assert await on.look("Tenant", "x") is None
    assert on.reason("Tenant", "x") == "InvalidSpec"
    assert "may not read namespace elsewhere: " in on.condition("Tenant", "x")["message"]
    on.kube.refuse = lambda _: None
    on.kube.put(cluster(namespace="elsewhere", spec={"adminUrl": URL}))
    assert await on.look("Tenant", "x") is None
    assert on.status("Tenant", "x")["clusterNamespace"] == "elsewhere"


async def test_a_reference_resolves_to_the_cluster_of_the_referenced_resource(on: Stage) -> None:
    on.kube.put(cluster("near", spec={"adminUrl": "http://wrong"}))
    on.kube.put(cluster(spec={"adminUrl": URL}))
    await on.ready("Namespace", "n", {"clusterRef": {"name": "c"}, "tenant": "t1"})
    on.kube.put(resource("Topic", "a", spec={"namespaceRef": {"name": "n"}}))
    on.kube.put(resource("Subscription", "s", spec={"topicRef": {"name": "a"}}))
    for kind, name in (("Topic", "a"), ("Subscription", "s")):
        assert await on.look(kind, name) is None, on.condition(kind, name)
        assert on.status(kind, name)["cluster"] == "c"
    assert on.status("Subscription", "s")["resolvedName"] == ("persistent://t1/n/a/subscription/s")


async def test_only_the_clusters_own_name_is_allowed(on: Stage) -> None:
    on.kube.put(cluster(spec={"adminUrl": URL, "clusterName": "standalone"}))
    place_fields = {"clusterRef": {"name": "c"}}
    await on.ready("Tenant", "x", {**place_fields, "allowedClusters": ["standalone"]})
    on.apply("Tenant", "y", {**place_fields, "allowedClusters": ["c"]})
    await on.look("Tenant", "y")
    assert on.reason("Tenant", "y") == "Unsupported"


async def test_a_status_without_the_clusters_namespace_uses_the_manifests(
    on: Stage,
) -> None:
    """As an older release wrote it."""
    on.kube.put(cluster(namespace="elsewhere", spec={"adminUrl": URL}))
    place_fields = {"clusterRef": {"name": "c", "namespace": "elsewhere"}}
    for name in ("one", "two"):
        await on.ready("Topic", name, {**place_fields, "name": f"t1/n1/{name}"})
        status = on.status("Topic", name)
        del status["clusterNamespace"]
        on.kube.put({**on.get("Topic", name), "status": status})
    on.restart()
    on.rest.down = True
    assert await on.delete("Topic", "one") is not None, "its cluster is there"
    on.kube.remove(CLUSTER, "c", "elsewhere")
    on.kube.put(cluster())
    assert await on.delete("Topic", "two") is None, "its cluster is gone, another is not it"


@pytest.mark.parametrize("referred", ["own", "Namespace", "Topic"])
async def test_a_status_without_the_clusters_namespace_means_that_of_what_the_manifest_refers_to(
    on: Stage, referred: str
) -> None:
    """Otherwise the deletion of a topic of a cluster that is there would be skipped."""
    far = {"clusterRef": {"name": "c", "namespace": "elsewhere"}}
    on.kube.put(resource("Namespace", "n", spec={**far, "tenant": "t1", "name": "n1"}))
    on.kube.put(resource("Topic", "a", spec={"namespaceRef": {"name": "n"}}))
    kind, spec = {
        "own": ("Topic", {"name": NAME}),
        "Namespace": ("Topic", {"namespaceRef": {"name": "n"}}),
        "Topic": ("Subscription", {"topicRef": {"name": "a"}}),
    }[referred]
    on.kube.put(resource(kind, "x", spec=spec))
    references = References(on.client, on.watches)
    status = {"cluster": "c"}
    there = (NS, "elsewhere") if referred == "own" else ("elsewhere", NS)
    on.kube.put(cluster(namespace=there[1]))
    assert await references.is_cluster_deleted(on.get(kind, "x"), status)
    on.kube.put(cluster(namespace=there[0]))
    assert not await references.is_cluster_deleted(on.get(kind, "x"), status)


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
def test_a_stored_topic_is_kept_while_inactive_unless_its_manifest_sets_a_policy(
    spec: Object, kept: bool
) -> None:
    desired = desired_of(parse_spec({"kind": "Topic", "metadata": {"name": "a"}, "spec": spec}))
    assert (INACTIVE in desired.implied) == kept


# -- observation


async def test_a_subscription_starts_at_the_position_of_its_manifest(on: Stage) -> None:
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
async def test_policies_are_read_one_by_one_if_the_cluster_cannot_return_all(
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


async def test_unreadable_policies_do_not_count_as_unset(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME, **TTL})
    await on.look("Topic", "a")
    before = on.rest.writes
    for status in (403, 405):
        on.rest.refuse = lambda _, path, status=status: (status, "no") if path == POLICIES else None  # type: ignore[misc]
        assert await on.look("Topic", "a") is not None
        assert on.reason("Topic", "a") == "Refused"
    assert on.rest.writes == before


async def test_an_empty_answer_has_no_policies(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME})
    on.rest.answers[POLICIES] = None
    assert await on.look("Topic", "a") is None
    assert on.reason("Topic", "a") == "AsSpecified"


async def test_a_plan_respects_applied_and_ignored_fields(on: Stage) -> None:
    await on.ready("Topic", "a", {"name": NAME, "policies": {
        "messageTTL": "1h", "maxProducersPerTopic": 3}})  # fmt: skip
    await on.say("POST", f"{A}/messageTTL", 5)
    on.apply("Topic", "a", {"name": NAME, **TTL}, plan="true", ignore_drift="messageTTL")
    await on.look("Topic", "a")
    (step,) = on.status("Topic", "a")["plan"]
    assert step["text"].startswith("remove maxProducersPerTopic (was 3)")


async def test_a_refused_property_is_not_reported_as_a_policy(on: Stage) -> None:
    on.rest.refuse = lambda method, path: (
        (412, "no") if method == "PUT" and path.endswith("/properties") else None
    )
    on.apply("Topic", "a", {"name": NAME, **TTL, "properties": {"team": "red"}})
    assert await on.look("Topic", "a") is not None
    assert on.reason("Topic", "a") == "Refused"
    assert on.reason("Topic", "a", "PolicyReady") == "AsSpecified"


# -- deletion, of other releases and in time


async def test_a_duplicate_of_an_older_release_deletes_nothing(on: Stage) -> None:
    """It recorded the target as its own, with the reason Duplicate."""
    await on.ready("Topic", "two", {"name": NAME})
    obj = on.get("Topic", "two")
    obj["status"]["conditions"] = [{"type": "Ready", "status": "False", "reason": "Duplicate"}]
    on.kube.put(obj)
    on.restart()
    assert await on.delete("Topic", "two") is None
    assert len(await on.say("GET", "/persistent/t1/n1")) == 1


async def test_a_topic_of_the_same_name_in_another_cluster_is_another_target(on: Stage) -> None:
    await on.ready("Namespace", "m", {"tenant": "t1"})
    await on.ready("Topic", "a", {"name": "t1/m/a"})
    obj = on.get("Topic", "a")
    on.kube.put({**obj, "status": {**obj["status"], "adminUrl": "http://other:8080"}})
    await on.delete("Namespace", "m")
    message = on.condition("Namespace", "m", "DeletionBlocked")["message"]
    assert "delete by hand, they have no resources: persistent://t1/m/a" in message


async def test_a_long_obstacle_to_a_deletion_causes_one_event(on: Stage) -> None:
    on.rest.refuse = lambda method, _: (412, "in use") if method == "DELETE" else None
    await on.ready("Topic", "a", {"name": NAME})
    await on.delete("Topic", "a")
    for _ in range(3):
        on.now = on.now.fromtimestamp(on.now.timestamp() + SERIES_INTERVAL_S, on.now.tzinfo)
        await on.look("Topic", "a")
    written = [write for write in on.kube.writes if "/events" in write.path]
    assert len(written) == 1
