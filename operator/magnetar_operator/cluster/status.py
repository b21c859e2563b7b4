"""`MagnetarCluster.status`: what was seen and decided, in conditions that say what to do. Pure."""

import datetime
from collections.abc import Mapping
from typing import Any, Final

from magnetar_operator.api_kinds import DEPLOYMENT, STATEFUL_SET, Object
from magnetar_operator.cluster import gate
from magnetar_operator.cluster.manifests.naming import BOOKIE, BROKER, ETCD, Cluster
from magnetar_operator.cluster.observed import Observed, first_trouble
from magnetar_operator.cluster.plan import Plan
from magnetar_operator.cluster.replacing import LEAVING, Replacing
from magnetar_operator.cluster.shrinking import Shrinking
from magnetar_operator.resources.resource_status import Condition, conditions, timestamp

PLAN_STEPS_MAX: Final = 1_000
LEDGERS_NAMED_MAX: Final = 100
RECOMMENDATIONS_MAX: Final = 64

_STEPS: Final = {
    "requested": "ReadOnly",
    "copying": "Copying",
    "proving": "Proving",
    "removable": "Removing",
    "refused": "Refused",
}


def status(
    cluster: Cluster,
    owner: Object,
    observed: Observed,
    plan: Plan,
    version: str,
    now: datetime.datetime,
    *,
    is_paused: bool,
    is_plan_only: bool,
) -> dict[str, Any]:
    """All of it but lastReconciled."""
    before = owner.get("status") or {}
    generation = owner["metadata"].get("generation", 0)
    found = _conditions(cluster, observed, plan, is_paused=is_paused)
    told: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": conditions(before.get("conditions") or (), found, generation, now),
        "phase": _phase(cluster, observed, plan, found, is_paused=is_paused),
        "version": version,
        "image": cluster.image,
        "clusterName": cluster.cluster_name,
        "adminUrl": cluster.admin_url,
        "serviceUrl": cluster.service_url,
        "brokers": _replicas(cluster, observed, BROKER, cluster.spec.broker.replicas),
        "bookies": _replicas(cluster, observed, BOOKIE, plan.shrink.replicas),
        "scaledUp": plan.scaled_up,
        "selector": ",".join(f"{key}={value}" for key, value in cluster.selector(BROKER).items()),
        "recommendations": _recommendations(before, plan, now),
    }
    if cluster.etcd_members:
        told["etcd"] = _replicas(cluster, observed, ETCD, cluster.etcd_members)
    drain = _drain(plan)
    if drain is not None:
        told["drain"] = drain
    if is_plan_only:
        told["plan"] = [one.step.manifest() for one in plan.actions[:PLAN_STEPS_MAX]]
    return told


def _conditions(
    cluster: Cluster, observed: Observed, plan: Plan, *, is_paused: bool
) -> list[Condition]:
    shrink = plan.shrink
    parts = [
        _etcd(cluster, observed),
        _component(cluster, observed, "BookiesReady", BOOKIE, shrink.replicas),
        _component(cluster, observed, "BrokersReady", BROKER, cluster.spec.broker.replicas),
        _ledgers(observed),
        _volumes(plan),
    ]
    bad = next((one for one in parts if not one.holds), None)
    if plan.problems:
        ready = Condition("Ready", False, "NotDone", "; ".join(plan.problems))
    elif bad is None:
        ready = Condition("Ready", True, "AllReady", "all components are ready")
    else:
        ready = Condition("Ready", False, f"Not{bad.type}", bad.message)
    found = [ready, *parts, _upgrading(plan), _scaling(shrink), _refused(shrink)]
    found += _replacing(plan.replace)
    found.append(_degraded(observed, plan))
    if is_paused:
        told = "nothing is changed while spec.paused or the annotation magnetar.io/paused is true"
        found.append(Condition("Paused", True, "Paused", told))
    return found


def _etcd(cluster: Cluster, observed: Observed) -> Condition:
    if cluster.etcd_members:
        return _component(cluster, observed, "EtcdReady", ETCD, cluster.etcd_members)
    told = "etcd is somebody else's: whether it is well shows in the brokers and bookies"
    return Condition("EtcdReady", True, "External", told)


def _component(
    cluster: Cluster, observed: Observed, name: str, component: str, wanted: int
) -> Condition:
    pods = observed.of(component)
    ready = sum(one.ready for one in pods)
    told = f"{ready} of {wanted} pods of {cluster.object_name(component)} are ready"
    if ready >= wanted:
        return Condition(name, True, "Ready", told)
    trouble = first_trouble(pods)
    return Condition(name, False, "NotReady", f"{told}; {trouble}" if trouble else told)


def _ledgers(observed: Observed) -> Condition:
    health = observed.ledgers.health
    if health is None:
        return Condition("LedgersHealthy", None, "Unknown", observed.ledgers.unknown)
    if health.healthy:
        return Condition("LedgersHealthy", True, "Healthy", "every ledger has all its copies")
    reason = "Lost" if health.lost else "UnderReplicated" if health.under_replicated else "Looking"
    return Condition("LedgersHealthy", False, reason, health.reason + gate.named(health))


def _volumes(plan: Plan) -> Condition:
    if plan.volumes:
        return Condition("VolumesReady", False, "VolumeTrouble", "; ".join(plan.volumes))
    return Condition("VolumesReady", True, "Ready", "every volume is as the spec has it")


def _upgrading(plan: Plan) -> Condition:
    stale = [pod.name for one in plan.rolls.values() for pod in one.stale]
    waits = [one.waits for one in plan.rolls.values() if one.waits and one.stale]
    if stale or any("upgraded after" in one for one in plan.waits):
        told = f"{', '.join(stale)} have an older form" if stale else ""
        text = "; ".join(filter(None, [told, *waits, *plan.waits]))
        return Condition("Upgrading", True, "Waits" if waits else "Rolling", text)
    return Condition("Upgrading", False, "UpToDate", "all pods have the newest form")


def _scaling(shrink: Shrinking) -> Condition:
    if shrink.bookie:
        told = shrink.waits or f"{shrink.bookie} is to go"
        return Condition("ScalingDown", True, "Draining" if shrink.active else "Waits", told)
    return Condition("ScalingDown", False, "Idle", "no bookie is to go")


def _refused(shrink: Shrinking) -> Condition:
    if shrink.refused:
        return Condition("ScaleDownRefused", True, "Refused", shrink.refused)
    return Condition("ScaleDownRefused", False, "NotRefused", "no bookie was refused to go")


def _replacing(found: Replacing) -> list[Condition]:
    goes_on, refused = "ReplacingVolume", "VolumeReplacementRefused"
    conditions = [Condition(goes_on, False, "Idle", "no bookie gets a new volume")]
    if found.bookie:
        told = found.waits or f"{found.bookie} gets a new volume"
        conditions = [Condition(goes_on, True, found.step or "Waits", told)]
    if found.refused:
        return [*conditions, Condition(refused, True, "Refused", found.refused)]
    return [*conditions, Condition(refused, False, "NotRefused", "no new volume was refused")]


def _degraded(observed: Observed, plan: Plan) -> Condition:
    health = observed.ledgers.health
    wrong = list(plan.volumes)
    if health is not None and health.lost:
        wrong.append(f"{health.lost} ledgers have lost entries: `magnetar ledger check` names them")
    replaced = plan.replace.bookie if plan.replace.step in LEAVING else ""
    if health is not None and not health.healthy:
        wrong += [
            f"{one.bookie_id} came back with an empty volume; its ledgers' copies are made anew"
            for one in health.bookies
            if one.incarnations_before and one.bookie_id != replaced
        ]
    if wrong:
        return Condition("Degraded", True, "DataAtRisk", "; ".join(wrong))
    return Condition("Degraded", False, "Whole", "no data is known to be missing")


def _phase(
    cluster: Cluster,
    observed: Observed,
    plan: Plan,
    found: list[Condition],
    *,
    is_paused: bool,
) -> str:
    holds = {one.type: one.holds for one in found}
    made = observed.get(DEPLOYMENT, cluster.object_name(BROKER)) is not None
    if is_paused:
        return "Paused"
    if holds["Degraded"]:
        return "Degraded"
    if not made:
        bookies = observed.get(STATEFUL_SET, cluster.object_name(BOOKIE))
        return "Pending" if bookies is None and not observed.pods else "Creating"
    if holds["ScalingDown"]:
        return "ScalingDown"
    if plan.replace.active:
        return "ReplacingVolume"
    if holds["Upgrading"]:
        return "Upgrading"
    if holds["Ready"]:
        return "Running"
    return "Degraded" if plan.was_ready else "Creating"


def _replicas(cluster: Cluster, observed: Observed, component: str, wanted: int) -> dict[str, Any]:
    kind = DEPLOYMENT if component == BROKER else STATEFUL_SET
    stored = observed.get(kind, cluster.object_name(component))
    counted = {} if stored is None else stored.get("status", {})
    ready = sum(one.ready for one in observed.of(component))
    return {
        "ready": ready,
        "desired": wanted,
        "updated": int(counted.get("updatedReplicas", 0)),
        "summary": f"{ready}/{wanted}",
    }


def _drain(plan: Plan) -> dict[str, Any] | None:
    """Of a removal; else of a bookie that gets a new volume."""
    is_removal = plan.shrink.drain is not None and bool(plan.shrink.bookie)
    drain = plan.shrink.drain if is_removal else plan.replace.drain
    if drain is None:
        return None
    step = _STEPS.get(drain.state, "")
    if not is_removal and plan.replace.step == "Registering":
        step = "Registering"
    started = datetime.datetime.fromtimestamp(drain.requested_ms / 1_000, datetime.UTC)
    return {
        "bookie": drain.bookie_id,
        "step": step,
        "reason": "scale-down" if is_removal else "volume",
        "startedAt": timestamp(started),
        "ledgersLeft": drain.ledgers_left,
        "ledgersProven": drain.ledgers_proven,
        "refused": drain.refused,
        "ledgers": [one.ledger_id for one in drain.in_the_way[:LEDGERS_NAMED_MAX]],
    }


def _recommendations(
    before: Mapping[str, Any], plan: Plan, now: datetime.datetime
) -> list[dict[str, Any]]:
    """A recommendation keeps its time while its kind stands."""
    since = {one.get("kind"): one.get("at") for one in before.get("recommendations") or ()}
    return [
        {"kind": kind, "text": text, "at": since.get(kind) or timestamp(now)}
        for kind, text in plan.recommendations[:RECOMMENDATIONS_MAX]
    ]
