"""Gives disk space back: removes logs that nothing lives in, and rewrites those where little does.

A ledger's deletion drops its views from the index with the next flush; its bytes stay in the logs.
A collection, on the thread "bookie-gc", asks the index which views still point into each finished
log. A log without any is removed. Where the live share is below the ratio asked for, the live
blocks are copied to the collector's own log and synced, the index is changed and synced, and only
then the old log is removed; a crash in between leaves two copies, of which the index names one.

The usage records of the index choose the candidates (an estimate), and name the ledgers that may
have views in a log (complete: each view is written together with its usage key); what is live is
always decided by the views themselves, once more under the index's lock before a log goes. A block
that fails its CRC is not copied, and its log is kept: damage is never tidied away. A reader that
looked up a view before it moved finds the log gone and looks it up again.
"""

from collections.abc import Iterator

import msgspec

from magnetar.bookie import index as index_format
from magnetar.bookie.entry_log import EntryLogs, LogWriter, Placed
from magnetar.bookie.entry_log_codec_v1 import FILE_HEADER_BYTES, BadBlock, decode_block, log_magic
from magnetar.bookie.index import FLAG_DELETED, FLAG_EMPTIED, Index, View
from magnetar.bookie.index_store import Batch
from magnetar.bookie.journal_files import FULL_ERRNOS
from magnetar.bookie.settings import BookieSettings
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.gc")

SMALL_LOG_SHARE = 16
"""A log below this fraction of `entry_log_bytes` is small; a major collection joins small logs."""

SMALL_LOGS_MIN = 4


class GcReport(msgspec.Struct):
    """What a collection did."""

    logs_removed: int = 0
    logs_compacted: int = 0
    bytes_freed: int = 0
    bytes_copied: int = 0
    logs_damaged: int = 0
    tombstones_dropped: list[int] = msgspec.field(default_factory=list)


class _Candidate(msgspec.Struct):
    """A log that may be worth rewriting."""

    log_id: int
    size: int
    live_bytes: int


class Collector:
    """See the module. For one thread at a time."""

    def __init__(self, logs: EntryLogs, index: Index, settings: BookieSettings) -> None:
        self._logs = logs
        self._index = index
        self._settings = settings
        self._writer = LogWriter(logs)

    def collect(self, live_ratio: float, now_ms: int, *, join_small: bool) -> GcReport:
        """One pass. Deletes count once they are in the index: flush before."""
        report = GcReport()
        existing = self._drop_tombstones(report, now_ms)
        candidates: list[_Candidate] = []
        for log_id in self._logs.sealed_ids():
            try:
                size = self._logs.file(log_id).size()
                live = sum(change for id_, change in self._index.usage(log_id) if id_ in existing)
                if not any(True for _ in self._views(log_id)):
                    self._remove(log_id, report)
                else:
                    candidates.append(_Candidate(log_id, size, live))
            except OSError as error:
                # The others may go all the same: on a full disk each of them counts.
                self._failed(log_id, error)
        small = [
            item
            for item in candidates
            if item.size * SMALL_LOG_SHARE < self._settings.entry_log_bytes
        ]
        joined = {item.log_id for item in small} if len(small) >= SMALL_LOGS_MIN else set()
        candidates.sort(key=lambda item: item.live_bytes)
        for item in candidates:
            body = max(item.size - FILE_HEADER_BYTES, 1)
            wanted = item.live_bytes / body < live_ratio
            if wanted or (join_small and item.log_id in joined):
                try:
                    self._compact(item.log_id, report)
                except OSError as error:
                    self._failed(item.log_id, error)
                    if error.errno in FULL_ERRNOS:
                        # Dead logs are gone; with the room that they left, the next pass goes on.
                        break
        self._writer.abandon()
        return report

    def _failed(self, log_id: int, error: OSError) -> None:
        log.error("entry log not collected now", log=str(self._logs.path(log_id)), error=str(error))

    def _drop_tombstones(self, report: GcReport, now_ms: int) -> set[int]:
        """Forgets ledgers that were deleted long ago; returns those that exist."""
        kept_ms = self._settings.tombstone_kept_s * 1000
        existing: set[int] = set()
        batch = Batch()
        for ledger_id, record in self._index.ledgers():
            if not record.flags & (FLAG_DELETED | FLAG_EMPTIED):
                existing.add(ledger_id)
            elif record.flags & FLAG_EMPTIED:
                continue
            elif now_ms - record.deleted_ms >= kept_ms:
                index_format.drop_ledger(batch, ledger_id)
                report.tombstones_dropped.append(ledger_id)
        if batch.writes:
            with self._index.change(sync=False) as store:
                store.write(batch)
        return existing

    def _views(self, log_id: int) -> Iterator[View]:
        """The views that point into a log."""
        for ledger_id, _ in list(self._index.usage(log_id)):
            for view in self._index.views(ledger_id):
                if view.log_id == log_id:
                    yield view

    def _remove(self, log_id: int, report: GcReport) -> None:
        # Nothing need be synced: what a power cut brings back into the index of a deleted or
        # rewritten ledger, the journal takes out again.
        batch = Batch()
        index_format.drop_usage(batch, log_id)
        with self._index.change(sync=False) as store:
            store.write(batch)
        size = self._logs.remove(log_id)
        report.logs_removed += 1
        report.bytes_freed += size
        log.info("entry log removed", log=str(self._logs.path(log_id)), bytes=size)

    def _compact(self, log_id: int, report: GcReport) -> None:
        try:
            moved, damaged = self._copy(log_id)
            self._writer.sync()
        except BaseException:
            self._writer.abandon(discard=True)
            raise
        report.bytes_copied += sum(placed.length for placed in moved.values())
        with self._index.change() as store:
            batch = Batch()
            left = 0
            for view in list(self._views(log_id)):
                placed = moved.get(view.offset)
                if placed is None:
                    left += 1
                    continue
                new = View(view.ledger_id, view.first, view.last, *placed)
                index_format.put_view(batch, new)
                self._index.add_usage(batch, placed.log_id, view.ledger_id, placed.length)
            store.write(batch)
        self._writer.committed()
        if left or damaged:
            report.logs_damaged += 1
            log.error(
                "entry log kept for its damaged blocks",
                log=str(self._logs.path(log_id)),
                blocks=damaged,
            )
            return
        report.logs_compacted += 1
        self._remove(log_id, report)

    def _copy(self, log_id: int) -> tuple[dict[int, Placed], int]:
        """Copies the blocks that views point at; returns where each went, and the bad ones."""
        magic = log_magic(self._logs.incarnation, log_id)
        moved: dict[int, Placed] = {}
        damaged: set[int] = set()
        for view in self._views(log_id):
            if view.offset in moved or view.offset in damaged:
                continue
            data = self._logs.read_raw(view)
            try:
                decode_block(data, magic)
            except BadBlock as error:
                damaged.add(view.offset)
                log.error(
                    "block is damaged",
                    path=str(self._logs.path(log_id)),
                    offset=view.offset,
                    error=str(error),
                )
                continue
            moved[view.offset] = self._writer.append_encoded(data)
        return moved, len(damaged)

    def close(self) -> None:
        """Leaves the collector's log."""
        self._writer.abandon()
