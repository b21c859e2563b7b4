"""Replays the journal from the checkpoint on when a bookie opens, and records damage.

Every valid record is applied, in order, also behind bad ones. A torn tail is cut off and logged.
Damage (acknowledged bytes that are bad) is recorded in the index first. If the head of the record
is good, reads of its entries raise EntryCorrupt with file and offset until they are added again.
If it is bad, the content of the record is unknown, and all ledgers of the bookie are put in limbo:
reads of absent entries raise EntryUnknown, and only recovery adds are accepted, as the lost record
may have been a fence. A bookie never reports an entry as absent that it may have stored.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from magnetar.bookie.api import ID_END
from magnetar.bookie.cache.write_cache import WriteCacheHalf
from magnetar.bookie.entry_log.codec_v1 import Segment
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import Damage, Index
from magnetar.bookie.index.ledgers import Ledgers
from magnetar.bookie.index.store import Batch
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.checkpoint import CheckpointDamaged, Mark, read_mark
from magnetar.bookie.journal.codec_v1 import Record
from magnetar.bookie.journal.files import (
    DAMAGED_SUFFIX,
    FULL_ERRNOS,
    JournalPosition,
    file_ids,
    file_name,
)
from magnetar.bookie.journal.scan import BadRange, JournalScan, ScannedRecord
from magnetar.bookie.settings import BookieSettings
from magnetar.core.log import get_logger
from magnetar.disk.files import Files

log = get_logger("magnetar.bookie.journal.replay")

NOTHING: Final = Mark(JournalPosition(0, codec.FILE_HEADER_BYTES, 0), 0)
UNKNOWN: Final = Mark(JournalPosition(0, codec.FILE_HEADER_BYTES, -1), 0)


class ReplayResult(msgspec.Struct):
    """The journal's next position, and what a replay applied and reported."""

    next_position: JournalPosition
    records: int
    bytes_replayed: int
    torn: list[BadRange]
    damage: list[BadRange]

    @property
    def must_checkpoint(self) -> bool:
        """Whether the checkpoint has to move past bad bytes."""
        if any(bad.last_seq >= 0 for bad in self.torn):
            return True
        return any(bad.last_seq >= 0 or not bad.harmless for bad in self.damage)


class Replay:
    """One replay. Runs on one thread, before the bookie serves requests."""

    def __init__(
        self,
        *,
        files: Files,
        journal_dir: Path,
        incarnation: bytes,
        settings: BookieSettings,
        index: Index,
        ledgers: Ledgers,
        flush: Callable[[WriteCacheHalf, JournalPosition], None],
        carried: Batch,
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._journal_dir = journal_dir
        self._incarnation = incarnation
        self._settings = settings
        self._index = index
        self._ledgers = ledgers
        self._flush = flush
        self._carried = carried
        self._now_ms = now_ms
        self.half = WriteCacheHalf()
        self._flush_at = settings.write_cache_bytes

    def run(self, mark: Mark) -> ReplayResult:
        """Applies all records behind the mark; the last ones stay in `half`."""
        scan = JournalScan(self._files, self._journal_dir, self._incarnation)
        at = mark.position
        records = size = 0
        flushed = self._index.flushed_seq
        # Before all bad ranges: after a crash before the damage is recorded, the next replay must
        # scan it again.
        safe = at if at.seq >= 0 else NOTHING.position
        for scanned in scan.records(at.file_id, at.offset, at.seq):
            if not records:
                self._check_first(scan, flushed)
            self._apply(scanned)
            records += 1
            size += scanned.record.size
            if not scan.bad:
                end = scanned.offset + scanned.record.size
                safe = JournalPosition(scanned.file_id, end, scanned.record.seq)
            if self.half.charge >= self._flush_at:
                self.flush(safe)
        if not records:
            self._check_first(scan, flushed)
        newest = max(file_ids(self._files, self._journal_dir), default=0)
        self._check_newest(scan, mark.newest_file_id, newest)
        bad = scan.classify()
        damage = [item for item in bad if item.damage]
        torn = [item for item in bad if not item.damage]
        self._record_damage(damage)
        self._cut(torn, scan.ends)
        next_file = max(newest, mark.newest_file_id, at.file_id) + 1
        # Lost numbers are not reused.
        last_seq = max([0, scan.last_seq, *(item.last_seq for item in bad)])
        position = JournalPosition(next_file, codec.FILE_HEADER_BYTES, last_seq)
        return ReplayResult(position, records, size, torn, damage)

    def flush(self, position: JournalPosition) -> None:
        """Flushes the records up to `position`; on a full disk they stay in memory."""
        half, self.half = self.half, WriteCacheHalf()
        try:
            self._flush(half, position)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            # All of the journal fitted into memory before, so it can stay there until a flush.
            log.error("disk full, replayed entries stay in memory", error=str(error))
            self.half = half
            self._flush_at = half.charge + self._settings.write_cache_bytes

    def _apply(self, scanned: ScannedRecord) -> None:
        record = scanned.record
        reason = _fault(record)
        if reason:
            # An older release accepted it. If it were applied, every flush would fail.
            log.error(
                "journal record skipped, no ledger can hold it",
                path=str(self._journal_dir / file_name(scanned.file_id)),
                offset=scanned.offset,
                kind=codec.KINDS[record.kind],
                ledger_id=record.ledger_id,
                reason=reason,
            )
        elif record.kind == codec.KIND_ADD:
            self._apply_add(record, scanned.body)
        elif record.kind == codec.KIND_FENCE:
            state = self._ledgers.get(record.ledger_id)
            state.exists = state.fenced = state.fence_durable = True
            self._ledgers.dirty[record.ledger_id] = state
        elif record.kind == codec.KIND_DELETE:
            state = self._ledgers.get(record.ledger_id)
            state.exists = True
            state.deleted_ms = self._now_ms()
            self.half.drop(record.ledger_id)
            self._ledgers.dirty[record.ledger_id] = state

    def _apply_add(self, record: Record, body: bytes) -> None:
        state = self._ledgers.get(record.ledger_id)
        if state.deleted:
            return
        entry_ids = record.entry_ids
        size = record.body_bytes
        state.added(entry_ids[0], entry_ids[-1], size, record.last_add_confirmed)
        entries = codec.split_body(body, record.lengths)
        segment = Segment(record.count, record.body_crc, record.body_bytes, record.lengths)
        self.half.add(record.ledger_id, entry_ids, entries, segment)
        self._ledgers.dirty[record.ledger_id] = state

    def _check_newest(self, scan: JournalScan, expected: int, newest: int) -> None:
        """Reports damage if the newest file that the checkpoint names is missing."""
        if newest >= expected:
            return
        first = scan.last_seq + 1
        missing = BadRange(
            path=self._journal_dir / file_name(expected),
            file_id=expected,
            offset=0,
            end=0,
            first_seq=first,
            last_seq=first,
            reason="the journal file is missing",
            record=None,
        )
        scan.bad.append(missing)
        scan.ends.setdefault(expected, 0)
        scan.durable_seq = max(scan.durable_seq, first)

    def _check_first(self, scan: JournalScan, flushed: int | None) -> None:
        """Reports damage if the journal has no checkpoint and begins behind the index's end."""
        if scan.first_seq is None or flushed is None or scan.first_seq <= flushed + 1:
            return
        last = scan.first_seq - 1
        reason = f"the index ends at record {flushed}, and the journal begins behind record {last}"
        file_id = min(scan.ends)
        missing = BadRange(
            path=self._journal_dir / file_name(file_id),
            file_id=file_id,
            offset=0,
            end=0,
            first_seq=flushed + 1,
            last_seq=last,
            reason=reason,
            record=None,
        )
        scan.bad.append(missing)
        scan.durable_seq = max(scan.durable_seq, last)

    def _record_damage(self, damage: list[BadRange]) -> None:
        """Writes damage and limbo to the index, and applies them to the ledgers."""
        batch = self._carried
        for bad in damage:
            log.error(
                "journal damage",
                path=str(bad.path),
                offset=bad.offset,
                end=bad.end,
                reason=bad.reason,
                first_seq=bad.first_seq,
                last_seq=bad.last_seq,
            )
            if bad.harmless:
                continue
            record = bad.record
            alone = bad.last_seq in (-1, bad.first_seq)
            named = record is not None and record.kind == codec.KIND_ADD and not _fault(record)
            if record is not None and named and alone:
                ids = record.entry_ids
                name = str(bad.path) + DAMAGED_SUFFIX
                lost = Damage(record.ledger_id, ids[0], ids[-1], name, bad.offset)
                index_format.put_damage(batch, lost)
                self._ledgers.add_damage(lost)
                state = self._ledgers.get(record.ledger_id)
                state.exists = True
                self._ledgers.dirty[record.ledger_id] = state
            else:
                through = max([*self._ledgers.all_ids(), self._ledgers.limbo_through])
                index_format.put_limbo(batch, through)
                self._ledgers.set_limbo(through)
        if not batch.writes:
            return
        try:
            with self._index.change() as store:
                store.write(batch)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            # The checkpoint stays before the damage until a flush has written the batch.
            log.error("disk full, the damage is not recorded yet", error=str(error))

    def _cut(self, torn: list[BadRange], ends: dict[int, int]) -> None:
        """Truncates torn tails, so that the next scan does not report them again."""
        for bad in torn:
            log.warning(
                "torn tail of the journal cut",
                path=str(bad.path),
                offset=bad.offset,
                reason=bad.reason,
            )
            if bad.last_seq < 0 and bad.offset >= ends[bad.file_id]:
                file = self._files.open(bad.path)
                file.truncate(ends[bad.file_id])
                file.sync()
                file.close()


def find_mark(files: Files, data_dir: Path, incarnation: bytes) -> Mark:
    """Returns the checkpoint; if it is damaged, `UNKNOWN`, so that all files are replayed."""
    try:
        return read_mark(files, data_dir, incarnation) or NOTHING
    except CheckpointDamaged as error:
        log.error("checkpoint damaged, replaying the whole journal", error=str(error))
        return UNKNOWN


def _fault(record: Record) -> str:
    """Returns why a record with a valid head cannot be applied; empty if it can."""
    if record.kind not in (codec.KIND_ADD, codec.KIND_FENCE, codec.KIND_DELETE):
        return ""
    ids = record.entry_ids
    if not 0 <= record.ledger_id < ID_END:
        return f"ledger id {record.ledger_id} is not below {ID_END}"
    if record.kind != codec.KIND_ADD:
        return ""
    if not ids or ids[0] < 0 or ids[-1] >= ID_END:
        return f"{len(ids)} entries from {record.first_entry} on are not below {ID_END}"
    if type(ids) is not range and any(after <= before for before, after in pairwise(ids)):
        return "entry ids do not ascend"
    if sum(codec.unpack_lengths(record.lengths)) != record.body_bytes:
        return f"its lengths do not add up to {record.body_bytes} bytes"
    if not -1 <= record.last_add_confirmed < ID_END:
        return f"last add confirmed {record.last_add_confirmed} is no entry id"
    return ""
