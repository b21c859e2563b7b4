"""Decides when the bookies' disk use calls for another bookie. Pure: no IO.

A new bookie takes new ledgers at once, and nothing is copied to it. It does not relieve full disks,
so it must be added before they are full. The mean use decides, because ledgers are spread evenly. A
single full disk beside empty ones is a problem of its own volume: the advice is to check it.

With consent (`spec.bookie.scaleUp.enabled`) the operator adds one bookie, waits `pause`, and checks
again, up to `maxReplicas`. The number of added bookies is stored apart from `spec.bookie.replicas`,
so that applying the same manifest again removes none of them. This module never removes a bookie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar_operator.models.cluster import Bookie

UNEVEN_PERCENT: Final = 25
"""A disk whose use exceeds the mean by more than this is reported."""
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of one bookie."""

    bookie: str
    total_bytes: int
    free_bytes: int
    writable: bool

    @property
    def used_percent(self) -> float:
        return 100.0 * (1 - self.free_bytes / self.total_bytes) if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice that follows from the disk use."""

    bookies: int
    """The number of bookies: as now, or one more."""
    recommendations: tuple[tuple[str, str], ...] = ()
    """(kind, text)"""


def advise(
    bookie: Bookie, now: int, disks: Sequence[Disk], since_last_s: float, pause_s: float
) -> Advice:
    """Advises on another bookie.

    `now` is the number of bookies, `since_last_s` the time since the last addition. While the disk
    of a bookie is unknown (it is starting, or does not answer), no bookie is added, because the
    mean would leave its disk out.
    """
    if not disks:
        return Advice(now)
    mean = sum(disk.used_percent for disk in disks) / len(disks)
    recommendations: list[tuple[str, str]] = []
    for disk in disks:
        used = f"{disk.bookie} has {disk.used_percent:.0f} % of its disk used"
        if not disk.writable:
            recommendations.append(("BookieReadOnly", f"{used} and takes no entries"))
        elif disk.used_percent > mean + UNEVEN_PERCENT:
            advice = "raise bookie.storage.size, or check what else is on the disk"
            recommendations.append(("GrowVolume", f"{used}, the mean is {mean:.0f} %: {advice}"))
    rule = bookie.scale_up
    if mean < rule.disk_percent:
        return Advice(now, tuple(recommendations))
    free_gib = sum(disk.free_bytes for disk in disks) / _GIB
    reason = (
        f"the bookies' disks are {mean:.0f} % used ({free_gib:.1f} GiB free in all), "
        f"{rule.disk_percent} % is the limit"
    )
    if not rule.enabled:
        text = f"{reason}: raise bookie.replicas to {now + 1}, or allow bookie.scaleUp.enabled"
        return Advice(now, (("AddBookie", text), *recommendations))
    if now >= rule.max_replicas:
        text = f"{reason}: bookie.scaleUp.maxReplicas ({rule.max_replicas}) is reached"
        return Advice(now, (("AddBookie", text), *recommendations))
    if len(disks) < now or since_last_s < pause_s:
        text = f"{reason}: a bookie is added once all are ready and bookie.scaleUp.pause is over"
        return Advice(now, (("AddBookie", text), *recommendations))
    return Advice(now + 1, (("AddBookie", f"{reason}: a bookie is being added"), *recommendations))
