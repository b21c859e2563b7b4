"""What limits make of one log now: what expires, what is evicted, who is blocked, what is deleted.

The steps are those of the enforcement, on the same functions, and nothing is changed here: marks
are moved in a copy. Order: messages that are too old expire, then the quotas are looked at, then
the ledgers go that everybody has passed and retention does not keep. The enforcement does the same
in the course of its rounds.

How old an entry is may have to be read: `Times` does that, for a log that is open and, less
exactly, for one that is known from its records only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.lifecycle.limits import Limits
from magnetar.broker.lifecycle.quota import Quota, QuotaType
from magnetar.core.ids import Position
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.trimming import trimmable


class Times(Protocol):
    """How old a log's entries are."""

    async def oldest_ms(self, after: Position) -> int | None:
        """When the first entry behind `after` came; None where there is none, or nobody knows."""

    async def older_end(self, before_ms: int, after: Position) -> Position | None:
        """The last entry behind `after` that came before this time; None where there is none."""


class Acks(Protocol):
    """What a cursor has acknowledged (`AckState`)."""

    @property
    def durable(self) -> bool:
        """Whether it holds data."""

    @property
    def mark_delete(self) -> Position: ...

    def unacked_up_to(self, position: Position) -> int: ...

    def mark_delete_after(self, position: Position) -> Position: ...


@dataclass(slots=True)
class Outcome:
    """See the module's text. Counted in entries, as Pulsar counts backlogs."""

    expires: dict[str, int] = field(default_factory=dict)
    evicts: dict[str, int] = field(default_factory=dict)
    blocks_producers: bool = False
    ledgers: int = 0
    entries: int = 0
    size_bytes: int = 0


def slowest(cursors: Iterable[Acks]) -> Position | None:
    """Where the durable cursor is that is furthest behind; None where there is none."""
    return min((each.mark_delete for each in cursors if each.durable), default=None)


def consumed_rank(index: LedgerIndex, marks: Iterable[Position]) -> int:
    """The rank up to which all of them are; without any everything is consumed."""
    return min((index.rank(*mark) for mark in marks), default=index.rank_end)


async def is_exceeded(
    quota: Quota, index: LedgerIndex, mark: Position, times: Times, now_ms: int
) -> bool:
    """Whether the backlog behind `mark`, the slowest cursor's, is above the limit."""
    if quota.type is QuotaType.SIZE:
        return quota.exceeded_by_size(index.bytes_after(*mark))
    return quota.exceeded_by_age(await times.oldest_ms(mark), now_ms)


async def eviction_end(
    quota: Quota, index: LedgerIndex, mark: Position, times: Times, now_ms: int
) -> Position | None:
    """Up to where everybody's backlog is cut; None where nothing can be."""
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

    Without `deletes` no ledger goes: a cursor could not be read. No ledger goes behind
    `trim_limit`, compaction's horizon; None: compaction is off.
    """
    found = Outcome()
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
        move(list(marks), await times.older_end(before_ms, min(marks.values())), found.expires)
    durable = [name for name, cursor in cursors.items() if cursor.durable]
    for quota in limits.quotas if durable else ():
        mark = min(marks[name] for name in durable)
        if not await is_exceeded(quota, index, mark, times, now_ms):
            continue
        if quota.action.blocks:
            found.blocks_producers = True
        else:
            end = await eviction_end(quota, index, mark, times, now_ms)
            move(durable, end, found.evicts)
    if deletes:
        rank = consumed_rank(index, (marks[name] for name in durable))
        if trim_limit is not None:
            rank = min(rank, index.rank(*trim_limit))
        for info in trimmable(index, rank, limits.retention, now_ms):
            found.ledgers += 1
            found.entries += info.entries
            found.size_bytes += info.size_bytes
    return found
