"""Frees disk space: removes entry logs without live blocks and rewrites those with few.

The deletion of a ledger drops its views from the index with the next flush; its bytes stay in the
logs. A collection, on the thread "bookie-gc", reads which views still refer to each finished log,
and removes a log without any. If a log's live share is below the given ratio, it copies the live
blocks to its own log and syncs it, changes and syncs the index, and only then removes the old log.
A crash in between leaves two copies, and the index refers to one of them.

The usage records of the index select the candidates (they are estimates) and list the ledgers that
may have views in a log (they are complete: each view is written with its usage key). Only the views
decide which blocks are live, and they are read again under the index's lock before a log is
removed. A block that fails its CRC is not copied, and its log is kept as evidence. A reader that
looked up a view before it moved finds the log missing and looks it up again.
"""

from collections.abc import Iterator

import msgspec

from magnetar.bookie.entry_log.codec_v1 import FILE_HEADER_BYTES, BadBlock, decode_block, log_magic
from magnetar.bookie.entry_log.logs import BlockLocation, EntryLogs, LogWriter
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import FLAG_DELETED, FLAG_EMPTIED, Index, View
from magnetar.bookie.index.store import Batch
from magnetar.bookie.journal.files import FULL_ERRNOS
from magnetar.bookie.settings import BookieSettings
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.entry_log.collector")

SMALL_LOG_SHARE = 16
"""A log below this fraction of `entry_log_bytes` is small; a major collection joins small logs."""

SMALL_LOGS_MIN = 4


class GcReport(msgspec.Struct):
    """The result of a collection."""

    logs_removed: int = 0
    logs_compacted: int = 0
    bytes_freed: int = 0
    bytes_copied: int = 0
    bytes_compacted: int = 0
    """Freed by rewriting logs: their size without that of the copies."""
    logs_damaged: int = 0
    tombstones_dropped: list[int] = msgspec.field(default_factory=list)


class _Candidate(msgspec.Struct):
    """A log with live blocks, which may be worth rewriting."""

    log_id: int
    size: int
    live_bytes: int


class Collector:
    """Removes and rewrites entry logs. For one thread at a time."""

    def __init__(self, logs: EntryLogs, index: Index, settings: BookieSettings) -> None:
        self._logs = logs
        self._index = index
        self._settings = settings
        self._writer = LogWriter(logs)
        self._unsynced_moves: set[int] = set()
        """Logs whose blocks moved by a change of the index that may not be durable."""

    def collect(self, live_ratio: float, now_ms: int, *, join_small: bool) -> GcReport:
        """Runs one collection. The caller flushes first, so that the index has all deletes."""
        try:
            return self._collect(live_ratio, now_ms, join_small=join_small)
        finally:
            # The next collection may collect the copies of this one.
            self._writer.abandon()

    def _collect(self, live_ratio: float, now_ms: int, *, join_small: bool) -> GcReport:
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
                # Continue with the others: on a full disk each removed log counts.
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
            sparse = item.live_bytes / body < live_ratio
            if sparse or (join_small and item.log_id in joined):
                try:
                    self._compact(item.log_id, report)
                except OSError as error:
                    self._failed(item.log_id, error)
                    if error.errno in FULL_ERRNOS:
                        # Dead logs are removed; the next collection can use their room.
                        break
        return report

    def _failed(self, log_id: int, error: OSError) -> None:
        log.error(
            "entry log not collected, will be retried",
            log=str(self._logs.path(log_id)),
            error=str(error),
        )

    def _drop_tombstones(self, report: GcReport, now_ms: int) -> set[int]:
        """Drops expired tombstones; returns the ids of the ledgers that exist."""
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
        """Yields the views that refer to a log."""
        for ledger_id, _ in list(self._index.usage(log_id)):
            for view in self._index.views(ledger_id):
                if view.log_id == log_id:
                    yield view

    def _remove(self, log_id: int, report: GcReport) -> int:
        """Removes a log; returns its size."""
        # A power cut may restore index records of a deleted or rewritten ledger; replay of the
        # journal removes them again. It does not for moved blocks: the restored index would refer
        # to this log, so the index is synced first.
        batch = Batch()
        index_format.drop_usage(batch, log_id)
        with self._index.change(sync=log_id in self._unsynced_moves) as store:
            store.write(batch)
        self._unsynced_moves.discard(log_id)
        size = self._logs.remove(log_id)
        report.logs_removed += 1
        report.bytes_freed += size
        log.info("entry log removed", log=str(self._logs.path(log_id)), bytes=size)
        return size

    def _compact(self, log_id: int, report: GcReport) -> None:
        try:
            moved, damaged = self._copy(log_id)
            self._writer.sync()
        except BaseException:
            self._writer.abandon(discard=True)
            raise
        copied_bytes = sum(location.length for location in moved.values())
        report.bytes_copied += copied_bytes
        self._unsynced_moves.add(log_id)
        try:
            remaining = self._move(log_id, moved)
        except BaseException:
            # Not discarded: the index may refer to the copies.
            self._writer.abandon()
            raise
        self._unsynced_moves.discard(log_id)
        self._writer.committed()
        if remaining or damaged:
            report.logs_damaged += 1
            log.error(
                "entry log kept because of damaged blocks",
                log=str(self._logs.path(log_id)),
                blocks=damaged,
            )
            return
        report.logs_compacted += 1
        freed_bytes = self._remove(log_id, report)
        report.bytes_compacted += max(0, freed_bytes - copied_bytes)

    def _move(self, log_id: int, moved: dict[int, BlockLocation]) -> int:
        """Changes the views to the copies; returns how many views still refer to the log."""
        remaining = 0
        with self._index.change() as store:
            batch = Batch()
            for view in list(self._views(log_id)):
                location = moved.get(view.offset)
                if location is None:
                    remaining += 1
                    continue
                new = View(view.ledger_id, view.first, view.last, *location)
                index_format.put_view(batch, new)
                self._index.add_usage(batch, location.log_id, view.ledger_id, location.length)
            store.write(batch)
        return remaining

    def _copy(self, log_id: int) -> tuple[dict[int, BlockLocation], int]:
        """Copies the live blocks; returns their new locations by offset, and how many are bad."""
        magic = log_magic(self._logs.incarnation, log_id)
        moved: dict[int, BlockLocation] = {}
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
                    "entry log block is damaged",
                    path=str(self._logs.path(log_id)),
                    offset=view.offset,
                    error=str(error),
                )
                continue
            moved[view.offset] = self._writer.append_encoded(data)
        return moved, len(damaged)
