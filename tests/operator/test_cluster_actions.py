"""A reconcile's requests to brokers, and its actions on pods and volumes."""

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.operator.cluster_stage import NAME, Stage, cluster_stage
from tests.operator.memory_kube import Asked, Refusal

from magnetar_operator.admin import client as admin_client
from magnetar_operator.cluster import observe
from magnetar_operator.cluster.bookie_drain import REQUEUE_S
from magnetar_operator.cluster.manifests.names import REPLACE_VOLUME
from magnetar_operator.cluster.observed import REASON_OF_OURS, VOLUME_REASON
from magnetar_operator.cluster.reconciler import AGAIN_AFTER_ACTING_S
from magnetar_operator.cluster.scale_up import SCALED_UP
from magnetar_operator.kube.kinds import (
    DEPLOYMENT,
    EVENT,
    HPA,
    NETWORK_POLICY,
    PDB,
    POD,
    PVC,
    STATEFUL_SET,
)


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with cluster_stage(monkeypatch) as stage:
        yield stage


# -- the brokers' answers


@pytest.mark.parametrize("how", ["no broker", "no answer", "no document"])
async def test_without_the_brokers_answer_no_bookie_is_removed(on: Stage, how: str) -> None:
    spec = {} if how != "no broker" else {"adminUrl": None}
    await on.complete()
    if how == "no broker":
        on.unready.add("broker")
        on.controllers()
    elif how == "no answer":
        on.brokers.answer = lambda _: httpx.Response(503)
    else:
        on.brokers.answer = lambda _: httpx.Response(200, json={"healthy": "perhaps"})
    count = len(on.brokers.asked)
    on.apply({**spec, "image": "magnetar:2"})
    bookies = {pod: on.kube.get(POD, pod)["metadata"]["uid"] for pod in on.pods("bookie")}
    for _ in range(3):
        await on.look()
        on.controllers()
    assert on.condition("LedgersHealthy")["status"] == "Unknown"
    if how == "no broker":
        assert on.condition("LedgersHealthy")["message"] == "no broker is ready"
        assert len(on.brokers.asked) == count
    after = {pod: on.kube.get(POD, pod)["metadata"]["uid"] for pod in on.pods("bookie")}
    assert after == bookies
    budget = next(obj for obj in on.kube.all_of(PDB) if "bookie" in obj["metadata"]["name"])
    assert budget["spec"].get("maxUnavailable", 0) == 0


async def test_slow_brokers_do_not_delay_a_reconcile(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await on.complete()
    monkeypatch.setattr(observe, "ADMIN_TIMEOUT_S", 0.0)
    await on.look()
    condition = on.condition("LedgersHealthy")
    assert (condition["status"], condition["message"]) == (
        "Unknown", "the brokers did not answer in time",
    )  # fmt: skip


async def test_an_upgrade_replaces_one_pod_after_the_other_by_its_uid(on: Stage) -> None:
    await on.complete()
    before = {pod: on.kube.get(POD, pod)["metadata"]["uid"] for pod in on.pods("bookie")}
    on.apply({"image": "magnetar:2"})
    order: list[str] = []
    for _ in range(20):
        await on.look()
        gone = [item for item in before if not on.kube.get(POD, item)]
        assert len(gone) <= 1
        order += gone
        on.controllers()
        on.pass_s(1)
    assert order == ["c-bookie-2", "c-bookie-1", "c-bookie-0"]
    deleted = [
        write for write in on.kube.writes if write.method == "DELETE" and "/pods/" in write.path
    ]
    assert [request.body["preconditions"]["uid"] for request in deleted[-3:]] == [
        before[name] for name in order
    ]
    assert len(on.notes("Restarted")) == len(deleted)
    await on.settle()
    assert on.condition("Upgrading")["status"] == "False"
    images = {pod["spec"]["containers"][0]["image"] for pod in on.kube.all_of(POD)}
    assert images == {"magnetar:2", "etcd:1"}


async def test_a_pod_that_was_replaced_meanwhile_is_not_reported(on: Stage) -> None:
    await on.complete()
    on.apply({"image": "magnetar:2"})
    on.kube.refuse = lambda asked: (
        Refusal(409, "Conflict") if asked.method == "DELETE" and "/pods/" in asked.path else None
    )
    for _ in range(3):
        await on.look()
        on.controllers()
    assert on.notes("Restarted") == []
    assert on.condition("Ready")["reason"] != "NotDone"


async def test_a_bookie_is_removed_only_after_its_drain(on: Stage) -> None:
    await on.complete(bookie={"replicas": 4})
    on.apply({"bookie": {"replicas": 3}})
    await on.settle()
    ((method, path, body),) = on.brokers.changes()
    assert (method, path) == ("POST", "/bookies/c-bookie-3/drain")
    assert body["reason"].startswith(f"{REASON_OF_OURS}bookies 4 → 3")
    assert len(on.notes("DrainBegins")) == 1
    assert len(on.pods("bookie")) == 4
    assert on.status()["drain"]["bookie"] == "c-bookie-3"
    assert await on.look() == REQUEUE_S
    on.brokers.prove("c-bookie-3")
    await on.settle()
    assert len(on.pods("bookie")) == 3
    assert on.brokers.drains == {}
    assert on.brokers.changes()[-1][:2] == ("DELETE", "/bookies/c-bookie-3/drain")
    (note,) = on.notes("DrainEnds")
    assert "its name may be used again" in note
    assert on.kube.get(PVC, "data-c-bookie-3") != {}, "its volume stays"


async def test_a_missing_drain_is_not_a_failure(on: Stage) -> None:
    await on.complete(bookie={"replicas": 4})
    on.apply({"bookie": {"replicas": 3}})
    await on.settle()
    on.apply({"bookie": {"replicas": 4}})
    on.brokers.answer = lambda request: httpx.Response(404) if request.method == "DELETE" else None
    assert await on.look() is not AGAIN_AFTER_ACTING_S
    assert on.notes("DrainEnds") == []
    assert on.condition("Ready")["status"] == "True"
    on.brokers.answer = lambda request: (
        httpx.Response(412, json={"reason": "no"}) if request.method == "DELETE" else None
    )
    with pytest.raises(admin_client.Refused):
        await on.look()
    assert on.condition("Ready")["reason"] == "NotDone"


async def test_a_volume_is_replaced_after_its_proof_and_the_request_removed(
    on: Stage,
) -> None:
    await on.complete(bookie={"replicas": 4})
    old = on.kube.get(PVC, "data-c-bookie-1")["metadata"]["uid"]
    on.apply({"bookie": {"replicas": 4}}, replace_volume=" c-bookie-1 ")
    await on.settle()
    ((_, path, body),) = on.brokers.changes()
    assert path == "/bookies/c-bookie-1/drain"
    assert body["reason"].startswith(f"{VOLUME_REASON}{old} of c-bookie-1")
    assert on.kube.get(PVC, "data-c-bookie-1")["metadata"]["uid"] == old
    assert await on.look() == REQUEUE_S
    on.brokers.prove("c-bookie-1")
    await on.settle()
    assert on.kube.get(PVC, "data-c-bookie-1")["metadata"]["uid"] != old
    (deleted,) = [write for write in on.kube.writes_of(PVC) if write.method == "DELETE"]
    assert deleted.body["preconditions"] == {"uid": old}
    assert len(on.notes("VolumeDeleted")) == 1
    assert len(on.notes("VolumeReplaced")) == 1
    assert on.brokers.drains == {}
    assert REPLACE_VOLUME not in (on.owner()["metadata"].get("annotations") or {})
    (cleared,) = [write for write in on.kube.writes if write.path.endswith("magnetarclusters/c")]
    assert set(cleared.body["metadata"]) == {"annotations", "resourceVersion"}


async def test_a_changed_request_is_not_removed(on: Stage) -> None:
    await on.complete(bookie={"replicas": 4})
    on.apply({"bookie": {"replicas": 4}}, replace_volume="c-bookie-1")
    await on.settle()
    on.brokers.prove("c-bookie-1")

    def asks_again(asked: Asked) -> None:
        if asked.method == "PATCH" and asked.path.endswith("magnetarclusters/c"):
            on.apply({"bookie": {"replicas": 4}}, replace_volume="c-bookie-2")
            on.kube.refuse = lambda _: None

    on.kube.refuse = asks_again
    await on.settle()
    assert on.owner()["metadata"]["annotations"] == {REPLACE_VOLUME: "c-bookie-2"}
    assert "c-bookie-2" in on.brokers.drains


async def test_a_replaced_volume_is_not_deleted(on: Stage) -> None:
    await on.complete(bookie={"replicas": 4})
    on.apply({"bookie": {"replicas": 4}}, replace_volume="c-bookie-1")
    await on.settle()
    on.brokers.prove("c-bookie-1")
    on.kube.refuse = lambda asked: (
        Refusal(409, "Conflict")
        if asked.method == "DELETE" and "persistentvolumeclaims" in asked.path
        else None
    )
    await on.look()
    assert on.notes("VolumeDeleted") == []
    assert on.condition("Ready")["reason"] != "NotDone"


async def test_a_volume_without_our_labels_does_not_count_as_missing(on: Stage) -> None:
    """Its bookie's drain would else count as done, and its record would go."""
    await on.complete(bookie={"replicas": 4})
    on.apply({"bookie": {"replicas": 4}}, replace_volume="c-bookie-1")
    await on.settle()
    claim = on.kube.get(PVC, "data-c-bookie-1")
    claim["metadata"]["labels"] = {}
    on.kube.put(claim)
    on.brokers.prove("c-bookie-1")
    await on.look()
    assert on.notes("Restarted") == []
    (deleted,) = [write for write in on.kube.writes_of(PVC) if write.method == "DELETE"]
    assert deleted.body["preconditions"] == {"uid": claim["metadata"]["uid"]}


async def test_stateful_sets_without_our_labels_are_repaired_not_recreated(on: Stage) -> None:
    await on.complete(bookie={"replicas": 4})
    for name in ("c-bookie", "c-etcd"):
        obj = on.kube.get(STATEFUL_SET, name)
        obj["metadata"]["labels"] = {}
        on.kube.put(obj)
    on.apply({"bookie": {"replicas": 3}})
    await on.look()
    repaired = " ".join(on.notes("DriftRepaired") + on.notes("Updated"))
    assert "StatefulSet c-bookie: " in repaired
    assert "StatefulSet c-etcd: " in repaired
    obj = on.kube.get(STATEFUL_SET, "c-bookie")
    assert obj["spec"]["replicas"] == 4, "no bookie goes for want of a label"
    assert obj["metadata"]["labels"]["cluster"] == NAME


async def test_scaling_during_a_waiting_upgrade_changes_only_the_number(on: Stage) -> None:
    await on.complete()
    on.brokers.trouble = {"healthy": False, "reason": "1 ledger lacks copies", "underReplicated": 1}
    on.apply({"image": "magnetar:2", "broker": {"replicas": 4}})
    for _ in range(3):
        await on.look()
        on.controllers()
    obj = on.kube.get(DEPLOYMENT, "c-broker")
    assert obj["spec"]["replicas"] == 4
    assert obj["spec"]["template"]["spec"]["containers"][0]["image"] == "magnetar:1"
    assert [write for write in on.kube.writes if write.path.endswith("deployments/c-broker/scale")]


async def test_the_budget_follows_the_ledgers_health_without_an_event(on: Stage) -> None:
    await on.complete()
    before = [event["note"] for event in on.kube.all_of(EVENT)]
    on.brokers.trouble = {"healthy": False, "reason": "1 ledger lacks copies", "underReplicated": 1}
    await on.look()
    budget = on.kube.get(PDB, "c-bookie")
    assert budget["spec"]["maxUnavailable"] == 0
    on.brokers.trouble = {}
    await on.look()
    assert on.kube.get(PDB, "c-bookie")["spec"]["maxUnavailable"] == 1
    assert [event["note"] for event in on.kube.all_of(EVENT)] == before


async def test_bookies_added_for_full_disks_survive_the_stateful_sets_deletion(
    on: Stage,
) -> None:
    spec = {"bookie": {"replicas": 3, "scaleUp": {"enabled": True}}}
    await on.complete(**spec)
    full = [
        {"bookieId": name, "incarnation": "1", "diskBytesTotal": 100, "diskBytesFree": 5}
        for name in on.pods("bookie")
    ]
    on.brokers.trouble = {"bookies": full}
    await on.look()
    on.brokers.trouble = {}
    await on.settle()
    assert len(on.pods("bookie")) == 4
    mark = on.status()["scaledUp"]
    assert mark.startswith("4 ")
    on.kube.drop(STATEFUL_SET, "c-bookie")
    await on.settle()
    obj = on.kube.get(STATEFUL_SET, "c-bookie")
    assert obj["spec"]["replicas"] == 4
    assert obj["metadata"]["annotations"][SCALED_UP] == mark
    assert on.brokers.changes() == [], "none of them is emptied"


async def test_a_stateful_set_deleted_during_a_drain_is_created_with_all_bookies(on: Stage) -> None:
    await on.complete(bookie={"replicas": 5})
    on.apply({"bookie": {"replicas": 3}})
    await on.settle()
    on.kube.drop(STATEFUL_SET, "c-bookie")
    await on.settle()
    assert on.kube.get(STATEFUL_SET, "c-bookie")["spec"]["replicas"] == 5
    assert len(on.pods("bookie")) == 5


async def test_a_cluster_that_was_ready_is_degraded_while_it_is_not(on: Stage) -> None:
    on.apply()
    on.unready.add("broker")
    await on.settle()
    assert on.status()["phase"] == "Creating"
    on.unready.clear()
    await on.settle()
    assert on.status()["phase"] == "Running"
    on.unready.add("c-bookie-1")
    on.controllers()
    for _ in range(3):
        await on.look()
        assert on.status()["phase"] == "Degraded"
    on.unready.clear()
    await on.settle()
    assert on.status()["phase"] == "Running"


@pytest.mark.parametrize("how", ["rolling", "manual", "none works"])
async def test_brokers_wait_for_the_bookies_upgrade_only_if_that_prevents_harm(
    on: Stage, how: str
) -> None:
    strategy = "Manual" if how == "manual" else "Rolling"
    upgrade = {"pauseBetween": "0s", "strategy": strategy}
    await on.complete(upgrade=upgrade)
    if how == "none works":
        on.unready.add("broker")
        on.controllers()
    on.brokers.trouble = {"healthy": False, "reason": "1 ledger lacks copies", "underReplicated": 1}
    on.apply({"image": "magnetar:2", "upgrade": upgrade})
    for _ in range(3):
        await on.look()
        on.controllers()
    template = on.kube.get(DEPLOYMENT, "c-broker")["spec"]["template"]
    image = template["spec"]["containers"][0]["image"]
    assert image == ("magnetar:1" if how == "rolling" else "magnetar:2")
    bookies = {on.kube.get(POD, pod)["spec"]["containers"][0]["image"] for pod in on.pods("bookie")}
    assert bookies == {"magnetar:1"}


async def test_network_policies_and_the_autoscaler_are_deleted_when_switched_off(on: Stage) -> None:
    await on.complete(broker={"autoscaling": {"enabled": True}})
    assert on.kube.all_of(HPA) != []
    assert on.kube.all_of(NETWORK_POLICY) != []
    on.apply({"networkPolicy": {"enabled": False}})
    await on.settle()
    assert on.kube.all_of(HPA) == []
    assert on.kube.all_of(NETWORK_POLICY) == []
