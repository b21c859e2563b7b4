"""Upgrades and rollbacks: pods go one at a time, and those of a form that was taken back first."""

import datetime
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.cluster_world import World, cluster_of, made, respec

from magnetar_operator.cluster.actions import ReplacePod
from magnetar_operator.cluster.manifests.names import digest
from magnetar_operator.cluster.manifests.pods import STARTUP_S_MAX
from magnetar_operator.cluster.observed import pod_of, when
from magnetar_operator.cluster.plan import Plan
from magnetar_operator.engine.plan import Apply
from magnetar_operator.kube.kinds import DEPLOYMENT


def test_an_upgrade_goes_bookie_by_bookie_then_brokers() -> None:
    world = made()
    respec(world, bookie={"config": {"journal_file_mb": 32}}, broker={"config": {"x_y": "1"}})
    restarted = []
    brokers_at = -1
    for step in range(40):
        plan = world.plan()
        replaced = [action.name for action in plan.actions if isinstance(action, ReplacePod)]
        assert len(replaced) <= 1
        restarted += replaced
        if brokers_at < 0 and any(
            isinstance(action, Apply) and action.manifest["kind"] == DEPLOYMENT.kind
            for action in plan.actions
        ):
            brokers_at = step
            assert len(restarted) == 3, "brokers after the bookies"
        world.act(plan.actions)
        world.turn()
    assert restarted == ["c-bookie-2", "c-bookie-1", "c-bookie-0"]
    assert brokers_at > 0
    assert not world.plan().actions


def rolls_brokers(planned: Plan) -> bool:
    manifests = [action.manifest for action in planned.actions if isinstance(action, Apply)]
    return any(
        (manifest["kind"], manifest["metadata"]["name"]) == (DEPLOYMENT.kind, "c-broker")
        for manifest in manifests
    )


def test_brokers_wait_for_a_bookie_that_is_on_its_way_not_for_one_that_cannot_start() -> None:
    world = made()
    respec(world, broker={"config": {"x_y": "1"}})
    assert rolls_brokers(world.plan())
    pod = world.pods["c-bookie-0"]
    for away in (replace(pod, ending=True), replace(pod, ready=False), None):
        world.pods.pop("c-bookie-0")
        if away is not None:
            world.pods["c-bookie-0"] = away
        plan = world.plan()
        assert not rolls_brokers(plan)
        assert "c-broker is upgraded after the bookies" in plan.waits
        assert plan.requeue_s is not None
        world.pods["c-bookie-0"] = pod
    world.pods["c-bookie-0"] = replace(pod, ready=False, trouble="CrashLoopBackOff")
    assert rolls_brokers(world.plan())


@pytest.mark.parametrize(
    ("component", "changed"),
    [
        ("bookie", {"bookie": {"config": {"x_y": "1"}}}),
        ("etcd", {"etcd": {"priorityClassName": "other"}}),
    ],
)
def test_a_rollback_replaces_a_pod_that_runs_and_never_becomes_ready(
    component: str, changed: dict[str, Any]
) -> None:
    """Kubernetes has nothing against the pod: it only is not ready."""
    world = made()
    name = f"c-{component}-2"
    respec(world, **changed)
    world.act([action for action in world.plan().actions if isinstance(action, Apply)])
    bad = digest(world.objects["StatefulSet", f"c-{component}"]["spec"]["template"])
    world.hanging.add(bad)
    while world.pods[name].revision != bad:
        world.act(world.plan().actions)
        world.turn()
    respec(world)
    replaced: list[str] = []
    while not replaced:
        plan = world.plan()
        replaced = [action.name for action in plan.actions if isinstance(action, ReplacePod)]
        away_s = (world.now - (world.pods[name].unready_since or world.now)).total_seconds()
        assert bool(replaced) == (away_s > STARTUP_S_MAX), plan.rolls[component].waits
        world.act(plan.actions)
        world.turn()
    assert replaced == [name], "no pod that works goes"
    world.settle()


def test_a_first_form_that_hangs_is_replaced_as_a_whole() -> None:
    world = World(cluster_of(bookie={"config": {"x_y": "1"}}))
    for _ in range(3):
        world.act(world.plan().actions)
        world.turn()
    stored = world.objects["StatefulSet", "c-bookie"]
    world.hanging.add(digest(stored["spec"]["template"]))
    for index in range(3):
        pod = world.pods[f"c-bookie-{index}"]
        world.pods[pod.name] = replace(pod, ready=False, ready_since=None, unready_since=world.now)
    respec(world)
    world.settle()


def test_bookies_are_not_restarted_because_etcd_is_away() -> None:
    world = made()
    respec(world, bookie={"config": {"x_y": "1"}})
    world.act([action for action in world.plan().actions if isinstance(action, Apply)])
    world.turn()
    for name, pod in world.pods.items():
        if pod.component in ("bookie", "etcd"):
            world.pods[name] = replace(pod, ready=False, ready_since=None, unready_since=world.now)
    world.now += datetime.timedelta(seconds=2 * STARTUP_S_MAX)
    assert not [action for action in world.plan().actions if isinstance(action, ReplacePod)]


@pytest.mark.parametrize("external", [False, True], ids=["etcd is back", "external etcd is away"])
def test_bookies_that_were_without_etcd_are_not_restarted_together(external: bool) -> None:
    """Each may become ready by itself as soon as etcd answers it."""
    etcd = {"etcd": {"external": {"endpoints": ["http://etcd:2379"]}}} if external else {}
    world = World(cluster_of(**etcd))
    world.settle()
    respec(world, **etcd, bookie={"config": {"x_y": "1"}})
    world.act([action for action in world.plan().actions if isinstance(action, Apply)])
    world.turn()
    stored = world.objects["StatefulSet", "c-bookie"]
    world.hanging |= {digest(stored["spec"]["template"])}
    for name, pod in world.pods.items():
        if pod.component == "bookie":
            world.hanging.add(pod.revision)
            world.pods[name] = replace(pod, ready=False, ready_since=None, unready_since=world.now)
    world.now += datetime.timedelta(seconds=2 * STARTUP_S_MAX)
    replaced: list[str] = []
    for _ in range(2 * round(STARTUP_S_MAX / 30)):
        for _ in range(2):  # the second plan comes before the controller has created the pod again
            plan = world.plan()
            replaced += [action.name for action in plan.actions if isinstance(action, ReplacePod)]
            world.act(plan.actions)
        world.turn()
    assert replaced == ["c-bookie-2"]
    world.hanging.clear()
    world.settle()
    newest = digest(world.objects["StatefulSet", "c-bookie"]["spec"]["template"])
    assert {pod.revision for pod in world.pods.values() if pod.component == "bookie"} == {newest}


def test_brokers_do_not_wait_for_a_bookie_that_hangs() -> None:
    world = made()
    pod = world.pods["c-bookie-0"]
    world.pods["c-bookie-0"] = replace(pod, ready=False, unready_since=world.now)
    respec(world, broker={"config": {"x_y": "1"}})
    assert not rolls_brokers(world.plan())
    world.now += datetime.timedelta(seconds=STARTUP_S_MAX + 1)
    assert rolls_brokers(world.plan())


def test_since_when_a_pod_is_not_ready() -> None:
    made_at, changed_at = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
    content: dict[str, Any] = {"metadata": {"name": "p", "creationTimestamp": made_at}}
    assert pod_of(content).unready_since == when(made_at)
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": changed_at}
    content["status"] = {"conditions": [ready]}
    assert pod_of(content).unready_since == when(changed_at)
    ready["status"] = "True"
    assert pod_of(content).unready_since is None


def test_an_upgrade_waits_until_it_is_known_which_pods_are_old() -> None:
    """The StatefulSets are changed, and their controller has not looked yet."""
    world = made()
    respec(world, image="image:2")
    world.act(world.plan().actions)
    plan = world.plan()
    assert list(plan.waits) == ["c-broker is upgraded after the bookies"]
    assert not plan.actions
    world.turn()
    plan = world.plan()
    assert [type(action) for action in plan.actions] == [ReplacePod]
    # A bookie is known to be old; whether a member of etcd is, is not.
    world.objects["StatefulSet", "c-etcd"]["metadata"]["generation"] += 1
    plan = world.plan()
    assert not plan.actions
    assert plan.rolls["bookie"].waits == "etcd is being restarted"


def test_an_upgrade_waits_while_ledgers_lack_copies() -> None:
    world = made()
    world.ledgers[99] = {"c-bookie-0"}
    respec(world, image="other:2")
    world.act([action for action in world.plan().actions if isinstance(action, Apply)])
    stored = world.objects["StatefulSet", "c-bookie"]
    world._stateful_set(stored)
    world._stateful_set(world.objects["StatefulSet", "c-etcd"])
    plan = world.plan()
    rolls = plan.rolls["bookie"]
    assert len(rolls.stale) == 3
    assert rolls.replace is None
    assert "ledgers 99" in rolls.waits


def test_manual_upgrades_restart_nothing() -> None:
    world = made(upgrade={"strategy": "Manual"})
    respec(world, upgrade={"strategy": "Manual"}, bookie={"config": {"journal_file_mb": 32}})
    for _ in range(5):
        plan = world.plan()
        assert not any(isinstance(action, ReplacePod) for action in plan.actions)
        world.act(plan.actions)
        world.turn()
    assert "until they are deleted by hand" in world.plan().rolls["bookie"].waits
