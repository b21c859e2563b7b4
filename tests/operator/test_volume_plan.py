"""A bookie's volume is replaced: only after its proof, one at a time, beside nothing else."""

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.cluster_world import World, cluster_of

from magnetar.documents.bookies import Drain, DrainState
from magnetar_operator.cluster.actions import (
    BeginDrain,
    ClearRequest,
    DeleteVolume,
    EndDrain,
    ReplacePod,
)
from magnetar_operator.cluster.manifests.names import REPLACE_VOLUME
from magnetar_operator.cluster.plan import Plan
from magnetar_operator.cluster.status import status
from magnetar_operator.cluster.volume_replacement import decide
from magnetar_operator.engine.plan import Apply

LEDGERS = 6


def made(**spec: Any) -> World:
    """A cluster that is complete, with ledgers of two copies each."""
    world = World(cluster_of(**spec))
    world.settle()
    names = sorted(world.living())
    for ledger in range(LEDGERS):
        world.ledgers[ledger] = {names[ledger % len(names)], names[(ledger + 1) % len(names)]}
    return world


def turn(world: World, times: int = 1) -> Plan:
    """Carries out this many plans; returns the next one."""
    for _ in range(times):
        world.act(world.plan().actions)
        world.turn()
    return world.plan()


def told(world: World, planned: Plan) -> dict[str, Any]:
    """As `kubectl get` would show it."""
    owner = {"metadata": {"generation": 1}, "status": {}}
    observation = world.observed()
    shown_status = status(
        world.cluster,
        owner,
        observation,
        planned,
        "1",
        world.now,
        is_paused=False,
        is_plan_only=False,
    )
    conditions = {condition["type"]: condition for condition in shown_status["conditions"]}
    return {**shown_status, "conditions": conditions}


def test_a_requested_volume_is_replaced_once() -> None:
    world = made()
    before = {pod: world.disks(pod) for pod in world.living()}
    world.request = "c-bookie-1"
    steps, phases = [], set()
    for _ in range(12):
        new_plan = turn(world)
        recorded = told(world, new_plan)
        phases.add(recorded["phase"])
        if (step := recorded.get("drain", {}).get("step")) and step not in steps:
            steps.append(step)
            assert recorded["drain"]["reason"] == "volume"
    world.settle()
    assert world.replaced == ["c-bookie-1"]
    assert world.request == ""
    assert world.drains == {}
    changed = {pod for pod in world.living() if world.disks(pod) != before[pod]}
    assert changed == {"c-bookie-1"}
    assert steps == ["Removing", "Registering"], "the world copies within a turn"
    assert "ReplacingVolume" in phases
    assert all(len(held) == 2 for held in world.ledgers.values())


def test_the_annotation_is_removed_before_the_drain_ends() -> None:
    world = made()
    world.request = "c-bookie-2"
    order: list[list[type]] = []
    for _ in range(12):
        plan = world.plan()
        ends = [
            type(action) for action in plan.actions if isinstance(action, (ClearRequest, EndDrain))
        ]
        if ends:
            order.append(ends)
        world.act(plan.actions)
        world.turn()
    # In two plans: the second one is for a cluster without the request.
    assert order == [[ClearRequest], [EndDrain]]
    ended = [action for action in world.plan().actions if isinstance(action, EndDrain)]
    assert ended == []


@pytest.mark.parametrize(
    "registered",
    ["the old disks", "a full disk", "other bookies", "nobody", "a pod that is not ready"],
)
def test_a_replaced_bookie_counts_only_once_its_new_disk_takes_entries(registered: str) -> None:
    """Its pod is ready before the registration of its former process has expired."""
    world = made()
    world.request = bookie = "c-bookie-1"
    while not (drain := world.drains.get(bookie)) or drain.state != "removable":
        turn(world)
    retired = drain.incarnations
    while not any(isinstance(action, ClearRequest) for action in world.plan().actions):
        turn(world)
    observation = world.observed()
    health = observation.ledgers.health
    assert health is not None
    (new,) = [item for item in health.bookies if item.bookie_id == bookie]
    others = [item for item in health.bookies if item.bookie_id != bookie]
    assert new.incarnation not in retired
    stands = {
        "the old disks": [
            msgspec.structs.replace(new, incarnation=incarnation) for incarnation in retired
        ],
        "a full disk": [msgspec.structs.replace(new, writable=False)],
        "other bookies": [],
        "nobody": None,
        "a pod that is not ready": [new],
    }[registered]
    if registered == "a pod that is not ready":
        observation.pods = [
            dataclasses.replace(pod, ready=False) if pod.name == bookie else pod
            for pod in observation.pods
        ]
    stale = None if stands is None else msgspec.structs.replace(health, bookies=(*others, *stands))
    observation.ledgers = dataclasses.replace(observation.ledgers, health=stale)
    for request in (bookie, ""):
        cluster = dataclasses.replace(world.cluster, replace_volume=request)
        decision = decide(cluster, observation, 3, world.now)
        assert not decision.actions
        assert decision.step == "Registering"
        assert decision.active
    world.settle()
    assert world.replaced == [bookie]


def test_a_replacement_is_refused_for_damaged_copies_and_names_the_ledgers() -> None:
    world = made()
    world.liars = {"c-bookie-0"}
    world.request = "c-bookie-2"
    new_plan = turn(world, 6)
    assert world.replaced == []
    assert "ledger 0" in new_plan.replace.refused
    recorded = told(world, new_plan)
    assert recorded["conditions"]["VolumeReplacementRefused"]["status"] == "True"
    assert recorded["drain"]["step"] == "Refused"
    world.liars = set()
    world.settle()
    assert world.replaced == ["c-bookie-2"]


def test_a_replacement_waits_for_the_other_bookies_and_reports_it() -> None:
    world = made()
    world.ledgers[99] = {"c-bookie-0"}
    world.request = "c-bookie-1"
    plan = world.plan()
    assert "ledgers 99" in plan.replace.refused
    assert not plan.replace.actions
    del world.ledgers[99]
    pod = world.pods["c-bookie-0"]
    world.pods["c-bookie-0"] = type(pod)(
        pod.name, pod.uid, pod.component, pod.revision, False, None, False
    )
    plan = world.plan()
    assert "c-bookie-0 not ready" in plan.replace.waits
    world.settle()
    assert world.replaced == ["c-bookie-1"]


@pytest.mark.parametrize("request_", ["c-bookie-9", "bookie-1", "c-bookie-1,c-bookie-2"])
def test_a_request_with_an_unknown_bookie_is_refused(request_: str) -> None:
    world = made()
    world.request = request_
    plan = world.plan()
    assert not plan.actions
    assert REPLACE_VOLUME in plan.replace.refused
    assert "c-bookie-0 to c-bookie-2" in plan.replace.refused
    assert told(world, plan)["conditions"]["ReplacingVolume"]["status"] == "False"


def test_withdrawing_the_request_ends_the_drain() -> None:
    world = made()
    world.request = "c-bookie-1"
    world.act(world.plan().actions)
    assert set(world.drains) == {"c-bookie-1"}
    world.request = ""
    world.settle()
    assert world.drains == {}
    assert world.replaced == []


def test_a_replacement_past_its_point_of_no_return_ends_before_another_begins() -> None:
    """Otherwise two bookies would be without their copies at once."""
    world = made()
    world.request = bookie = "c-bookie-1"
    while not any(isinstance(action, DeleteVolume) for action in world.plan().actions):
        turn(world)
    world.act(world.plan().actions)
    observation = world.observed()
    (claim,) = [
        claim for claim in observation.claims if claim["metadata"]["name"] == "data-c-bookie-0"
    ]
    claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    new_plan = decide(world.cluster, observation, 3, world.now)
    assert new_plan.bookie == bookie
    assert new_plan.active
    assert {action.name for action in new_plan.actions if isinstance(action, ReplacePod)} <= {
        bookie
    }
    assert not any(isinstance(action, DeleteVolume | BeginDrain) for action in new_plan.actions)


def test_a_drain_for_a_new_volume_serves_the_removal_of_a_bookie_that_is_to_go() -> None:
    """Ended, the drain would begin again for the removal, and so on for ever."""
    world = made()
    world.request = "c-bookie-2"
    world.act(world.plan().actions)
    assert set(world.drains) == {"c-bookie-2"}
    for request in ("", "c-bookie-2"):
        cluster = dataclasses.replace(world.cluster, replace_volume=request)
        new_plan = decide(cluster, world.observed(), 2, world.now)
        assert new_plan.actions == []
        assert new_plan.bookie == ""


@pytest.mark.parametrize("trouble", ["deleted", "lost"])
def test_a_lost_or_deleted_volume_is_replaced_automatically(trouble: str) -> None:
    world = made()
    claim = world.claims["data-c-bookie-1"]
    if trouble == "lost":
        claim["status"] = {"phase": "Lost"}
    else:
        claim["metadata"]["deletionTimestamp"] = "by hand"
    plan = world.plan()
    assert plan.replace.bookie == "c-bookie-1"
    assert not any(isinstance(action, ReplacePod) for action in plan.actions), (
        "not before its proof"
    )
    assert told(world, plan)["conditions"]["VolumesReady"]["status"] == "False"
    world.settle()
    assert world.replaced == ["c-bookie-1"]
    assert told(world, world.plan())["conditions"]["Degraded"]["status"] == "False"


def test_drains_of_others_are_not_changed() -> None:
    world = made()
    world.drains["c-bookie-1"] = Drain("c-bookie-1", DrainState.REMOVABLE, reason="by hand")
    world.request = "c-bookie-1"
    plan = world.plan()
    assert not plan.replace.actions
    assert "by hand" in plan.replace.refused
    assert "DELETE /admin/v2/magnetar/bookies/c-bookie-1/drain" in plan.replace.refused


@pytest.mark.parametrize("leaves", ["for a new volume", "for good"])
def test_a_proof_is_void_once_its_bookie_takes_new_ledgers(leaves: str) -> None:
    """Somebody deletes the mark of a drain that is proven, and leaves the record."""
    world = made(bookie={"replicas": 4})
    bookie = "c-bookie-1" if leaves == "for a new volume" else "c-bookie-3"

    def goes(planned: Plan) -> bool:
        sets = [action for action in planned.actions if isinstance(action, Apply)]
        return any(isinstance(action, DeleteVolume) for action in planned.actions) or any(
            stateful_set.manifest["spec"].get("replicas") == 3
            for stateful_set in sets
            if stateful_set.manifest["metadata"]["name"] == "c-bookie"
            and stateful_set.manifest["kind"] == "StatefulSet"
        )

    if leaves == "for a new volume":
        world.request = bookie
    else:
        world.cluster = cluster_of(bookie={"replicas": 3})
    while not goes(new_plan := world.plan()):
        world.act(new_plan.actions)
        world.turn()
    world.unmarked.add(bookie)
    world.ledgers[99] = {bookie, "c-bookie-0"}
    new_plan = world.plan()
    assert not goes(new_plan)
    begun = [action for action in new_plan.actions if isinstance(action, BeginDrain)]
    assert [item.bookie for item in begun] == [bookie]
    assert "takes new ledgers again" in begun[0].text
    world.settle()
    assert world.replaced + world.removed == [bookie]
    assert len(world.ledgers[99] - {bookie}) == 2


def test_no_other_bookie_is_evicted_removed_or_restarted_meanwhile() -> None:
    world = made(bookie={"replicas": 4})
    world.request = "c-bookie-1"
    world.act(world.plan().actions)
    budget = world.objects["PodDisruptionBudget", "c-bookie"]
    assert budget["spec"]["maxUnavailable"] == 0
    drain = world.drains["c-bookie-1"]
    world.drains["c-bookie-1"] = msgspec.structs.replace(drain, state=DrainState.PROVING)
    world.cluster = cluster_of(bookie={"replicas": 3}, image="image:2")
    world.act(world.plan().actions)
    world._stateful_set(world.objects["StatefulSet", "c-etcd"])
    world._stateful_set(world.objects["StatefulSet", "c-bookie"])
    for _ in range(3):
        plan = world.plan()
        assert plan.shrink.waits
        assert plan.shrink.replicas == 4
        restarted = [action.name for action in plan.actions if isinstance(action, ReplacePod)]
        assert not any("bookie" in item for item in restarted)
        world.act(plan.actions)
    world.drains["c-bookie-1"] = msgspec.structs.replace(drain, state=DrainState.COPYING)
    world.settle(200)
    assert world.replaced == ["c-bookie-1"]
    assert world.removed == ["c-bookie-3"]
    budget = world.objects["PodDisruptionBudget", "c-bookie"]
    assert budget["spec"]["maxUnavailable"] == 1


def test_a_removal_in_progress_comes_first() -> None:
    world = made(bookie={"replicas": 4})
    world.cluster = cluster_of(bookie={"replicas": 3})
    world.act(world.plan().actions)
    assert set(world.drains) == {"c-bookie-3"}
    world.request = "c-bookie-0"
    for _ in range(30):
        plan = world.plan()
        assert not any(isinstance(action, DeleteVolume) for action in plan.actions) or world.removed
        world.act(plan.actions)
        world.turn()
    assert (world.removed, world.replaced) == (["c-bookie-3"], ["c-bookie-0"])


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "image": st.sampled_from(["image:1", "image:2"]),
        "bookie": st.fixed_dictionaries({"replicas": st.integers(3, 5)}),
    },
)
FAULTS = st.sampled_from(["none", "ask", "withdraw", "claim-deleted", "kill", "interrupt"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(SPECS, FAULTS, st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=7)
)
def test_any_sequence_converges_and_no_volume_is_deleted_without_proof(
    history: list[tuple[dict[str, Any], str, int, int]],
) -> None:
    world = made()
    for spec, fault, number, turns in history:
        world.cluster = cluster_of(**spec)
        bookie = f"c-bookie-{number}"
        claim = world.claims.get(f"data-{bookie}")
        if fault == "ask":
            world.request = bookie
        elif fault == "withdraw":
            world.request = ""
        elif fault == "claim-deleted" and claim and bookie in world.pods and not world._dying():
            claim["metadata"]["deletionTimestamp"] = "by hand"
        elif fault == "kill" and bookie in world.living() and not world._dying():
            del world.pods[bookie]
        for _ in range(turns):
            plan = world.plan()
            # An operator that dies does only some of it.
            world.act(plan.actions[: 1 if fault == "interrupt" else None])
            world.turn()
    world.cluster = cluster_of(**{**history[-1][0], "bookie": {"replicas": 3}})
    if world.request not in {"c-bookie-0", "c-bookie-1", "c-bookie-2"}:
        world.request = ""  # it would be refused for good
    world.settle(turns=120)
    assert world.request == ""
    assert world.drains == {}
    assert world._dying() == []
    assert not world.plan().actions
    assert all(len(held) >= 2 for held in world.ledgers.values())


@pytest.mark.parametrize("drained", ["", "refused"])
def test_a_bookie_whose_claim_is_deleted_unproven_keeps_its_pod(drained: str) -> None:
    """With the pod the volume would go: not for an upgrade, and not by an eviction."""
    world = made()
    bookie = "c-bookie-1"
    claim = world.claims[f"data-{bookie}"]["metadata"]
    claim["deletionTimestamp"] = "now"
    if drained:
        reason = f"magnetar-operator: volume {claim['uid']} of {bookie} is replaced"
        now_ms = int(world.now.timestamp() * 1000)
        world.drains[bookie] = Drain(
            bookie, DrainState(drained), now_ms, reason=reason, refused="no room"
        )
    plan = world.plan()
    budget = next(
        action.manifest
        for action in plan.actions
        if isinstance(action, Apply) and action.manifest["kind"] == "PodDisruptionBudget"
    )
    assert (budget["metadata"]["name"], budget["spec"]["maxUnavailable"]) == ("c-bookie", 0)
    for name in (bookie, "c-bookie-0"):
        world.pods[name] = dataclasses.replace(
            world.pods[name], revision="old", ready=False, trouble="CrashLoopBackOff"
        )
    replaced = [action.name for action in world.plan().actions if isinstance(action, ReplacePod)]
    assert replaced == ["c-bookie-0"]
