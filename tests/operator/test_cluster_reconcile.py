"""One reconcile of a MagnetarCluster: creations, repairs, requests to brokers, the status."""

from collections.abc import AsyncIterator

import pytest
from tests.operator.cluster_stage import NAME, NS, Stage, cluster_stage
from tests.operator.memory_kube import Asked, Refusal

from magnetar_operator.cluster.observe import MONITORS_FRESH_S
from magnetar_operator.cluster.reconciler import AGAIN_AFTER_ACTING_S
from magnetar_operator.kube.client import Forbidden, Unreachable
from magnetar_operator.kube.kinds import (
    CLUSTER,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    PDB,
    PVC,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVICE_MONITOR,
    STATEFUL_SET,
)


@pytest.fixture
async def on(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with cluster_stage(monkeypatch) as stage:
        yield stage


# -- creation, and no further change


async def test_a_clusters_objects_are_owned_by_it(on: Stage) -> None:
    on.apply()
    assert await on.look() == AGAIN_AFTER_ACTING_S
    assert on.status()["phase"] == "Pending"
    assert on.kube.get(STATEFUL_SET, "c-etcd") != {}
    assert on.kube.get(STATEFUL_SET, "c-bookie") == {}, "bookies are created once etcd is ready"
    await on.settle()
    assert on.condition("Ready")["status"] == "True"
    assert on.status()["phase"] == "Running"
    uid = on.owner()["metadata"]["uid"]
    for kind in (STATEFUL_SET, DEPLOYMENT, SERVICE, SERVICE_ACCOUNT, CONFIG_MAP, PDB):
        objects = on.kube.all_of(kind)
        assert objects, kind
        for item in objects:
            (owner,) = item["metadata"]["ownerReferences"]
            assert owner["uid"] == uid
    assert "StatefulSet c-bookie is created" in on.notes("Created")
    assert (on.status()["brokers"]["ready"], on.status()["bookies"]["ready"]) == (
        on.status()["brokers"]["desired"], 3,
    )  # fmt: skip


async def test_a_reconcile_with_nothing_to_do_writes_nothing(on: Stage) -> None:
    await on.complete()
    written = len(on.kube.writes)
    for _ in range(2):
        assert await on.look() is None
    assert len(on.kube.writes) == written
    assert on.brokers.changes() == []


async def test_foreign_changes_are_repaired_and_reported(on: Stage) -> None:
    await on.complete()
    obj = on.kube.get(SERVICE, "c-broker")
    obj["spec"]["ports"][0]["port"] = 1
    on.kube.put(obj)
    assert await on.look() is None, "what was not made anew needs no look soon"
    assert on.kube.get(SERVICE, "c-broker")["spec"]["ports"][0]["port"] != 1
    (note,) = on.notes("DriftRepaired")
    assert note.startswith("Service c-broker: ")
    (event,) = [event for event in on.kube.all_of(EVENT) if event["reason"] == "DriftRepaired"]
    assert event["type"] == "Warning"
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == (CLUSTER.kind, NAME)
    on.apply({"broker": {"replicas": 3}})
    await on.settle()
    (event,) = [event for event in on.kube.all_of(EVENT) if event["reason"] == "Updated"]
    assert event["type"] == "Normal"
    assert len(on.pods("broker")) == 3


async def test_only_our_objects_are_deleted_when_the_spec_drops_them(on: Stage) -> None:
    await on.complete(autorecovery={"mode": "Separate"})
    assert on.kube.get(DEPLOYMENT, "c-recovery") != {}
    theirs = on.kube.get(CONFIG_MAP, "c-broker")
    theirs["metadata"] |= {"name": "theirs", "ownerReferences": []}
    for name in ("uid", "resourceVersion"):
        del theirs["metadata"][name]
    on.kube.put(theirs)
    on.apply()
    await on.settle()
    assert on.kube.get(DEPLOYMENT, "c-recovery") == {}
    assert on.kube.get(CONFIG_MAP, "theirs") != {}
    assert any("Deployment c-recovery" in note for note in on.notes("Removed"))


async def test_a_newer_object_of_the_same_name_is_not_deleted(on: Stage) -> None:
    await on.complete(autorecovery={"mode": "Separate"})
    on.apply()
    uid = on.kube.get(DEPLOYMENT, "c-recovery")["metadata"]["uid"]

    def replaced(asked: Asked) -> None:
        if asked.method == "DELETE" and asked.path.endswith("deployments/c-recovery"):
            assert asked.body["preconditions"] == {"uid": uid}
            obj = on.kube.get(DEPLOYMENT, "c-recovery")
            on.kube.drop(DEPLOYMENT, "c-recovery")
            on.kube.put({**obj, "metadata": {**obj["metadata"], "uid": "another"}})

    on.kube.refuse = replaced
    await on.look()
    assert on.kube.get(DEPLOYMENT, "c-recovery")["metadata"]["uid"] == "another"
    assert not [note for note in on.notes("Removed") if "Deployment" in note]


async def test_monitors_are_created_if_their_kind_exists_which_is_checked_at_intervals(
    on: Stage,
) -> None:
    await on.complete()
    assert on.kube.all_of(SERVICE_MONITOR) == []
    on.kube.served = {SERVICE_MONITOR.kind}
    on.time_s += MONITORS_FRESH_S - 60
    count = len(
        [request for request in on.kube.asked if request.path.endswith("monitoring.coreos.com/v1")]
    )
    await on.look()
    later = len(
        [request for request in on.kube.asked if request.path.endswith("monitoring.coreos.com/v1")]
    )
    assert later - count <= 1
    on.time_s += MONITORS_FRESH_S
    await on.settle()
    assert on.kube.all_of(SERVICE_MONITOR) != []
    count = len(
        [request for request in on.kube.asked if request.path.endswith("monitoring.coreos.com/v1")]
    )
    await on.look()
    again = len(
        [request for request in on.kube.asked if request.path.endswith("monitoring.coreos.com/v1")]
    )
    assert again == count


# -- not now


@pytest.mark.parametrize("how", ["paused", "plan", "spec"])
async def test_a_paused_or_planned_cluster_is_not_changed(on: Stage, how: str) -> None:
    on.apply({"paused": True} if how == "spec" else {}, **({} if how == "spec" else {how: "true"}))
    await on.look()
    assert {write.path.rpartition("/")[2] for write in on.kube.writes} <= {"status", "events"}
    assert [write for write in on.kube.writes if not write.path.endswith("/status")] == []
    if how == "plan":
        assert "StatefulSet c-etcd" in [step["target"] for step in on.status()["plan"]]
    else:
        assert on.condition("Paused")["status"] == "True"
        assert "plan" not in on.status()
    on.apply()
    await on.settle()
    assert on.condition("Ready")["status"] == "True"
    assert on.condition("Paused") == {}
    assert "plan" not in on.status()


async def test_a_deleted_or_replaced_cluster_is_not_changed(on: Stage) -> None:
    applied = on.apply()
    obj = on.kube.put({**applied, "metadata": {**applied["metadata"], "finalizers": ["theirs"]}})
    on.kube.remove(CLUSTER, NAME)
    assert await on.handler.reconcile(on.owner()) is None
    assert await on.handler.reconcile(obj) is None, "the watch has not shown that it goes"
    on.kube.drop(CLUSTER, NAME)
    assert await on.handler.reconcile(obj) is None, "it is gone"
    on.kube.put({**applied, "metadata": {"name": NAME, "namespace": NS}})
    assert await on.handler.reconcile(obj) is None, "another has its name"
    assert on.kube.writes == []


async def test_an_invalid_spec_is_reported_and_nothing_is_done(on: Stage) -> None:
    on.apply({"bookie": {"replicas": "many"}})
    assert await on.look() is None
    (note,) = on.notes("Invalid")
    assert "replicas" in note
    assert on.kube.all_of(STATEFUL_SET) == []


# -- refusals


async def test_a_cluster_without_a_spec_has_all_defaults(on: Stage) -> None:
    obj = on.apply()
    on.kube.put({**obj, "spec": None})
    await on.look()
    assert on.kube.get(STATEFUL_SET, "c-etcd") != {}
    assert on.status()["adminUrl"] == "http://c-broker.ns.svc:8080"


async def test_a_retained_volume_is_planned_only_if_it_grows(on: Stage) -> None:
    await on.complete(bookie={"storage": {"size": "10Gi"}})
    claim = on.kube.get(PVC, "data-c-bookie-0")
    owner = {"uid": on.owner()["metadata"]["uid"], "kind": CLUSTER.kind, "name": NAME}
    claim["metadata"]["ownerReferences"] = [owner]
    on.kube.put(claim)
    await on.look()
    assert [write for write in on.kube.writes_of(PVC) if write.method == "PATCH"] != []
    assert on.notes("VolumeGrows") == []
    on.apply({"bookie": {"storage": {"size": "20Gi"}}})
    await on.look()
    assert len(on.notes("VolumeGrows")) == 3
    size = on.kube.get(PVC, "data-c-bookie-0")["spec"]["resources"]["requests"]["storage"]
    assert size == "20Gi"


async def test_a_refused_action_does_not_stop_the_others(on: Stage) -> None:
    def refused(asked: Asked) -> Refusal | None:
        ours = asked.method == "PATCH" and asked.path.endswith("services/c-bookie")
        return Refusal(403, "Forbidden", "you may not") if ours else None

    on.kube.refuse = refused
    on.apply()
    with pytest.raises(Forbidden):
        await on.look()
    assert on.kube.get(STATEFUL_SET, "c-etcd") != {}
    ready = on.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NotDone")
    assert "you may not" in ready["message"]
    (event,) = [event for event in on.kube.all_of(EVENT) if event["reason"] == "NotDone"]
    assert event["type"] == "Warning"
    on.kube.refuse = lambda _: None
    await on.settle()
    assert on.condition("Ready")["status"] == "True"


async def test_a_silent_api_server_ends_the_reconcile(on: Stage) -> None:
    on.apply()

    def away(asked: Asked) -> Refusal | None:
        return Refusal(503, "Unavailable") if asked.method == "PATCH" else None

    on.kube.refuse = away
    with pytest.raises(Unreachable):
        await on.look()
    assert len({write.path for write in on.kube.writes}) == 1, "no further action is tried"


async def test_the_status_is_written_by_uid(on: Stage) -> None:
    on.apply()
    await on.look()
    uid = on.owner()["metadata"]["uid"]
    written = [
        write for write in on.kube.writes if write.path.endswith("magnetarclusters/c/status")
    ]
    assert [write.body["metadata"]["uid"] for write in written] == [uid]
    assert on.status()["lastReconciled"] == "2026-01-01T12:00:00Z"
