"""The flush: one half of the write cache into an entry log, the index and the checkpoint.

The order is what makes it safe: blocks written and synced; then the index's records for them, the
ledgers' records, and the index synced; then the checkpoint's mark moved; then journal files below
the mark dropped. A crash in between repeats the flush from the journal, and the views of the
second copy replace those of the first. Runs on the thread "bookie-flush", one flush at a time; per
entry it does nothing but join: CRCs and lengths are those that the journal computed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from magnetar.bookie import index as index_format
from magnetar.bookie.checkpoint import Checkpoint
from magnetar.bookie.entry_log import EntryLogs, LogWriter
from magnetar.bookie.entry_log_codec_v1 import Segment
from magnetar.bookie.index import FLAG_EMPTIED, FLAG_FENCED, Index, LedgerRecord, View
from magnetar.bookie.index_store import Batch
from magnetar.bookie.journal_files import JournalPosition
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.write_cache import LedgerEntries, Run, WriteCacheHalf, segment_of
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.flush")

RANGES_PER_BLOCK_MAX: Final = 4096

Piece = tuple[list[Segment], list[tuple[int, int]], list[bytes]]


class FlushJob(msgspec.Struct):
    """What one flush makes permanent: all that was completed up to `mark`."""

    half: WriteCacheHalf
    mark: JournalPosition
    ledgers: list[tuple[int, LedgerRecord]]
    last_indexed: dict[int, int]
    """Per ledger of the half: the highest entry that the index may name already."""
    overlapped: set[int] = msgspec.field(default_factory=set)
    """Ledgers of which entries were written again."""
    bytes_written: int = 0
    indexed: bool = False
    """Done but for the checkpoint: another attempt need not write it all again."""


class Flusher:
    """Runs flushes. For one thread at a time."""

    def __init__(
        self,
        logs: EntryLogs,
        index: Index,
        checkpoint: Checkpoint,
        settings: BookieSettings,
        trim: Callable[[JournalPosition], None],
        carried: Batch,
    ) -> None:
        """`carried` is written with each flush until one is durable: what opening found out."""
        self._logs = logs
        self._index = index
        self._checkpoint = checkpoint
        self._settings = settings
        self._trim = trim
        self._carried = carried
        self._writer = LogWriter(logs)

    def run(self, job: FlushJob) -> FlushJob:
        """Flushes; after an error the same job can be run again."""
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
        """Leaves the current log."""
        self._writer.abandon()

    def _write_blocks(self, job: FlushJob) -> tuple[list[View], list[View]]:
        plain: list[View] = []
        overlapping: list[View] = []
        for ledger_id in sorted(job.half.ledgers):
            ledger = job.half.ledgers[ledger_id]
            overlaps = ledger.runs[0].first <= job.last_indexed[ledger_id]
            views = overlapping if overlaps else plain
            for segments, ranges, entries in pieces(ledger, self._settings, merge=not overlaps):
                placed = self._writer.append(ledger_id, segments, ranges, entries)
                last = ranges[-1][0] + ranges[-1][1] - 1
                views.append(View(ledger_id, ranges[0][0], last, *placed))
        return plain, overlapping

    def _put(self, job: FlushJob, plain: list[View], overlapping: list[View]) -> None:
        """Changes the index. Each view goes in one batch with its usage key: the collector
        finds the views of a log by those keys."""
        index = self._index
        for view in overlapping:
            # One batch each: a view may cut what the one before it left.
            cut = Batch()
            for gone in index.cover(cut, view):
                index.add_usage(cut, gone.log_id, gone.ledger_id, -gone.length)
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
        """Drops deleted ledgers from the index ahead of a flush that has no room to be done."""
        batch = Batch()
        for ledger_id, record in ledgers:
            index_format.put_ledger(batch, ledger_id, record)
        with self._index.change() as store:
            store.write(batch)
            self._drop_deleted(ledgers)

    def empty(self, ledger_ids: Sequence[int]) -> None:
        """Drops the ledgers' entries from the index, durably, and keeps the ledgers fenced."""
        record = LedgerRecord(-1, -1, 0, -1, FLAG_FENCED | FLAG_EMPTIED)
        batch = Batch()
        for ledger_id in ledger_ids:
            index_format.drop_entries(batch, ledger_id)
            index_format.put_ledger(batch, ledger_id, record)
        with self._index.change() as store:
            store.write(batch)


def pieces(ledger: LedgerEntries, settings: BookieSettings, *, merge: bool) -> Iterator[Piece]:
    """A ledger's entries cut into blocks at segment bounds. Runs share a block if `merge`."""
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
    """The run's segments; one too large for a block is cut, its CRCs computed afresh."""
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
