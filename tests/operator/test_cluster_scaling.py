"""Scaling of bookies beside bad volumes and upgrades: which operation waits for which."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.cluster_view import NOW, View, claim, ms
from tests.operator.cluster_world import World, cluster_of, made, respec

from magnetar.documents.bookies import Drain, DrainState, LivingBookie
from magnetar_operator.cluster.actions import BeginDrain, ReplacePod
from magnetar_operator.cluster.bookie_drain import REQUEUE_S
from magnetar_operator.cluster.observed import REASON_OF_OURS, VOLUME_REASON, Observed
from magnetar_operator.cluster.plan import Plan, plan
from magnetar_operator.engine.plan import Apply

BUDGET = ("PodDisruptionBudget", "c-bookie")


def seen(view: View) -> Observed:
    """With sizes of volumes."""
    observation = view.observed()
    for volume_claim in observation.claims:
        volume_claim["metadata"]["namespace"] = "ns"
        volume_claim["spec"] = {"resources": {"requests": {"storage": "10Gi"}}}
    return observation


def outdated(observation: Observed) -> Observed:
    """All its bookies are of an older form."""
    observation.objects["StatefulSet", "c-bookie"]["status"] = {"updateRevision": "newer"}
    return observation


def restarts(planned: Plan) -> list[str]:
    return [action.name for action in planned.actions if isinstance(action, ReplacePod)]


def emptied(planned: Plan) -> list[str]:
    return [action.bookie for action in planned.actions if isinstance(action, BeginDrain)]


@pytest.mark.parametrize("how", [{"phase": "Lost"}, {"ending": True}], ids=["lost", "ending"])
def test_a_leftover_volume_is_not_replaced_before_its_bookie_exists(
    how: dict[str, Any],
) -> None:
    """The spec asks for more bookies, and one of them will find the volume of a former one."""
    view = View(cluster=cluster_of(bookie={"replicas": 5}))
    view.claims["c-bookie-4"] = claim("c-bookie-4", **how)
    planned = plan(view.cluster, seen(view), 3, NOW)
    assert (planned.replace.bookie, emptied(planned)) == ("", [])
    assert planned.shrink.replicas == 5
    view.grow(5)
    view.claims["c-bookie-4"] = claim("c-bookie-4", **how)
    planned = plan(view.cluster, seen(view), 5, NOW)
    assert (planned.replace.bookie, emptied(planned)) == ("c-bookie-4", ["c-bookie-4"])


def upgrading(**bookie: Any) -> World:
    """Four bookies in an older form, of which one is being removed."""
    world = made(bookie={"replicas": 4})
    respec(world, image="image:2", bookie={"replicas": 3, **bookie})
    world.act([action for action in world.plan().actions if isinstance(action, Apply)])
    world.turn()
    return world


def test_a_bookie_is_removed_after_the_upgrade() -> None:
    world = upgrading()
    plan = world.plan()
    assert emptied(plan) == []
    assert plan.shrink.waits.endswith("is being upgraded")
    world.settle()
    assert world.removed == ["c-bookie-3"]


@pytest.mark.parametrize("trouble", ["lost", "ending"])
def test_a_bookie_with_a_bad_volume_is_removed_before_the_upgrade(trouble: str) -> None:
    """Restarts wait for the volume, so that the removal cannot wait for the restarts."""
    world = upgrading()
    volume = world.claims["data-c-bookie-3"]
    if trouble == "lost":
        volume["status"] = {"phase": "Lost"}
    else:
        volume["metadata"]["deletionTimestamp"] = "by hand"
    plan = world.plan()
    assert emptied(plan) == ["c-bookie-3"]
    world.settle()
    assert (world.removed, world.replaced) == (["c-bookie-3"], [])


@pytest.mark.parametrize("state", ["requested", "copying", "proving", "removable"])
def test_a_bookie_is_removed_after_a_volume_replacement_in_progress(state: str) -> None:
    """A proof counts copies on all other bookies: two that go may take the last copy."""
    replaced = "c-bookie-1"
    view = View(replace(cluster_of(bookie={"replicas": 3}), replace_volume=replaced))
    view.grow(4)
    reason = f"{VOLUME_REASON}v-{replaced} of {replaced} is replaced"
    view.drains = [Drain(replaced, DrainState(state), ms(), reason=reason, proven_ms=ms())]
    view.living[replaced] = LivingBookie(replaced, "1", draining=True)
    planned = plan(view.cluster, seen(view), 4, NOW)
    assert (planned.shrink.waits, emptied(planned)) == (f"{replaced} gets a new volume", [])
    assert planned.shrink.replicas == 4
    assert planned.replace.waits == ("" if state == "removable" else f"{replaced} is being drained")
    view.drains = []
    planned = plan(view.cluster, seen(view), 4, NOW)
    assert (planned.replace.waits, emptied(planned)) == (
        "c-bookie-3 is being removed",
        ["c-bookie-3"],
    )


REPLACED: dict[str, tuple[str, str, bool, str, str]] = {
    # The drained bookie, the drain's state, whether for a volume; then the restart or the wait.
    "nothing else": ("", "", False, "c-bookie-3", ""),
    "a removal": ("c-bookie-3", "copying", False, "", "c-bookie-3 is being drained"),
    "a removal that is refused": ("c-bookie-3", "refused", False, "c-bookie-3", ""),
    "a new volume of another": ("c-bookie-1", "copying", True, "", "c-bookie-1 gets a new volume"),
    "a new volume that is refused": ("c-bookie-1", "refused", True, "c-bookie-3", ""),
}


@pytest.mark.parametrize(
    ("bookie", "state", "volume", "restarted", "waits"), REPLACED.values(), ids=REPLACED
)
def test_a_restart_for_an_upgrade_waits_while_a_bookie_is_drained(
    bookie: str, state: str, volume: bool, restarted: str, waits: str
) -> None:
    replicas = 3 if bookie == "c-bookie-3" else 4
    view = View(
        replace(cluster_of(bookie={"replicas": replicas}), replace_volume=bookie if volume else "")
    )
    view.grow(4)
    why = f"{VOLUME_REASON}v-{bookie} of it" if volume else f"{REASON_OF_OURS}bookies 4 → 3"
    if bookie:
        view.drains = [Drain(bookie, DrainState(state), ms(), reason=why)]
    planned = plan(view.cluster, outdated(seen(view)), 4, NOW)
    assert restarts(planned) == ([restarted] if restarted else [])
    assert planned.rolls["bookie"].waits == waits
    assert emptied(planned) == []


@pytest.mark.parametrize(
    ("uid", "waits"), [("v-c-bookie-3", "c-bookie-3 is being drained"), ("v-before", "")]
)
def test_a_bookie_that_cannot_start_is_restarted_only_with_its_new_volume(
    uid: str, waits: str
) -> None:
    """Before, its volume is still proven; with the new one, nothing is lost by another form."""
    name = "c-bookie-3"
    view = View(cluster_of(bookie={"replicas": 4}))
    view.grow(4)
    view.change(name, ready=False, trouble="ImagePullBackOff")
    if uid == f"v-{name}":
        view.claims[name] = claim(name, phase="Lost")
    state = "removable" if uid == "v-before" else "copying"
    reason = f"{VOLUME_REASON}{uid} of it"
    view.drains = [Drain(name, DrainState(state), ms(), reason=reason, proven_ms=ms())]
    planned = plan(view.cluster, outdated(seen(view)), 4, NOW)
    assert planned.rolls["bookie"].waits == waits
    assert restarts(planned) == ([] if waits else [name])


@pytest.mark.parametrize("why", ["a removal", "a new volume"])
@pytest.mark.parametrize("state", ["", "requested", "copying", "proving", "removable", "refused"])
def test_no_bookie_may_be_evicted_from_the_request_of_a_drain_to_its_end(
    state: str, why: str
) -> None:
    name = "c-bookie-3"
    view = View(cluster_of(bookie={"replicas": 3 if why == "a removal" else 4}))
    view.grow(4)
    if why == "a new volume":
        view.cluster = replace(view.cluster, replace_volume=name)
    reason = f"{VOLUME_REASON}v-{name} of it" if why == "a new volume" else REASON_OF_OURS
    if state:
        view.drains = [Drain(name, DrainState(state), ms(), reason=reason, proven_ms=ms())]
        view.living[name] = LivingBookie(name, "1", draining=True)
    planned = plan(view.cluster, seen(view), 4, NOW)
    manifests = [action.manifest for action in planned.actions if isinstance(action, Apply)]
    (budget,) = [
        manifest
        for manifest in manifests
        if (manifest["kind"], manifest["metadata"]["name"]) == BUDGET
    ]
    assert bool(emptied(planned)) == (state == "")
    assert budget["spec"]["maxUnavailable"] == (1 if state == "refused" else 0)


def test_a_restart_waits_for_every_bookie_even_for_one_that_will_be_removed() -> None:
    view = View(cluster_of(bookie={"replicas": 3}))
    view.grow(5)
    del view.pods["c-bookie-4"]
    planned = plan(view.cluster, outdated(seen(view)), 5, NOW)
    assert (restarts(planned), planned.rolls["bookie"].waits) == ([], "c-bookie-4 not ready")


@pytest.mark.parametrize("why", ["", "a removal", "a new volume"])
def test_a_cluster_is_reconciled_again_soon_while_a_bookie_is_being_removed(why: str) -> None:
    """No watch reports the proofs of brokers."""
    name = "c-bookie-3"
    view = View(cluster_of(bookie={"replicas": 3 if why == "a removal" else 4}))
    view.grow(4)
    if why == "a new volume":
        view.cluster = replace(view.cluster, replace_volume=name)
    observed = seen(view)
    observed.objects["StatefulSet", "c-bookie"]["status"] = {"updateRevision": "new"}
    planned = plan(view.cluster, observed, 4, NOW)
    assert emptied(planned) == ([name] if why else [])
    assert planned.requeue_s == (REQUEUE_S if why else None)


def test_bookies_are_restarted_after_the_last_member_of_etcd_and_then_brokers() -> None:
    world = made()
    respec(world, image="image:2", etcd={"priorityClassName": "other"})
    order: list[str] = []
    while len(order) < 6:
        plan = world.plan()
        assert len(restarts(plan)) <= 1
        order += restarts(plan)
        if plan.rolls["etcd"].stale:
            assert plan.rolls["bookie"].waits in ("etcd is being restarted", "")
        world.act(plan.actions)
        world.turn()
    names = [f"c-{component}-{at}" for component in ("etcd", "bookie") for at in (2, 1, 0)]
    assert order == names
