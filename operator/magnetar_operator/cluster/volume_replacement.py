"""Replaces the volume of a bookie by an empty one without losing data. Pure: no IO.

An annotation of the MagnetarCluster (`magnetar.io/replace-volume: POD`) requests it. It is a single
action, not a desired state, so it is not a field of the spec: applying the manifest again would
repeat it. A volume that is lost, or whose claim is being deleted, is replaced without a request.

The bookie is drained, and its ledgers' copies are proven elsewhere, as for a removal
(`bookie_drain`). Only then the operator deletes its claim and its pod, and the StatefulSet creates
both again. Once a bookie with other disks is registered under this name and takes entries, the
operator removes the annotation, and then ends the drain.

The record of the drain holds all the state that is needed: the uid of the claim to delete. If the
bookie has another claim, or none, the point of no return is passed. Only one bookie at a time gets
a new volume, and none during a removal or an upgrade.
"""

import datetime
from dataclasses import dataclass, field
from typing import Final, Literal

from magnetar.documents.bookies import Drain, DrainState
from magnetar_operator.cluster import bookie_drain
from magnetar_operator.cluster.actions import (
    Action,
    BeginDrain,
    ClearRequest,
    DeleteVolume,
    EndDrain,
    ReplacePod,
)
from magnetar_operator.cluster.manifests.names import BOOKIE, REPLACE_VOLUME, Cluster
from magnetar_operator.cluster.observed import (
    REASON_OF_OURS,
    VOLUME_REASON,
    Observed,
    claim_name,
    volume_of,
)
from magnetar_operator.kube.kinds import STATEFUL_SET

Step = Literal["", "Waits", "Draining", "Removing", "Registering", "Refused"]
LEAVING: Final = ("Removing", "Registering")
"""Steps after the proof: the operator has taken the bookie away."""


@dataclass(slots=True)
class VolumeReplacement:
    """The decision about a new volume."""

    actions: list[Action] = field(default_factory=list)
    bookie: str = ""
    """The bookie that gets a new volume; empty: none."""
    step: Step = ""
    drain: Drain | None = None
    refused: str = ""
    """Why the volume cannot be replaced, and what to do."""
    waits: str = ""
    """What the replacement waits for."""
    requeue_s: float | None = None

    @property
    def active(self) -> bool:
        """Whether it is in progress: no other bookie is restarted or removed meanwhile."""
        if self.step in LEAVING:
            return True
        return self.drain is not None and self.drain.state in bookie_drain.UNDER_WAY


def under_way(cluster: Cluster, observed: Observed, bookies: int) -> str:
    """The bookie that is being drained, or is drained, for a new volume; empty: none.

    Until it has one, no other bookie is removed or may be evicted.
    """
    names = _names(cluster, bookies)
    for drain in observed.ledgers.drains:
        if volume_of(drain) and drain.bookie_id in names and drain.state != DrainState.REFUSED:
            return drain.bookie_id
    return ""


def decide(
    cluster: Cluster,
    observed: Observed,
    bookies: int,
    now: datetime.datetime,
    *,
    busy: str = "",
) -> VolumeReplacement:
    """Decides on new volumes.

    `bookies`: the number that stays; `busy`: the other change that takes bookies away.
    """
    decision = VolumeReplacement()
    stored = observed.get(STATEFUL_SET, cluster.object_name(BOOKIE))
    if stored is None:
        return decision
    names = _names(cluster, bookies)
    begun = [
        drain for drain in observed.ledgers.drains if volume_of(drain) and drain.bookie_id in names
    ]
    request = cluster.replace_volume
    behind = [drain for drain in begun if _is_behind(observed, drain)]
    troubled = [name for name in names if in_trouble(observed, name)]
    if behind:
        decision.bookie = behind[0].bookie_id
    elif troubled:
        decision.bookie = next((name for name in troubled if _begun(begun, name)), troubled[0])
    elif request in names:
        decision.bookie = request
    elif request:
        decision.step, decision.refused = "Refused", _no_bookie(request, names)
    for drain in begun:
        if drain.bookie_id != decision.bookie and drain not in behind:
            text = f"{drain.bookie_id} keeps its volume: the request was withdrawn"
            decision.actions.append(EndDrain(drain.bookie_id, text))
    if not decision.bookie:
        return decision
    decision.requeue_s = bookie_drain.REQUEUE_S
    decision.drain = observed.ledgers.drain(decision.bookie)
    if behind:
        _finish(cluster, observed, decision, behind[0])
    else:
        present = int(stored["spec"].get("replicas", bookies))
        _drain(cluster, observed, decision, present, now, busy, troubled)
    return decision


def _names(cluster: Cluster, bookies: int) -> list[str]:
    return [f"{cluster.object_name(BOOKIE)}-{index}" for index in range(bookies)]


def _drain(
    cluster: Cluster,
    observed: Observed,
    decision: VolumeReplacement,
    bookies: int,
    now: datetime.datetime,
    busy: str,
    troubled: list[str],
) -> None:
    """The steps up to the deletion of the old volume."""
    bookie, drain = decision.bookie, decision.drain
    claim = observed.claim(bookie)
    if claim is None:
        decision.step, decision.waits = (
            "Waits",
            f"{bookie} has no volume: its StatefulSet creates one",
        )
        return
    if drain is not None and not volume_of(drain):
        if drain.reason.startswith(REASON_OF_OURS):
            decision.step, decision.waits = "Waits", f"{bookie} was being drained to be removed"
        else:
            decision.step, decision.refused = "Refused", _foreign_drain(drain)
        return
    uid = claim["metadata"]["uid"]
    reason = f"{VOLUME_REASON.removeprefix(REASON_OF_OURS)}{uid} of {bookie} is replaced"
    # A volume that is being deleted blocks all other changes, so it waits for none of them.
    step = bookie_drain.next_step(
        cluster,
        observed,
        bookie,
        bookies,
        now,
        reason=reason,
        busy="" if troubled else busy,
        spared=troubled,
    )
    decision.refused, decision.waits = step.refused, step.waits
    decision.step = "Refused" if step.refused else "Waits"
    if drain is not None and drain.state in bookie_drain.UNDER_WAY:
        decision.step = "Draining"
    elif step.begin:
        decision.step = "Draining"
        decision.actions.append(BeginDrain(bookie, step.begin))
    elif step.is_removable:
        decision.step = "Removing"
        if "deletionTimestamp" in claim["metadata"]:
            _delete_pod(observed, decision)  # the claim exists until the pod has ended
        else:
            text = f"{claim_name(bookie)} is deleted: its ledgers are proven to be elsewhere"
            decision.actions.append(DeleteVolume(claim_name(bookie), uid, text))


def _finish(
    cluster: Cluster, observed: Observed, decision: VolumeReplacement, drain: Drain
) -> None:
    """The steps after the deletion of the old volume, until the bookie takes entries again."""
    bookie, health = decision.bookie, observed.ledgers.health
    if drain.state in bookie_drain.UNDER_WAY:
        decision.step, decision.waits = "Draining", f"{bookie} is being drained"
        return
    decision.step = "Registering"
    pod = next((pod for pod in observed.of(BOOKIE) if pod.name == bookie), None)
    if observed.claim(bookie) is None:
        decision.step, decision.waits = "Removing", f"{bookie} gets a new volume"
        if drain.state == DrainState.REMOVABLE:
            _delete_pod(observed, decision)
        return
    if pod is None or not pod.ready:
        trouble = f" ({pod.trouble})" if pod is not None and pod.trouble else ""
        decision.waits = f"{bookie} starts with its new volume{trouble}"
        return
    living = (
        [] if health is None else [other for other in health.bookies if other.bookie_id == bookie]
    )
    if not any(other.writable and other.incarnation not in drain.incarnations for other in living):
        decision.waits = f"{bookie} is not registered with its new volume yet, or takes no entries"
        return
    if cluster.replace_volume == bookie:
        text = f"{bookie} has its new volume"
        decision.actions.append(ClearRequest(REPLACE_VOLUME, text))
        return  # the drain ends only after that, or the replacement would begin again
    text = f"{bookie} has a new, empty volume and takes new ledgers"
    decision.actions.append(EndDrain(bookie, text, "VolumeReplaced"))


def _delete_pod(observed: Observed, decision: VolumeReplacement) -> None:
    """Deletes the pod that uses the old claim."""
    for pod in observed.of(BOOKIE):
        if pod.name == decision.bookie and not pod.ending:
            text = f"{pod.name} is restarted: it gets a new volume"
            decision.actions.append(ReplacePod(pod.name, pod.uid, text))


def _is_behind(observed: Observed, drain: Drain) -> bool:
    """Whether the claim of the drain is deleted."""
    claim = observed.claim(drain.bookie_id)
    return claim is None or claim["metadata"]["uid"] != volume_of(drain)


def in_trouble(observed: Observed, bookie: str) -> bool:
    """Whether the bookie's volume is lost or being deleted."""
    claim = observed.claim(bookie)
    if claim is None:
        return False
    return (
        "deletionTimestamp" in claim["metadata"] or claim.get("status", {}).get("phase") == "Lost"
    )


def _begun(begun: list[Drain], bookie: str) -> bool:
    return any(drain.bookie_id == bookie for drain in begun)


def _no_bookie(request: str, names: list[str]) -> str:
    return (
        f"{REPLACE_VOLUME} names {request!r}, which is none of the bookies {names[0]} to "
        f"{names[-1]}: name one of them, or remove the annotation"
    )


def _foreign_drain(drain: Drain) -> str:
    reason = drain.reason or "no reason given"
    return (
        f"{drain.bookie_id} is being drained by another client ({reason}): end that first, by "
        f"DELETE /admin/v2/magnetar/bookies/{drain.bookie_id}/drain"
    )
