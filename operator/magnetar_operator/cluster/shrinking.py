"""How many bookies there are to be now, and which of them is to be emptied first. Pure.

More are made at once. Fewer only one after the other, the highest ordinal first: emptied, its
ledgers' copies proven elsewhere by checksum, and only then is the StatefulSet made smaller by one.
What would take a bookie away otherwise (a StatefulSet scaled by hand) is put back.

A bookie that gets a new volume meanwhile (`replacing`) is not this module's affair, unless it is to
go altogether.

The number that counts is the StatefulSet's own, beside the one that we wrote there (`REPLICAS_SET`)
and, where it was deleted, the one in the status: none of them alone makes a bookie go.
"""

import datetime
from dataclasses import dataclass, field

from magnetar_operator.api_kinds import STATEFUL_SET
from magnetar_operator.cluster import emptying
from magnetar_operator.cluster.actions import Action, BeginDrain, EndDrain
from magnetar_operator.cluster.manifests.naming import BOOKIE, Cluster
from magnetar_operator.cluster.manifests.storage import REPLICAS_SET
from magnetar_operator.cluster.observed import REASON_OF_OURS, Drain, Observed, volume_of


@dataclass(slots=True)
class Shrinking:
    """What is decided."""

    replicas: int
    """Of the StatefulSet from now on."""
    actions: list[Action] = field(default_factory=list)
    bookie: str = ""
    """The one that is to go next."""
    drain: Drain | None = None
    refused: str = ""
    """Why it cannot go, and what to do."""
    waits: str = ""
    """What is waited for before it begins, or goes."""
    by_hand: str = ""
    """What somebody did to the StatefulSet, and what becomes of it."""
    again_s: float | None = None

    @property
    def active(self) -> bool:
        """A bookie is being emptied now: nothing else is restarted meanwhile."""
        return self.drain is not None and self.drain.state in emptying.AT_WORK


def decide(
    cluster: Cluster,
    observed: Observed,
    wanted: int,
    remembered: int,
    now: datetime.datetime,
    *,
    busy: str = "",
) -> Shrinking:
    """`wanted`: the spec's number, or more where disks called for it; `remembered`: those that the
    status told of; `busy`: what else takes bookies away."""
    stored = observed.get(STATEFUL_SET, cluster.object_name(BOOKIE))
    if stored is None:
        # The volumes may be there: as many bookies as there were, drained or not.
        return Shrinking(max(wanted, remembered))
    live = int(stored["spec"].get("replicas", 1))
    annotation = stored["metadata"].get("annotations", {}).get(REPLICAS_SET, "")
    written = int(annotation) if annotation.isdigit() else live
    found = Shrinking(max(live, written))
    if live < written:
        found.by_hand = f"scaled from {written} to {live} bookies by hand: put back to {written}"
    elif live > written:
        found.by_hand = (
            f"scaled from {written} to {live} bookies by hand: what is beyond "
            f"{max(wanted, written)} is emptied before it goes"
        )
    current = found.replicas
    _end_drains(cluster, observed, found, wanted, current)
    if wanted > current:
        found.replicas = wanted
    elif wanted < current:
        _shrink(cluster, observed, found, wanted, now, busy)
    return found


def _shrink(
    cluster: Cluster,
    observed: Observed,
    found: Shrinking,
    wanted: int,
    now: datetime.datetime,
    busy: str,
) -> None:
    """The next step of removing the highest ordinal."""
    current = found.replicas
    target = found.bookie = f"{cluster.object_name(BOOKIE)}-{current - 1}"
    found.again_s = emptying.LOOK_S
    found.drain = observed.ledgers.drain(target)
    leaving = [one.name for one in observed.of(BOOKIE) if one.ordinal >= current]
    step = emptying.next_step(
        cluster,
        observed,
        target,
        current,
        now,
        why=f"bookies {current} → {current - 1}",
        busy=f"{', '.join(leaving)} still ends" if leaving else busy,
        spared=[one.name for one in observed.of(BOOKIE) if one.ordinal >= wanted],
    )
    found.refused, found.waits = step.refused, step.waits
    if step.may_go:
        found.replicas = current - 1
    elif step.begin:
        found.actions.append(BeginDrain(target, step.begin))


def _end_drains(
    cluster: Cluster, observed: Observed, found: Shrinking, wanted: int, current: int
) -> None:
    """Bookies that stay after all, and such as have gone. Others' drains are left alone."""
    prefix = f"{cluster.object_name(BOOKIE)}-"
    pods = {one.name for one in observed.of(BOOKIE)}
    health = observed.ledgers.health
    living = {one.bookie_id for one in health.bookies} if health is not None else set()
    for drain in observed.ledgers.drains:
        tail = drain.bookie_id.removeprefix(prefix)
        if not drain.reason.startswith(REASON_OF_OURS) or not tail.isdigit():
            continue
        if int(tail) < wanted:
            if volume_of(drain):
                continue  # see `replacing`
            found.actions.append(EndDrain(drain.bookie_id, f"{drain.bookie_id} stays"))
        elif int(tail) >= current and drain.bookie_id not in pods | living:
            text = f"{drain.bookie_id} is gone; its name may be used again"
            found.actions.append(EndDrain(drain.bookie_id, text))
