"""When the bookies' disks call for another bookie. Pure.

A new bookie takes new ledgers at once and nothing is copied to it, so disks that are full are not
emptied by it: it must come before. The mean use counts, because ledgers are spread evenly; a single
full disk beside empty ones is a matter of its volume, and is recommended to be looked at.

With consent (`spec.bookie.scaleUp.enabled`) the operator adds one bookie, waits `pause`, and looks
again, up to `maxReplicas`. How many it added is kept beside the cluster, apart from
`spec.bookie.replicas`: who applies a manifest again does not take the bookie away by it. Nothing is
ever removed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar_operator.models.cluster import Bookie

UNEVEN_PERCENT: Final = 25
"""A disk this much fuller than the mean is named."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Disk:
    """One bookie's disk."""

    bookie: str
    total_bytes: int
    free_bytes: int
    writable: bool

    @property
    def used_percent(self) -> float:
        return 100.0 * (1 - self.free_bytes / self.total_bytes) if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """What the disks say."""

    bookies: int
    """How many bookies there should be: as now, or one more."""
    recommendations: tuple[tuple[str, str], ...] = ()
    """(kind, text)"""


def advise(
    bookie: Bookie, now: int, disks: Sequence[Disk], since_last_s: float, pause_s: float
) -> Advice:
    """`now` is how many bookies there are; `since_last_s` how long ago the last one was added.

    While a bookie's disk is not known (it starts, or cannot be asked) nothing is added: the mean
    would be of the others.
    """
    if not disks:
        return Advice(now)
    mean = sum(disk.used_percent for disk in disks) / len(disks)
    found: list[tuple[str, str]] = []
    for disk in disks:
        used = f"{disk.bookie} has {disk.used_percent:.0f} % of its disk used"
        if not disk.writable:
            found.append(("BookieReadOnly", f"{used} and takes no entries"))
        elif disk.used_percent > mean + UNEVEN_PERCENT:
            advice = "raise bookie.storage.size, or look what else is on the disk"
            found.append(("GrowVolume", f"{used}, the mean is {mean:.0f} %: {advice}"))
    rule = bookie.scale_up
    if mean < rule.disk_percent:
        return Advice(now, tuple(found))
    free_gib = sum(disk.free_bytes for disk in disks) / _GIB
    why = (
        f"the bookies' disks are {mean:.0f} % used ({free_gib:.1f} GiB free in all), "
        f"{rule.disk_percent} % is the limit"
    )
    if not rule.enabled:
        text = f"{why}: raise bookie.replicas to {now + 1}, or allow bookie.scaleUp.enabled"
        return Advice(now, (("AddBookie", text), *found))
    if now >= rule.max_replicas:
        text = f"{why}: bookie.scaleUp.maxReplicas ({rule.max_replicas}) is reached"
        return Advice(now, (("AddBookie", text), *found))
    if len(disks) < now or since_last_s < pause_s:
        text = f"{why}: one is added once all are ready and bookie.scaleUp.pause is over"
        return Advice(now, (("AddBookie", text), *found))
    return Advice(now + 1, (("AddBookie", f"{why}: one is being added"), *found))
