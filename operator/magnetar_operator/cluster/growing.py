"""Bookies added because disks fill up, where the spec consents. Pure.

`autoscale.bookies` says when; here is what becomes of it. How many bookies there are to be at least
is written on the StatefulSet (`SCALED_UP`: number and time), apart from `spec.bookie.replicas`: who
applies a manifest again takes no bookie away by it. It counts while `scaleUp.enabled` is true;
where that is taken back, the bookies beyond the spec's number are emptied and removed as any other.
The MagnetarCluster's status repeats the mark for a StatefulSet that somebody deleted.
"""

import datetime
from dataclasses import dataclass
from typing import Final

from magnetar_operator.api_kinds import STATEFUL_SET
from magnetar_operator.autoscale.bookies import Disk, advise
from magnetar_operator.cluster.manifests.naming import BOOKIE, Cluster
from magnetar_operator.cluster.observed import Observed, when
from magnetar_operator.models.values import seconds

SCALED_UP: Final = "magnetar.io/scaled-up"


@dataclass(frozen=True, slots=True)
class Growing:
    """What is decided."""

    wanted: int
    """Bookies, with those that disks have called for."""
    mark: str = ""
    """For the StatefulSet's annotation; none where empty."""
    recommendations: tuple[tuple[str, str], ...] = ()
    added: str = ""
    """Why one is added now."""


def decide(
    cluster: Cluster, observed: Observed, now: datetime.datetime, noted: str = ""
) -> Growing:
    """Looks at the disks; one more at most. `noted`: the mark as the status repeats it."""
    bookie = cluster.spec.bookie
    stored = observed.get(STATEFUL_SET, cluster.object_name(BOOKIE))
    annotations = {} if stored is None else stored["metadata"].get("annotations", {})
    known = noted if stored is None else annotations.get(SCALED_UP, "")
    mark = known if bookie.scale_up.enabled else ""
    floor, at = _read(mark)
    wanted = max(bookie.replicas, floor)
    health = observed.ledgers.health
    if health is None or stored is None or int(stored["spec"].get("replicas", 0)) != wanted:
        return Growing(wanted, mark)
    disks = [
        Disk(one.bookie_id, one.disk_bytes_total, one.disk_bytes_free, one.writable)
        for one in health.bookies
        if one.disk_bytes_total
    ]
    pause_s = seconds(bookie.scale_up.pause)
    since_s = pause_s if at is None else (now - at).total_seconds()
    advice = advise(bookie, wanted, disks, since_s, pause_s)
    if advice.bookies <= wanted:
        return Growing(wanted, mark, advice.recommendations)
    stamp = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = advice.recommendations[0][1] if advice.recommendations else "disks fill up"
    new = f"{advice.bookies} {stamp}"
    return Growing(advice.bookies, new, advice.recommendations, text)


def _read(mark: str) -> tuple[int, datetime.datetime | None]:
    count, _, at = mark.partition(" ")
    return (int(count), when(at)) if count.isdigit() else (0, None)
