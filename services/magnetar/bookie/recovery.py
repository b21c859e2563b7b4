"""Opening after a stop or a crash: replays the journal behind the checkpoint, and faces damage.

Every valid record is applied, in order, whatever lies between. A torn tail is cut off and logged.
Damage (acknowledged bytes that are bad) is put on record in the index before anything else: where
the record's head is good, its entries answer EntryCorrupt with file and offset until they are
added again; where it is not, nobody knows what was in it, and all ledgers known so far are in
limbo: absent entries answer EntryUnknown, and only recovery adds are taken (the lost record may
have been a fence). Nothing is ever answered as absent that may have been there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from magnetar.bookie import index as index_format
from magnetar.bookie import journal_codec_v1 as codec
from magnetar.bookie.checkpoint import CheckpointDamaged, Mark, read_mark
from magnetar.bookie.entry_log_codec_v1 import Segment
from magnetar.bookie.files import Files
from magnetar.bookie.index import Damage, Index
from magnetar.bookie.index_store import Batch
from magnetar.bookie.journal_codec_v1 import Record
from magnetar.bookie.journal_files import FULL_ERRNOS, JournalPosition, file_ids, file_name
from magnetar.bookie.journal_scan import Bad, Found, JournalScan
from magnetar.bookie.ledgers import Ledgers
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.write_cache import WriteCacheHalf
from magnetar.core.log import get_logger

log = get_logger("magnetar.bookie.recovery")

NOTHING: Final = Mark(JournalPosition(0, codec.FILE_HEADER_BYTES, 0), 0)
UNKNOWN: Final = Mark(JournalPosition(0, codec.FILE_HEADER_BYTES, -1), 0)
DAMAGED_SUFFIX: Final = ".damaged"


class Recovered(msgspec.Struct):
    """Where the bookie stands after replay."""

    next_position: JournalPosition
    records: int
    bytes_replayed: int
    torn: list[Bad]
    damage: list[Bad]


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
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._journal_dir = journal_dir
        self._incarnation = incarnation
        self._settings = settings
        self._index = index
        self._ledgers = ledgers
        self._flush = flush
        self._now_ms = now_ms
        self.half = WriteCacheHalf()
        self._flush_at = settings.write_cache_bytes

    def run(self, mark: Mark) -> Recovered:
        """Applies all records behind the mark; what fits stays in `half`."""
        scan = JournalScan(self._files, self._journal_dir, self._incarnation)
        at = mark.position
        records = size = 0
        for found in scan.records(at.file_id, at.offset, at.seq):
            self._apply(found)
            records += 1
            size += found.record.size
            if self.half.charge >= self._flush_at:
                end = found.offset + found.record.size
                self._flush_half(JournalPosition(found.file_id, end, found.record.seq))
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

    def _flush_half(self, position: JournalPosition) -> None:
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
        if record.kind == codec.KIND_ADD:
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

    def _record_damage(self, bads: list[Bad]) -> None:
        batch = Batch()
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
            if record is not None and record.kind == codec.KIND_ADD and alone:
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
        if batch.writes:
            self._index.store.write(batch)
            self._index.store.sync()

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


def set_aside(files: Files, damage: list[Bad]) -> None:
    """Keeps damaged journal files as evidence once the checkpoint has passed them."""
    for path in {bad.path for bad in damage}:
        if path.name in files.names(path.parent):
            files.rename(path, path.with_name(path.name + DAMAGED_SUFFIX))
            files.sync_directory(path.parent)
