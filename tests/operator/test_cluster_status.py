"""The status of a cluster: each condition, the phase, and when it is worth a write."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.operator.cluster_world import made

from magnetar.documents.bookies import Drain, DrainState, InTheWay, LedgerHealth, LivingBookie
from magnetar_operator.cluster.status import status
from magnetar_operator.engine.status import is_worth_writing


def shown(world: Any, **how: Any) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    given = {"is_paused": False, "is_plan_only": False, **how}
    owner = given.pop("owner", {"metadata": {"generation": 3}})
    plan = given.pop("plan", None) or world.plan()
    shown_status = status(world.cluster, owner, world.observed(), plan, "1.0", world.now, **given)
    return shown_status, {condition["type"]: condition for condition in shown_status["conditions"]}


def test_every_condition_of_a_healthy_cluster_is_good() -> None:
    world = made()
    told, by_type = shown(world)
    assert told["phase"] == "Running"
    assert told["observedGeneration"] == 3
    assert told["bookies"] == {"ready": 3, "desired": 3, "updated": 0, "summary": "3/3"}
    assert (told["etcd"]["ready"], told["brokers"]["desired"]) == (
        3,
        world.cluster.spec.broker.replicas,
    )
    assert "plan" not in told
    assert "drain" not in told
    assert {name: one["status"] for name, one in by_type.items()} == {
        "Ready": "True",
        "EtcdReady": "True",
        "BookiesReady": "True",
        "BrokersReady": "True",
        "LedgersHealthy": "True",
        "VolumesReady": "True",
        "Upgrading": "False",
        "ScalingDown": "False",
        "ScaleDownRefused": "False",
        "ReplacingVolume": "False",
        "VolumeReplacementRefused": "False",
        "Degraded": "False",
    }
    paused, by_type = shown(world, is_paused=True, is_plan_only=True)
    assert (paused["phase"], paused["plan"]) == ("Paused", [])
    assert by_type["Paused"]["status"] == "True"
    assert shown(made(etcd={"external": {"endpoints": ["e:2379"]}}))[1]["EtcdReady"]["reason"] == (
        "External"
    )


def test_the_phase_shows_the_operation_in_progress() -> None:
    world = made(bookie={"replicas": 4})
    new_plan = world.plan()
    for was_ready, phase in ((True, "Degraded"), (False, "Creating")):
        new_plan = replace(new_plan, problems=["a setting has no effect"])
        before = {"conditions": [{"type": "Ready", "status": str(was_ready)}]}
        told, by_type = shown(world, plan=new_plan, owner={"metadata": {}, "status": before})
        assert told["phase"] == phase
        assert by_type["Ready"]["message"] == "a setting has no effect"
        assert by_type["Ready"]["reason"] == "NotDone"
    new_plan = replace(new_plan, problems=[], waits=["c-broker is upgraded after the bookies"])
    told, by_type = shown(world, plan=new_plan)
    assert told["phase"] == "Upgrading"
    assert (by_type["Upgrading"]["reason"], by_type["Upgrading"]["message"]) == (
        "Rolling",
        "c-broker is upgraded after the bookies",
    )
    waits = ["brokers are created once 3 bookies are ready", new_plan.waits[0]]
    new_plan = replace(new_plan, waits=waits)
    assert shown(world, plan=new_plan)[0]["phase"] == "Upgrading"
    new_plan = replace(new_plan, waits=new_plan.waits[:1])
    assert shown(world, plan=new_plan)[0]["phase"] == "Running"
    new_plan.replace.step = "Removing"
    new_plan.replace.bookie = "c-bookie-1"
    told, by_type = shown(world, plan=new_plan)
    assert told["phase"] == "ReplacingVolume"
    assert by_type["ReplacingVolume"]["reason"] == "Removing"
    new_plan.shrink.bookie = "c-bookie-3"
    told, by_type = shown(world, plan=new_plan)
    assert told["phase"] == "ScalingDown"
    assert (by_type["ScalingDown"]["reason"], by_type["ScalingDown"]["message"]) == (
        "Waits",
        "c-bookie-3 is being removed",
    )
    new_plan = replace(new_plan, volumes=["volume x is lost"])
    told, by_type = shown(world, plan=new_plan)
    assert told["phase"] == "Degraded"
    assert by_type["Degraded"]["message"] == "volume x is lost"
    assert by_type["VolumesReady"]["status"] == "False"
    assert by_type["Ready"]["reason"] == "NotVolumesReady"
    assert shown(world, plan=new_plan, is_paused=True)[0]["phase"] == "Paused"
    del world.objects["Deployment", "c-broker"]
    new_plan = replace(new_plan, volumes=[])
    assert shown(world, plan=new_plan)[0]["phase"] == "Creating"
    del world.objects["StatefulSet", "c-bookie"]
    assert shown(world, plan=new_plan)[0]["phase"] == "Creating"
    world.pods.clear()
    assert shown(world, plan=new_plan)[0]["phase"] == "Pending"


def test_a_drain_is_shown_with_its_ledgers_and_its_purpose() -> None:
    world = made(bookie={"replicas": 4})
    plan = world.plan()
    ways = tuple(InTheWay(index, "x") for index in range(120))
    drain = Drain(
        "c-bookie-3",
        DrainState.REFUSED,
        1_000,
        ledgers_total=9,
        ledgers_left=5,
        ledgers_proven=4,
        refused="no proof",
        in_the_way=ways,
    )
    plan.shrink.drain, plan.shrink.bookie, plan.shrink.refused = drain, "c-bookie-3", "no proof"
    told, by_type = shown(world, plan=plan)
    assert told["drain"] == {
        "bookie": "c-bookie-3",
        "step": "Refused",
        "reason": "scale-down",
        "startedAt": "1970-01-01T00:00:01Z",
        "ledgersLeft": 5,
        "ledgersProven": 4,
        "refused": "no proof",
        "ledgers": list(range(100)),
    }
    assert by_type["ScaleDownRefused"]["status"] == "True"
    plan.shrink.bookie = ""
    assert "drain" not in shown(world, plan=plan)[0]
    plan.replace.drain, plan.replace.step = (
        replace_state(drain, DrainState.REMOVABLE),
        "Registering",
    )
    told, _ = shown(world, plan=plan)
    assert (told["drain"]["reason"], told["drain"]["step"]) == ("volume", "Registering")
    plan.replace.step = "Removing"
    assert shown(world, plan=plan)[0]["drain"]["step"] == "Removing"


def replace_state(drain: Drain, state: DrainState) -> Drain:
    return Drain(drain.bookie_id, state, drain.requested_ms)


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (LedgerHealth(False, "x", 1, 1), "Lost"),
        (LedgerHealth(False, "x", 1, 0), "UnderReplicated"),
        (LedgerHealth(False, "x"), "Checking"),
        (LedgerHealth(True), "Healthy"),
    ],
)
def test_the_ledgers_condition_names_the_worst(health: LedgerHealth, reason: str) -> None:
    world = made()
    living = (LivingBookie("c-bookie-0", incarnations_before=1), LivingBookie("c-bookie-1"))
    plan = world.plan()
    health = msgspec.structs.replace(health, bookies=living)
    world.health = lambda: health  # type: ignore[method-assign]
    told, by_type = shown(world, plan=plan)
    assert by_type["LedgersHealthy"]["reason"] == reason
    assert told["phase"] == ("Running" if health.healthy else "Degraded")
    lost = "1 ledgers have lost entries" in by_type["Degraded"]["message"]
    assert lost is (reason == "Lost")
    if not health.healthy:
        assert "c-bookie-0 restarted with an empty volume" in by_type["Degraded"]["message"]
        plan.replace.bookie, plan.replace.step = "c-bookie-0", "Registering"
        _, by_type = shown(world, plan=plan)
        assert (by_type["Degraded"]["status"] == "True") is lost


def test_a_recommendation_keeps_its_time_and_a_status_is_written_for_a_notable_change() -> None:
    world = made()
    new_plan = world.plan()
    new_plan = replace(new_plan, recommendations=(("AddBookie", "x"), ("GrowVolume", "y")))
    before = {"recommendations": [{"kind": "AddBookie", "at": "before"}]}
    owner = {"metadata": {}, "status": before}
    told, _ = shown(world, plan=new_plan, owner=owner)
    assert [recommendation["at"] for recommendation in told["recommendations"]] == [
        "before",
        world.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    ]
    assert told["observedGeneration"] == 0
    for was, now, worth in (
        ({"backlog": 100}, {"backlog": 111}, False),
        ({"backlog": 100}, {"backlog": 112}, True),
        ({"backlog": 0}, {"backlog": 1}, True),
        ({"backlog": 1}, {"backlog": 0}, True),
        ({"backlog": 0}, {"backlog": 0}, False),
        ({"backlog": {"a": 1}}, {"backlog": {"a": 1, "b": 5}}, True),
        ({"phase": "a"}, {"phase": "b"}, True),
        ({"lastReconciled": "a"}, {"lastReconciled": "b"}, False),
    ):
        assert is_worth_writing(was, now) is worth, (was, now)
