"""Checks a bookie's whole data directory without changing it.

An inspection reads every record of every journal file and every block of every entry log, and
checks their CRCs. It then compares the index with them: it reports views that refer to no block or
to a wrong one, and blocks without a view (after a crash or a deletion, until the next collection;
no damage). Findings name file and offset. The bookie should be stopped: the writes of a running
bookie may look torn, and the first finding then says so.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from magnetar.bookie import identity as identity_file
from magnetar.bookie.entry_log.logs import file_name as log_file_name
from magnetar.bookie.entry_log.logs import log_ids
from magnetar.bookie.index.index import FLAG_DELETED, FLAG_FENCED, Index, View
from magnetar.bookie.index.store import IndexDamaged, IndexStore, RocksIndexStore
from magnetar.bookie.inspect.files import (
    DAMAGE,
    NOTE,
    TORN,
    BlockFact,
    Finding,
    JournalFacts,
    LogFacts,
    scan_journals,
    scan_log,
)
from magnetar.bookie.journal.checkpoint import FILE_NAME as CHECKPOINT_NAME
from magnetar.bookie.journal.checkpoint import CheckpointDamaged, Mark, read_mark
from magnetar.disk.files import DataDirLocked, Files

BLOCKS_REPORTED_MAX: Final = 1000
"""Blocks without a view that are reported separately; the others are only counted."""

OpenIndexReadOnly = Callable[[Path], IndexStore]


class IndexFacts(msgspec.Struct):
    """Counts of the index."""

    views: int = 0
    ledgers: int = 0
    fenced: int = 0
    deleted: int = 0
    flushed_seq: int | None = None
    limbo_through: int = -1
    damaged_ranges: int = 0
    blocks_without_view: int = 0
    bytes_without_view: int = 0


class CheckpointFacts(msgspec.Struct):
    """The position of the checkpoint."""

    journal_file: int
    offset: int
    seq: int
    newest_journal_file: int


class Inspection(msgspec.Struct):
    """The facts and findings of a data directory."""

    path: str
    bookie_id: str = ""
    incarnation: str = ""
    format_version: int = 0
    checkpoint: CheckpointFacts | None = None
    journals: list[JournalFacts] = []
    logs: list[LogFacts] = []
    index: IndexFacts | None = None
    findings: list[Finding] = []

    @property
    def damaged(self) -> bool:
        """Whether acknowledged entries may be lost or wrong."""
        return any(finding.kind == DAMAGE for finding in self.findings)


class CopiedIndexStore(RocksIndexStore):
    """A temporary copy of the index, since RocksDB writes to its directory even if read-only."""

    def __init__(self, path: Path) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="magnetar-inspect-")
        copy = Path(self._temporary.name) / path.name
        self._real, self._copy = path, copy
        try:
            if path.is_dir():
                shutil.copytree(path, copy)
            super().__init__(copy, read_only=True)
        except BaseException:
            self._temporary.cleanup()
            raise

    def close(self) -> None:
        super().close()
        self._temporary.cleanup()

    def _failure(self, error: Exception) -> Exception:
        failure = super()._failure(error)
        if isinstance(failure, IndexDamaged):
            return _in_place(failure, self._copy, self._real)
        return failure


def _in_place(error: IndexDamaged, copy: Path, path: Path) -> IndexDamaged:
    """Returns the error with paths of the index instead of its copy."""
    text = error.message.replace(str(copy), str(path))
    return IndexDamaged(text, error.path.replace(str(copy), str(path)), error.offset)


def inspect(
    files: Files, data_dir: Path, open_index: OpenIndexReadOnly = CopiedIndexStore
) -> Inspection:
    """Reads a whole data directory and returns all facts and findings."""
    return _Inspector(files, data_dir, open_index).run()


class _Inspector:
    """One inspection: the scans of the files, then the index compared with them."""

    def __init__(self, files: Files, data_dir: Path, open_index: OpenIndexReadOnly) -> None:
        self._files = files
        self._data_dir = data_dir
        self._log_dir = data_dir / identity_file.ENTRY_LOG_DIR
        self._index_dir = data_dir / identity_file.INDEX_DIR
        self._open_index = open_index
        self._result = Inspection(str(data_dir))
        self._blocks: dict[int, dict[int, BlockFact]] = {}
        """Valid blocks by log and offset."""
        self._bad: list[tuple[int, Finding]] = []
        """Bad ranges of logs, by log."""
        self._viewed: dict[int, set[int]] = {}
        """Per log, the offsets that views refer to."""

    def run(self) -> Inspection:
        files, data_dir, result = self._files, self._data_dir, self._result
        self._check_lock()
        identity_path = data_dir / identity_file.FILE_NAME
        try:
            identity = identity_file.read_identity(files, data_dir)
        except identity_file.DataDirError as error:
            self._add(DAMAGE, identity_path, 0, str(error))
            return result
        if identity is None:
            text = "no identity file: not a bookie's data directory, or one that lost it"
            self._add(DAMAGE, identity_path, 0, text)
            return result
        result.bookie_id, result.incarnation = identity.bookie_id, identity.incarnation
        result.format_version = identity.format_version
        mark = self._read_checkpoint(identity.salt)
        journal_dir = data_dir / identity_file.JOURNAL_DIR
        result.journals, findings = scan_journals(files, journal_dir, identity.salt, mark)
        result.findings += findings
        for log_id in log_ids(files, self._log_dir):
            facts, blocks, bad = scan_log(files, self._log_dir, log_id, identity.salt)
            result.logs.append(facts)
            self._blocks[log_id] = blocks
            self._bad += ((log_id, finding) for finding in bad)
        self._inspect_index(mark)
        return result

    def _add(self, kind: str, path: Path | str, offset: int, text: str) -> None:
        self._result.findings.append(Finding(kind, str(path), offset, text))

    def _check_lock(self) -> None:
        """Adds a note if a process uses the directory."""
        if identity_file.LOCK_NAME not in self._files.names(self._data_dir):
            return
        path = self._data_dir / identity_file.LOCK_NAME
        try:
            self._files.lock(path).close()
        except DataDirLocked as error:
            self._add(NOTE, path, 0, f"{error.strerror}: what it writes now may look torn")

    def _read_checkpoint(self, salt: bytes) -> Mark | None:
        path = self._data_dir / CHECKPOINT_NAME
        try:
            mark = read_mark(self._files, self._data_dir, salt)
        except CheckpointDamaged as error:
            self._add(DAMAGE, path, 0, f"{error}; the whole journal is replayed in its place")
            return None
        if mark is None:
            self._add(NOTE, path, 0, "no checkpoint yet")
            return None
        at = mark.position
        self._result.checkpoint = CheckpointFacts(
            at.file_id, at.offset, at.seq, mark.newest_file_id
        )
        return mark

    def _inspect_index(self, mark: Mark | None) -> None:
        facts = self._result.index = IndexFacts()
        complete = True
        try:
            store = self._open_index(self._index_dir)
            try:
                index = Index(store)
                facts.flushed_seq = index.flushed_seq
                older = index.lost_since(mark) if mark is not None else ""
                if older:
                    text = f"older than the checkpoint: {older}; the bookie does not start with it"
                    self._add(DAMAGE, self._index_dir, 0, text)
                self._read_state(index, facts)
                self._read_views(index, facts)
            finally:
                store.close()
        except IndexDamaged as error:
            complete = False
            self._add(DAMAGE, error.path, error.offset, error.message)
        for log_id, finding in self._bad:
            # Bad bytes without a view are from a flush that never finished.
            offsets = self._viewed.get(log_id, set())
            lost = any(map(finding.covers, offsets))
            if complete and not lost and not (finding.offset == 0 and offsets):
                finding.kind = TORN
            self._result.findings.append(finding)
        if complete:
            self._report_unviewed(facts)

    def _read_state(self, index: Index, facts: IndexFacts) -> None:
        """Counts ledgers, and reports limbo and recorded damage."""
        for _, record in index.ledgers():
            facts.ledgers += 1
            facts.fenced += bool(record.flags & FLAG_FENCED)
            facts.deleted += bool(record.flags & FLAG_DELETED)
        facts.limbo_through = index.limbo_through
        if facts.limbo_through >= 0:
            text = f"ledgers up to {facts.limbo_through} may have lost entries and fences"
            self._add(DAMAGE, self._index_dir, 0, text)
        for damage in index.damages():
            facts.damaged_ranges += 1
            text = f"entries {damage.first} to {damage.last} of ledger {damage.ledger_id} were lost"
            self._add(DAMAGE, damage.file, damage.offset, text)

    def _read_views(self, index: Index, facts: IndexFacts) -> None:
        """Compares each view with the one before it and with the block that it refers to."""
        last: View | None = None
        for view in index.all_views():
            facts.views += 1
            self._viewed.setdefault(view.log_id, set()).add(view.offset)
            if last is not None and last.ledger_id == view.ledger_id and last.last >= view.first:
                self._add(DAMAGE, self._index_dir, 0, f"views {last} and {view} overlap")
            last = view
            fault = self._check_view(view)
            if not fault:
                continue
            entries = f"entries {view.first} to {view.last} of ledger {view.ledger_id}"
            reported = [
                finding
                for log_id, finding in self._bad
                if log_id == view.log_id and finding.covers(view.offset)
            ]
            for finding in reported:
                finding.text += f"; the index has {entries} at {view.offset}"
            if not reported:
                path = self._log_dir / log_file_name(view.log_id)
                self._add(DAMAGE, path, view.offset, f"the index has {entries} here, but {fault}")

    def _check_view(self, view: View) -> str:
        """Returns the defects of a view, empty if it has none."""
        log = self._blocks.get(view.log_id)
        if log is None:
            return "the file is missing"
        block = log.get(view.offset)
        if block is None:
            return "no valid block begins there"
        if block.ledger_id != view.ledger_id:
            return f"the block there is of ledger {block.ledger_id}"
        if not block.first <= view.first <= view.last <= block.last or block.size != view.length:
            return f"the block there has entries {block.first} to {block.last}"
        return ""

    def _report_unviewed(self, facts: IndexFacts) -> None:
        """Counts and reports blocks without a view."""
        for log_id, log in self._blocks.items():
            offsets = self._viewed.get(log_id, set())
            for offset, block in log.items():
                if offset in offsets:
                    continue
                facts.blocks_without_view += 1
                facts.bytes_without_view += block.size
                if facts.blocks_without_view <= BLOCKS_REPORTED_MAX:
                    text = (
                        f"no view names this block of ledger {block.ledger_id}, entries "
                        f"{block.first} to {block.last}: deleted, written again or never finished"
                    )
                    file = str(self._log_dir / log_file_name(log_id))
                    finding = Finding(NOTE, file, offset, text, offset + block.size)
                    self._result.findings.append(finding)
