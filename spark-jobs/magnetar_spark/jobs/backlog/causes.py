"""Why bookies hold what they hold, ledger by ledger. Pure.

A managed ledger lets go of a head of its closed ledgers, whole ones. So the cause of a ledger's
bytes is the first of these that is true of it:

    cold          it is in the object store alone: no byte on bookies
    open          it is the one that is written to, or was when its broker ended
    untrimmed     nothing keeps it: its broker lets it go when it looks next (or when somebody loads
                  the topic)
    offloaded     a copy is in the object store: the bookies' goes after the deletion lag
    subscription  the durable subscription that is furthest behind still needs it
    compaction    consumed, and retention lets it go: it, or one before it, is not compacted yet
    retention     everybody has consumed it; the retention policy keeps it, or one before it

and beside the list: `deleting` (on record as to be deleted), `cursors` (what is acknowledged), and
`compacted` (files of latest values, in the object store).
Bytes on bookies are a ledger's length times its copies; what was offloaded and released has none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from magnetar.core.ids import Position
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.trimming import trimmable


class Cause(StrEnum):
    """See the module's text."""

    OPEN = "open"
    SUBSCRIPTION = "subscription"
    COMPACTION = "compaction"
    RETENTION = "retention"
    OFFLOADED = "offloaded"
    UNTRIMMED = "untrimmed"
    DELETING = "deleting"
    CURSORS = "cursors"
    COLD = "cold"
    """In the object store alone: no byte on bookies."""
    COMPACTED = "compacted"


@dataclass(frozen=True, slots=True)
class Held:
    """One ledger. `subscription` is who needs it, where that is the cause."""

    ledger_id: int
    cause: Cause
    subscription: str
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A durable subscription's place. None: nobody knows, so it needs everything."""

    subscription: str
    position: Position | None


def slowest(index: LedgerIndex, marks: Iterable[Mark]) -> tuple[str, int]:
    """Who holds data back, and the rank up to which all have consumed; "" where nobody is there."""
    ranked = [
        (0 if mark.position is None else index.rank(*mark.position), mark.subscription)
        for mark in marks
    ]
    rank, name = min(ranked, default=(index.rank_end, ""))
    return name, rank


def held_by_cause(
    index: LedgerIndex,
    marks: Iterable[Mark],
    retention: Retention,
    now_ms: int,
    offloaded: Mapping[int, bool],
    trim_limit: Position | None = None,
) -> list[Held]:
    """Every ledger of the list, in order. `offloaded`: whether the bookies' copies are gone.

    Behind `trim_limit` nothing is trimmed: it is not compacted yet.
    """
    name, rank = slowest(index, marks)
    may_go = {info.ledger_id for info in trimmable(index, rank, retention, now_ms)}
    going = may_go
    if trim_limit is not None:
        limited = min(rank, index.rank(*trim_limit))
        going = {info.ledger_id for info in trimmable(index, limited, retention, now_ms)}
    held: list[Held] = []
    for info in index.infos:
        holder = ""
        if offloaded.get(info.ledger_id):
            cause = Cause.COLD
        elif not info.closed_ms:
            cause = Cause.OPEN
        elif info.ledger_id in going:
            cause = Cause.UNTRIMMED
        elif info.ledger_id in offloaded:
            cause = Cause.OFFLOADED
        elif info.base_rank + info.entries > rank:
            cause, holder = Cause.SUBSCRIPTION, name
        elif info.ledger_id in may_go:
            cause = Cause.COMPACTION
        else:
            cause = Cause.RETENTION
        held.append(Held(info.ledger_id, cause, holder, info.entries, info.size_bytes))
    return held
