"""Decides the number of bookies, and which bookie to remove next. Pure: no IO.

Additional bookies are created at once. Bookies are removed one after the other, the highest ordinal
first: the bookie is drained, its ledgers' copies are proven elsewhere by checksum, and only then
the StatefulSet shrinks by one. Any other change that would take a bookie away (a StatefulSet scaled
by hand) is reverted.

`volume_replacement` handles a bookie that gets a new volume, unless the bookie is to be removed.

The present number comes from the StatefulSet's replicas and from the number that the operator wrote
on it (`REPLICAS_SET`), whichever is larger; if the StatefulSet was deleted, from the status. No
single one of them can remove a bookie.
"""

import datetime
from dataclasses import dataclass, field

from magnetar.documents.bookies import Drain
from magnetar_operator.cluster import bookie_drain
from magnetar_operator.cluster.actions import Action, BeginDrain, EndDrain
from magnetar_operator.cluster.manifests.names import BOOKIE, Cluster
from magnetar_operator.cluster.manifests.storage import REPLICAS_SET
from magnetar_operator.cluster.observed import REASON_OF_OURS, Observed, volume_of
from magnetar_operator.kube.kinds import STATEFUL_SET


@dataclass(slots=True)
class ScaleDown:
    """The decision about the number of bookies."""

    replicas: int
    """The replicas of the StatefulSet from now on."""
    actions: list[Action] = field(default_factory=list)
    bookie: str = ""
    """The bookie to remove next."""
    drain: Drain | None = None
    refused: str = ""
    """Why the bookie cannot be removed, and what to do."""
    waits: str = ""
    """What the drain, or the removal, waits for."""
    by_hand: str = ""
    """A change of the StatefulSet by hand, and the operator's reaction."""
    requeue_s: float | None = None

    @property
    def active(self) -> bool:
        """Whether a bookie is being drained: nothing else is restarted meanwhile."""
        return self.drain is not None and self.drain.state in bookie_drain.UNDER_WAY


def decide(
    cluster: Cluster,
    observed: Observed,
    wanted: int,
    recorded: int,
    now: datetime.datetime,
    *,
    busy: str = "",
) -> ScaleDown:
    """Decides the number of bookies.

    `wanted`: the spec's number, or more if disks filled up; `recorded`: the number in the status;
    `busy`: the other change that takes bookies away.
    """
    stored = observed.get(STATEFUL_SET, cluster.object_name(BOOKIE))
    if stored is None:
        # The volumes may still exist: create as many bookies as before, drained or not.
        return ScaleDown(max(wanted, recorded))
    live = int(stored["spec"].get("replicas", 1))
    annotation = stored["metadata"].get("annotations", {}).get(REPLICAS_SET, "")
    written = int(annotation) if annotation.isdigit() else live
    decision = ScaleDown(max(live, written))
    if live < written:
        decision.by_hand = f"scaled from {written} to {live} bookies by hand: reverted to {written}"
    elif live > written:
        decision.by_hand = (
            f"scaled from {written} to {live} bookies by hand: bookies beyond "
            f"{max(wanted, written)} are drained before they are removed"
        )
    current = decision.replicas
    _end_drains(cluster, observed, decision, wanted, current)
    if wanted > current:
        decision.replicas = wanted
    elif wanted < current:
        _shrink(cluster, observed, decision, wanted, now, busy)
    return decision


def _shrink(
    cluster: Cluster,
    observed: Observed,
    decision: ScaleDown,
    wanted: int,
    now: datetime.datetime,
    busy: str,
) -> None:
    """The next step of removing the highest ordinal."""
    current = decision.replicas
    target = decision.bookie = f"{cluster.object_name(BOOKIE)}-{current - 1}"
    decision.requeue_s = bookie_drain.REQUEUE_S
    decision.drain = observed.ledgers.drain(target)
    leaving = [pod.name for pod in observed.of(BOOKIE) if pod.ordinal >= current]
    step = bookie_drain.next_step(
        cluster,
        observed,
        target,
        current,
        now,
        reason=f"bookies {current} → {current - 1}",
        busy=f"{', '.join(leaving)} still ends" if leaving else busy,
        spared=[pod.name for pod in observed.of(BOOKIE) if pod.ordinal >= wanted],
    )
    decision.refused, decision.waits = step.refused, step.waits
    if step.is_removable:
        decision.replicas = current - 1
    elif step.begin:
        decision.actions.append(BeginDrain(target, step.begin))


def _end_drains(
    cluster: Cluster, observed: Observed, decision: ScaleDown, wanted: int, current: int
) -> None:
    """Ends our drains of bookies that stay, and of bookies that were removed."""
    prefix = f"{cluster.object_name(BOOKIE)}-"
    pods = {pod.name for pod in observed.of(BOOKIE)}
    health = observed.ledgers.health
    living = {bookie.bookie_id for bookie in health.bookies} if health is not None else set()
    for drain in observed.ledgers.drains:
        tail = drain.bookie_id.removeprefix(prefix)
        if not drain.reason.startswith(REASON_OF_OURS) or not tail.isdigit():
            continue
        if int(tail) < wanted:
            if volume_of(drain):
                continue  # `volume_replacement` ends it
            decision.actions.append(EndDrain(drain.bookie_id, f"{drain.bookie_id} stays"))
        elif int(tail) >= current and drain.bookie_id not in pods | living:
            text = f"{drain.bookie_id} is removed; its name may be used again"
            decision.actions.append(EndDrain(drain.bookie_id, text))
