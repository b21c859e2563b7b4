"""A bookie on its way out: what the next step is, for a removal as for a new volume. Pure.

It is asked for once the gate is open; autorecovery empties it and proves every ledger's copies
elsewhere by checksum; and it may go while that proof is young and the gate is open again. A proof
that has grown old, or is of a bookie that takes new ledgers again, is made anew; a refusal is tried
again.
"""

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from magnetar_operator.cluster import gate
from magnetar_operator.cluster.manifests.naming import Cluster
from magnetar_operator.cluster.observed import Drain, Observed

PROOF_AGE_S_MAX: Final = 600.0
ASK_AGAIN_S: Final = 60.0
LOOK_S: Final = 2.0
LEDGERS_TOLD_MAX: Final = 10
AT_WORK: Final = ("requested", "copying", "proving")
"""States of a drain that is under way."""


@dataclass(slots=True)
class Emptying:
    """The next step."""

    may_go: bool = False
    """It is empty, that is proven, and nothing is against it."""
    begin: str = ""
    """Why it is to be emptied now; it is not where this is empty."""
    refused: str = ""
    """Why it cannot go, and what to do."""
    waits: str = ""
    """What is waited for before it begins, or goes."""


def next_step(
    cluster: Cluster,
    observed: Observed,
    target: str,
    bookies: int,
    now: datetime.datetime,
    *,
    why: str,
    busy: str = "",
    spared: Collection[str] = (),
) -> Emptying:
    """`why`: for the drain's record; `busy`: what else takes bookies away now; `spared`:
    bookies whose volumes may be lost or going."""
    found = Emptying()
    drain = observed.ledgers.drain(target)
    if drain is not None and drain.state not in ("removable", "refused"):
        found.waits = f"{target} is being emptied"
        return found
    blocked = busy or gate.why_not(cluster, observed, bookies, besides=target, spared=spared)
    age_s = 0.0 if drain is None else now.timestamp() - drain.proven_ms / 1_000
    takes_ledgers = _takes_ledgers(observed, target)
    is_young = abs(age_s) <= PROOF_AGE_S_MAX and not takes_ledgers
    if drain is not None and drain.state == "removable" and is_young:
        found.may_go = not blocked
        if blocked:
            found.waits = f"{target} is empty and could go, but {blocked}"
        return found
    if drain is not None and drain.state == "refused":
        found.refused = drain.refused + _ledgers(drain)
        waited_s = now.timestamp() - drain.requested_ms / 1_000
        if waited_s < ASK_AGAIN_S:
            return found
    if blocked:
        if observed.ledgers.health is not None and not busy:
            found.refused = found.refused or (
                f"{target} is not emptied now: {blocked}. It is tried again once that is over"
            )
        found.waits = blocked
        return found
    found.begin = _why_begin(drain, target, why, takes_ledgers=takes_ledgers)
    return found


def _takes_ledgers(observed: Observed, bookie: str) -> bool:
    """Whether it lives and is not marked as draining: a proof says nothing of its new ledgers."""
    health = observed.ledgers.health
    living = () if health is None else health.bookies
    return any(one.bookie_id == bookie and not one.draining for one in living)


def _why_begin(drain: Drain | None, target: str, why: str, *, takes_ledgers: bool) -> str:
    if drain is None:
        return f"{why}: {target} is emptied, and its copies proven"
    if drain.state == "refused":
        return f"{why}: {target} was refused; it is tried again"
    if takes_ledgers:
        return (
            f"{why}: {target} takes new ledgers again, since its drain was cancelled; it is "
            "emptied again"
        )
    return f"{why}: the proof of {target} has grown old; it is made anew"


def _ledgers(drain: Drain) -> str:
    told = "; ".join(
        f"ledger {one.ledger_id}: {one.why}" for one in drain.in_the_way[:LEDGERS_TOLD_MAX]
    )
    return f" ({told})" if told else ""
