"""The bytes that a topic takes on bookies, by reason. Pure.

Every ledger has one reason, so the reasons add up to the whole:

- `open_ledger`: the newest ledger, which is still written
- `subscription/NAME`: the slowest durable subscription has not acknowledged the ledger
- `retention`: every subscription has, and the retention policy keeps it
- `compaction`: it is newer than the compacted topic, whose readers need it
- `awaiting_trim`: nothing needs it; the next round of trimming deletes it
- `offload_lag`: it is offloaded, and the bookies keep their copies for a while
- `deleting`: its deletion has begun
- `cursors`, `deduplication`, `aborted_transactions`: the ledgers of the broker's own state
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.documents.explain import DiskUse, LedgerUse

LEDGERS_SHOWN_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState:
    """One ledger of a topic. `kind` is `topic`, `deleting`, or the reason of the broker's state."""

    ledger_id: int
    kind: str = "topic"
    size_bytes: int
    """The bytes of one copy."""
    copies: int
    closed: bool = True
    offloaded: bool = False
    """Whether object storage has it, and the bookies still do."""
    consumed: bool = False
    """Whether every durable subscription has acknowledged all of it."""
    pinned_by: str = ""
    """The slowest durable subscription, if it has not acknowledged the ledger."""
    trimmable: bool = False
    """Whether retention would let it go."""
    compaction_keeps: bool = False
    detail: str = ""


def reason_of(ledger: LedgerState) -> str:
    """Returns why the ledger takes space on bookies."""
    if ledger.kind != "topic":
        return ledger.kind
    if not ledger.closed:
        return "open_ledger"
    if ledger.offloaded:
        return "offload_lag"
    if not ledger.consumed:
        return f"subscription/{ledger.pinned_by}"
    if ledger.compaction_keeps:
        return "compaction"
    return "awaiting_trim" if ledger.trimmable else "retention"


def disk_use(ledgers: Sequence[LedgerState], *, exact: bool) -> DiskUse:
    """Returns the bytes of all copies; the list has the largest LEDGERS_SHOWN_MAX ledgers."""
    by_reason: dict[str, int] = {}
    uses = []
    for ledger in ledgers:
        reason, size = reason_of(ledger), ledger.size_bytes * ledger.copies
        by_reason[reason] = by_reason.get(reason, 0) + size
        uses.append(LedgerUse(ledger.ledger_id, reason, size, ledger.copies, ledger.detail))
    largest = sorted(uses, key=lambda use: -use.bytes)[:LEDGERS_SHOWN_MAX]
    return DiskUse(
        bytes=sum(use.bytes for use in uses),
        by_reason=by_reason,
        ledgers=sorted(largest, key=lambda use: use.ledger_id),
        exact=exact,
        ledgers_left_off=len(uses) - len(largest),
    )
