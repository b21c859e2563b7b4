"""Predicts what limits do to one log now: expiry, eviction, blocked producers, deleted ledgers.

The steps and functions are those of the enforcement, but nothing is changed: marks move in a copy.
First, old messages expire; then quotas are checked; then the ledgers are deleted that every cursor
has passed and retention does not keep. The enforcement does the same over its rounds.

Finding an entry's age may need reads. `Times` does those, for an open log exactly and for a log
that is known only from its records approximately.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.lifecycle.limits import Limits
from magnetar.broker.lifecycle.quota import Quota, QuotaType
from magnetar.core.ids import Position
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.trim_plan import trimmable


class Times(Protocol):
    """The ages of a log's entries."""

    async def oldest_ms(self, after: Position) -> int | None:
        """Returns when the first entry after `after` arrived; None without an entry or its time."""

    async def older_end(self, before_ms: int, after: Position) -> Position | None:
        """Returns the last entry after `after` that arrived before this time, if there is any."""


class Acks(Protocol):
    """A cursor's acknowledgments, seen from here (`AckState`)."""

    @property
    def durable(self) -> bool:
        """Whether the cursor retains messages."""

    @property
    def mark_delete(self) -> Position:
        """The position up to which all entries are acknowledged."""

    def unacked_up_to(self, position: Position) -> int:
        """Returns the number of unacknowledged entries up to `position`."""

    def mark_delete_after(self, position: Position) -> Position:
        """Returns where the mark is after all entries up to `position` are acknowledged."""


@dataclass(slots=True)
class Outcome:
    """The predicted effects on one log, in entries, as Pulsar counts backlogs."""

    expires: dict[str, int] = field(default_factory=dict)
    evicts: dict[str, int] = field(default_factory=dict)
    blocks_producers: bool = False
    ledgers: int = 0
    entries: int = 0
    size_bytes: int = 0


def slowest(cursors: Iterable[Acks]) -> Position | None:
    """Returns the mark-delete position of the slowest durable cursor, if there is any."""
    return min((cursor.mark_delete for cursor in cursors if cursor.durable), default=None)


def consumed_rank(index: LedgerIndex, marks: Iterable[Position]) -> int:
    """Returns the rank that all marks have passed; without marks, everything is consumed."""
    return min((index.rank(*mark) for mark in marks), default=index.rank_end)


async def is_exceeded(
    quota: Quota, index: LedgerIndex, mark: Position, times: Times, now_ms: int
) -> bool:
    """Whether the backlog after `mark`, the slowest cursor's, exceeds the limit."""
    if quota.type is QuotaType.SIZE:
        return quota.exceeded_by_size(index.bytes_after(*mark))
    return quota.exceeded_by_age(await times.oldest_ms(mark), now_ms)


async def eviction_end(
    quota: Quota, index: LedgerIndex, mark: Position, times: Times, now_ms: int
) -> Position | None:
    """Returns the position up to which backlogs are evicted, None if nothing can be."""
    if quota.type is QuotaType.SIZE:
        return index.place_leaving(quota.reduced)
    return await times.older_end(quota.evicted_before_ms(now_ms), mark)


async def outcome(
    index: LedgerIndex,
    cursors: Mapping[str, Acks],
    limits: Limits,
    times: Times,
    now_ms: int,
    *,
    deletes: bool = True,
    trim_limit: Position | None = None,
) -> Outcome:
    """Predicts what the limits do to the log now, in the steps of the enforcement.

    `deletes` is false if a cursor could not be read, since then no ledger may be deleted. No ledger
    after `trim_limit`, compaction's horizon, is deleted; None: compaction is off.
    """
    effects = Outcome()
    marks = {name: cursor.mark_delete for name, cursor in cursors.items()}

    def move(names: Iterable[str], end: Position | None, counts: dict[str, int]) -> None:
        for name in names:
            if end is None or end <= marks[name]:
                continue
            cursor = cursors[name]
            count = cursor.unacked_up_to(end) - cursor.unacked_up_to(marks[name])
            marks[name] = cursor.mark_delete_after(end)
            if count:
                counts[name] = counts.get(name, 0) + count

    if limits.ttl_s and marks:
        before_ms = limits.expired_before_ms(now_ms)
        move(list(marks), await times.older_end(before_ms, min(marks.values())), effects.expires)
    durable = [name for name, cursor in cursors.items() if cursor.durable]
    for quota in limits.quotas if durable else ():
        mark = min(marks[name] for name in durable)
        if not await is_exceeded(quota, index, mark, times, now_ms):
            continue
        if quota.action.blocks:
            effects.blocks_producers = True
        else:
            end = await eviction_end(quota, index, mark, times, now_ms)
            move(durable, end, effects.evicts)
    if deletes:
        rank = consumed_rank(index, (marks[name] for name in durable))
        if trim_limit is not None:
            rank = min(rank, index.rank(*trim_limit))
        for info in trimmable(index, rank, limits.retention, now_ms):
            effects.ledgers += 1
            effects.entries += info.entries
            effects.size_bytes += info.size_bytes
    return effects
