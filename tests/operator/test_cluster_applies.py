"""Objects that differ are created, updated or repaired, and an Event names which."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.cluster_world import World, cluster_of, made, respec

from magnetar_operator.cluster.manifests.names import APPLIED
from magnetar_operator.cluster.manifests.storage import REPLICAS_SET
from magnetar_operator.engine.plan import Apply

SERVICE, BUDGET = ("Service", "c-broker"), ("PodDisruptionBudget", "c-bookie")
SET, CONFIG = ("StatefulSet", "c-bookie"), ("ConfigMap", "c-broker")


@pytest.fixture
def world() -> World:
    return made()


def changed(world: World, key: tuple[str, str]) -> Apply:
    """The only action, which must be for that object."""
    (found,) = world.plan().actions
    assert isinstance(found, Apply)
    assert (found.manifest["kind"], found.manifest["metadata"]["name"]) == key
    return found


def gone(world: World) -> None:
    del world.objects[SERVICE]


def by_spec(world: World) -> None:
    respec(world, broker={"service": {"type": "NodePort"}})


def by_hand(world: World) -> None:
    world.objects[SERVICE]["spec"]["type"] = "NodePort"


def by_an_older_release(world: World) -> None:
    """The last apply differed, and no client has changed the object since."""
    by_hand(world)
    world.objects[SERVICE]["metadata"]["annotations"][APPLIED] = "digest"


def without_its_digest(world: World) -> None:
    del world.objects[SERVICE]["metadata"]["annotations"]


def budget_by_hand(world: World) -> None:
    world.objects[BUDGET]["spec"]["maxUnavailable"] = 3


def budget_by_the_ledgers(world: World) -> None:
    world.ledgers[99] = {"c-bookie-0"}


def budget_by_both(world: World) -> None:
    budget_by_the_ledgers(world)
    world.objects[BUDGET]["spec"]["maxUnavailable"] = 3


def scaled_by_hand(world: World) -> None:
    world.objects[SET]["spec"]["replicas"] = 2


def scaled_by_spec(world: World) -> None:
    respec(world, bookie={"replicas": 4})


def annotation_by_hand(world: World) -> None:
    del world.objects[SET]["metadata"]["annotations"][REPLICAS_SET]


CASES: dict[Callable[[World], None], tuple[tuple[str, str], str, str, str]] = {
    gone: (SERVICE, "create", "Created", "Service c-broker is created"),
    by_spec: (SERVICE, "update", "Updated", "spec.type: ClusterIP → NodePort"),
    by_hand: (SERVICE, "repair", "DriftRepaired", "spec.type: NodePort → ClusterIP"),
    by_an_older_release: (SERVICE, "update", "Updated", "spec.type: NodePort → ClusterIP"),
    without_its_digest: (SERVICE, "update", "Updated", "metadata.annotations: nothing → "),
    budget_by_hand: (BUDGET, "repair", "DriftRepaired", "spec.maxUnavailable: 3 → 1"),
    # It follows the ledgers' health all the time, which is no news.
    budget_by_the_ledgers: (BUDGET, "update", "", "spec.maxUnavailable: 1 → 0"),
    budget_by_both: (BUDGET, "update", "", "spec.maxUnavailable: 3 → 0"),
    scaled_by_hand: (SET, "repair", "ScaledBack", "scaled from 3 to 2 bookies by hand: reverted"),
    scaled_by_spec: (SET, "update", "Updated", "metadata.annotations.magnetar.io/replicas: 3 → 4"),
    annotation_by_hand: (SET, "repair", "DriftRepaired", "metadata.annotations.magnetar.io/replic"),
}  # fmt: skip


@pytest.mark.parametrize("change", CASES, ids=[case.__name__ for case in CASES])
def test_the_event_distinguishes_creation_update_and_repair(
    world: World, change: Callable[[World], None]
) -> None:
    key, verb, reason, text = CASES[change]
    change(world)
    found = changed(world, key)
    assert (found.verb, found.reason) == (verb, reason)
    assert found.text.startswith(text)
    if change is not without_its_digest:
        assert APPLIED not in found.text, "a digest says nothing to people"
    assert found.before == (world.objects[key] if change is not gone else None)
    world.settle()
    assert not world.plan().actions


def test_fields_of_the_server_and_of_other_managers_are_kept(world: World) -> None:
    service: dict[str, Any] = world.objects[SERVICE]
    service["metadata"]["annotations"]["theirs"] = "kept"
    service["metadata"]["labels"]["theirs"] = "kept"
    service["spec"]["clusterIP"] = "10.0.0.1"
    service["status"] = {"loadBalancer": {}}
    assert not world.plan().actions


@pytest.mark.parametrize("component", ["bookie", "etcd"])
def test_the_claims_of_a_stored_stateful_set_never_change(component: str) -> None:
    """Kubernetes refuses another template; volumes grow one by one instead."""
    world = made()
    key = ("StatefulSet", f"c-{component}")
    stored = world.objects[key]["spec"]["volumeClaimTemplates"]
    stored[0] |= {"status": {"phase": "Pending"}}
    respec(world, **{component: {"storage": {"size": "20Gi"}}})
    new_plan = [action for action in world.plan().actions if isinstance(action, Apply)]
    assert {item.manifest["kind"] for item in new_plan} == {"PersistentVolumeClaim"}
    respec(world, **{component: {"storage": {"size": "20Gi"}, "podAnnotations": {"a": "b"}}})
    (made_anew,) = [
        action.manifest
        for action in world.plan().actions
        if isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet"
    ]
    (template,) = made_anew["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert "status" not in template, "what the server adds is not ours to say"


def test_objects_of_a_cluster_with_the_same_name_are_not_deleted() -> None:
    """An object that the spec drops is deleted only if this MagnetarCluster created it."""
    world = made(autorecovery={"mode": "Separate"})
    deployment = world.objects["Deployment", "c-recovery"]
    deployment["metadata"]["ownerReferences"][0]["uid"] = "of another"
    world.cluster = cluster_of()
    removed = [
        action.step.target for action in world.plan().actions if action.step.action == "delete"
    ]
    parts = ("ConfigMap", "NetworkPolicy", "ServiceAccount")
    assert removed == [f"{kind} c-recovery" for kind in parts]


def test_a_stateful_set_is_repaired_while_etcd_and_brokers_are_down(
    world: World,
) -> None:
    """Only the first creation waits for etcd."""
    for name, pod in world.pods.items():
        if pod.component in ("etcd", "broker"):
            world.pods[name] = replace(pod, ready=False, ready_since=None)
    scaled_by_hand(world)
    plan = world.plan()
    (back,) = [action for action in plan.actions if isinstance(action, Apply) and action.reason]
    assert (back.reason, back.manifest["spec"]["replicas"]) == ("ScaledBack", 3)
    assert "bookies are created once etcd is ready" not in plan.waits
    assert "brokers are created once 2 bookies are ready" not in plan.waits


def test_brokers_are_kept_and_repaired_also_while_too_few_bookies_are_ready(world: World) -> None:
    """Only their creation waits for bookies. Deleted, they would serve no reads either."""
    for name, pod in world.pods.items():
        if pod.component == "bookie":
            world.pods[name] = replace(pod, ready=False, ready_since=None)
    deployment = world.objects["Deployment", "c-broker"]
    deployment["spec"]["replicas"] += 5
    new_plan = world.plan()
    assert "Deployment c-broker" not in [
        action.step.target for action in new_plan.actions if not isinstance(action, Apply)
    ]
    assert not [text for text in new_plan.waits if text.startswith("brokers are created")]
    (repaired,) = [
        action for action in new_plan.actions
        if isinstance(action, Apply) and action.manifest["metadata"]["name"] == "c-broker"
        and action.manifest["kind"] == "Deployment"
    ]  # fmt: skip
    assert repaired.manifest["spec"]["replicas"] == deployment["spec"]["replicas"] - 5


def test_a_volume_that_is_being_deleted_is_not_grown(world: World) -> None:
    world.claims["data-c-bookie-1"]["metadata"]["deletionTimestamp"] = "by hand"
    respec(world, bookie={"storage": {"size": "20Gi"}})
    new_plan = [action.manifest for action in world.plan().actions if isinstance(action, Apply)]
    grown = [
        item["metadata"]["name"] for item in new_plan if item["kind"] == "PersistentVolumeClaim"
    ]
    assert grown == ["data-c-bookie-0", "data-c-bookie-2"]


def test_bookies_scaled_away_by_hand_are_restored_first(world: World) -> None:
    """Each write before it leaves the StatefulSet's controller time to delete pods."""
    scaled_by_hand(world)
    budget_by_hand(world)
    respec(world, broker={"config": {"x_y": "1"}, "service": {"type": "NodePort"}})
    new_plan = [action.manifest for action in world.plan().actions if isinstance(action, Apply)]
    assert len(new_plan) > 3
    assert (new_plan[0]["kind"], new_plan[0]["metadata"]["name"]) == SET


def test_the_members_of_an_etcd_created_open_keep_the_addresses_that_they_recorded(
    world: World,
) -> None:
    """With another scheme, each restarted member would lose the others."""
    respec(world, tls={"enabled": True})
    plan = world.plan()
    assert [text for text in plan.problems if text.startswith("spec.tls.etcd.peers: ")]
    (etcd,) = [
        action.manifest
        for action in plan.actions
        if isinstance(action, Apply)
        and (action.manifest["kind"], action.manifest["metadata"]["name"])
        == ("StatefulSet", "c-etcd")
    ]
    arguments = etcd["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--listen-peer-urls=http://0.0.0.0:2380" in arguments
    respec(world, tls={"enabled": True, "etcd": {"peers": False}})
    assert not [text for text in world.plan().problems if "etcd.peers" in text]
