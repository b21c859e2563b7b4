"""Scans of journal files and entry logs for `inspect`: every record and block, every CRC.

They only read, and return facts and findings.
"""

from pathlib import Path
from typing import Final

import msgspec

from magnetar.bookie.entry_log import codec_v1 as log_codec
from magnetar.bookie.entry_log.codec_v1 import BadBlock, BlockHead
from magnetar.bookie.entry_log.logs import file_name as log_file_name
from magnetar.bookie.journal import codec_v1 as journal_codec
from magnetar.bookie.journal.checkpoint import Mark
from magnetar.bookie.journal.files import SPARE_SUFFIX, file_ids
from magnetar.bookie.journal.files import file_name as journal_file_name
from magnetar.bookie.journal.scan import JournalScan
from magnetar.core.units import MIB
from magnetar.disk.files import Files
from magnetar.disk.patchy_file import UNREADABLE, PatchyFile

DAMAGE: Final = "damage"
"""Acknowledged entries are lost or wrong, or a file contradicts another."""

TORN: Final = "torn"
"""An unfinished write that was never acknowledged."""

NOTE: Final = "note"

CHUNK_BYTES: Final = 8 * MIB


class Finding(msgspec.Struct):
    """A statement about a place in a file."""

    kind: str
    file: str
    offset: int
    text: str
    end: int = -1

    def covers(self, offset: int) -> bool:
        """Whether its range contains `offset`."""
        return self.offset <= offset < self.end


class LedgerFacts(msgspec.Struct):
    """A ledger's entries in one file."""

    ledger_id: int
    first_entry: int
    last_entry: int
    entries: int = 0
    bytes: int = 0

    def add(self, first: int, last: int, entries: int, size: int) -> None:
        """Adds entries to the counts."""
        self.first_entry = min(self.first_entry, first)
        self.last_entry = max(self.last_entry, last)
        self.entries += entries
        self.bytes += size


class JournalFacts(msgspec.Struct):
    """Counts of a journal file."""

    file: str
    bytes: int
    used_bytes: int = 0
    first_seq: int = -1
    last_seq: int = -1
    recycled: bool = False
    records: dict[str, int] = {}
    ledgers: dict[int, LedgerFacts] = {}


class LogFacts(msgspec.Struct):
    """Counts of an entry log."""

    file: str
    bytes: int
    blocks: int = 0
    entries: int = 0
    ledgers: dict[int, LedgerFacts] = {}


class BlockFact(msgspec.Struct, gc=False):
    """A valid block."""

    ledger_id: int
    first: int
    last: int
    size: int


def scan_journals(
    files: Files, directory: Path, salt: bytes, mark: Mark | None
) -> tuple[list[JournalFacts], list[Finding]]:
    """Scans all journal files of a directory; `mark` names files that must exist."""
    scan = JournalScan(files, directory, salt)
    facts: list[JournalFacts] = []
    ids = file_ids(files, directory)
    if mark is not None and ids and ids[0] > mark.position.file_id:
        scan.last_seq = mark.position.seq
    for file_id in ids:
        path = directory / journal_file_name(file_id)
        item = _journal_file(files, path)
        facts.append(item)
        for scanned in scan.file_records(file_id, journal_codec.FILE_HEADER_BYTES):
            record = scanned.record
            kind = journal_codec.KINDS[record.kind]
            item.records[kind] = item.records.get(kind, 0) + 1
            if item.first_seq < 0:
                item.first_seq = record.seq
            item.last_seq = record.seq
            if record.count:
                first, last = record.entry_ids[0], record.entry_ids[-1]
                ledger = item.ledgers.setdefault(
                    record.ledger_id, LedgerFacts(record.ledger_id, first, last)
                )
                ledger.add(first, last, record.count, record.body_bytes)
        item.used_bytes = scan.ends[file_id]
    findings = [
        Finding(DAMAGE if bad.damage else TORN, str(bad.path), bad.offset, bad.reason, bad.end)
        for bad in scan.classify()
    ]
    if mark is not None and mark.newest_file_id > max(ids, default=-1):
        path = directory / journal_file_name(mark.newest_file_id)
        findings.append(Finding(DAMAGE, str(path), 0, "the checkpoint names this file: missing"))
    for name in files.names(directory):
        if name.endswith(".damaged"):
            text = "set aside at a restart: its damage is on record in the index"
            findings.append(Finding(NOTE, str(directory / name), 0, text))
        elif not name.endswith((SPARE_SUFFIX, ".journal")):
            findings.append(Finding(NOTE, str(directory / name), 0, "not a file of a bookie"))
    return facts, findings


def _journal_file(files: Files, path: Path) -> JournalFacts:
    file = files.open(path, read_only=True)
    facts = JournalFacts(str(path), file.size())
    try:
        page = PatchyFile(file).read(0, journal_codec.FILE_HEADER_BYTES)
        header = journal_codec.decode_file_header(page)
        facts.recycled = header.recycled
    except journal_codec.BadRecord:
        pass  # the scan reports it
    finally:
        file.close()
    return facts


def scan_log(
    files: Files, directory: Path, log_id: int, salt: bytes
) -> tuple[LogFacts, dict[int, BlockFact], list[Finding]]:
    """Scans an entry log; returns its counts, valid blocks by offset, and bad ranges."""
    path = directory / log_file_name(log_id)
    opened = files.open(path, read_only=True)
    try:
        file = PatchyFile(opened)
        size = file.size
        facts = LogFacts(str(path), size)
        blocks: dict[int, BlockFact] = {}
        bad: list[Finding] = []
        try:
            owner = log_codec.decode_file_header(file.read(0, log_codec.FILE_HEADER_BYTES))
            if owner != (salt, log_id):
                raise BadBlock("entry log of another bookie, incarnation or number")
        except BadBlock as error:
            bad.append(Finding(DAMAGE, str(path), 0, str(error), log_codec.FILE_HEADER_BYTES))
        magic = log_codec.log_magic(salt, log_id)
        offset = log_codec.FILE_HEADER_BYTES
        while offset < size:
            try:
                head = _read_block(file, offset, magic)
            except BadBlock as error:
                following = _next_magic(file, offset + 1, size, magic)
                text = UNREADABLE if file.unreadable(offset, following) else str(error)
                bad.append(Finding(DAMAGE, str(path), offset, text, following))
                offset = following
            else:
                first, last = head.first_entry, head.last_entry
                blocks[offset] = BlockFact(head.ledger_id, first, last, head.size)
                facts.blocks += 1
                facts.entries += head.count
                ledger = facts.ledgers.setdefault(
                    head.ledger_id, LedgerFacts(head.ledger_id, first, last)
                )
                ledger.add(first, last, head.count, head.body_bytes)
                offset += head.size
        return facts, blocks, bad
    finally:
        opened.close()


def _read_block(file: PatchyFile, offset: int, magic: bytes) -> BlockHead:
    """Reads and checks the block at `offset`; returns its head. Raises BadBlock."""
    fixed = file.read(offset, log_codec.HEAD_BYTES)
    tables = log_codec.head_length(fixed, 0, magic)
    if offset + tables > file.size:
        raise BadBlock("the file ends within a block's tables")
    head = log_codec.decode_head(file.read(offset, tables), 0, magic)
    if offset + head.size > file.size:
        raise BadBlock("the file ends within a block")
    log_codec.decode_block(file.read(offset, head.size), magic)
    return head


def _next_magic(file: PatchyFile, offset: int, size: int, magic: bytes) -> int:
    """Returns the offset of the next block magic, or the end of the file."""
    while offset < size:
        data = file.read(offset, CHUNK_BYTES)
        hit = data.find(magic)
        if hit >= 0:
            return offset + hit
        offset += max(len(data) - len(magic) + 1, 1)
    return size
