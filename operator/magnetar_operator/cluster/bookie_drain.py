"""Decides the next step of draining a bookie, for a removal or for a new volume. Pure: no IO.

The drain is requested once the gate is open. Autorecovery copies the ledgers and proves by checksum
that every ledger has its copies elsewhere. The bookie may be removed while that proof is young and
the gate is open. If the proof is too old, or if the bookie takes new ledgers again, the drain is
requested again, and so is a refused drain.
"""

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from magnetar.documents.bookies import Drain, DrainState
from magnetar_operator.cluster import gate
from magnetar_operator.cluster.manifests.names import Cluster
from magnetar_operator.cluster.observed import Observed

PROOF_AGE_S_MAX: Final = 600.0
REQUEST_AGAIN_S: Final = 60.0
"""Between a refused drain and the next request."""
REQUEUE_S: Final = 2.0
LEDGERS_NAMED_MAX: Final = 10
UNDER_WAY: Final = (DrainState.REQUESTED, DrainState.COPYING, DrainState.PROVING)
ENDED: Final = (DrainState.REMOVABLE, DrainState.REFUSED)


@dataclass(slots=True)
class DrainStep:
    """The next step of a drain."""

    is_removable: bool = False
    """The bookie's ledgers are proven to be elsewhere, and the gate is open."""
    begin: str = ""
    """Why the drain must be requested now; empty if it must not."""
    refused: str = ""
    """Why the bookie cannot be removed, and what to do."""
    waits: str = ""
    """What the drain, or the removal, waits for."""


def next_step(
    cluster: Cluster,
    observed: Observed,
    target: str,
    bookies: int,
    now: datetime.datetime,
    *,
    reason: str,
    busy: str = "",
    spared: Collection[str] = (),
) -> DrainStep:
    """Decides the next step.

    `reason` is recorded with the drain; `busy`: the other change that takes bookies away now;
    `spared`: bookies whose volumes may be lost or being deleted.
    """
    step = DrainStep()
    drain = observed.ledgers.drain(target)
    if drain is not None and drain.state not in ENDED:
        step.waits = f"{target} is being drained"
        return step
    blocked = busy or gate.why_not(cluster, observed, bookies, besides=target, spared=spared)
    age_s = 0.0 if drain is None else now.timestamp() - drain.proven_ms / 1_000
    takes_ledgers = _takes_ledgers(observed, target)
    is_young = abs(age_s) <= PROOF_AGE_S_MAX and not takes_ledgers
    if drain is not None and drain.state == DrainState.REMOVABLE and is_young:
        step.is_removable = not blocked
        if blocked:
            step.waits = f"{target} is drained and could be removed, but {blocked}"
        return step
    if drain is not None and drain.state == DrainState.REFUSED:
        step.refused = drain.refused + _ledgers(drain)
        waited_s = now.timestamp() - drain.requested_ms / 1_000
        if waited_s < REQUEST_AGAIN_S:
            return step
    if blocked:
        if observed.ledgers.health is not None and not busy:
            step.refused = step.refused or (
                f"{target} is not drained now: {blocked}. It is retried once that is over"
            )
        step.waits = blocked
        return step
    step.begin = _begin_text(drain, target, reason, takes_ledgers=takes_ledgers)
    return step


def _takes_ledgers(observed: Observed, bookie: str) -> bool:
    """Whether the bookie runs and is not marked as draining, so that a proof may be outdated."""
    health = observed.ledgers.health
    living = () if health is None else health.bookies
    return any(other.bookie_id == bookie and not other.draining for other in living)


def _begin_text(drain: Drain | None, target: str, reason: str, *, takes_ledgers: bool) -> str:
    if drain is None:
        return f"{reason}: {target} is drained, and its copies are proven"
    if drain.state == DrainState.REFUSED:
        return f"{reason}: the drain of {target} was refused; it is retried"
    if takes_ledgers:
        return (
            f"{reason}: {target} takes new ledgers again, since its drain was cancelled; it is "
            "drained again"
        )
    return f"{reason}: the proof of {target} is too old; it is repeated"


def _ledgers(drain: Drain) -> str:
    ledgers = "; ".join(
        f"ledger {ledger.ledger_id}: {ledger.why}"
        for ledger in drain.in_the_way[:LEDGERS_NAMED_MAX]
    )
    return f" ({ledgers})" if ledgers else ""
