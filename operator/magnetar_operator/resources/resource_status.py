"""The words of a status: conditions, and whether a new status is worth a write. Pure.

A condition keeps its lastTransitionTime while its status stays. Numbers that move all the time
(backlogs, stored bytes) are written when they changed by more than NOTABLE_CHANGE, or to or from 0:
a busy topic would else cost a write to the API server at every look.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

NOTABLE_CHANGE: Final = 0.1
"""Of the larger of both numbers."""
MESSAGE_CHARACTERS_MAX: Final = 4_000
READY: Final = "Ready"
POLICY_READY: Final = "PolicyReady"
DELETION_BLOCKED: Final = "DeletionBlocked"
PAUSED: Final = "Paused"

_RESTLESS: Final = ("backlog", "storageBytes")
_TIMES: Final = ("lastReconciled",)


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect, as it is now."""

    type: str
    holds: bool | None
    """None: not known."""
    reason: str
    message: str = ""


def conditions(
    before: Iterable[Mapping[str, Any]],
    now: Iterable[Condition],
    generation: int,
    at: datetime.datetime,
) -> list[dict[str, Any]]:
    """As `status.conditions` has them: those that are now, with their times."""
    known = {one.get("type"): one for one in before}
    built = []
    for one in now:
        status = "Unknown" if one.holds is None else str(one.holds)
        was = known.get(one.type)
        since = was.get("lastTransitionTime") if was and was.get("status") == status else None
        built.append(
            {
                "type": one.type,
                "status": status,
                "reason": one.reason,
                "message": one.message[:MESSAGE_CHARACTERS_MAX],
                "lastTransitionTime": since or timestamp(at),
                "observedGeneration": generation,
            }
        )
    return built


def is_worth_writing(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether anything that matters differs."""
    left_out = {*_RESTLESS, *_TIMES}
    fixed = [{k: v for k, v in one.items() if k not in left_out} for one in (before, after)]
    if fixed[0] != fixed[1]:
        return True
    was, now = ({k: one.get(k) for k in _RESTLESS} for one in (before, after))
    return _differs(was, now)


def _differs(before: Any, after: Any) -> bool:
    if isinstance(before, dict) and isinstance(after, dict):
        names = {*before, *after}
        return any(_differs(before.get(name), after.get(name)) for name in names)
    if isinstance(before, int | float) and isinstance(after, int | float):
        if not before or not after:
            return before != after
        return abs(before - after) > NOTABLE_CHANGE * max(abs(before), abs(after))
    return bool(before != after)


def condition_of(status: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    """Empty where there is none of that type."""
    return next((one for one in status.get("conditions") or () if one.get("type") == type_), {})


def timestamp(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
