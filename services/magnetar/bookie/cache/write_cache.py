"""The write cache: entries that are in the journal and not yet in an entry log.

It has two halves: the active one takes adds, the other is being flushed and only read. A half
keeps runs of consecutive entries per ledger; a group that continues the last run costs two `list`
calls, independent of its size. The entries' segments (CRC and lengths as the journal computed
them) stay with them, so that a flush computes nothing per entry. Entries are kept by reference.

`charge` counts the entries' bytes and their objects' overhead, so that it bounds memory. An entry
that is cached already is replaced if its bytes differ, else skipped (re-replication sends the same
bytes).
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import msgspec

from magnetar.bookie.entry_log.codec_v1 import Segment
from magnetar.bookie.journal.codec_v1 import entries_crc, pack_lengths

ENTRY_OVERHEAD_BYTES: Final = 48
GROUP_OVERHEAD_BYTES: Final = 160


class Run:
    """Consecutive entries of one ledger."""

    __slots__ = ("entries", "first", "segments")

    def __init__(self, first: int, entries: list[bytes], segments: list[Segment]) -> None:
        self.first = first
        self.entries = entries
        self.segments = segments

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1


def segment_of(entries: Sequence[bytes]) -> Segment:
    """Computes the segment of entries."""
    lengths = pack_lengths(entries)
    return Segment(len(entries), entries_crc(entries), sum(map(len, entries)), lengths)


class LedgerEntries:
    """The runs of one ledger, ascending and disjoint."""

    __slots__ = ("_firsts", "charge", "count", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._firsts: list[int] = []
        self.charge = self.count = 0
        """The ledger's part of its half's."""

    @property
    def last(self) -> int:
        return self.runs[-1].last if self.runs else -1

    def append(self, entry_ids: Sequence[int], entries: Sequence[bytes], segment: Segment) -> None:
        """Adds a group."""
        first = entry_ids[0]
        runs = self.runs
        if type(entry_ids) is range:
            if runs:
                run = runs[-1]
                end = run.first + len(run.entries)
                if first == end:
                    run.entries += entries
                    run.segments.append(segment)
                    return
                if first < end:
                    self._merge(entry_ids, entries)
                    return
            runs.append(Run(first, list(entries), [segment]))
            self._firsts.append(first)
            return
        self._merge(entry_ids, entries)

    def find(self, entry_id: int) -> Run | None:
        """Returns the run that contains `entry_id`, or the next run after it."""
        index = bisect_right(self._firsts, entry_id) - 1
        if index >= 0 and entry_id <= self.runs[index].last:
            return self.runs[index]
        index += 1
        return self.runs[index] if index < len(self.runs) else None

    def _merge(self, entry_ids: Sequence[int], entries: Sequence[bytes]) -> None:
        """Adds entries that do not continue the last run: skips equal ones, replaces others."""
        start = 0
        total = len(entry_ids)
        while start < total:
            entry_id = entry_ids[start]
            run = self.find(entry_id)
            if run is not None and run.first <= entry_id:
                self._replace(run, entry_id, entries[start])
                start += 1
                continue
            limit = run.first if run is not None else None
            stop = start + 1
            while stop < total and entry_ids[stop] == entry_ids[stop - 1] + 1:
                if limit is not None and entry_ids[stop] >= limit:
                    break
                stop += 1
            self._insert(entry_id, list(entries[start:stop]))
            start = stop

    def _insert(self, first: int, entries: list[bytes]) -> None:
        index = bisect_right(self._firsts, first)
        segment = segment_of(entries)
        if index and self.runs[index - 1].last == first - 1:
            run = self.runs[index - 1]
            run.entries += entries
            run.segments.append(segment)
            return
        self.runs.insert(index, Run(first, entries, [segment]))
        self._firsts.insert(index, first)

    def _replace(self, run: Run, entry_id: int, entry: bytes) -> None:
        index = entry_id - run.first
        if run.entries[index] == entry:
            return
        run.entries[index] = entry
        at = 0
        for number, segment in enumerate(run.segments):
            if at <= index < at + segment.count:
                run.segments[number] = segment_of(run.entries[at : at + segment.count])
                return
            at += segment.count


class WriteCacheHalf:
    """The entries that one flush writes."""

    __slots__ = ("__weakref__", "charge", "count", "ledgers")

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerEntries] = {}
        self.charge = 0
        self.count = 0

    def add(
        self, ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], segment: Segment
    ) -> None:
        """Adds a group, by reference."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = LedgerEntries()
        ledger.append(entry_ids, entries, segment)
        count = segment.count
        charge = segment.body_bytes + count * ENTRY_OVERHEAD_BYTES + GROUP_OVERHEAD_BYTES
        ledger.count += count
        ledger.charge += charge
        self.count += count
        self.charge += charge

    def drop(self, ledger_id: int) -> None:
        """Drops a deleted ledger's entries."""
        ledger = self.ledgers.pop(ledger_id, None)
        if ledger is not None:
            self.count -= ledger.count
            self.charge -= ledger.charge

    def slice(
        self, ledger_id: int, first: int, last: int, count_max: int
    ) -> tuple[range, list[bytes]] | None:
        """Returns the first run of entries within `first` to `last`, with their ids."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return None
        run = ledger.find(first)
        if run is None or run.first > last:
            return None
        start = max(first, run.first)
        stop = min(last + 1, start + count_max)
        base = run.first
        entries = run.entries[start - base : stop - base]
        return range(start, start + len(entries)), entries


class Halves(msgspec.Struct):
    """The half that takes adds, and the half that is being flushed."""

    active: WriteCacheHalf
    flushing: WriteCacheHalf | None = None
