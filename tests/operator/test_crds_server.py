"""The CRDs on a real API server: accepted, explained, and enforcing their rules."""

import copy
import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from tests.operator.crd_resources import NAME, SHORTEST, Resources, said
from tests.support.kube import Tool

from magnetar_operator.kube.kinds import API_VERSION, GROUP, VERSION
from magnetar_operator.models import crdgen
from magnetar_operator.models.base import CATEGORY, Condition, PlanStep, Status
from magnetar_operator.models.cluster_status import ClusterStatus, Drain, Recommendation, Replicas
from magnetar_operator.models.kinds import BY_KIND, KINDS
from magnetar_operator.models.resources import (
    Backlog,
    NamespaceStatus,
    SubscriptionStatus,
    TenantStatus,
    TopicStatus,
)
from magnetar_operator.models.sparkjob import Run, SparkJobStatus

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("crds")]

SAMPLES = sorted((crdgen.ROOT / "crds/samples").glob("*.yaml"))


@pytest.fixture
def resources(kube_api: client.ApiClient, kube_namespace: str) -> Resources:
    return Resources(kube_api, kube_namespace)


def test_the_server_serves_all_kinds_in_one_category(kubectl: Tool, crds: list[str]) -> None:
    assert set(crds) == {f"{kind.plural}.{GROUP}" for kind in KINDS}
    listed = kubectl("api-resources", "--categories", CATEGORY, "--no-headers", "-o", "name")
    assert set(listed.split()) == set(crds)


def test_no_other_kind_of_the_server_has_our_short_names(kubectl: Tool) -> None:
    for line in kubectl("api-resources", "--no-headers").splitlines():
        if GROUP in line:
            continue
        names = {part for column in line.split()[:2] for part in column.split(",")}
        assert not names & {kind.short for kind in KINDS}, line


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_the_server_accepts_each_sample(sample: Path, kubectl: Tool, kube_namespace: str) -> None:
    within = kubectl.within(kube_namespace)
    within("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", sample)
    within("apply", "--validate=strict", "-f", sample)
    for manifest in yaml.safe_load_all(sample.read_text()):
        resource = f"{BY_KIND[manifest['kind']].short}/{manifest['metadata']['name']}"
        assert within("get", resource, "--no-headers").split()[0] == manifest["metadata"]["name"]


@pytest.mark.parametrize("kind", list(SHORTEST))
def test_the_shortest_valid_specs(kind: str, resources: Resources) -> None:
    assert resources.refusal(kind, SHORTEST[kind]) == ""
    created = resources.create(kind, SHORTEST[kind], dry=True)
    assert BY_KIND[kind].spec.parse(created["spec"]) == BY_KIND[kind].spec.parse(SHORTEST[kind])


def test_every_field_is_explained(kubectl: Tool) -> None:
    """Of the server's own OpenAPI, which `kubectl explain` reads."""
    shown = json.loads(kubectl("get", "--raw", f"/openapi/v3/apis/{GROUP}/{VERSION}"))
    schemas = shown["components"]["schemas"]
    missing: list[str] = []

    def walk(schema: dict[str, Any], path: str) -> None:
        for name, one in schema.get("properties", {}).items():
            if not one.get("description") and name != "metadata":
                missing.append(f"{path}.{name}")
            walk(one, f"{path}.{name}")
        if "items" in schema:
            walk(schema["items"], f"{path}[]")

    for kind in KINDS:
        whole = schemas[f"io.magnetar.{VERSION}.{kind.kind}"]
        assert whole["description"]
        walk(whole, kind.kind)
    assert not missing


def test_explain_reads_well(kubectl: Tool) -> None:
    text = " ".join(kubectl("explain", "mtopic.spec.policies.retention.time").split())
    assert "How long acknowledged messages are retained" in text
    assert "DESCRIPTION: Duration (10m, 12h or 7d) or a number of minutes." in text


REFUSED: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "more copies than the ensemble": (
        "MagnetarCluster", {"bookie": {"quorums": {"ensemble": 2, "write": 3}}},
        "write must not be more than ensemble"),
    "a receipt for more than is written": (
        "MagnetarCluster", {"bookie": {"quorums": {"ensemble": 3, "write": 2, "ack": 3}}},
        "ack must not be more than write"),
    "the default of ack counts": (
        "MagnetarCluster", {"bookie": {"quorums": {"ensemble": 1, "write": 1}}},
        "ack must not be more than write"),
    "more than there are bookies": (
        "MagnetarCluster", {"bookie": {"replicas": 3, "quorums": {"ensemble": 4}}},
        "quorums.ensemble (default 2) must not be more than replicas"),
    "fewer bookies than the default ensemble": (
        "MagnetarCluster", {"bookie": {"replicas": 1}}, "must not be more than replicas"),
    "two kinds of etcd": (
        "MagnetarCluster",
        {"etcd": {"replicas": 3, "external": {"endpoints": ["http://etcd:2379"]}}},
        "external excludes replicas"),
    "certificates of an external etcd": (
        "MagnetarCluster",
        {"etcd": {"external": {"endpoints": ["http://etcd:2379"], "tls": {"name": "s"}}}},
        "tls is not supported"),
    "a user of an external etcd": (
        "MagnetarCluster",
        {"etcd": {"external": {"endpoints": ["http://etcd:2379"], "auth": {"name": "s"}}}},
        "auth is not supported"),
    "a prefix that is no path": (
        "MagnetarCluster",
        {"etcd": {"external": {"endpoints": ["http://etcd:2379"], "prefix": "orders/"}}},
        "should match"),
    "authentication of clients": (
        "MagnetarCluster", {"broker": {"config": {"authenticationEnabled": "true"}}},
        "config has a setting that is not supported"),
    "TLS on a port": (
        "MagnetarCluster", {"broker": {"config": {"PULSAR_PREFIX_brokerServicePortTls": 6651}}},
        "config has a setting that is not supported"),
    "authentication of bookies": (
        "MagnetarCluster", {"bookie": {"config": {"bookieAuthProviderFactoryClass": "a.B"}}},
        "config has a setting that is not supported"),
    "TLS in autorecovery's settings": (
        "MagnetarCluster", {"autorecovery": {"config": {"tlsEnabled": "True"}}},
        "config has a setting that is not supported"),
    "a tenant of two clusters": (
        "Tenant", {"allowedClusters": ["here", "there"]}, "allowedClusters is not supported"),
    "an external etcd of no address": (
        "MagnetarCluster", {"etcd": {"external": {"endpoints": []}}}, "at least 1 items"),
    "two etcd members": (
        "MagnetarCluster", {"etcd": {"replicas": 2}}, 'supported values: "1", "3"'),
    "more brokers at least than at most": (
        "MagnetarCluster", {"broker": {"autoscaling": {"minReplicas": 11}}},
        "minReplicas must not be more than maxReplicas"),
    "a size without unit": (
        "MagnetarCluster", {"bookie": {"storage": {"size": "100"}}}, "should match"),
    "cluster and address": (
        "Tenant", {"clusterRef": {"name": "demo"}, "adminUrl": "http://a:8080"},
        "clusterRef and adminUrl exclude each other"),
    "credentials without an address": (
        "Tenant", {"adminSecret": {"name": "far"}},
        "adminSecret has the credentials for adminUrl: set both"),
    "an unknown lifecycle": ("Tenant", {"lifecyclePolicy": "Keep"}, "supported values"),
    "the tenant twice": (
        "Namespace", {"tenant": "shop", "name": "shop/orders"}, "tenant in exactly"),
    "the tenant never": ("Namespace", {"name": "orders"}, "tenant in exactly"),
    "the namespace never": ("Topic", {"name": "created"}, "namespace in exactly"),
    "the namespace twice": (
        "Topic", {"name": "shop/orders/created", "namespaceRef": {"name": "orders"}},
        "namespace in exactly"),
    "a name with spaces": ("Topic", {"name": "shop/orders/my topic"}, "should match"),
    "one partition": (
        "Topic", {"name": "shop/orders/created-partition-3"}, "name is that of one partition"),
    "two domains": (
        "Topic", {"name": "non-persistent://shop/orders/created", "persistent": True},
        "persistent contradicts name"),
    "fewer partitions than none": (
        "Topic", {**SHORTEST["Topic"], "partitions": -1}, "greater than or equal to 0"),
    "an unknown policy": (
        "Topic", {**SHORTEST["Topic"], "policies": {"retentions": {}}},
        'unknown field "spec.policies.retentions"'),
    "half a retention": (
        "Topic", {**SHORTEST["Topic"], "policies": {"retention": {"time": "7d"}}},
        "spec.policies.retention.size: Required value"),
    "a duration that is none": (
        "Topic", {**SHORTEST["Topic"], "policies": {"messageTTL": "a week"}}, "should match"),
    "a limit where there is none": (
        "Topic", {**SHORTEST["Topic"], "policies": {"messageTTL": "-1"}}, "should match"),
    "the topic twice": (
        "Subscription", {**SHORTEST["Subscription"], "topicRef": {"name": "created"}},
        "topic in exactly"),
    "the topic never": ("Subscription", {}, "topic in exactly"),
    "no position": (
        "Subscription", {**SHORTEST["Subscription"], "initialPosition": "earliest"},
        "supported values"),
    "four fields of cron": (
        "SparkJob", {"type": "Backlog", "schedule": "0 3 * *"}, "should match"),
    "a deadline that Kubernetes never meets": (
        "SparkJob", {"type": "Backlog", "schedule": "0 3 * * *", "startingDeadline": "9s"},
        "startingDeadline must be 10 s or more"),
    "a deadline in milliseconds": (
        "SparkJob", {"type": "Backlog", "schedule": "0 3 * * *", "startingDeadline": "9999ms"},
        "startingDeadline must be 10 s or more"),
    "a deadline of none": (
        "SparkJob", {"type": "Backlog", "schedule": "0 3 * * *", "startingDeadline": 0},
        "startingDeadline must be 10 s or more"),
    "a time zone for nothing": (
        "SparkJob", {"type": "Backlog", "timeZone": "Europe/Berlin"}, "timeZone is for a schedule"),
    "a threshold of no policy": (
        "SparkJob", {"type": "Backlog", "onThreshold": {}}, "a backlog report has no threshold"),
    "a threshold and a schedule": (
        "SparkJob", {"type": "Offload", "onThreshold": {}, "schedule": "@daily"},
        "onThreshold excludes schedule"),
    "runs by threshold at the same time": (
        "SparkJob", {"type": "Offload", "onThreshold": {}, "concurrencyPolicy": "Allow"},
        "concurrencyPolicy must be Forbid"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(REFUSED))
def test_impossible_specs_are_refused(case: str, resources: Resources) -> None:
    kind, spec, text = REFUSED[case]
    assert text in resources.refusal(kind, spec)


OFF: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "switches": (
        "MagnetarCluster",
        {"broker": {"config": {"authenticationEnabled": "false", "tlsEnabled": "False",
                               "brokerServicePortTls": "", "ackQuorum": 2}}}),
    "a tenant of one cluster": ("Tenant", {"allowedClusters": ["here"]}),
    "the shortest deadline": (
        "SparkJob", {"type": "Backlog", "schedule": "0 3 * * *", "startingDeadline": 10}),
    "a path in an external etcd": (
        "MagnetarCluster",
        {"etcd": {"external": {"endpoints": ["http://etcd:2379"], "prefix": "/magnetar/one"}}}),
    "policies": (
        "Namespace",
        {**SHORTEST["Namespace"], "policies": {
            "deduplication": True, "deduplicationSnapshotInterval": "90s",
            "delayedDelivery": {"active": False}, "replicationClusters": ["here"],
            "replicatorDispatchRate": {"messages": -1, "bytes": "-1"},
            "subscriptionAuthMode": "None",
            "persistence": {"ensembleSize": 2, "writeQuorum": 2, "ackQuorum": 2,
                            "maxMarkDeleteRate": 0}}}),
}  # fmt: skip


@pytest.mark.parametrize("case", list(OFF))
def test_unsupported_policies_can_be_switched_off(case: str, resources: Resources) -> None:
    kind, spec = OFF[case]
    assert resources.refusal(kind, spec) == ""


CLUSTER: Final[dict[str, Any]] = {
    "clusterName": "demo",
    "bookie": {"storage": {"size": "10Gi"}},
    "etcd": {"replicas": 3},
}
TOPIC: Final[dict[str, Any]] = {"name": "created", "namespaceRef": {"name": "orders"}}
NAME_TOPIC: Final = SHORTEST["Topic"]

CHANGES: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any], str]]] = {
    "another path of metadata": (
        "MagnetarCluster",
        {"etcd": {"external": {"endpoints": ["http://etcd:2379"], "prefix": "/a"}}},
        {"etcd": {"external": {"endpoints": ["http://etcd:2379"], "prefix": "/b"}}},
        "prefix cannot be changed"),
    "a smaller volume": (
        "MagnetarCluster", CLUSTER, {**CLUSTER, "bookie": {"storage": {"size": "9Gi"}}},
        "volumes cannot shrink"),
    "a volume smaller than the default": (
        "MagnetarCluster", {}, {"bookie": {"storage": {"size": "9Gi"}}}, "volumes cannot shrink"),
    "a great volume forgotten": (
        "MagnetarCluster", {"bookie": {"storage": {"size": "1Ti"}}}, {}, "volumes cannot shrink"),
    "another storage class": (
        "MagnetarCluster", CLUSTER,
        {**CLUSTER, "bookie": {"storage": {"size": "10Gi", "storageClassName": "fast"}}},
        "volumes stay where they are"),
    "a greater volume": (
        "MagnetarCluster", CLUSTER, {**CLUSTER, "bookie": {"storage": {"size": "0.02Ti"}}},
        "should match"),
    "a volume in another unit": (
        "MagnetarCluster", CLUSTER, {**CLUSTER, "bookie": {"storage": {"size": "1Ti"}}}, ""),
    "another cluster name": (
        "MagnetarCluster", CLUSTER, {**CLUSTER, "clusterName": "other"},
        "clusterName cannot be changed"),
    "other members": (
        "MagnetarCluster", CLUSTER, {**CLUSTER, "etcd": {"replicas": 1}},
        "etcd.replicas cannot be changed"),
    "the default members, said": ("MagnetarCluster", {}, {"etcd": {"replicas": 3}}, ""),
    "another etcd": (
        "MagnetarCluster", CLUSTER,
        {**CLUSTER, "etcd": {"external": {"endpoints": ["http://etcd:2379"]}}},
        "etcd cannot change between external and the operator's own"),
    "etcd's volume forgotten": (
        "MagnetarCluster", {"etcd": {"storage": {"size": "20Gi"}}}, {},
        "etcd.storage cannot be taken away"),
    "etcd's volume below the default": (
        "MagnetarCluster", {}, {"etcd": {"storage": {"size": "5Gi"}}},
        "etcd.storage.size must not be less than 10Gi"),
    "a greater volume for etcd": (
        "MagnetarCluster", {}, {"etcd": {"storage": {"size": "20Gi"}}}, ""),
    "another tenant name": ("Tenant", {"name": "a"}, {"name": "b"}, "name cannot be changed"),
    "a tenant name where none was": ("Tenant", {}, {"name": "b"}, "name cannot be changed"),
    "another cluster": (
        "Tenant", {"clusterRef": {"name": "a"}}, {"clusterRef": {"name": "b"}},
        "clusterRef cannot be changed"),
    "the cluster, said": ("Tenant", {}, {"clusterRef": {"name": "a"}}, ""),
    "another namespace": (
        "Namespace", {"name": "a/b"}, {"name": "a/c"}, "name cannot be changed"),
    "other bundles": (
        "Namespace", {"name": "a/b", "bundles": 4}, {"name": "a/b", "bundles": 8},
        "bundles cannot be changed"),
    "other policies": (
        "Namespace", {"name": "a/b"}, {"name": "a/b", "policies": {"messageTTL": "1d"}}, ""),
    "fewer partitions": (
        "Topic", {**TOPIC, "partitions": 4}, {**TOPIC, "partitions": 3},
        "partitions can only grow"),
    "partitions forgotten": (
        "Topic", {**TOPIC, "partitions": 4}, TOPIC, "partitions can only grow"),
    "partitions where none were": (
        "Topic", TOPIC, {**TOPIC, "partitions": 4}, "a topic without partitions"),
    "more partitions": ("Topic", {**TOPIC, "partitions": 4}, {**TOPIC, "partitions": 8}, ""),
    "another topic": (
        "Topic", NAME_TOPIC, {"name": "persistent://shop/orders/paid"}, "name cannot be changed"),
    "another subscription topic": (
        "Subscription", SHORTEST["Subscription"], {"topicRef": {"name": "created"}},
        "topic cannot be changed"),
    "another position": (
        "Subscription", SHORTEST["Subscription"],
        {**SHORTEST["Subscription"], "initialPosition": "Earliest"},
        "initialPosition cannot be changed"),
    "the default position, said": (
        "Subscription", SHORTEST["Subscription"],
        {**SHORTEST["Subscription"], "initialPosition": "Latest"}, ""),
    "another type of job": (
        "SparkJob", {"type": "Backlog"}, {"type": "Compact"}, "type cannot be changed"),
    "a schedule for a job that runs once": (
        "SparkJob", {"type": "Backlog"}, {"type": "Backlog", "schedule": "@daily"},
        "runs once cannot become"),
    "a threshold for a job that runs once": (
        "SparkJob", {"type": "Offload"}, {"type": "Offload", "onThreshold": {}},
        "runs once cannot become one with onThreshold"),
    "another pause": (
        "SparkJob", {"type": "Offload", "onThreshold": {}},
        {"type": "Offload", "onThreshold": {"pause": "1h"}}, ""),
}  # fmt: skip
"""The kind, a spec, the spec after it, and why it is refused; empty: it is taken."""


@pytest.mark.parametrize("case", list(CHANGES))
def test_changes_that_would_lose_something_are_refused(case: str, resources: Resources) -> None:
    kind, before, after, text = CHANGES[case]
    resources.create(kind, copy.deepcopy(before))
    if not text:
        resources.replace(kind, after)
        return
    with pytest.raises(ApiException) as caught:
        resources.replace(kind, after)
    assert text in said(caught.value)


READY: Final = Condition(type="Ready", status="True", reason="AsWanted", message="All is well.")
STATUS: Final[dict[str, Status]] = {
    "MagnetarCluster": ClusterStatus(
        observed_generation=2,
        phase="Running",
        brokers=Replicas(ready=2, desired=2, updated=2, summary="2/2"),
        bookies=Replicas(ready=3, desired=3, updated=3, summary="3/3"),
        selector="cluster=one,component=broker",
        drain=Drain(bookie="one-bookie-3", step="Copying", ledgers_left=7, ledgers=[1, 2]),
        recommendations=[Recommendation(kind="AddBookie", text="Disks are 80 % full.")],
    ),
    "Tenant": TenantStatus(namespaces=3, resolved_name="shop"),
    "Namespace": NamespaceStatus(topics=4, bundles=8, applied={"bundles": 8}),
    "Topic": TopicStatus(
        partitions=4, brokers=["one-broker-0"], backlog=Backlog(messages=5), schema_version=0
    ),
    "Subscription": SubscriptionStatus(type="Shared", consumers=2, backlog=Backlog(messages=9)),
    "SparkJob": SparkJobStatus(
        phase="Running", active=1, runs=[Run(name="one-1", state="Running", result={"topics": 3})]
    ),
}


@pytest.mark.parametrize("kind", list(STATUS))
def test_a_status_is_kept_in_full(kind: str, resources: Resources) -> None:
    """None of its fields is pruned, and nulls are."""
    plan = [PlanStep(action="update", target="retention", loses_data=True, bytes=83)]
    status = msgspec.structs.replace(STATUS[kind], conditions=[READY], plan=plan)
    resources.create(kind, SHORTEST[kind])
    stored = resources.replace_status(kind, status.manifest())["status"]
    assert BY_KIND[kind].status.parse(stored) == status
    assert None not in stored.values()


def test_kubectl_get_shows_the_columns(
    resources: Resources, kubectl: Tool, kube_namespace: str
) -> None:
    ready = {**READY.manifest(), "observedGeneration": 1}  # kubectl wait reads it
    for kind in ("MagnetarCluster", "Topic"):
        resources.create(kind, SHORTEST[kind])
        resources.replace_status(kind, {**STATUS[kind].manifest(), "conditions": [ready]})
    within = kubectl.within(kube_namespace)
    head, row = within("get", "mcluster").splitlines()
    assert head.split() == [
        "NAME", "BROKERS", "BOOKIES", "PHASE", "READY", "LEDGERS", "VERSION", "AGE"]  # fmt: skip
    assert row.split()[:5] == ["one", "2/2", "3/3", "Running", "True"]
    head, row = within("get", "mtopic").splitlines()
    assert head.split() == [
        "NAME", "RESOURCE", "CLUSTER", "PARTITIONS", "BACKLOG", "READY", "AGE"]  # fmt: skip
    assert row.split()[:4] == ["one", "4", "5", "True"]
    assert "AsWanted" in within("get", "mtopic", "-o", "wide")
    assert len(within("get", CATEGORY, "--no-headers", "-o", "name").split()) == 2
    within("wait", "mtopic/one", "--for=condition=Ready", "--timeout=30s")


def test_kubectl_scale_works_for_brokers(
    resources: Resources, kubectl: Tool, kube_namespace: str
) -> None:
    resources.create("MagnetarCluster", {})
    resources.replace_status("MagnetarCluster", STATUS["MagnetarCluster"].manifest())
    within = kubectl.within(kube_namespace)
    within("scale", "mcluster", "one", "--replicas", 5)
    assert within("get", "mcluster", "one", "-o", "jsonpath={.spec.broker.replicas}") == "5"
    scale = json.loads(
        within("get", "--raw", f"/apis/{GROUP}/{VERSION}/namespaces/{kube_namespace}/"
               "magnetarclusters/one/scale")
    )  # fmt: skip
    assert scale["status"] == {"replicas": 2, "selector": "cluster=one,component=broker"}


def test_applied_fields_stay_after_a_scale(kubectl: Tool, kube_namespace: str) -> None:
    """A manifest without broker.replicas leaves the number to whom it belongs."""
    within = kubectl.within(kube_namespace)
    scaling: dict[str, Any] = {"enabled": True}
    manifest = {"apiVersion": API_VERSION, "kind": "MagnetarCluster", "metadata": {"name": NAME},
                "spec": {"broker": {"autoscaling": scaling}}}  # fmt: skip
    within.apply(manifest)
    within("scale", "mcluster", NAME, "--replicas", 7)
    scaling["maxReplicas"] = 9
    within.apply(manifest)
    assert within("get", "mcluster", NAME, "-o", "jsonpath={.spec.broker.replicas}") == "7"
