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

from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.ledger.metadata import LedgerMetadata
from magnetar_spark.log.ledgers import LedgerSpan, TopicLog

PARTITION_BYTES_DEFAULT: Final = 64 << 20
CLOCKS_APART_MS: Final = 5 * 60_000
"""Publish times are producers'; a ledger is skipped only where they would be this far off."""
BEFORE_LEDGERS_MAX: Final = 4
"""Ledgers through which the first chunk of a message is looked for."""


@dataclass(frozen=True, slots=True)
class Window:
    """What of a topic is wanted: positions from `first` to `last`, both inclusive, and times.

    Times are publish times in ms, `publish_from_ms` inclusive and `publish_to_ms` inclusive.
    """

    first: Position = EARLIEST
    last: Position = LATEST
    publish_from_ms: int | None = None
    publish_to_ms: int | None = None


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
    before: tuple[tuple[LedgerMetadata, int], ...] = ()
    """Elder ledgers with their last entries, newest first."""
    publish_from_ms: int | None = None
    publish_to_ms: int | None = None

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id


def ranges_of(log: TopicLog, window: Window, range_bytes: int) -> Iterator[Range]:
    """The ranges of a topic within the window, in order."""
    for index, span in enumerate(log.ledgers):
        bounds = _entries_wanted(span, window)
        if bounds is None:
            continue
        elder = [each for each in log.ledgers[:index] if each.last_entry >= 0]
        before = tuple(
            (each.metadata, each.last_entry) for each in reversed(elder[-BEFORE_LEDGERS_MAX:])
        )
        first, last = bounds
        entry_bytes = max(1.0, span.entry_bytes)
        step = max(1, int(range_bytes / entry_bytes))
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
                window.publish_from_ms,
                window.publish_to_ms,
            )


def _entries_wanted(span: LedgerSpan, window: Window) -> tuple[int, int] | None:
    """The first and last entry of the ledger within the window; None where it has none."""
    if window.publish_to_ms is not None and (
        span.created_ms - CLOCKS_APART_MS > window.publish_to_ms
    ):
        return None
    if window.publish_from_ms is not None and (
        0 < span.closed_ms < window.publish_from_ms - CLOCKS_APART_MS
    ):
        return None
    first, last = 0, span.last_entry
    if span.ledger_id < window.first.ledger_id or span.ledger_id > window.last.ledger_id:
        return None
    if span.ledger_id == window.first.ledger_id:
        first = max(first, window.first.entry_id)
    if span.ledger_id == window.last.ledger_id:
        last = min(last, window.last.entry_id)
    return (first, last) if first <= last else None


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
