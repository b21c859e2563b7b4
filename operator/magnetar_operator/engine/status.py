"""Builds the conditions of a status, and writes a status that has changed notably.

A condition keeps its lastTransitionTime while its status stays the same. Numbers that change all
the time (backlogs, stored bytes) are written if they change by more than NOTABLE_CHANGE, or to or
from 0: otherwise a busy topic would cost a write to the API server at every reconcile.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar_operator.kube.client import Conflict, KubeClient, NotFound
from magnetar_operator.kube.kinds import Object, kind_of

NOTABLE_CHANGE: Final = 0.1
"""The share of the larger number by which a number must change to be written."""
MESSAGE_CHARACTERS_MAX: Final = 4_000
READY: Final = "Ready"
POLICY_READY: Final = "PolicyReady"
DELETION_BLOCKED: Final = "DeletionBlocked"
PAUSED: Final = "Paused"

_RESTLESS: Final = ("backlog", "storageBytes")
_TIMES: Final = ("lastReconciled",)


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an object's state."""

    type: str
    holds: bool | None
    """Whether the condition is true; None: unknown."""
    reason: str
    message: str = ""


def conditions(
    before: Iterable[Mapping[str, Any]],
    now: Iterable[Condition],
    generation: int,
    at: datetime.datetime,
) -> list[dict[str, Any]]:
    """`status.conditions`: the current conditions with the times of their last transitions."""
    by_type = {condition.get("type"): condition for condition in before}
    built = []
    for condition in now:
        status = "Unknown" if condition.holds is None else str(condition.holds)
        old = by_type.get(condition.type)
        since = old.get("lastTransitionTime") if old and old.get("status") == status else None
        built.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason,
                "message": condition.message[:MESSAGE_CHARACTERS_MAX],
                "lastTransitionTime": since or timestamp(at),
                "observedGeneration": generation,
            }
        )
    return built


def is_worth_writing(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the statuses differ in a stable field, or notably in a number."""
    skipped = {*_RESTLESS, *_TIMES}
    fixed = [{k: v for k, v in status.items() if k not in skipped} for status in (before, after)]
    if fixed[0] != fixed[1]:
        return True
    old, new = ({k: status.get(k) for k in _RESTLESS} for status in (before, after))
    return _differs(old, new)


def _differs(before: Any, after: Any) -> bool:
    if isinstance(before, dict) and isinstance(after, dict):
        names = {*before, *after}
        return any(_differs(before.get(name), after.get(name)) for name in names)
    if isinstance(before, int | float) and isinstance(after, int | float):
        if not before or not after:
            return before != after
        return abs(before - after) > NOTABLE_CHANGE * max(abs(before), abs(after))
    return bool(before != after)


def timestamp(at: datetime.datetime) -> str:
    """A time in Kubernetes' form (RFC 3339, UTC, seconds)."""
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ObjectGone(Exception):
    """The object of the reconcile was deleted, or a newer object has its name."""


class ObjectChanged(Exception):
    """The object has changed since the reconcile read it."""


class StatusWriter:
    """Writes the statuses of all kinds.

    A status is applied as a whole: the API server removes absent fields and refuses null. It is
    written by uid, so never to a newer object of the same name. kopf would write statuses as merge
    patches by name alone, without the operator's lease.
    """

    def __init__(self, kube: KubeClient, now: Callable[[], datetime.datetime]) -> None:
        self._kube = kube
        self._now = now

    async def write(
        self, obj: Object, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> Object | None:
        """Writes `after` if it differs notably from `before`.

        Returns the object as stored, or None if nothing was written. Raises ObjectGone.
        """
        if not is_worth_writing(before, after):
            return None
        return await self.put(obj, {**after, "lastReconciled": timestamp(self._now())})

    async def put(self, obj: Object, status: Mapping[str, Any]) -> Object:
        """Writes the whole status of this very object. Raises ObjectGone."""
        metadata = obj["metadata"]
        try:
            return await self._kube.patch_status(
                kind_of(obj), metadata["namespace"], metadata["name"], status, uid=metadata["uid"]
            )
        except (Conflict, NotFound) as error:
            raise ObjectGone(str(error)) from error
