"""Adds bookies because disks fill up, if the spec allows it. Pure: no IO.

`autoscale.bookies` decides when. The minimum number of bookies is written on the StatefulSet
(`SCALED_UP`: number and time), not into `spec.bookie.replicas`, so that applying the manifest again
removes no bookie. It applies while `scaleUp.enabled` is true; after that, the bookies beyond the
spec's number are drained and removed. The MagnetarCluster's status has a copy of the mark, in case
the StatefulSet is deleted.
"""

import datetime
from dataclasses import dataclass
from typing import Final

from magnetar_operator.autoscale.bookies import Disk, advise
from magnetar_operator.cluster.manifests.names import BOOKIE, Cluster
from magnetar_operator.cluster.observed import Observed, when
from magnetar_operator.kube.kinds import STATEFUL_SET
from magnetar_operator.models.values import seconds

SCALED_UP: Final = "magnetar.io/scaled-up"


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """The decision about additional bookies."""

    wanted: int
    """The number of bookies, including those that were added because disks filled up."""
    mark: str = ""
    """The value of the StatefulSet's annotation; empty: no annotation."""
    recommendations: tuple[tuple[str, str], ...] = ()
    added: str = ""
    """Why a bookie is added now."""


def decide(
    cluster: Cluster, observed: Observed, now: datetime.datetime, recorded: str = ""
) -> ScaleUp:
    """Adds at most one bookie, by the disk use. `recorded`: the mark in the status."""
    bookie = cluster.spec.bookie
    stored = observed.get(STATEFUL_SET, cluster.object_name(BOOKIE))
    annotations = {} if stored is None else stored["metadata"].get("annotations", {})
    present = recorded if stored is None else annotations.get(SCALED_UP, "")
    mark = present if bookie.scale_up.enabled else ""
    floor, at = _read(mark)
    wanted = max(bookie.replicas, floor)
    health = observed.ledgers.health
    if health is None or stored is None or int(stored["spec"].get("replicas", 0)) != wanted:
        return ScaleUp(wanted, mark)
    disks = [
        Disk(bookie.bookie_id, bookie.disk_bytes_total, bookie.disk_bytes_free, bookie.writable)
        for bookie in health.bookies
        if bookie.disk_bytes_total
    ]
    pause_s = seconds(bookie.scale_up.pause)
    since_s = pause_s if at is None else (now - at).total_seconds()
    advice = advise(bookie, wanted, disks, since_s, pause_s)
    if advice.bookies <= wanted:
        return ScaleUp(wanted, mark, advice.recommendations)
    stamp = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = advice.recommendations[0][1] if advice.recommendations else "disks fill up"
    new = f"{advice.bookies} {stamp}"
    return ScaleUp(advice.bookies, new, advice.recommendations, text)


def _read(mark: str) -> tuple[int, datetime.datetime | None]:
    count, _, at = mark.partition(" ")
    return (int(count), when(at)) if count.isdigit() else (0, None)
