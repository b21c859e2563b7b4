"""Opening after a stop or a crash: replays the journal behind the checkpoint, and faces damage.

Every valid record is applied, in order, whatever lies between. A torn tail is cut off and logged.
Damage (acknowledged bytes that are bad) is put on record in the index before anything else: where
the record's head is good, its entries answer EntryCorrupt with file and offset until they are
added again; where it is not, nobody knows what was in it, and all ledgers known so far are in
limbo: absent entries answer EntryUnknown, and only recovery adds are taken (the lost record may
have been a fence). Nothing is ever answered as absent that may have been there.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from magnetar.bookie import index as index_format
from magnetar.bookie import journal_codec_v1 as codec
from magnetar.bookie.api import ID_END
from magnetar.bookie.checkpoint import CheckpointDamaged, Mark, read_mark
from magnetar.bookie.entry_log_codec_v1 import Segment
from magnetar.bookie.files import Files
from magnetar.bookie.index import Damage, Index
from magnetar.bookie.index_store import Batch
from magnetar.bookie.journal_codec_v1 import Record
from magnetar.bookie.journal_files import (
    DAMAGED_SUFFIX,
    FULL_ERRNOS,
    JournalPosition,
    file_ids,
    file_name,
)
from magnetar.bookie.journal_scan import Bad, Found, JournalScan
from magnetar.bookie.ledgers import Ledgers
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.write_cache import WriteCacheHalf
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.recovery")

NOTHING: Final = Mark(JournalPosition(0, codec.FILE_HEADER_BYTES, 0), 0)
UNKNOWN: Final = Mark(JournalPosition(0, codec.FILE_HEADER_BYTES, -1), 0)


class Recovered(msgspec.Struct):
    """Where the bookie stands after replay."""

    next_position: JournalPosition
    records: int
    bytes_replayed: int
    torn: list[Bad]
    damage: list[Bad]

    @property
    def faced(self) -> bool:
        """Whether the checkpoint has to move past bad bytes."""
        if any(bad.last_seq >= 0 for bad in self.torn):
            return True
        return any(bad.last_seq >= 0 or not bad.harmless for bad in self.damage)


class Replay:
    """One replay. Runs on one thread, before anything else does."""

    def __init__(
        self,
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

    def run(self, mark: Mark) -> Recovered:
        """Applies all records behind the mark; what fits stays in `half`."""
        scan = JournalScan(self._files, self._journal_dir, self._incarnation)
        at = mark.position
        records = size = 0
        flushed = self._index.flushed_seq
        # Before all that is bad: a crash before the damage is on record has to meet it again.
        safe = at if at.seq >= 0 else NOTHING.position
        for found in scan.records(at.file_id, at.offset, at.seq):
            if not records:
                self._check_first(scan, flushed)
            self._apply(found)
            records += 1
            size += found.record.size
            if not scan.bad:
                end = found.offset + found.record.size
                safe = JournalPosition(found.file_id, end, found.record.seq)
            if self.half.charge >= self._flush_at:
                self.flush(safe)
        if not records:
            self._check_first(scan, flushed)
        newest = max(file_ids(self._files, self._journal_dir), default=0)
        self._check_newest(scan, mark.newest_file_id, newest)
        bad = scan.judge()
        damage = [item for item in bad if item.damage]
        torn = [item for item in bad if not item.damage]
        self._record_damage(damage)
        self._cut(torn, scan.ends)
        next_file = max(newest, mark.newest_file_id, at.file_id) + 1
        # Lost numbers are not given out again.
        last_seq = max([0, scan.last_seq, *(item.last_seq for item in bad)])
        position = JournalPosition(next_file, codec.FILE_HEADER_BYTES, last_seq)
        return Recovered(position, records, size, torn, damage)

    def flush(self, position: JournalPosition) -> None:
        """Flushes what was replayed up to `position`; on a full disk it stays in memory."""
        half, self.half = self.half, WriteCacheHalf()
        try:
            self._flush(half, position)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            # All of the journal was in memory before; it can be there again until there is room.
            log.error("the disk is full, replayed entries stay in memory", error=str(error))
            self.half = half
            self._flush_at = half.charge + self._settings.write_cache_bytes

    def _apply(self, found: Found) -> None:
        record = found.record
        reason = _fault(record)
        if reason:
            # An older release accepted it. Applied, it would fail every flush.
            log.error(
                "journal record skipped, no ledger can hold it",
                path=str(self._journal_dir / file_name(found.file_id)),
                offset=found.offset,
                kind=codec.KINDS[record.kind],
                ledger_id=record.ledger_id,
                reason=reason,
            )
        elif record.kind == codec.KIND_ADD:
            self._apply_add(record, found.body)
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

    def _check_newest(self, scan: JournalScan, wanted: int, newest: int) -> None:
        if newest >= wanted:
            return
        path = self._journal_dir / file_name(wanted)
        first = scan.last_seq + 1
        missing = Bad(path, wanted, 0, 0, first, first, "the journal file is missing", None)
        scan.bad.append(missing)
        scan.ends.setdefault(wanted, 0)
        scan.durable_seq = max(scan.durable_seq, first)

    def _check_first(self, scan: JournalScan, flushed: int | None) -> None:
        """Without a checkpoint, the journal has to begin where the index ends, or before."""
        if scan.first_seq is None or flushed is None or scan.first_seq <= flushed + 1:
            return
        last = scan.first_seq - 1
        reason = f"the index ends at record {flushed}, and the journal begins behind record {last}"
        path = self._journal_dir / file_name(min(scan.ends))
        scan.bad.append(Bad(path, min(scan.ends), 0, 0, flushed + 1, last, reason, None))
        scan.durable_seq = max(scan.durable_seq, last)

    def _record_damage(self, bads: list[Bad]) -> None:
        batch = self._carried
        for bad in bads:
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
                damage = Damage(record.ledger_id, ids[0], ids[-1], name, bad.offset)
                index_format.put_damage(batch, damage)
                self._ledgers.add_damage(damage)
                state = self._ledgers.get(record.ledger_id)
                state.exists = True
                self._ledgers.dirty[record.ledger_id] = state
            else:
                through = max([*self._ledgers.known_ids(), self._ledgers.limbo_through])
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
            # The checkpoint stays before the damage until a flush has written this too.
            log.error("the disk is full, the damage is not on record yet", error=str(error))

    def _cut(self, torn: list[Bad], ends: dict[int, int]) -> None:
        """Cuts torn tails, so that the next scan does not meet them again."""
        for bad in torn:
            log.warning(
                "torn tail of the journal cut",
                path=str(bad.path),
                offset=bad.offset,
                reason=bad.reason,
            )
            if bad.last_seq < 0 and bad.offset >= ends[bad.file_id] > 0:
                file = self._files.open(bad.path)
                file.truncate(ends[bad.file_id])
                file.sync()
                file.close()


def find_mark(files: Files, data_dir: Path, incarnation: bytes) -> Mark:
    """The checkpoint; where it is damaged or gone, everything that is there is replayed."""
    try:
        return read_mark(files, data_dir, incarnation) or NOTHING
    except CheckpointDamaged as error:
        log.error("checkpoint damaged, replaying the whole journal", error=str(error))
        return UNKNOWN


def _fault(record: Record) -> str:
    """Why a record whose head passes its CRC cannot be applied; empty if it can."""
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
