"""A bookie's volume is replaced by an empty one, and nothing is lost by it. Pure.

Somebody asks with an annotation of the MagnetarCluster (`magnetar.io/replace-volume: POD`): it is
one act and no state that is wished for, so it is no field of the spec, which a manifest applied
again would bring back. A volume that is lost, or whose claim somebody deletes, is replaced unasked.

The bookie is emptied and its ledgers' copies are proven elsewhere, as for a removal (`emptying`);
only then its claim is deleted, and its pod, and the StatefulSet makes both anew. Once a bookie with
other disks is registered there and takes entries, the annotation goes, then the drain.

All that must be remembered is in the drain's record: the uid of the claim that is to go. Another
claim, or none, means that the point of no return is behind us. One bookie at a time, none beside a
removal or an upgrade.
"""

import datetime
from dataclasses import dataclass, field
from typing import Final, Literal

from magnetar_operator.api_kinds import STATEFUL_SET
from magnetar_operator.cluster import emptying
from magnetar_operator.cluster.actions import (
    Action,
    BeginDrain,
    ClearRequest,
    DeleteVolume,
    EndDrain,
    ReplacePod,
)
from magnetar_operator.cluster.manifests.naming import BOOKIE, REPLACE_VOLUME, Cluster
from magnetar_operator.cluster.observed import (
    REASON_OF_OURS,
    VOLUME_REASON,
    Drain,
    Observed,
    claim_name,
    volume_of,
)

Step = Literal["", "Waits", "Draining", "Removing", "Registering", "Refused"]
LEAVING: Final = ("Removing", "Registering")
"""Steps after the proof: the bookie is away by our will."""


@dataclass(slots=True)
class Replacing:
    """What is decided."""

    actions: list[Action] = field(default_factory=list)
    bookie: str = ""
    """The one that is to get a new volume; none where empty."""
    step: Step = ""
    drain: Drain | None = None
    refused: str = ""
    """Why it cannot, and what to do."""
    waits: str = ""
    """What is waited for."""
    again_s: float | None = None

    @property
    def active(self) -> bool:
        """It is under way: no other bookie is restarted or removed meanwhile."""
        if self.step in LEAVING:
            return True
        return self.drain is not None and self.drain.state in emptying.AT_WORK


def under_way(cluster: Cluster, observed: Observed, bookies: int) -> str:
    """The bookie that is being emptied for a new volume, or is empty; none where empty.

    Meanwhile no other one is removed or may be evicted.
    """
    names = _names(cluster, bookies)
    for one in observed.ledgers.drains:
        if volume_of(one) and one.bookie_id in names and one.state != "refused":
            return one.bookie_id
    return ""


def decide(
    cluster: Cluster,
    observed: Observed,
    bookies: int,
    now: datetime.datetime,
    *,
    busy: str = "",
) -> Replacing:
    """`bookies`: how many stay; `busy`: what else takes bookies away."""
    found = Replacing()
    stored = observed.get(STATEFUL_SET, cluster.object_name(BOOKIE))
    if stored is None:
        return found
    names = _names(cluster, bookies)
    begun = [one for one in observed.ledgers.drains if volume_of(one) and one.bookie_id in names]
    request = cluster.replace_volume
    behind = [one for one in begun if _is_behind(observed, one)]
    troubled = [name for name in names if in_trouble(observed, name)]
    if behind:
        found.bookie = behind[0].bookie_id
    elif troubled:
        found.bookie = next((each for each in troubled if _begun(begun, each)), troubled[0])
    elif request in names:
        found.bookie = request
    elif request:
        found.step, found.refused = "Refused", _no_bookie(request, names)
    for one in begun:
        if one.bookie_id != found.bookie and one not in behind:
            text = f"{one.bookie_id} keeps its volume: that is asked for no more"
            found.actions.append(EndDrain(one.bookie_id, text))
    if not found.bookie:
        return found
    found.again_s = emptying.LOOK_S
    found.drain = observed.ledgers.drain(found.bookie)
    if behind:
        _finish(cluster, observed, found, behind[0])
    else:
        standing = int(stored["spec"].get("replicas", bookies))
        _empty(cluster, observed, found, standing, now, busy, troubled)
    return found


def _names(cluster: Cluster, bookies: int) -> list[str]:
    return [f"{cluster.object_name(BOOKIE)}-{index}" for index in range(bookies)]


def _empty(
    cluster: Cluster,
    observed: Observed,
    found: Replacing,
    bookies: int,
    now: datetime.datetime,
    busy: str,
    troubled: list[str],
) -> None:
    """Up to the point of no return, and over it."""
    bookie, drain = found.bookie, found.drain
    claim = observed.claim(bookie)
    if claim is None:
        found.step, found.waits = "Waits", f"{bookie} has no volume: its StatefulSet makes one"
        return
    if drain is not None and not volume_of(drain):
        if drain.reason.startswith(REASON_OF_OURS):
            found.step, found.waits = "Waits", f"{bookie} was being emptied to be removed"
        else:
            found.step, found.refused = "Refused", _somebody_elses(drain)
        return
    uid = claim["metadata"]["uid"]
    why = f"{VOLUME_REASON.removeprefix(REASON_OF_OURS)}{uid} of {bookie} is replaced"
    # A volume that is going anyway keeps all else waiting; it waits for nothing of that itself.
    step = emptying.next_step(
        cluster,
        observed,
        bookie,
        bookies,
        now,
        why=why,
        busy="" if troubled else busy,
        spared=troubled,
    )
    found.refused, found.waits = step.refused, step.waits
    found.step = "Refused" if step.refused else "Waits"
    if drain is not None and drain.state in emptying.AT_WORK:
        found.step = "Draining"
    elif step.begin:
        found.step = "Draining"
        found.actions.append(BeginDrain(bookie, step.begin))
    elif step.may_go:
        found.step = "Removing"
        if "deletionTimestamp" in claim["metadata"]:
            _delete_pod(observed, found)  # until it ends the claim stays, too
        else:
            text = f"{claim_name(bookie)} is deleted: all of it is proven to be elsewhere"
            found.actions.append(DeleteVolume(claim_name(bookie), uid, text))


def _finish(cluster: Cluster, observed: Observed, found: Replacing, drain: Drain) -> None:
    """The old volume is gone: until a bookie stands there that takes entries."""
    bookie, health = found.bookie, observed.ledgers.health
    if drain.state in emptying.AT_WORK:
        found.step, found.waits = "Draining", f"{bookie} is being emptied"
        return
    found.step = "Registering"
    pod = next((one for one in observed.of(BOOKIE) if one.name == bookie), None)
    if observed.claim(bookie) is None:
        found.step, found.waits = "Removing", f"{bookie} gets a new volume"
        if drain.state == "removable":
            _delete_pod(observed, found)
        return
    if pod is None or not pod.ready:
        trouble = f" ({pod.trouble})" if pod is not None and pod.trouble else ""
        found.waits = f"{bookie} starts with its new volume{trouble}"
        return
    living = [] if health is None else [one for one in health.bookies if one.bookie_id == bookie]
    if not any(one.writable and one.incarnation not in drain.incarnations for one in living):
        found.waits = f"{bookie} is not registered with its new volume yet, or takes no entries"
        return
    if cluster.replace_volume == bookie:
        text = f"{bookie} has its new volume"
        found.actions.append(ClearRequest(REPLACE_VOLUME, text))
        return  # the drain's record goes only after it, or this would begin again
    text = f"{bookie} has a new, empty volume and takes new ledgers"
    found.actions.append(EndDrain(bookie, text, "VolumeReplaced"))


def _delete_pod(observed: Observed, found: Replacing) -> None:
    """It holds the old claim."""
    for pod in observed.of(BOOKIE):
        if pod.name == found.bookie and not pod.going:
            text = f"{pod.name} is restarted: it gets a new volume"
            found.actions.append(ReplacePod(pod.name, pod.uid, text))


def _is_behind(observed: Observed, drain: Drain) -> bool:
    """Whether the claim that the drain was for is gone."""
    claim = observed.claim(drain.bookie_id)
    return claim is None or claim["metadata"]["uid"] != volume_of(drain)


def in_trouble(observed: Observed, bookie: str) -> bool:
    """Whether its volume is lost, or somebody deletes it."""
    claim = observed.claim(bookie)
    if claim is None:
        return False
    return (
        "deletionTimestamp" in claim["metadata"] or claim.get("status", {}).get("phase") == "Lost"
    )


def _begun(begun: list[Drain], bookie: str) -> bool:
    return any(one.bookie_id == bookie for one in begun)


def _no_bookie(request: str, names: list[str]) -> str:
    return (
        f"{REPLACE_VOLUME} names {request!r}, which is none of the bookies {names[0]} to "
        f"{names[-1]}: name one of them, or take the annotation away"
    )


def _somebody_elses(drain: Drain) -> str:
    return (
        f"{drain.bookie_id} is being emptied by somebody else ({drain.reason or 'no reason told'})"
        f": end that first, by DELETE /admin/v2/magnetar/bookies/{drain.bookie_id}/drain"
    )
