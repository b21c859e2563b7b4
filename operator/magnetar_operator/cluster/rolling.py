"""Which pod of a StatefulSet is replaced next, so that all get the newest form. Pure.

One at a time, the highest ordinal first, and the next not before the one before is ready, has been
for the pause, and (bookies) every ledger has its copies again. A pod in an older form that is stuck
(it cannot start, or runs and has not become ready in the time that a start may take) is replaced
first: it serves nobody, and it may be the form that a rollback takes back. A pod that runs may be
stuck for want of metadata and become ready at any moment, so it waits for the pods replaced before.
"""

import datetime
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from magnetar_operator.api_kinds import Object
from magnetar_operator.cluster.actions import ReplacePod
from magnetar_operator.cluster.observed import Pod

LOOK_S: Final = 2.0


@dataclass(slots=True)
class Rolling:
    """What is decided."""

    stale: list[Pod] = field(default_factory=list)
    """In an older form than the newest."""
    unknown: bool = False
    """Which form is the newest is not known yet: the set's controller has not looked."""
    coming: bool = False
    """A pod ends, or is on its way: not there yet, or not ready and not stuck."""
    replace: ReplacePod | None = None
    waits: str = ""
    again_s: float | None = None

    @property
    def under_way(self) -> bool:
        """Whether what is to come after this has to wait."""
        return bool(self.stale or self.unknown or self.coming)


def decide(
    stored: Object | None,
    pods: list[Pod],
    *,
    pause_s: float,
    now: datetime.datetime,
    why_not: str,
    is_manual: bool,
    kept: Collection[str] = (),
    has_metadata: bool = True,
) -> Rolling:
    """`why_not`: what is against taking a pod that works away now; `kept`: pods that are not to go,
    even where they do not work: their volumes would go with them. `has_metadata`: whether etcd
    answers; while it does not, no pod of a bookie is ready, and a restart helps none."""
    if stored is None:
        return Rolling()
    status = stored.get("status", {})
    newest = status.get("updateRevision", "")
    if not newest or status.get("observedGeneration", 0) < stored["metadata"].get("generation", 0):
        return Rolling(unknown=True, again_s=LOOK_S)
    found = Rolling([one for one in pods if one.revision != newest and not one.going])
    found.coming = len(pods) < stored["spec"].get("replicas", 0) or any(
        one.going or not (one.ready or one.stuck(now)) for one in pods
    )
    if not found.stale:
        return found
    found.again_s = LOOK_S
    if is_manual:
        names = ", ".join(one.name for one in found.stale)
        found.waits = f"{names} have an older form until somebody deletes them (upgrade.strategy)"
        found.again_s = None
        return found
    going = [one.name for one in pods if one.going]
    if going:
        found.waits = f"{', '.join(going)} still ends"
        return found
    stuck = [one for one in found.stale if one.stuck(now) and one.name not in kept]
    missing = len(pods) < stored["spec"].get("replicas", 0)
    coming = missing or any(not one.ready for one in pods if one not in found.stale)
    if coming or not has_metadata:
        stuck = [one for one in stuck if one.trouble]
    if stuck:
        found.replace = _replace(stuck[-1], f"it cannot start ({stuck[-1].stuck(now)})")
        return found
    unready = [one.name for one in pods if not one.ready]
    if unready:
        found.waits = f"{', '.join(unready)} not ready"
    elif why_not:
        found.waits = why_not
    else:
        newest_ready = max((one.ready_since for one in pods if one.ready_since), default=None)
        rested_s = (now - newest_ready).total_seconds() if newest_ready is not None else pause_s
        left_s = pause_s - rested_s if len(found.stale) < len(pods) else 0.0
        if left_s > 0:
            found.waits = f"the pause of {pause_s:g} s after the pod before"
            found.again_s = max(0.5, left_s)
        else:
            found.replace = _replace(found.stale[-1], "image or settings have changed")
    return found


def _replace(pod: Pod, why: str) -> ReplacePod:
    return ReplacePod(pod.name, pod.uid, f"{pod.name} is restarted: {why}")
