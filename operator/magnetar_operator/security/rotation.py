"""Decides the next step of a signer's rotation: a certificate authority, or a token key. Pure.

A signer is replaced with overlap, so that no peer ever meets a signature that it does not trust:

1. ANNOUNCE  a successor is created; peers begin to trust it, and it signs nothing yet;
2. PROMOTE   once every peer trusts it, the successor signs; the predecessor is still trusted;
3. RETIRE    once nothing that the predecessor signed is in use, it is no longer trusted.

Peers learn of a change of trust within `settle`: the kubelet updates mounted Secrets within two
minutes, and processes notice changed files within `tlsCertRefreshCheckDurationSec`.
"""

import datetime
from dataclasses import dataclass
from enum import Enum
from typing import Final

CHECK_S: Final = 10.0
"""Until the next reconcile of a step that waits for other objects."""


class Step(Enum):
    """The next step of a rotation."""

    NONE = "none"
    CREATE = "create"
    ANNOUNCE = "announce"
    PROMOTE = "promote"
    RETIRE = "retire"


@dataclass(frozen=True, slots=True)
class Signer:
    """The state of a signer, as its Secret records it."""

    exists: bool = False
    due: bool = False
    """It expires soon, or a person requests its replacement."""
    expired: bool = False
    """Nothing that it signed is accepted any more."""
    announced_at: datetime.datetime | None = None
    """When the successor was created; None: there is none."""
    promoted_at: datetime.datetime | None = None
    """When it replaced a predecessor that is still trusted; None: there is none."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a rotation."""

    settle: datetime.timedelta
    """The time in which every peer learns of a change of trust."""
    retain: datetime.timedelta
    """The time for which a predecessor is trusted at least."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step, and the time of the decision after it."""

    step: Step = Step.NONE
    requeue_s: float | None = None
    """Seconds until another step may be due; None: that depends on the signer's expiry only."""


def decide(
    signer: Signer, pace: Pace, now: datetime.datetime, *, deployed: bool, followed: bool
) -> Decision:
    """The next step of a signer.

    `deployed`: every process that must restart to trust the successor has done so. `followed`:
    everything that the signer's predecessor signed was signed again.
    """
    if not signer.exists:
        return Decision(Step.CREATE)
    if signer.announced_at is not None:
        if signer.expired:
            return Decision(Step.PROMOTE)  # no overlap is left to protect
        return _after(Step.PROMOTE, signer.announced_at + pace.settle, now, deployed)
    if signer.promoted_at is not None:
        at = signer.promoted_at + max(pace.settle, pace.retain)
        return _after(Step.RETIRE, at, now, followed)
    return Decision(Step.ANNOUNCE) if signer.due else Decision()


def _after(step: Step, at: datetime.datetime, now: datetime.datetime, condition: bool) -> Decision:
    remaining_s = (at - now).total_seconds()
    if remaining_s > 0:
        return Decision(requeue_s=remaining_s)
    return Decision(step) if condition else Decision(requeue_s=CHECK_S)
