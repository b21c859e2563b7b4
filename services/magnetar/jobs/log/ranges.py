"""Divides ledgers into ranges of entries, and groups ranges into tasks. Pure.

A range is a run of entries of one ledger; a task reads a few ranges, about `partition_bytes` in
total. Ranges are divided by number of entries, based on the average entry size of a ledger. Entries
outside a `Window` are not planned, so ledgers without any wanted entry are never read.

A chunked message belongs to the range with its last chunk. A range that starts after the first
chunk reads back to find it: through earlier entries of its ledger, then through `before`.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from magnetar.core.ids import EARLIEST, ID_MAX, LATEST, Position
from magnetar.jobs.log.topic_log import LedgerSpan, TopicLog, last_readable
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.offload.records import OffloadRecord

PARTITION_BYTES_DEFAULT: Final = 128 << 20
"""Spark's size for parts of files. A task costs about 50 ms of CPU, regardless of its size."""
CLOCKS_APART_MS: Final = 5 * 60_000
"""A ledger is skipped by time only if it was closed, or created, this far outside the window.

Publish times are those of producers' clocks, and a message may be stored long after it was
published: sent again after an outage, or replicated from another cluster.
"""
BEFORE_LEDGERS_MAX: Final = 4
"""Ledgers that are searched for the first chunk of a message."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from `low` to `high`, both inclusive."""

    low: int = -ID_MAX
    high: int = ID_MAX

    def cut(self, low: int, high: int) -> "Interval":
        """The intersection."""
        return Interval(max(self.low, low), min(self.high, high))

    def has(self, number: int) -> bool:
        """Whether the number is in the interval."""
        return self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Window:
    """The wanted part of a topic: positions `first` to `last`, both inclusive, published at these
    times, in these ledgers, with these entry ids.

    `publish_ms` is exact. `ledgers_ms` excludes whole ledgers, with a margin.
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
        """Whether the ledger's id is wanted."""
        return self.ledgers.has(ledger_id) and (
            self.ledgers_among is None or ledger_id in self.ledgers_among
        )


@dataclass(frozen=True, slots=True)
class Range:
    """Entries `first` to `last`, inclusive, of one ledger; about `size_bytes`.

    Only messages published within `publish_ms` are wanted.
    """

    topic: str
    partition: int
    metadata: LedgerMetadata
    first: int
    last: int
    size_bytes: int
    before: tuple["Elder", ...] = ()
    """Earlier ledgers, newest first."""
    publish_ms: Interval = Interval()
    file: OffloadRecord | None = None
    """The file of an offloaded ledger."""
    aborted: bytes = b""
    """The entries of the ledger to leave out, see `LedgerSpan.aborted`."""

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id


@dataclass(frozen=True, slots=True)
class Elder:
    """A ledger before that of a range, with its last entry."""

    metadata: LedgerMetadata
    last_entry: int
    file: OffloadRecord | None = None
    aborted: bytes = b""


def ranges_of(log: TopicLog, window: Window, range_bytes: int) -> Iterator[Range]:
    """The ranges of a topic within the window and before its horizon, in order."""
    elders = deque[Elder](maxlen=BEFORE_LEDGERS_MAX)
    for span in log.ledgers:
        before = tuple(elders)
        if span.last_entry >= 0:
            elders.appendleft(Elder(span.metadata, span.last_entry, span.file, span.aborted))
        entry_bytes = max(1.0, span.entry_bytes)
        step = max(1, int(range_bytes / entry_bytes))
        for first, last in _entries_wanted(span, last_readable(span, log.horizon), window):
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
                    span.aborted,
                )


def _entries_wanted(span: LedgerSpan, last_entry: int, window: Window) -> Iterator[tuple[int, int]]:
    """The runs of entries within the window up to `last_entry`, as first and last entry."""
    stored_ms, ledger_id = window.ledgers_ms, span.ledger_id
    if (
        not window.first.ledger_id <= ledger_id <= window.last.ledger_id
        or not window.has_ledger(ledger_id)
        or span.created_ms - CLOCKS_APART_MS > stored_ms.high
        or 0 < span.closed_ms < stored_ms.low - CLOCKS_APART_MS
    ):
        return
    wanted = window.entries.cut(0, last_entry)
    if ledger_id == window.first.ledger_id:
        wanted = wanted.cut(window.first.entry_id, wanted.high)
    if ledger_id == window.last.ledger_id:
        wanted = wanted.cut(wanted.low, window.last.entry_id)
    if window.entries_among is None:
        runs = [(wanted.low, wanted.high)]
    else:
        among = sorted(window.entries_among)
        runs = [(entry_id, entry_id) for entry_id in among if wanted.has(entry_id)]
    yield from (run for run in runs if run[0] <= run[1])


def tasks_of(ranges: Iterable[Range], task_bytes: int) -> list[tuple[Range, ...]]:
    """Groups consecutive ranges into tasks of about `task_bytes`."""
    tasks: list[tuple[Range, ...]] = []
    group: list[Range] = []
    size = 0
    for ranged in ranges:
        if group and size + ranged.size_bytes > task_bytes:
            tasks.append(tuple(group))
            group, size = [], 0
        group.append(ranged)
        size += ranged.size_bytes
    if group:
        tasks.append(tuple(group))
    return tasks
