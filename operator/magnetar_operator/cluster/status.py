"""Builds `MagnetarCluster.status` from observations and decisions. Pure: no IO.

The messages of its conditions say what to do.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final

from magnetar.documents.bookies import DrainState
from magnetar_operator.cluster import gate, secrets
from magnetar_operator.cluster.manifests.names import BOOKIE, BROKER, ETCD, Cluster
from magnetar_operator.cluster.observed import Observed, first_trouble, present_admin_url
from magnetar_operator.cluster.plan import Plan
from magnetar_operator.cluster.scale_down import ScaleDown
from magnetar_operator.cluster.volume_replacement import LEAVING, VolumeReplacement
from magnetar_operator.engine.status import Condition, conditions, timestamp
from magnetar_operator.kube.kinds import DEPLOYMENT, STATEFUL_SET, Object
from magnetar_operator.models.base import condition_of

READY_BEFORE: Final = ("Running", "Degraded", "Upgrading", "ScalingDown", "ReplacingVolume")
"""Phases that a cluster reaches only after it was ready."""
PLAN_STEPS_MAX: Final = 1_000
LEDGERS_NAMED_MAX: Final = 100
RECOMMENDATIONS_MAX: Final = 64

_STEPS: Final = {
    DrainState.REQUESTED: "ReadOnly",
    DrainState.COPYING: "Copying",
    DrainState.PROVING: "Proving",
    DrainState.REMOVABLE: "Removing",
    DrainState.REFUSED: "Refused",
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
    failures: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole status, except lastReconciled. `failures`: errors of refused actions."""
    before = owner.get("status") or {}
    generation = owner["metadata"].get("generation", 0)
    problems = [*plan.problems, *failures]
    parts = _conditions(cluster, observed, plan, problems, is_paused=is_paused)
    document: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": conditions(before.get("conditions") or (), parts, generation, now),
        "phase": _phase(cluster, observed, plan, before, parts, is_paused=is_paused),
        "version": version,
        "image": cluster.image,
        "clusterName": cluster.cluster_name,
        "adminUrl": present_admin_url(cluster, observed.of(BROKER)),
        "serviceUrl": cluster.service_url,
        "brokers": _replicas(cluster, observed, BROKER, cluster.spec.broker.replicas),
        "bookies": _replicas(cluster, observed, BOOKIE, plan.shrink.replicas),
        "scaledUp": plan.scaled_up,
        "selector": ",".join(f"{key}={value}" for key, value in cluster.selector(BROKER).items()),
        "recommendations": _recommendations(before, plan, now),
    }
    if cluster.etcd_members:
        document["etcd"] = _replicas(cluster, observed, ETCD, cluster.etcd_members)
    drain = _drain(plan)
    if drain is not None:
        document["drain"] = drain
    if is_plan_only:
        document["plan"] = [action.step.manifest() for action in plan.actions[:PLAN_STEPS_MAX]]
    return document


def _conditions(
    cluster: Cluster,
    observed: Observed,
    plan: Plan,
    problems: Sequence[str],
    *,
    is_paused: bool,
) -> list[Condition]:
    shrink = plan.shrink
    parts = [
        _etcd(cluster, observed),
        _component(cluster, observed, "BookiesReady", BOOKIE, shrink.replicas),
        _component(cluster, observed, "BrokersReady", BROKER, cluster.spec.broker.replicas),
        _ledgers(observed),
        _volumes(plan),
    ]
    issued = secrets.condition(cluster, plan.issuance)
    if issued is not None:
        parts.append(issued)
    failing = next((part for part in parts if not part.holds), None)
    if problems:
        ready = Condition("Ready", False, "NotDone", "; ".join(problems))
    elif failing is None:
        ready = Condition("Ready", True, "AllReady", "all components are ready")
    else:
        ready = Condition("Ready", False, f"Not{failing.type}", failing.message)
    all_conditions = [ready, *parts, _upgrading(plan), _scaling(shrink), _refused(shrink)]
    all_conditions += _replacing(plan.replace)
    all_conditions.append(_degraded(observed, plan))
    if is_paused:
        text = "nothing is changed while spec.paused or the annotation magnetar.io/paused is true"
        all_conditions.append(Condition("Paused", True, "Paused", text))
    return all_conditions


def _etcd(cluster: Cluster, observed: Observed) -> Condition:
    if cluster.etcd_members:
        return _component(cluster, observed, "EtcdReady", ETCD, cluster.etcd_members)
    text = "etcd is external: the readiness of brokers and bookies shows whether it works"
    return Condition("EtcdReady", True, "External", text)


def _component(
    cluster: Cluster, observed: Observed, name: str, component: str, wanted: int
) -> Condition:
    pods = observed.of(component)
    ready = sum(pod.ready for pod in pods)
    text = f"{ready} of {wanted} pods of {cluster.object_name(component)} are ready"
    if ready >= wanted:
        return Condition(name, True, "Ready", text)
    trouble = first_trouble(pods)
    return Condition(name, False, "NotReady", f"{text}; {trouble}" if trouble else text)


def _ledgers(observed: Observed) -> Condition:
    health = observed.ledgers.health
    if health is None:
        return Condition("LedgersHealthy", None, "Unknown", observed.ledgers.unknown)
    if health.healthy:
        return Condition("LedgersHealthy", True, "Healthy", "every ledger has all its copies")
    reason = "Lost" if health.lost else "UnderReplicated" if health.under_replicated else "Checking"
    return Condition("LedgersHealthy", False, reason, health.reason + gate.named(health))


def _volumes(plan: Plan) -> Condition:
    if plan.volumes:
        return Condition("VolumesReady", False, "VolumeTrouble", "; ".join(plan.volumes))
    return Condition("VolumesReady", True, "Ready", "every volume matches the spec")


def _upgrading(plan: Plan) -> Condition:
    stale = [pod.name for rollout in plan.rolls.values() for pod in rollout.stale]
    waits = [rollout.waits for rollout in plan.rolls.values() if rollout.waits and rollout.stale]
    if stale or any("upgraded after" in text for text in plan.waits):
        outdated = f"{', '.join(stale)} are outdated" if stale else ""
        text = "; ".join(filter(None, [outdated, *waits, *plan.waits]))
        return Condition("Upgrading", True, "Waits" if waits else "Rolling", text)
    return Condition("Upgrading", False, "UpToDate", "all pods are up to date")


def _scaling(shrink: ScaleDown) -> Condition:
    if shrink.bookie:
        text = shrink.waits or f"{shrink.bookie} is being removed"
        return Condition("ScalingDown", True, "Draining" if shrink.active else "Waits", text)
    return Condition("ScalingDown", False, "Idle", "no bookie is being removed")


def _refused(shrink: ScaleDown) -> Condition:
    if shrink.refused:
        return Condition("ScaleDownRefused", True, "Refused", shrink.refused)
    return Condition("ScaleDownRefused", False, "NotRefused", "no removal of a bookie was refused")


def _replacing(replacement: VolumeReplacement) -> list[Condition]:
    replacing, refused = "ReplacingVolume", "VolumeReplacementRefused"
    conditions = [Condition(replacing, False, "Idle", "no bookie gets a new volume")]
    if replacement.bookie:
        text = replacement.waits or f"{replacement.bookie} gets a new volume"
        conditions = [Condition(replacing, True, replacement.step or "Waits", text)]
    if replacement.refused:
        return [*conditions, Condition(refused, True, "Refused", replacement.refused)]
    return [*conditions, Condition(refused, False, "NotRefused", "no new volume was refused")]


def _degraded(observed: Observed, plan: Plan) -> Condition:
    health = observed.ledgers.health
    wrong = list(plan.volumes)
    if health is not None and health.lost:
        wrong.append(f"{health.lost} ledgers have lost entries: `magnetar ledger check` lists them")
    replaced = plan.replace.bookie if plan.replace.step in LEAVING else ""
    if health is not None and not health.healthy:
        wrong += [
            f"{bookie.bookie_id} restarted with an empty volume; its ledgers are re-replicated"
            for bookie in health.bookies
            if bookie.incarnations_before and bookie.bookie_id != replaced
        ]
    if wrong:
        return Condition("Degraded", True, "DataAtRisk", "; ".join(wrong))
    return Condition("Degraded", False, "Whole", "no data is known to be missing")


def _phase(
    cluster: Cluster,
    observed: Observed,
    plan: Plan,
    before: Mapping[str, Any],
    all_conditions: list[Condition],
    *,
    is_paused: bool,
) -> str:
    holds = {condition.type: condition.holds for condition in all_conditions}
    has_brokers = observed.get(DEPLOYMENT, cluster.object_name(BROKER)) is not None
    if is_paused:
        return "Paused"
    if holds["Degraded"]:
        return "Degraded"
    if not has_brokers:
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
    return "Degraded" if _was_ready(before) else "Creating"


def _was_ready(before: Mapping[str, Any]) -> bool:
    """Whether the cluster was ready before; if it is not ready now, it is degraded, not new."""
    is_ready = condition_of(before, "Ready").get("status") == "True"
    return is_ready or before.get("phase") in READY_BEFORE


def _replicas(cluster: Cluster, observed: Observed, component: str, wanted: int) -> dict[str, Any]:
    kind = DEPLOYMENT if component == BROKER else STATEFUL_SET
    stored = observed.get(kind, cluster.object_name(component))
    counts = {} if stored is None else stored.get("status", {})
    ready = sum(pod.ready for pod in observed.of(component))
    return {
        "ready": ready,
        "desired": wanted,
        "updated": int(counts.get("updatedReplicas", 0)),
        "summary": f"{ready}/{wanted}",
    }


def _drain(plan: Plan) -> dict[str, Any] | None:
    """The drain of a removal, else that of a volume replacement; None: no drain."""
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
        "ledgers": [ledger.ledger_id for ledger in drain.in_the_way[:LEDGERS_NAMED_MAX]],
    }


def _recommendations(
    before: Mapping[str, Any], plan: Plan, now: datetime.datetime
) -> list[dict[str, Any]]:
    """The recommendations; each keeps its time while its kind is recommended."""
    since = {
        recommendation.get("kind"): recommendation.get("at")
        for recommendation in before.get("recommendations") or ()
    }
    return [
        {"kind": kind, "text": text, "at": since.get(kind) or timestamp(now)}
        for kind, text in plan.recommendations[:RECOMMENDATIONS_MAX]
    ]
