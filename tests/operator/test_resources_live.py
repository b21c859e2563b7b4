"""Resources on a real API server, through a real operator, in a real standalone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client
from tests.operator.resource_rig import Live, manifest, operator, until
from tests.support.kube import Tool, delete_namespace, fresh_namespace
from tests.support.server_process import ServerProcess

from magnetar_operator.kube.kinds import EVENT, NAMESPACE, SUBSCRIPTION, TENANT, TOPIC
from magnetar_operator.kube.rbac import CLUSTER_RULES, WATCH, missing

NOT_HERE = {("patch", "events.k8s.io", "events")}
"""For repeated events see `test_operator_process`."""

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("crds"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(Path(tmp_path_factory.mktemp("standalone"))) as started:
        yield started


@pytest.fixture(scope="module")
def live(
    kube_api: client.ApiClient, kubectl: Tool, crds: list[str], server: ServerProcess
) -> Iterator[Live]:
    namespace = fresh_namespace(kube_api)
    with (
        Live(kubectl.within(namespace), server.http_url) as rig,
        operator(namespace) as acting,
    ):
        rig.requests = acting.context.kube.requests
        rig.apply("Tenant", "shop", {})
        rig.apply("Namespace", "orders", {"tenant": "shop"})
        rig.ready("Namespace", "orders")
        yield rig
    delete_namespace(kube_api, namespace)


def test_applied_in_any_order_all_become_ready(live: Live) -> None:
    live.apply(
        "Subscription", "audit", {"topicRef": {"name": "first"}, "initialPosition": "Earliest"}
    )
    waiting = live.until("Subscription", "audit", "WaitingForTopic")
    assert "there is no Topic resource 'first'" in waiting["message"]
    live.apply("Topic", "first", {"namespaceRef": {"name": "early"}, "partitions": 3})
    live.until("Topic", "first", "WaitingForNamespace")
    live.apply("Namespace", "early", {"name": "market/early", "bundles": 8})
    waiting = live.until("Namespace", "early", "WaitingForTenant")
    assert "there is no tenant market in the cluster" in waiting["message"]
    live.apply("Tenant", "market", {"adminRoles": ["boss"]})
    assert live.ready("Subscription", "audit")["resolvedName"] == (
        "persistent://market/early/first/subscription/audit"
    )
    assert live.status("Topic", "first")["partitions"] == 3
    assert live.status("Namespace", "early")["bundles"] == 8
    assert live.say("GET", "/tenants/market")["adminRoles"] == ["boss"]
    assert live.say("GET", "/persistent/market/early/first/partitions")["partitions"] == 3
    assert live.say("GET", "/persistent/market/early/first/subscriptions") == ["audit"]
    row = live.kubectl("get", "mtopic", "first", "--no-headers").split()
    assert row[:5] == ["first", "persistent://market/early/first", live.url, "3", "0"]


def test_a_topic_follows_changes_of_its_manifest(live: Live) -> None:
    path = "/persistent/shop/orders/changing"
    name = {"name": "shop/orders/changing"}
    policies = {"retention": {"time": "7d", "size": "1Gi"}, "maxProducersPerTopic": 3}
    live.apply(
        "Topic",
        "changing",
        {**name, "partitions": 2, "properties": {"team": "red", "x": "1"}, "policies": policies},
    )
    status = live.ready("Topic", "changing")
    assert live.condition("Topic", "changing", "PolicyReady")["status"] == "True"
    assert status["observedGeneration"] == 1
    retention = live.say("GET", f"{path}/retention")
    assert retention == {"retentionTimeInMinutes": 10_080, "retentionSizeInMB": 1_024}
    assert live.say("GET", f"{path}/maxProducers") == 3
    assert live.say("GET", f"{path}/properties") == {"team": "red", "x": "1"}
    live.say("POST", f"{path}/messageTTL", 60)  # another client's, not changed
    policies = {"retention": {"time": "8d", "size": "1Gi"}}
    live.apply(
        "Topic",
        "changing",
        {**name, "partitions": 5, "properties": {"team": "blue"}, "policies": policies},
    )
    live.ready("Topic", "changing")
    assert live.say("GET", f"{path}/retention")["retentionTimeInMinutes"] == 11_520
    assert live.say("GET", f"{path}/maxProducers") is None
    assert live.say("GET", f"{path}/messageTTL") == 60
    assert live.say("GET", f"{path}/properties") == {"team": "blue"}
    assert live.say("GET", f"{path}/partitions")["partitions"] == 5
    assert live.events("DriftRepaired", "changing") == []


def test_a_namespace_and_a_tenant_follow_changes_of_their_manifests(live: Live) -> None:
    live.apply("Tenant", "moving", {"adminRoles": ["a", "b"]})
    spec = {"tenant": "moving", "policies": {"messageTTL": "1h", "encryptionRequired": True}}
    live.apply("Namespace", "moving", {**spec, "properties": {"team": "red"}})
    live.ready("Namespace", "moving")
    live.apply("Tenant", "moving", {"adminRoles": ["b"]})
    spec["policies"] = {"publishRate": {"messages": 10}}
    live.apply("Namespace", "moving", spec)
    live.ready("Namespace", "moving")
    live.ready("Tenant", "moving")
    assert live.say("GET", "/tenants/moving")["adminRoles"] == ["b"]
    document = live.say("GET", "/namespaces/moving/moving")
    assert document["encryption_required"] is False
    assert document.get("message_ttl_in_seconds") is None
    assert document["properties"] == {}
    assert live.say("GET", "/namespaces/moving/moving/publishRate") == {
        "publishThrottlingRateInMsg": 10,
        "publishThrottlingRateInByte": -1,
    }


def test_drift_is_repaired_and_reported_unless_ignored(live: Live) -> None:
    path = "/persistent/shop/orders/drifting"
    policies = {"retention": {"time": "7d", "size": "1Gi"}, "messageTTL": "1h"}
    live.apply(
        "Topic",
        "drifting",
        {"name": "shop/orders/drifting", "policies": policies},
        ignore_drift="messageTTL",
    )
    live.ready("Topic", "drifting")
    live.say("POST", f"{path}/messageTTL", 5)
    live.say("POST", f"{path}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1})
    note = live.event("DriftRepaired", "drifting")
    assert "retention: time 1m, size 1Mi → time 7d, size 1Gi" in note
    assert live.say("GET", f"{path}/retention")["retentionTimeInMinutes"] == 10_080
    assert live.say("GET", f"{path}/messageTTL") == 5
    live.annotate("Topic", "drifting", "magnetar.io/ignore-drift-")
    until("TTL put back", lambda: live.say("GET", f"{path}/messageTTL") == 3600)


def test_a_target_deleted_by_hand_is_created_again_and_reported(live: Live) -> None:
    live.apply("Topic", "gone", {"name": "shop/orders/gone", "partitions": 2})
    live.ready("Topic", "gone")
    live.say("DELETE", "/persistent/shop/orders/gone/partitions")
    assert live.event("Recreated", "gone").endswith("create it again with 2 partitions, empty.")
    assert live.say("GET", "/persistent/shop/orders/gone/partitions")["partitions"] == 2


def test_an_existing_target_is_adopted_and_otherwise_unchanged(live: Live) -> None:
    path = "/persistent/shop/orders/older"
    live.say("PUT", path)
    live.say("POST", f"{path}/messageTTL", 60)
    live.apply(
        "Topic", "older", {"name": "shop/orders/older", "policies": {"maxProducersPerTopic": 1}}
    )
    assert "already existed" in live.event("Adopted", "older")
    live.ready("Topic", "older")
    assert live.say("GET", f"{path}/messageTTL") == 60
    assert live.say("GET", f"{path}/maxProducers") == 1
    # Brokers would delete it again for being unused.
    assert live.say("GET", f"{path}/inactiveTopicPolicies")["deleteWhileInactive"] is False


def test_a_refusal_names_the_reason_and_the_remedy(live: Live) -> None:
    live.say("PUT", "/persistent/shop/orders/flat")
    live.apply("Topic", "flat", {"name": "shop/orders/flat", "partitions": 2})
    assert "create a new topic" in live.until("Topic", "flat", "Refused")["message"]
    live.apply(
        "Topic",
        "schemed",
        {"name": "shop/orders/schemed", "schema": {"type": "AVRO", "schema": "not a schema"}},
    )
    assert "schema" in live.until("Topic", "schemed", "Refused")["message"]
    schema = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    live.apply(
        "Topic",
        "schemed",
        {"name": "shop/orders/schemed", "schema": {"type": "AVRO", "schema": schema}},
    )
    assert live.ready("Topic", "schemed")["schemaVersion"] == 0
    assert live.say("GET", "/schemas/shop/orders/schemed/schema")["data"] == schema


def test_a_refused_creation_leaves_nothing_to_delete(live: Live) -> None:
    full = {"tenant": "shop", "policies": {"maxTopicsPerNamespace": 1}}
    live.apply("Namespace", "full", full)
    live.ready("Namespace", "full")
    live.say("PUT", "/persistent/shop/full/first")
    live.apply("Topic", "second", {"name": "shop/full/second"})
    assert "the target cannot be created" in live.until("Topic", "second", "Refused")["message"]
    assert "applied" not in live.status("Topic", "second")
    live.say("DELETE", "/persistent/shop/full/first")
    live.ready("Topic", "second")
    live.delete("Topic", "second")
    assert live.say("GET", "/persistent/shop/full") == []
    live.delete("Namespace", "full")


def test_unsupported_settings_are_refused_before_any_action(live: Live) -> None:
    """A cluster's name, which the API server cannot know."""
    live.kubectl.apply(manifest("MagnetarCluster", "local", {"adminUrl": live.url}))
    place_fields = {"clusterRef": {"name": "local"}}
    live.apply("Tenant", "far", {**place_fields, "allowedClusters": ["elsewhere"]})
    assert "name the local cluster only" in live.until("Tenant", "far", "Unsupported")["message"]
    policies = {"replicationClusters": ["elsewhere"], "messageTTL": "1h"}
    live.apply("Namespace", "far", {**place_fields, "tenant": "shop", "policies": policies})
    assert (
        "spec.policies.replicationClusters"
        in live.until("Namespace", "far", "Unsupported")["message"]
    )
    assert not live.has("/tenants/far")
    assert not live.has("/namespaces/shop/far")
    for kind in ("Tenant", "Namespace"):
        live.delete(kind, "far")
    live.kubectl("delete", "magnetarcluster", "local")


def test_a_paused_resource_and_a_plan_change_nothing(live: Live) -> None:
    live.apply("Topic", "paused", {"name": "shop/orders/paused"}, paused="true")
    live.until("Topic", "paused", "Paused")
    live.apply("Topic", "planned", {"name": "shop/orders/planned"}, plan="true")
    live.until("Topic", "planned", "PlanOnly")
    step, kept = live.status("Topic", "planned")["plan"]
    assert "deleteWhileInactive false" in kept["text"]
    assert step["text"] == "create topic persistent://shop/orders/planned"
    assert "finalizers" not in live.get("Topic", "planned")["metadata"]
    assert not live.has("/persistent/shop/orders/paused/stats")
    assert not live.has("/persistent/shop/orders/planned/stats")
    live.annotate("Topic", "planned", "magnetar.io/plan-")
    live.annotate("Topic", "paused", "magnetar.io/paused-")
    assert "plan" not in live.ready("Topic", "planned")
    live.ready("Topic", "paused")


def test_of_two_resources_of_a_topic_the_older_one_counts(live: Live) -> None:
    live.apply("Topic", "twin-one", {"name": "shop/orders/twin", "partitions": 2})
    live.ready("Topic", "twin-one")
    live.apply("Topic", "twin-two", {"name": "shop/orders/twin", "partitions": 4})
    assert "twin-one is older" in live.until("Topic", "twin-two", "Duplicate")["message"]
    live.delete("Topic", "twin-two")
    assert live.say("GET", "/persistent/shop/orders/twin/partitions")["partitions"] == 2
    live.delete("Topic", "twin-one")
    assert not live.has("/persistent/shop/orders/twin/partitioned-stats")


def test_a_deleted_resource_deletes_its_target_unless_it_keeps_it(live: Live) -> None:
    live.apply("Topic", "short", {"name": "shop/orders/short"})
    live.apply(
        "Topic", "long", {"name": "shop/orders/long", "lifecyclePolicy": "KeepAfterDeletion"}
    )
    live.apply("Subscription", "reader", {"topic": "persistent://shop/orders/long"})
    live.ready("Topic", "short")
    live.ready("Topic", "long")
    live.ready("Subscription", "reader")
    assert "finalizers" not in live.get("Topic", "long")["metadata"]
    live.say("DELETE", "/persistent/shop/orders/short")  # a missing target counts as deleted
    for kind, name in (("Topic", "short"), ("Subscription", "reader"), ("Topic", "long")):
        live.delete(kind, name)
    assert not live.has("/persistent/shop/orders/short/stats")
    assert live.has("/persistent/shop/orders/long/stats")
    assert live.say("GET", "/persistent/shop/orders/long/subscriptions") == []


def test_a_namespace_is_deleted_once_it_is_empty(live: Live) -> None:
    live.apply("Tenant", "leaving", {})
    live.apply("Namespace", "leaving", {"tenant": "leaving"})
    live.apply("Topic", "mine", {"namespaceRef": {"name": "leaving"}})
    live.ready("Topic", "mine")
    live.say("PUT", "/persistent/leaving/leaving/theirs")
    live.delete("Tenant", "leaving", wait=False)
    live.delete("Namespace", "leaving", wait=False)
    blocked = live.until("Namespace", "leaving", "NotEmpty", "DeletionBlocked")
    assert (
        "delete by hand, they have no resources: persistent://leaving/leaving/theirs"
        in (blocked["message"])
    )
    assert "delete the resources of persistent://leaving/leaving/mine" in blocked["message"]
    assert (
        "leaving/leaving"
        in live.until("Tenant", "leaving", "NotEmpty", "DeletionBlocked")["message"]
    )
    live.say("DELETE", "/persistent/leaving/leaving/theirs")
    live.delete("Topic", "mine")
    live.gone("tenant", "leaving")
    live.gone("namespace", "leaving")
    assert "leaving" not in live.say("GET", "/tenants")


def test_the_role_has_exactly_the_rights_that_resources_use(live: Live) -> None:
    """The requests of one resource of each kind: created, drifted, repaired, deleted."""
    live.apply("Tenant", "whole", {"adminRoles": ["boss"]})
    policies = {"messageTTL": "1h"}
    # What is referred to and not seen yet is asked for.
    live.apply("Subscription", "seen", {"topicRef": {"name": "lived"}})
    live.until("Subscription", "seen", "WaitingForTopic")
    live.apply("Topic", "lived", {"namespaceRef": {"name": "life"}})
    live.until("Topic", "lived", "WaitingForNamespace")
    live.apply("Namespace", "life", {"tenant": "whole", "policies": policies})
    live.ready("Subscription", "seen")
    live.say("POST", "/namespaces/whole/life/messageTTL", 60)
    live.event("DriftRepaired", "life")
    for kind, name in (("Subscription", "seen"), ("Topic", "lived"), ("Namespace", "life")):
        live.delete(kind, name)
    live.delete("Tenant", "whole")
    assert missing(live.requests, ("watched",)) == []
    granted = {
        (verb, rule.kind.group, rule.resource)
        for rule in CLUSTER_RULES
        if rule.kind in (TENANT, NAMESPACE, TOPIC, SUBSCRIPTION, EVENT)
        for verb in rule.verbs
    }
    watched = {
        (verb, kind.group, kind.plural)
        for kind in (TENANT, NAMESPACE, TOPIC, SUBSCRIPTION)
        for verb in WATCH
    }
    assert granted - set(live.requests) - watched <= NOT_HERE, "verbs that nothing needs"
