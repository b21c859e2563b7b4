"""The flush: writes a half of the write cache to an entry log, the index and the checkpoint.

The order makes it safe: write and sync the blocks; write their views and the ledgers' records to
the index and sync it; advance the checkpoint; trim the journal. After a crash in between, the
replayed journal is flushed again, and the views of the second copy replace those of the first.
Flushes run on the thread "bookie-flush", one at a time. Per entry, a flush only joins bytes: CRCs
and lengths are those that the journal computed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from magnetar.bookie.cache.write_cache import LedgerEntries, Run, WriteCacheHalf, segment_of
from magnetar.bookie.entry_log.codec_v1 import Segment
from magnetar.bookie.entry_log.logs import EntryLogs, LogWriter
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import FLAG_EMPTIED, FLAG_FENCED, Index, LedgerRecord, View
from magnetar.bookie.index.store import Batch
from magnetar.bookie.journal.checkpoint import Checkpoint
from magnetar.bookie.journal.files import JournalPosition
from magnetar.bookie.settings import BookieSettings
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.entry_log.flush")

RANGES_PER_BLOCK_MAX: Final = 4096

Piece = tuple[list[Segment], list[tuple[int, int]], list[bytes]]


class FlushJob(msgspec.Struct):
    """The input and progress of one flush: all records that completed before `mark`."""

    half: WriteCacheHalf
    mark: JournalPosition
    ledgers: list[tuple[int, LedgerRecord]]
    last_indexed: dict[int, int]
    """Per ledger of the half: the highest entry that the index may contain already."""
    overlapped: set[int] = msgspec.field(default_factory=set)
    """Ledgers with entries that the index contained already."""
    bytes_written: int = 0
    indexed: bool = False
    """Only the checkpoint is missing: a retry need not write blocks and index again."""


class Flusher:
    """Runs flushes, and changes of the index that need no flush. For one thread at a time."""

    def __init__(
        self,
        *,
        logs: EntryLogs,
        index: Index,
        checkpoint: Checkpoint,
        settings: BookieSettings,
        trim: Callable[[JournalPosition], None],
        carried: Batch,
    ) -> None:
        """`carried`, index writes of the start, goes with each flush until one succeeds."""
        self._logs = logs
        self._index = index
        self._checkpoint = checkpoint
        self._settings = settings
        self._trim = trim
        self._carried = carried
        self._writer = LogWriter(logs)

    def run(self, job: FlushJob) -> FlushJob:
        """Runs a flush; after an error, the same job can be run again."""
        if not job.indexed:
            self._write(job)
            job.indexed = True
        self._checkpoint.advance(job.mark)
        self._trim(job.mark)
        return job

    def _write(self, job: FlushJob) -> None:
        before = self._writer.bytes_written
        try:
            plain, overlapping = self._write_blocks(job)
            self._writer.sync()
        except BaseException:
            self._writer.abandon(discard=True)
            raise
        job.bytes_written = self._writer.bytes_written - before
        with self._index.change() as store:
            if self._carried.writes:
                store.write(self._carried)
            self._put(job, plain, overlapping)
        self._carried = Batch()
        self._writer.committed()

    def close(self) -> None:
        """Abandons the current log."""
        self._writer.abandon()

    def _write_blocks(self, job: FlushJob) -> tuple[list[View], list[View]]:
        plain: list[View] = []
        overlapping: list[View] = []
        for ledger_id in sorted(job.half.ledgers):
            ledger = job.half.ledgers[ledger_id]
            overlaps = ledger.runs[0].first <= job.last_indexed[ledger_id]
            views = overlapping if overlaps else plain
            for segments, ranges, entries in pieces(ledger, self._settings, merge=not overlaps):
                location = self._writer.append(ledger_id, segments, ranges, entries)
                last = ranges[-1][0] + ranges[-1][1] - 1
                views.append(View(ledger_id, ranges[0][0], last, *location))
        return plain, overlapping

    def _put(self, job: FlushJob, plain: list[View], overlapping: list[View]) -> None:
        """Writes views, usage and ledger records to the index.

        Each view is in one batch with its usage key, as the collector finds a log's views by these
        keys.
        """
        index = self._index
        for view in overlapping:
            # A batch per view: a view may cut the remainder of a view that the previous one cut.
            cut = Batch()
            for old in index.cover(cut, view):
                index.add_usage(cut, old.log_id, old.ledger_id, -old.length)
            index.add_usage(cut, view.log_id, view.ledger_id, view.length)
            index.store.write(cut)
            job.overlapped.add(view.ledger_id)
        batch = Batch()
        usage: dict[tuple[int, int], int] = {}
        for view in plain:
            index_format.put_view(batch, view)
            key = (view.log_id, view.ledger_id)
            usage[key] = usage.get(key, 0) + view.length
        for (log_id, ledger_id), length in usage.items():
            index.add_usage(batch, log_id, ledger_id, length)
        for ledger_id, record in job.ledgers:
            index_format.put_ledger(batch, ledger_id, record)
        index_format.put_flushed(batch, job.mark.seq)
        index.store.write(batch)
        self._drop_deleted(job.ledgers)

    def _drop_deleted(self, ledgers: list[tuple[int, LedgerRecord]]) -> None:
        batch = Batch()
        for ledger_id, record in ledgers:
            if record.flags & index_format.FLAG_DELETED:
                index_format.drop_entries(batch, ledger_id)
        if batch.ranges:
            self._index.store.write(batch)

    def apply_deletes(self, ledgers: list[tuple[int, LedgerRecord]]) -> None:
        """Drops deleted ledgers from the index when a full disk prevents a flush."""
        batch = Batch()
        for ledger_id, record in ledgers:
            index_format.put_ledger(batch, ledger_id, record)
        with self._index.change() as store:
            store.write(batch)
            self._drop_deleted(ledgers)

    def empty(self, ledger_ids: Sequence[int]) -> None:
        """Durably drops the ledgers' entries from the index and keeps the ledgers fenced."""
        record = LedgerRecord(-1, -1, 0, -1, FLAG_FENCED | FLAG_EMPTIED)
        batch = Batch()
        for ledger_id in ledger_ids:
            index_format.drop_entries(batch, ledger_id)
            index_format.put_ledger(batch, ledger_id, record)
        with self._index.change() as store:
            store.write(batch)


def pieces(ledger: LedgerEntries, settings: BookieSettings, *, merge: bool) -> Iterator[Piece]:
    """Cuts a ledger's entries into blocks at segment bounds. With `merge`, runs share blocks."""
    segments: list[Segment] = []
    ranges: list[tuple[int, int]] = []
    entries: list[bytes] = []
    size = 0
    for run in ledger.runs:
        first = run.first
        start = 0
        count = 0
        for segment in _bounded(run, settings):
            segments.append(segment)
            count += segment.count
            size += segment.body_bytes
            if size >= settings.block_bytes:
                stop = start + count
                ranges.append((first + start, count))
                entries += run.entries[start:stop]
                yield segments, ranges, entries
                segments, ranges, entries, size = [], [], [], 0
                start, count = stop, 0
        if count:
            ranges.append((first + start, count))
            entries += run.entries[start : start + count]
        if entries and (not merge or len(ranges) >= RANGES_PER_BLOCK_MAX):
            yield segments, ranges, entries
            segments, ranges, entries, size = [], [], [], 0
    if entries:
        yield segments, ranges, entries


def _bounded(run: Run, settings: BookieSettings) -> Iterator[Segment]:
    """Yields the run's segments; cuts those that are too large for a block, with new CRCs."""
    at = 0
    for segment in run.segments:
        end = at + segment.count
        if segment.body_bytes <= settings.block_bytes_max or segment.count == 1:
            yield segment
        else:
            piece: list[bytes] = []
            size = 0
            for entry in run.entries[at:end]:
                if piece and size + len(entry) > settings.block_bytes:
                    yield segment_of(piece)
                    piece, size = [], 0
                piece.append(entry)
                size += len(entry)
            yield segment_of(piece)
        at = end
