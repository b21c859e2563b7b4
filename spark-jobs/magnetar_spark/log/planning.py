"""From ledgers to ranges of entries, and from ranges to tasks. Pure.

A range is a run of entries of one ledger; a task reads a few ranges, about `partition_bytes` in
all. Ranges are cut by number of entries, from the average size of a ledger's entries. What lies
outside of a `Window` is not planned, so ledgers that cannot hold anything wanted are never read.

A chunked message belongs to where its last chunk is. A range that begins behind the first chunk
reads back to find it: through the entries of its ledger before it, then through `before`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import EARLIEST, ID_MAX, LATEST, Position
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.offload.records import OffloadRecord
from magnetar_spark.log.ledgers import LedgerSpan, TopicLog

PARTITION_BYTES_DEFAULT: Final = 128 << 20
"""As Spark cuts files. A task costs it some 50 ms of CPU, whatever it reads."""
CLOCKS_APART_MS: Final = 5 * 60_000
"""A ledger is left out by time only if it was closed, or created, this far away from the window.

Publish times are of producers' clocks, and a message may be stored long after it was published:
sent again after an outage, or brought by another cluster's replication.
"""
BEFORE_LEDGERS_MAX: Final = 4
"""Ledgers through which the first chunk of a message is looked for."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`, both inclusive."""

    low: int = -ID_MAX
    high: int = ID_MAX

    def cut(self, low: int, high: int) -> "Interval":
        """What both have."""
        return Interval(max(self.low, low), min(self.high, high))

    def has(self, number: int) -> bool:
        return self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Window:
    """What of a topic is wanted: positions from `first` to `last`, both inclusive, published at
    these times, in these ledgers, with these entry ids.

    `publish_ms` is exact. Whole ledgers are left out by `ledgers_ms`, with a margin.
    """

    first: Position = EARLIEST
    last: Position = LATEST
    publish_ms: Interval = Interval()
    ledgers_ms: Interval = Interval()
    ledgers: Interval = Interval()
    entries: Interval = Interval()
    ledgers_among: frozenset[int] | None = None
    entries_among: frozenset[int] | None = None

    def has_ledger(self, ledger_id: int) -> bool:
        return self.ledgers.has(ledger_id) and (
            self.ledgers_among is None or ledger_id in self.ledgers_among
        )


@dataclass(frozen=True, slots=True)
class Range:
    """Entries `first` to `last`, inclusive, of one ledger; about `size_bytes`.

    Only what was published between the times, both inclusive, is wanted of it.
    """

    topic: str
    partition: int
    metadata: LedgerMetadata
    first: int
    last: int
    size_bytes: int
    before: tuple["Elder", ...] = ()
    """Elder ledgers, newest first."""
    publish_ms: Interval = Interval()
    file: OffloadRecord | None = None
    """Of an offloaded ledger."""

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id


@dataclass(frozen=True, slots=True)
class Elder:
    """A ledger before the one of a range, with its last entry."""

    metadata: LedgerMetadata
    last_entry: int
    file: OffloadRecord | None = None


def ranges_of(log: TopicLog, window: Window, range_bytes: int) -> Iterator[Range]:
    """The ranges of a topic within the window, in order."""
    for index, span in enumerate(log.ledgers):
        elder = [each for each in log.ledgers[:index] if each.last_entry >= 0]
        before = tuple(
            Elder(each.metadata, each.last_entry, each.file)
            for each in reversed(elder[-BEFORE_LEDGERS_MAX:])
        )
        entry_bytes = max(1.0, span.entry_bytes)
        step = max(1, int(range_bytes / entry_bytes))
        for first, last in _entries_wanted(span, window):
            for start in range(first, last + 1, step):
                end = min(last, start + step - 1)
                yield Range(
                    str(log.topic),
                    log.topic.partition_index,
                    span.metadata,
                    start,
                    end,
                    int((end - start + 1) * entry_bytes),
                    before,
                    window.publish_ms,
                    span.file,
                )


def _entries_wanted(span: LedgerSpan, window: Window) -> Iterator[tuple[int, int]]:
    """First and last entries of runs within the window."""
    stored_ms, ledger_id = window.ledgers_ms, span.ledger_id
    if (
        not window.first.ledger_id <= ledger_id <= window.last.ledger_id
        or not window.has_ledger(ledger_id)
        or span.created_ms - CLOCKS_APART_MS > stored_ms.high
        or 0 < span.closed_ms < stored_ms.low - CLOCKS_APART_MS
    ):
        return
    wanted = window.entries.cut(0, span.last_entry)
    if ledger_id == window.first.ledger_id:
        wanted = wanted.cut(window.first.entry_id, wanted.high)
    if ledger_id == window.last.ledger_id:
        wanted = wanted.cut(wanted.low, window.last.entry_id)
    if window.entries_among is None:
        runs = [(wanted.low, wanted.high)]
    else:
        runs = [(each, each) for each in sorted(window.entries_among) if wanted.has(each)]
    yield from (run for run in runs if run[0] <= run[1])


def tasks_of(ranges: Iterable[Range], task_bytes: int) -> list[tuple[Range, ...]]:
    """Ranges that follow each other, gathered until they have about `task_bytes`."""
    tasks: list[tuple[Range, ...]] = []
    gathered: list[Range] = []
    size = 0
    for each in ranges:
        if gathered and size + each.size_bytes > task_bytes:
            tasks.append(tuple(gathered))
            gathered, size = [], 0
        gathered.append(each)
        size += each.size_bytes
    if gathered:
        tasks.append(tuple(gathered))
    return tasks
