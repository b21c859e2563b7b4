"""Brokers are down: statuses, waiting resources, forced deletions, and no hanging operator."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client
from tests.operator.resource_rig import Live, Operator, manifest, operator, until
from tests.support.kube import Tool, delete_namespace, fresh_namespace
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.kube, pytest.mark.usefixtures("crds"), pytest.mark.timeout(300)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as started:
        yield started


@pytest.fixture
def live(
    kube_api: client.ApiClient, kubectl: Tool, kube_namespace: str, server: ServerProcess
) -> Iterator[Live]:
    with (
        Live(kubectl.within(kube_namespace), server.http_url) as rig,
        operator(kube_namespace),
    ):
        rig.say("PUT", "/tenants/shop", {"allowedClusters": ["standalone"]})
        rig.say("PUT", "/namespaces/shop/orders")
        yield rig


def test_a_deletion_waits_reports_it_and_can_be_forced(live: Live, server: ServerProcess) -> None:
    for name in ("waits", "forced"):
        live.apply("Topic", name, {"name": f"shop/orders/{name}"})
        live.ready("Topic", name)
    server.kill()
    down = live.until("Topic", "waits", "ClusterUnreachable")
    assert "cannot be reached" in down["message"]
    for name in ("waits", "forced"):
        live.delete("Topic", name, wait=False)
        blocked = live.until("Topic", name, "ClusterUnreachable", "DeletionBlocked")
        assert 'annotate the resource with magnetar.io/force-delete="true"' in blocked["message"]
    live.annotate("Topic", "forced", "magnetar.io/force-delete=true")
    live.gone("topic", "forced")
    assert "may still be in the cluster" in live.event("LetGo", "forced")
    server.start()
    live.gone("topic", "waits")
    assert not live.has("/persistent/shop/orders/waits/stats")
    assert live.has("/persistent/shop/orders/forced/stats")


def test_waiting_resources_continue_when_brokers_return(live: Live, server: ServerProcess) -> None:
    server.kill()
    for number in range(3):
        live.apply("Topic", f"t{number}", {"name": f"shop/orders/t{number}"})
    for number in range(3):
        live.until("Topic", f"t{number}", "ClusterUnreachable")
    server.start()
    for number in range(3):
        live.ready("Topic", f"t{number}")


def several_looks(running: Operator, more: int = 5) -> None:
    looks = running.context.queue.reconciles
    before = looks.copy()
    kinds = ("Tenant", "Namespace", "Topic", "Subscription")
    until("looks", lambda: all(looks[kind] > before[kind] + more for kind in kinds))


def test_a_restarted_operator_changes_nothing(
    kubectl: Tool, kube_namespace: str, server: ServerProcess
) -> None:
    with Live(kubectl.within(kube_namespace), server.http_url) as live:
        with operator(kube_namespace, resync_s=0.2) as first:
            live.apply("Tenant", "shop", {"adminRoles": ["a"]})
            quota = {"destination_storage": {"size": "1Gi", "policy": "producer_request_hold"}}
            policies = {"messageTTL": "1h", "backlogQuota": quota}
            live.apply("Namespace", "orders", {"tenant": "shop", "policies": policies})
            policies = {"messageTTL": "2h", "backlogQuota": quota}
            live.apply("Topic", "a", {"name": "shop/orders/a", "policies": policies})
            live.apply("Subscription", "s", {"topic": "persistent://shop/orders/a"})
            live.ready("Subscription", "s")
            for kind, name in (("Tenant", "shop"), ("Namespace", "orders"), ("Topic", "a")):
                live.ready(kind, name)
            several_looks(first)  # a topic that was Ready before shows its subscription after
        obj = live.get("Topic", "a")
        with operator(kube_namespace, resync_s=0.2) as again:
            several_looks(again)
            written = {
                (verb, resource): count
                for (verb, _, resource), count in again.context.kube.requests.items()
                if verb not in ("get", "list", "watch") and resource != "leases"
            }
            assert written == {}
        assert live.get("Topic", "a") == obj
        assert live.say("GET", "/persistent/shop/orders/a/messageTTL") == 7_200


def test_a_kubernetes_namespace_is_deleted_with_its_cluster_while_brokers_are_down(
    kube_api: client.ApiClient, kubectl: Tool, kube_namespace: str, server: ServerProcess
) -> None:
    leaving = fresh_namespace(kube_api)
    with (
        Live(kubectl.within(leaving), server.http_url) as live,
        operator(kube_namespace, leaving),
    ):
        live.kubectl.apply(manifest("MagnetarCluster", "main", {"adminUrl": server.http_url}))
        ref = {"clusterRef": {"name": "main"}}
        live.apply("Tenant", "shop", ref)
        live.apply("Namespace", "orders", {**ref, "tenant": "shop"})
        live.apply("Topic", "t", {"namespaceRef": {"name": "orders"}})
        assert live.ready("Topic", "t")["cluster"] == "main"
        server.kill()
        delete_namespace(kube_api, leaving)
        kubectl("wait", "--for=delete", f"namespace/{leaving}", "--timeout=120s", timeout_s=130)
