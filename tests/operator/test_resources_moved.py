"""A manifest that now means another cluster: the operator acts only in the status's cluster."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operator.resource_rig import Live, manifest, operator
from tests.support.kube import Tool
from tests.support.server_process import ServerProcess

from magnetar_operator.admin.target import TOPIC, Target
from magnetar_operator.catalog.references import Place, moved, owns, same_cluster

RESOURCES = (("Subscription", "audit"), ("Topic", "created"), ("Namespace", "orders"),
             ("Tenant", "shop"))  # fmt: skip
CREATED = "/persistent/shop/orders/created"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ...]]:
    first, second = (Path(tmp_path_factory.mktemp(name)) for name in ("old", "new"))
    with ServerProcess(first) as old, ServerProcess(second) as new:
        yield old, new


@pytest.fixture
def old(kubectl: Tool, kube_namespace: str, servers: tuple[ServerProcess, ...]) -> Iterator[Live]:
    with Live(kubectl.within(kube_namespace), servers[0].http_url) as live:
        yield live


@pytest.fixture
def new(kubectl: Tool, kube_namespace: str, servers: tuple[ServerProcess, ...]) -> Iterator[Live]:
    """The other cluster has everything of the same names."""
    with Live(kubectl.within(kube_namespace), servers[1].http_url) as live:
        if not live.has("/tenants/shop"):
            live.say("PUT", "/tenants/shop", {"allowedClusters": ["standalone"]})
            live.say("PUT", "/namespaces/shop/orders")
            live.say("PUT", CREATED)
            live.say("PUT", f"{CREATED}/subscription/audit")
        yield live


def applied(live: Live, **where: object) -> None:
    """A tenant, a namespace, a topic and a subscription that are Ready."""
    live.kubectl.apply(manifest("Tenant", "shop", {**where}))
    live.kubectl.apply(manifest("Namespace", "orders", {**where, "tenant": "shop"}))
    live.kubectl.apply(manifest("Topic", "created", {**where, "name": "shop/orders/created"}))
    topic = "persistent://shop/orders/created"
    live.kubectl.apply(manifest("Subscription", "audit", {**where, "topic": topic}))
    for kind, name in reversed(RESOURCES):
        live.ready(kind, name)


def all_deleted_in_one_cluster_only(old: Live, new: Live) -> None:
    for kind, name in RESOURCES:
        path = f"{kind}.magnetar.io/{name}"
        old.kubectl("delete", path, "--ignore-not-found", "--timeout=60s", timeout_s=70)
    assert not old.has("/tenants/shop")
    assert new.say("GET", f"{CREATED}/subscriptions") == ["audit"]


@pytest.mark.kube
@pytest.mark.usefixtures("crds")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seen", [True, False], ids=["compared", "deleted at once"])
def test_another_cluster_replaces_the_only_one(
    old: Live, new: Live, kube_namespace: str, seen: bool
) -> None:
    """Resources without clusterRef mean the only MagnetarCluster of their namespace."""
    old.kubectl.apply(manifest("MagnetarCluster", "old", {"adminUrl": old.url}))
    with operator(kube_namespace):
        applied(old)
        assert old.status("Topic", "created")["clusterNamespace"] == kube_namespace
        if seen:
            old.kubectl("delete", "magnetarcluster", "old")
            old.kubectl.apply(manifest("MagnetarCluster", "new", {"adminUrl": new.url}))
            for kind, name in RESOURCES:
                message = old.until(kind, name, "Moved")["message"]
                assert "in cluster old" in message
                assert "in cluster new" in message
    if not seen:
        old.kubectl("delete", "magnetarcluster", "old")
        old.kubectl.apply(manifest("MagnetarCluster", "new", {"adminUrl": new.url}))
        for kind, name in RESOURCES:
            old.delete(kind, name, wait=False)
    with operator(kube_namespace):
        all_deleted_in_one_cluster_only(old, new)


@pytest.mark.kube
@pytest.mark.usefixtures("crds")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("change", ["adminUrl", "clusterRef"])
def test_a_manifest_that_names_another_cluster_changes_nothing_in_it(
    old: Live, new: Live, kube_namespace: str, change: str
) -> None:
    new.kubectl.apply(manifest("MagnetarCluster", "new", {"adminUrl": new.url}))
    other = {"adminUrl": new.url} if change == "adminUrl" else {"clusterRef": {"name": "new"}}
    with operator(kube_namespace):
        applied(old, adminUrl=old.url)
        policies = {"policies": {"messageTTL": "1h"}}
        moving = {**other, "name": "shop/orders/created", **policies}
        old.kubectl.apply(manifest("Topic", "created", moving))
        assert (
            "Restore what its manifest refers to"
            in old.until("Topic", "created", "Moved")["message"]
        )
        assert old.status("Topic", "created")["adminUrl"] == old.url
        assert new.say("GET", f"{CREATED}/messageTTL") is None
        all_deleted_in_one_cluster_only(old, new)


@pytest.mark.kube
@pytest.mark.usefixtures("crds")
@pytest.mark.timeout(300)
def test_a_namespace_resource_recreated_with_another_name(
    old: Live, new: Live, kube_namespace: str
) -> None:
    new.say("PUT", "/namespaces/shop/other")
    new.say("PUT", "/persistent/shop/other/created")
    place_fields = {"adminUrl": new.url, "lifecyclePolicy": "KeepAfterDeletion", "tenant": "shop"}
    with operator(kube_namespace):
        new.kubectl.apply(manifest("Namespace", "orders", {**place_fields, "name": "second"}))
        new.kubectl.apply(manifest("Topic", "created", {"namespaceRef": {"name": "orders"}}))
        new.ready("Topic", "created")
        new.delete("Namespace", "orders")
        new.kubectl.apply(manifest("Namespace", "orders", {**place_fields, "name": "other"}))
        new.ready("Namespace", "orders")
        assert (
            "persistent://shop/second/created" in new.until("Topic", "created", "Moved")["message"]
        )
        new.delete("Topic", "created")
    assert not new.has("/persistent/shop/second/created/stats")
    assert new.has("/persistent/shop/other/created/stats")


@pytest.mark.kube
@pytest.mark.usefixtures("crds")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("created_by", ["elder", "younger"])
def test_a_duplicate_that_was_paused_deletes_nothing(
    new: Live, kube_namespace: str, created_by: str
) -> None:
    """Neither its conditions nor another resource mark it as a duplicate any more."""
    spec = {"name": "shop/orders/twin"}
    with operator(kube_namespace):
        if created_by == "elder":
            new.apply("Topic", "elder", spec)
            new.ready("Topic", "elder")
            new.apply("Topic", "younger", spec)
        else:
            new.apply("Topic", "elder", spec, paused="true")
            new.until("Topic", "elder", "Paused")
            new.apply("Topic", "younger", spec)
            new.ready("Topic", "younger")
            new.annotate("Topic", "elder", "magnetar.io/paused-")
            new.ready("Topic", "elder")
        new.until("Topic", "younger", "Duplicate")
        for name in ("elder", "younger"):
            new.annotate("Topic", name, "magnetar.io/paused=true")
            new.until("Topic", name, "Paused")
    new.annotate("Topic", "younger", "magnetar.io/paused-")
    new.delete("Topic", "younger", wait=False)
    with operator(kube_namespace):
        new.gone("topic", "younger")
        assert new.has("/persistent/shop/orders/twin/stats")
        new.annotate("Topic", "elder", "magnetar.io/paused-")
        new.delete("Topic", "elder")
    assert not new.has("/persistent/shop/orders/twin/stats")


@pytest.mark.kube
@pytest.mark.usefixtures("crds")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seen", [True, False], ids=["compared", "deleted at once"])
def test_another_cluster_gets_the_address_of_one_that_is_deleted(
    new: Live, kube_namespace: str, seen: bool
) -> None:
    """The targets at the address belong to the other cluster, not to these resources."""
    address = {"adminUrl": new.url}
    new.kubectl.apply(manifest("MagnetarCluster", "first", address))
    with operator(kube_namespace):
        applied(new)
    new.kubectl("delete", "magnetarcluster", "first")
    new.kubectl.apply(manifest("MagnetarCluster", "second", address))
    if seen:
        with operator(kube_namespace):
            for kind, name in RESOURCES:
                assert "in cluster second" in new.until(kind, name, "Moved")["message"]
    for kind, name in RESOURCES:
        new.delete(kind, name, wait=False)
    with operator(kube_namespace):
        for kind, name in RESOURCES:
            new.gone(kind, name)
    assert new.say("GET", f"{CREATED}/subscriptions") == ["audit"]


@pytest.mark.kube
@pytest.mark.usefixtures("crds")
@pytest.mark.timeout(300)
def test_after_a_restart_a_paused_resource_keeps_its_target(new: Live, kube_namespace: str) -> None:
    twin = "/persistent/shop/orders/twin/stats"
    spec = {"name": "shop/orders/twin"}
    with operator(kube_namespace):
        new.apply("Topic", "elder", spec)
        new.ready("Topic", "elder")
        new.apply("Topic", "younger", spec)
        new.until("Topic", "younger", "Duplicate")
        new.annotate("Topic", "elder", "magnetar.io/paused=true")
        new.until("Topic", "elder", "Paused")
    with operator(kube_namespace):
        new.apply("Topic", "younger", {**spec, "policies": {"messageTTL": "1h"}})
        new.until("Topic", "younger", "Duplicate")
    # An operator that ended before it compared the elder left this behind.
    adopted = json.dumps({"status": {"applied": {"exists": True}, "conditions": []}})
    new.kubectl("patch", "topic.magnetar.io", "younger", "--subresource=status", "--type=merge",
                "-p", adopted)  # fmt: skip
    new.delete("Topic", "younger", wait=False)
    with operator(kube_namespace):
        new.gone("topic", "younger")
        assert new.has(twin)
        new.annotate("Topic", "elder", "magnetar.io/paused-")
        new.delete("Topic", "elder")
    assert not new.has(twin)


NAME = "persistent://shop/orders/created"
HERE = Place("http://a-broker.ns.svc:8080", "a", Target(TOPIC, NAME), "ns", "a")
STATUS = {**HERE.status, "applied": {"exists": True}}


@pytest.mark.parametrize(
    ("changed", "is_moved"),
    [
        ({}, False),
        ({"adminUrl": "http://elsewhere:8080"}, False),  # the same cluster at another address
        ({"adminUrl": "http://elsewhere:8080", "clusterNamespace": ""}, False),  # older release
        ({"adminUrl": "http://a-broker.example.com:80", "clusterNamespace": ""}, False),
        ({"adminUrl": "http://elsewhere:8080", "clusterNamespace": "ns2"}, True),
        ({"adminUrl": "http://a-broker.ns2.svc:8080", "clusterNamespace": ""}, True),
        ({"adminUrl": "http://elsewhere:8080", "cluster": "b"}, True),
        ({"cluster": "b"}, True),  # another cluster got the address
        ({"cluster": "http://a-broker.ns.svc:8080", "clusterNamespace": ""}, False),
        ({"resolvedName": "persistent://shop/orders/other"}, True),
        ({"resolvedName": "persistent://shop/orders/other", "applied": None}, False),
        ({"resolvedName": ""}, False),  # its creation was begun, and no more is recorded
        ({"adminUrl": "http://elsewhere:8080", "cluster": "b", "applied": None}, False),
    ],
)
def test_places_that_differ(changed: dict[str, object], is_moved: bool) -> None:
    assert bool(moved({**STATUS, **changed}, HERE)) is is_moved


def test_one_name_in_two_kubernetes_namespaces_is_two_clusters() -> None:
    place = Place("http://a-broker.ns2.svc:8080", "a", Target(TOPIC, NAME), "ns2", "a")
    assert not same_cluster(HERE.status, place)


@pytest.mark.parametrize(
    ("changed", "does"),
    [
        ({}, True),
        ({"applied": {"creating": True}}, True),
        ({"applied": None}, False),
        ({"applied": {}}, False),
        ({"adminUrl": "http://elsewhere:8080"}, False),
        ({"resolvedName": "persistent://shop/orders/other"}, False),
        ({"resolvedName": ""}, False),
    ],
)
def test_the_resource_that_created_or_adopted_a_target_owns_it(
    changed: dict[str, object], does: bool
) -> None:
    obj = {"kind": "Topic", "status": {**STATUS, **changed}}
    assert owns(obj, HERE.url, HERE.target) is does
    assert not owns({"kind": "Topic"}, HERE.url, HERE.target)
