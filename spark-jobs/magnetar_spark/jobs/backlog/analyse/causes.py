"""Determines why bookies hold each ledger. Pure.

A managed ledger trims its oldest closed ledgers, whole ones only. So the cause of a ledger's bytes
is the first of these that applies:

    cold          it is only in the object store: no byte on bookies
    open          it is being written, or was when its broker died
    untrimmed     nothing keeps it: its broker trims it at its next check, or on loading the topic
    offloaded     a copy is in the object store: bookies delete theirs after the deletion lag
    subscription  the durable subscription that is furthest behind still needs it
    compaction    consumed, and not kept by retention; it, or one before it, is not compacted yet
    retention     all subscriptions have consumed it; retention keeps it, or one before it

Outside the list of ledgers there are `deleting` (recorded for deletion), `cursors` (the state of
acknowledgments), and `compacted` (files of latest values in the object store). Bytes on bookies
are a ledger's length times its copies; an offloaded and released ledger has none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from magnetar.core.ids import Position
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.trim_plan import trimmable


class Cause(StrEnum):
    """Why storage is in use; see the module's docstring."""

    OPEN = "open"
    SUBSCRIPTION = "subscription"
    COMPACTION = "compaction"
    RETENTION = "retention"
    OFFLOADED = "offloaded"
    UNTRIMMED = "untrimmed"
    DELETING = "deleting"
    CURSORS = "cursors"
    COLD = "cold"
    COMPACTED = "compacted"


@dataclass(frozen=True, slots=True)
class Held:
    """The cause of one ledger's bytes. `subscription` names the one that needs it, if any."""

    ledger_id: int
    cause: Cause
    subscription: str
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark-delete position of a durable subscription; None if unknown: it needs everything."""

    subscription: str
    position: Position | None


def slowest(index: LedgerIndex, marks: Iterable[Mark]) -> tuple[str, int]:
    """The subscription furthest behind ("" without any), and the rank up to which all consumed."""
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
    """The causes of all ledgers in the list, in order.

    `offloaded` says per offloaded ledger whether the bookies' copies are deleted. Ledgers after
    `trim_limit` are not trimmed, since they are not compacted yet.
    """
    name, rank = slowest(index, marks)
    unneeded = {info.ledger_id for info in trimmable(index, rank, retention, now_ms)}
    untrimmed = unneeded
    if trim_limit is not None:
        limited = min(rank, index.rank(*trim_limit))
        untrimmed = {info.ledger_id for info in trimmable(index, limited, retention, now_ms)}
    held: list[Held] = []
    for info in index.infos:
        holder = ""
        if offloaded.get(info.ledger_id):
            cause = Cause.COLD
        elif not info.closed_ms:
            cause = Cause.OPEN
        elif info.ledger_id in untrimmed:
            cause = Cause.UNTRIMMED
        elif info.ledger_id in offloaded:
            cause = Cause.OFFLOADED
        elif info.base_rank + info.entries > rank:
            cause, holder = Cause.SUBSCRIPTION, name
        elif info.ledger_id in unneeded:
            cause = Cause.COMPACTION
        else:
            cause = Cause.RETENTION
        held.append(Held(info.ledger_id, cause, holder, info.entries, info.size_bytes))
    return held
