"""`magnetar plan` of a MagnetarCluster shows the operator's actions, with its settings."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operator.cluster_stage import NAME, NS, SETTINGS, URL, Stage, cluster_stage
from tests.operator.cluster_world import cluster_of
from tests.operator.memory_kube import MemoryKube

from magnetar_operator.cluster.assumed_settings import settings_of
from magnetar_operator.cluster.manifests import brokers as serving
from magnetar_operator.cluster.manifests import storage
from magnetar_operator.cluster.manifests import surroundings as around
from magnetar_operator.cluster.manifests.names import REPLACE_VOLUME
from magnetar_operator.kube.client import KubeClient, Unreachable
from magnetar_operator.kube.kinds import API_VERSION, CLUSTER, Object
from magnetar_operator.plan_manifests import CHANGES, NOTHING, CannotPlan, Findings, PlanFiles
from magnetar_operator.settings import Settings


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    """The process that plans has other settings than the operator."""
    for name in ("IMAGE", "ETCD_IMAGE"):
        monkeypatch.setenv(f"MAGNETAR_OPERATOR_{name}", "laptop:1")
    monkeypatch.setenv("POD_NAMESPACE", "laptop")
    async with cluster_stage(monkeypatch) as stage:
        yield stage


async def planned(on: Stage, spec: dict[str, Any], **annotations: str) -> Findings:
    given = {"adminUrl": URL, "upgrade": {"pauseBetween": "0s"}, **spec}
    metadata = {"name": NAME, "namespace": NS, "annotations": annotations}
    obj = {"apiVersion": API_VERSION, "kind": CLUSTER.kind, "metadata": metadata, "spec": given}
    planning = PlanFiles(on.client, "", NS, on.new_clients())
    written, asked = len(on.kube.writes), len(on.brokers.changes())
    try:
        return await planning.run([obj])
    finally:
        await planning.close()
        assert (len(on.kube.writes), len(on.brokers.changes())) == (written, asked)


def steps(findings: Findings) -> list[tuple[str, str]]:
    return [(action["action"], action["target"]) for action in findings.steps]


async def test_a_missing_cluster_is_created(on: Stage) -> None:
    new_plan = await planned(on, {})
    assert new_plan.code == CHANGES
    assert ("create", "StatefulSet c-etcd") in steps(new_plan)
    assert {action for action, _ in steps(new_plan)} == {"create"}
    assert all(set(action) == {"action", "target", "text", "losesData", "bytes", "topics"}
               for action in new_plan.steps)  # fmt: skip


async def test_a_cluster_that_matches_its_manifest_is_not_changed(on: Stage) -> None:
    await on.complete()
    assert (await planned(on, {})).code == NOTHING
    new_plan = await planned(on, {"broker": {"replicas": 5}})
    assert steps(new_plan) == [("update", "Deployment c-broker")]
    assert "spec.replicas: 2 → 5" in new_plan.steps[0]["text"]
    new_plan = await planned(on, {"image": "magnetar:2"})
    assert ("update", "StatefulSet c-bookie") in steps(new_plan)


async def test_removing_a_bookie_and_replacing_a_volume_start_with_a_drain(on: Stage) -> None:
    await on.complete(bookie={"replicas": 4})
    new_plan = await planned(on, {"bookie": {"replicas": 3}})
    assert ("drain", "Bookie c-bookie-3") in steps(new_plan)
    new_plan = await planned(on, {"bookie": {"replicas": 4}}, **{REPLACE_VOLUME: "c-bookie-1"})
    assert ("drain", "Bookie c-bookie-1") in steps(new_plan)


async def test_settings_without_effect_cannot_be_planned(on: Stage) -> None:
    spec = {"broker": {"config": {"authenticationEnabled": "true"}}}
    with pytest.raises(CannotPlan, match=r"MagnetarCluster ns/c: spec\.broker\.config\.authentic"):
        await planned(on, spec)


# -- the operator's own settings

GIVEN = Settings(image="laptop:1", etcd_image="laptop:2", pod_namespace="laptop")


def objects(kind: str) -> Object:
    cluster = replace(cluster_of(), image="mine:1", etcd_image="mine:2", operator_namespace="op")
    clients = replace(
        cluster_of(networkPolicy={"clients": [{"namespaceSelector": {}}]}), operator_namespace="op"
    )
    policies = {policy["metadata"]["name"]: policy for policy in around.network_policies(clients)}
    return {
        "brokers": serving.broker_deployment(cluster),
        "etcd": storage.etcd_stateful_set(cluster),
        "policy": policies["c-broker"],
        "policy for all": around.network_policies(cluster)[0],
        "bookies": storage.bookie_stateful_set(cluster, 3),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("brokers", {"image": "mine:1"}),
        ("etcd", {"etcd_image": "mine:2"}),
        ("policy", {"pod_namespace": "op"}),
        ("policy for all", {}),
        ("bookies", {}),
        ("", {}),
    ],
)
async def test_the_operators_settings_are_read_from_its_objects(
    kind: str, changed: dict[str, Any]
) -> None:
    kube = MemoryKube()
    if kind:
        kube.put(objects(kind))
    client = kube.client()
    try:
        assert await settings_of(client, "ns", "c", GIVEN) == replace(GIVEN, **changed)
        assert await settings_of(client, "ns", "other", GIVEN) == GIVEN
        assert await settings_of(client, "far", "c", GIVEN) == GIVEN
    finally:
        await client.close()
    assert kube.writes == []
    assert SETTINGS.image != GIVEN.image


# -- the address of Kubernetes

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://kube.example:6443"}}]
users: [{name: me, user: {token: secret}}]
"""


@pytest.mark.parametrize("named", [True, False], ids=["a file", "the default"])
async def test_outside_of_a_pod_the_kubeconfig_locates_kubernetes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    default = str(tmp_path / "none" if named else path)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", default)
    client = KubeClient.connect(str(path) if named else None)
    assert client._host == "https://kube.example:6443"
    await client.close()
    path.unlink()
    with pytest.raises(Unreachable, match="no Kubernetes to connect to"):
        KubeClient.connect(str(path) if named else None)
