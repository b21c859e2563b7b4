"""Decides which pod of a StatefulSet to replace next, until all have the newest template. Pure.

Pods are replaced one at a time, the highest ordinal first. The next replacement waits until the
previous pod is ready, has been ready for the pause, and (for bookies) every ledger has its copies
again. An outdated pod that is stuck (it cannot start, or has not become ready in the time that a
start may take) is replaced first: it serves no client, and the newest template may be a rollback. A
running pod may be stuck only because it lacks metadata and may become ready at any moment, so its
replacement waits for the pods that were replaced before.
"""

import datetime
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from magnetar_operator.cluster.actions import ReplacePod
from magnetar_operator.cluster.observed import Pod
from magnetar_operator.kube.kinds import Object

REQUEUE_S: Final = 2.0


@dataclass(slots=True)
class Rollout:
    """The decision about a rollout."""

    stale: list[Pod] = field(default_factory=list)
    """Pods that do not have the newest template."""
    unknown: bool = False
    """The StatefulSet's controller has not processed the spec yet, so `stale` is not reliable."""
    pending: bool = False
    """A pod is ending, missing, or not ready and not stuck."""
    replace: ReplacePod | None = None
    waits: str = ""
    requeue_s: float | None = None

    @property
    def under_way(self) -> bool:
        """Whether later steps of an upgrade must wait."""
        return bool(self.stale or self.unknown or self.pending)


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
) -> Rollout:
    """Decides which pod is replaced next.

    `why_not`: why no ready pod may be taken away now. `kept`: pods that must not be deleted even if
    they are stuck, because their volumes would be deleted with them. `has_metadata`: whether etcd
    answers; while it does not, no bookie becomes ready, and a restart does not help.
    """
    if stored is None:
        return Rollout()
    status = stored.get("status", {})
    newest = status.get("updateRevision", "")
    if not newest or status.get("observedGeneration", 0) < stored["metadata"].get("generation", 0):
        return Rollout(unknown=True, requeue_s=REQUEUE_S)
    rollout = Rollout([pod for pod in pods if pod.revision != newest and not pod.ending])
    rollout.pending = len(pods) < stored["spec"].get("replicas", 0) or any(
        pod.ending or not (pod.ready or pod.stuck(now)) for pod in pods
    )
    if not rollout.stale:
        return rollout
    rollout.requeue_s = REQUEUE_S
    if is_manual:
        names = ", ".join(pod.name for pod in rollout.stale)
        rollout.waits = f"{names} are outdated until they are deleted by hand (upgrade.strategy)"
        rollout.requeue_s = None
        return rollout
    ending = [pod.name for pod in pods if pod.ending]
    if ending:
        rollout.waits = f"{', '.join(ending)} still ends"
        return rollout
    stuck = [pod for pod in rollout.stale if pod.stuck(now) and pod.name not in kept]
    missing = len(pods) < stored["spec"].get("replicas", 0)
    is_pending = missing or any(not pod.ready for pod in pods if pod not in rollout.stale)
    if is_pending or not has_metadata:
        stuck = [pod for pod in stuck if pod.trouble]
    if stuck:
        rollout.replace = _replace(stuck[-1], f"it cannot start ({stuck[-1].stuck(now)})")
        return rollout
    unready = [pod.name for pod in pods if not pod.ready]
    if unready:
        rollout.waits = f"{', '.join(unready)} not ready"
    elif why_not:
        rollout.waits = why_not
    else:
        newest_ready = max((pod.ready_since for pod in pods if pod.ready_since), default=None)
        rested_s = (now - newest_ready).total_seconds() if newest_ready is not None else pause_s
        left_s = pause_s - rested_s if len(rollout.stale) < len(pods) else 0.0
        if left_s > 0:
            rollout.waits = f"the pause of {pause_s:g} s after the previous pod"
            rollout.requeue_s = max(0.5, left_s)
        else:
            rollout.replace = _replace(rollout.stale[-1], "image or settings have changed")
    return rollout


def _replace(pod: Pod, reason: str) -> ReplacePod:
    return ReplacePod(pod.name, pod.uid, f"{pod.name} is restarted: {reason}")
