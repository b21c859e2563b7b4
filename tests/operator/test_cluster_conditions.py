"""A MagnetarCluster's conditions: the reason, what it waits for, and the remedy."""

import dataclasses
import datetime
from typing import Any

import pytest
from tests.operator.cluster_view import NOW, View, claim, ms
from tests.operator.cluster_world import cluster_of, made

from magnetar.documents.bookies import Drain, DrainState, LedgerHealth, LedgerTrouble, LivingBookie
from magnetar_operator.cluster.actions import (
    BeginDrain,
    ClearRequest,
    DeleteVolume,
    EndDrain,
    ReplacePod,
    Scale,
)
from magnetar_operator.cluster.manifests.pods import STARTUP_S_MAX
from magnetar_operator.cluster.manifests.surroundings import network_policies
from magnetar_operator.cluster.observed import Observed, Pod, pod_of
from magnetar_operator.cluster.plan import plan
from magnetar_operator.cluster.status import status
from magnetar_operator.engine.plan import Remove
from magnetar_operator.kube.kinds import DEPLOYMENT, PDB
from magnetar_operator.models.base import PlanStep


def seen(view: View) -> Observed:
    """With sizes of volumes."""
    observation = view.observed()
    for volume_claim in observation.claims:
        volume_claim["metadata"]["namespace"] = "ns"
        volume_claim["spec"] = {"resources": {"requests": {"storage": "10Gi"}}}
    return observation


def shown(view: View, remembered: int = 0) -> dict[str, tuple[str, str, str]]:
    """Status, reason and message, by type."""
    observed = seen(view)
    planned = plan(view.cluster, observed, remembered, NOW)
    owner = {"metadata": {"generation": 1}}
    shown_status = status(
        view.cluster, owner, observed, planned, "1", NOW, is_paused=False, is_plan_only=False
    )
    return {
        condition["type"]: (condition["status"], condition["reason"], condition["message"])
        for condition in shown_status["conditions"]
    }


def test_an_unready_component_is_counted_and_its_first_problem_named() -> None:
    view = View()
    view.change("c-bookie-1", ready=False, trouble="ImagePullBackOff: no image")
    shown_status = shown(view)
    text = "2 of 3 pods of c-bookie are ready; c-bookie-1: ImagePullBackOff: no image"
    assert shown_status["BookiesReady"] == ("False", "NotReady", text)
    assert shown_status["Ready"] == ("False", "NotBookiesReady", text)
    assert shown_status["EtcdReady"] == ("True", "Ready", "3 of 3 pods of c-etcd are ready")
    view.change("c-etcd-0", ready=False)
    assert shown(view)["EtcdReady"] == ("False", "NotReady", "2 of 3 pods of c-etcd are ready")
    assert shown(view)["Ready"][1] == "NotEtcdReady", "what others need comes first"


def test_an_external_etcd_is_not_checked() -> None:
    view = View(cluster=cluster_of(etcd={"external": {"endpoints": ["e:2379"]}}))
    assert shown(view)["EtcdReady"][:2] == ("True", "External")


@pytest.mark.parametrize(
    ("health", "condition"),
    [
        (None, ("Unknown", "Unknown", "no broker is ready")),
        (LedgerHealth(True), ("True", "Healthy", "every ledger has all its copies")),
        (LedgerHealth(False, "checking"), ("False", "Checking", "checking")),
        (
            LedgerHealth(False, "2 lack copies", 2, 0, (LedgerTrouble(7), LedgerTrouble(9))),
            ("False", "UnderReplicated", "2 lack copies (ledgers 7, 9)"),
        ),
        (
            LedgerHealth(False, "1 lost", 2, 1, (LedgerTrouble(7),)),
            ("False", "Lost", "1 lost (ledgers 7)"),
        ),
        (
            LedgerHealth(False, "many", 12, 0, tuple(LedgerTrouble(at) for at in range(12))),
            ("False", "UnderReplicated", "many (ledgers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more)"),
        ),
        (
            LedgerHealth(False, "ten", 10, 0, tuple(LedgerTrouble(at) for at in range(10))),
            ("False", "UnderReplicated", "ten (ledgers 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"),
        ),
    ],
)
def test_the_ledgers_condition_reports_what_brokers_report(
    health: LedgerHealth | None, condition: tuple[str, str, str]
) -> None:
    assert shown(View(health=health))["LedgersHealthy"] == condition


def test_a_bookie_with_other_disks_is_data_at_risk_unless_its_volume_is_replaced() -> None:
    view = View()
    wiped = LivingBookie("c-bookie-1", "2", incarnations_before=1)
    view.health = LedgerHealth(False, "1 lacks copies", 1, bookies=(wiped,))
    shown_status = shown(view)
    assert shown_status["Degraded"][:2] == ("True", "DataAtRisk")
    assert shown_status["Degraded"][2].startswith("c-bookie-1 restarted with an empty volume")
    assert "c-bookie-1 restarted with an empty volume" in shown_status["LedgersHealthy"][2]
    view.drains = [
        Drain(
            "c-bookie-1",
            DrainState.REMOVABLE,
            ms(),
            reason="magnetar-operator: volume old of it",
            proven_ms=ms(),
            incarnations=("1",),
        )
    ]
    assert shown(view)["Degraded"][:2] == ("False", "Whole")
    view.health = LedgerHealth(False, "1 lost", 0, 2)
    assert "2 ledgers have lost entries" in shown(view)["Degraded"][2]


@pytest.mark.parametrize(
    ("how", "text"),
    [({"ending": True}, "is being deleted"), ({"phase": "Lost"}, "is lost")],
)
def test_a_bad_volume_is_data_at_risk(how: dict[str, Any], text: str) -> None:
    view = View()
    view.claims["c-bookie-2"] = claim("c-bookie-2", **how)
    shown_status = shown(view)
    assert shown_status["VolumesReady"] == (
        "False",
        "VolumeTrouble",
        f"volume data-c-bookie-2 {text}",
    )
    assert shown_status["Degraded"] == ("True", "DataAtRisk", f"volume data-c-bookie-2 {text}")


def test_a_removal_is_reported_with_what_it_waits_for() -> None:
    view = View()
    view.grow(4)
    shown_status = shown(view)
    assert shown_status["ScalingDown"] == ("True", "Waits", "c-bookie-3 is being removed")
    assert shown_status["ScaleDownRefused"][:2] == ("False", "NotRefused")
    view.drains = [Drain("c-bookie-3", DrainState.COPYING, ms(), reason="magnetar-operator: x")]
    assert shown(view)["ScalingDown"] == ("True", "Draining", "c-bookie-3 is being drained")
    refused = Drain(
        "c-bookie-3", DrainState.REFUSED, ms(), reason="magnetar-operator: x", refused="no room"
    )
    view.drains = [refused]
    shown_status = shown(view)
    assert shown_status["ScaleDownRefused"] == ("True", "Refused", "no room")
    assert shown_status["ScalingDown"][1] == "Waits"


def test_an_upgrade_is_reported_with_its_pods_and_obstacle() -> None:
    world = made()
    world.cluster = cluster_of(image="image:2")
    plan = world.plan()
    world.act(plan.actions)
    world.turn()
    world.ledgers[99] = {"c-bookie-0"}
    plan = world.plan()
    owner = {"metadata": {"generation": 1}}
    shown_status = status(
        world.cluster, owner, world.observed(), plan, "1", world.now,
        is_paused=False, is_plan_only=False,
    )  # fmt: skip
    upgrading = next(
        condition for condition in shown_status["conditions"] if condition["type"] == "Upgrading"
    )
    assert (upgrading["status"], upgrading["reason"]) == ("True", "Waits")
    assert upgrading["message"].startswith("c-bookie-0, c-bookie-1, c-bookie-2 are outdated;")
    assert "1 ledgers lack copies" in upgrading["message"]
    assert "c-broker is upgraded after the bookies" in upgrading["message"]
    assert shown_status["phase"] == "Upgrading"


def test_a_pod_is_stuck_for_a_reason_or_after_the_start_deadline() -> None:
    def one(ready: bool, seconds: float | None, trouble: str = "") -> Pod:
        since = None if seconds is None else NOW - datetime.timedelta(seconds=seconds)
        return Pod("p-1", "u", "bookie", "r", ready, None, False, trouble, since)

    assert one(True, None, "old trouble").stuck(NOW) == ""
    assert one(True, STARTUP_S_MAX + 9).stuck(NOW) == ""
    assert one(False, 0, "no image").stuck(NOW) == "no image"
    assert one(False, None).stuck(NOW) == ""
    assert one(False, STARTUP_S_MAX).stuck(NOW) == ""
    assert one(False, STARTUP_S_MAX + 1).stuck(NOW) == f"not ready for {STARTUP_S_MAX + 1:.0f} s"


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    metadata = {"name": "p-1", "uid": "u", "labels": {"component": "bookie"}}
    content = {"metadata": metadata, "status": {"conditions": [ready]}}
    assert (pod_of(content).ready, pod_of(content).ending) == (True, False)
    metadata["deletionTimestamp"] = "now"
    assert (pod_of(content).ready, pod_of(content).ending) == (False, True)


@pytest.mark.parametrize(("wanted", "told", "after"), [(3, 5, 5), (7, 5, 7), (3, 0, 3)])
def test_a_deleted_stateful_set_gets_the_number_of_bookies_in_the_status(
    wanted: int, told: int, after: int
) -> None:
    view = View(cluster=cluster_of(bookie={"replicas": wanted}), has_set=False)
    assert plan(view.cluster, seen(view), told, NOW).shrink.replicas == after


def test_a_volume_with_a_drain_in_progress_precedes_other_bad_volumes() -> None:
    """Also during the drain of a third bookie: operations in progress are finished first."""
    view = View()
    view.grow(5)
    view.cluster = cluster_of(bookie={"replicas": 5})
    for at in (1, 3):
        view.claims[f"c-bookie-{at}"] = claim(f"c-bookie-{at}", phase="Lost")
    for at in (3, 4):
        reason = f"magnetar-operator: volume v-c-bookie-{at} of it"
        view.drains.append(Drain(f"c-bookie-{at}", DrainState.COPYING, ms(), reason=reason))
    assert plan(view.cluster, seen(view), 0, NOW).replace.bookie == "c-bookie-3"


def test_each_step_describes_its_action_and_reason() -> None:
    pod = ReplacePod("c-bookie-1", "u", "it is restarted")
    assert pod.step == PlanStep(action="restart", target="Pod c-bookie-1", text="it is restarted")
    removed = Remove(PDB, "x", "u", "no more")
    assert removed.step == PlanStep(action="delete", target="PodDisruptionBudget x", text="no more")
    scaled = Scale(DEPLOYMENT, "c-broker", 4, "3 to 4")
    assert scaled.step == PlanStep(action="scale", target="Deployment c-broker", text="3 to 4")
    begins = BeginDrain("c-bookie-1", "emptied")
    assert begins.step == PlanStep(action="drain", target="Bookie c-bookie-1", text="emptied")
    ends = EndDrain("c-bookie-1", "stays")
    assert ends.step == PlanStep(action="end drain", target="Bookie c-bookie-1", text="stays")
    volume = DeleteVolume("data-c-bookie-1", "u", "proven")
    assert volume.step == PlanStep(
        action="delete", target="PersistentVolumeClaim data-c-bookie-1", text="proven"
    )
    cleared = ClearRequest("magnetar.io/x", "done")
    assert cleared.step == PlanStep(action="clear", target="Annotation magnetar.io/x", text="done")


@pytest.mark.parametrize(("namespace", "named"), [("", []), ("op", ["op"])])
def test_the_operator_may_connect_from_its_namespace_beside_named_clients(
    namespace: str, named: list[str]
) -> None:
    spec = cluster_of(networkPolicy={"clients": [{"namespaceSelector": {}}]})
    cluster = dataclasses.replace(spec, operator_namespace=namespace)
    policies = {policy["metadata"]["name"]: policy for policy in network_policies(cluster)}
    peers = [
        peer
        for rule in policies["c-broker"]["spec"]["ingress"]
        for peer in rule.get("from") or ()
        if (peer.get("podSelector") or {}).get("matchLabels", {}).get("component") == "operator"
    ]
    assert [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in peers
    ] == named


@pytest.mark.parametrize(
    ("members", "ready", "made_now"),
    [(3, 0, False), (3, 1, False), (3, 2, True), (3, 3, True), (1, 0, False), (1, 1, True)],
)
def test_bookies_are_created_once_most_members_of_etcd_are_ready(
    members: int, ready: int, made_now: bool
) -> None:
    pods = [
        Pod(f"c-etcd-{at}", "u", "etcd", "", at < ready, NOW if at < ready else None, False)
        for at in range(members)
    ]
    cluster = cluster_of(etcd={"replicas": members})
    planned = plan(cluster, Observed(pods=pods), 0, NOW)
    names = [action.step.target for action in planned.actions]
    assert ("StatefulSet c-bookie" in names) == made_now
    assert ("bookies are created once etcd is ready" in planned.waits) != made_now


@pytest.mark.parametrize(
    ("bookies", "ready", "made_now"),
    [(3, 1, False), (3, 2, True), (1, 0, False), (1, 1, True), (5, 1, False), (5, 2, True)],
)
def test_brokers_are_created_once_enough_bookies_for_a_ledger_are_ready(
    bookies: int, ready: int, made_now: bool
) -> None:
    """With the default ensemble of two, or of one if there is only one bookie."""
    pods = [Pod(f"c-etcd-{at}", "u", "etcd", "", True, NOW, False) for at in range(3)]
    pods += [Pod(f"c-bookie-{at}", "u", "bookie", "", True, NOW, False) for at in range(ready)]
    quorums = {"ensemble": 2, "write": 2, "ack": 2}
    cluster = cluster_of(bookie={"replicas": bookies, "quorums": quorums})
    planned = plan(cluster, Observed(pods=pods), 0, NOW)
    names = [action.step.target for action in planned.actions]
    assert ("Deployment c-broker" in names) == made_now
