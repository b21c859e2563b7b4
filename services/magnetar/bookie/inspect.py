"""Looks into a bookie's data directory without changing it, and says everything that is wrong.

Every record of every journal file and every block of every entry log is read and its CRCs are
checked; then the index is held against them: views that point nowhere or at something else, and
blocks that no view names (left by a crash or a deletion until the collector comes; no damage).
Findings name file and offset. Meant for a bookie that is stopped: while one runs, what it is
writing may look torn, and the first finding says so.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from magnetar.bookie import identity as identity_file
from magnetar.bookie.checkpoint import CheckpointDamaged, Mark, read_mark
from magnetar.bookie.entry_log import file_name as log_file_name
from magnetar.bookie.entry_log import log_ids
from magnetar.bookie.files import DataDirLocked, Files
from magnetar.bookie.index import FLAG_DELETED, FLAG_FENCED, Index, View
from magnetar.bookie.index_store import IndexDamaged, IndexStore, RocksIndexStore
from magnetar.bookie.inspect_files import (
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

BLOCKS_REPORTED_MAX: Final = 1000
"""Blocks without a view that are named one by one; the rest is counted."""

OpenIndexReadOnly = Callable[[Path], IndexStore]


class IndexFacts(msgspec.Struct):
    """What the index holds."""

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
    """Up to where the journal is in the entry logs."""

    journal_file: int
    offset: int
    seq: int
    newest_journal_file: int


class Inspection(msgspec.Struct):
    """All that is known of a data directory."""

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
        """Whether anything that was acknowledged may be gone or wrong."""
        return any(finding.kind == DAMAGE for finding in self.findings)


class CopiedIndexStore(RocksIndexStore):
    """A copy of the index: opening RocksDB, read-only or not, writes into its directory."""

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
    """The error as if it had come from the index itself."""
    text = error.message.replace(str(copy), str(path))
    return IndexDamaged(text, error.path.replace(str(copy), str(path)), error.offset)


def inspect(
    files: Files, data_dir: Path, open_index: OpenIndexReadOnly = CopiedIndexStore
) -> Inspection:
    """Reads everything."""
    found = Inspection(str(data_dir))
    found.findings += _in_use(files, data_dir)
    try:
        identity = identity_file.read_identity(files, data_dir)
    except identity_file.DataDirError as error:
        found.findings.append(Finding(DAMAGE, str(data_dir / "identity"), 0, str(error)))
        return found
    if identity is None:
        text = "no identity file: not a bookie's data directory, or one that lost it"
        found.findings.append(Finding(DAMAGE, str(data_dir / "identity"), 0, text))
        return found
    found.bookie_id, found.incarnation = identity.bookie_id, identity.incarnation
    found.format_version = identity.format_version
    mark = _checkpoint(files, data_dir, identity.salt, found)
    journal_dir = data_dir / identity_file.JOURNAL_DIR
    found.journals, findings = scan_journals(files, journal_dir, identity.salt, mark)
    found.findings += findings
    log_dir = data_dir / identity_file.ENTRY_LOG_DIR
    blocks: dict[int, dict[int, BlockFact]] = {}
    bad: list[tuple[int, Finding]] = []
    for log_id in log_ids(files, log_dir):
        facts, blocks[log_id], log_bad = scan_log(files, log_dir, log_id, identity.salt)
        found.logs.append(facts)
        bad += ((log_id, finding) for finding in log_bad)
    _index(data_dir, open_index, found, blocks, bad, mark)
    return found


def _in_use(files: Files, data_dir: Path) -> Iterator[Finding]:
    if identity_file.LOCK_NAME not in files.names(data_dir):
        return
    path = data_dir / identity_file.LOCK_NAME
    try:
        files.lock(path).close()
    except DataDirLocked as error:
        yield Finding(NOTE, str(path), 0, f"{error.strerror}: what it writes now may look torn")


def _checkpoint(files: Files, data_dir: Path, salt: bytes, found: Inspection) -> Mark | None:
    """Notes the checkpoint."""
    path = str(data_dir / "checkpoint")
    try:
        mark = read_mark(files, data_dir, salt)
    except CheckpointDamaged as error:
        text = f"{error}; the whole journal is replayed in its place"
        found.findings.append(Finding(DAMAGE, path, 0, text))
        return None
    if mark is None:
        found.findings.append(Finding(NOTE, path, 0, "no checkpoint yet"))
        return None
    at = mark.position
    found.checkpoint = CheckpointFacts(at.file_id, at.offset, at.seq, mark.newest_file_id)
    return mark


def _index(
    data_dir: Path,
    open_index: OpenIndexReadOnly,
    found: Inspection,
    blocks: dict[int, dict[int, BlockFact]],
    bad: list[tuple[int, Finding]],
    mark: Mark | None,
) -> None:
    path = data_dir / identity_file.INDEX_DIR
    facts = found.index = IndexFacts()
    named: dict[int, set[int]] = {}
    complete = True
    try:
        store = open_index(path)
        try:
            index = Index(store)
            facts.flushed_seq = index.flushed_seq
            older = index.lost_since(mark) if mark is not None else ""
            if older:
                text = f"older than the checkpoint: {older}; the bookie does not start with it"
                found.findings.append(Finding(DAMAGE, str(path), 0, text))
            _read_index(index, path, found, facts, blocks, bad, named)
        finally:
            store.close()
    except IndexDamaged as error:
        complete = False
        found.findings.append(Finding(DAMAGE, error.path, error.offset, error.message))
    for log_id, finding in bad:
        # Bad bytes that nothing names were left by a flush that never finished.
        views = named.get(log_id, set())
        lost = any(map(finding.covers, views))
        if complete and not lost and not (finding.offset == 0 and views):
            finding.kind = TORN
        found.findings.append(finding)
    if complete:
        _without_view(data_dir / identity_file.ENTRY_LOG_DIR, found, facts, blocks, named)


def _read_index(
    index: Index,
    path: Path,
    found: Inspection,
    facts: IndexFacts,
    blocks: dict[int, dict[int, BlockFact]],
    bad: list[tuple[int, Finding]],
    named: dict[int, set[int]],
) -> None:
    for _, record in index.ledgers():
        facts.ledgers += 1
        facts.fenced += bool(record.flags & FLAG_FENCED)
        facts.deleted += bool(record.flags & FLAG_DELETED)
    facts.limbo_through = index.limbo_through
    if facts.limbo_through >= 0:
        text = f"ledgers up to {facts.limbo_through} may have lost entries and fences"
        found.findings.append(Finding(DAMAGE, str(path), 0, text))
    for damage in index.damages():
        facts.damaged_ranges += 1
        text = f"entries {damage.first} to {damage.last} of ledger {damage.ledger_id} were lost"
        found.findings.append(Finding(DAMAGE, damage.file, damage.offset, text))
    last: View | None = None
    for view in index.all_views():
        facts.views += 1
        named.setdefault(view.log_id, set()).add(view.offset)
        if last is not None and last.ledger_id == view.ledger_id and last.last >= view.first:
            text = f"views {last} and {view} overlap"
            found.findings.append(Finding(DAMAGE, str(path), 0, text))
        last = view
        wrong = _check_view(view, blocks)
        if not wrong:
            continue
        held = f"entries {view.first} to {view.last} of ledger {view.ledger_id}"
        known = [item for log_id, item in bad if log_id == view.log_id and item.covers(view.offset)]
        for finding in known:
            finding.text += f"; the index has {held} at {view.offset}"
        if not known:
            file = str(path.parent / identity_file.ENTRY_LOG_DIR / log_file_name(view.log_id))
            text = f"the index has {held} here, but {wrong}"
            found.findings.append(Finding(DAMAGE, file, view.offset, text))


def _check_view(view: View, blocks: dict[int, dict[int, BlockFact]]) -> str:
    """What is wrong with a view, nothing if it holds."""
    log = blocks.get(view.log_id)
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


def _without_view(
    log_dir: Path,
    found: Inspection,
    facts: IndexFacts,
    blocks: dict[int, dict[int, BlockFact]],
    named: dict[int, set[int]],
) -> None:
    for log_id, log in blocks.items():
        views = named.get(log_id, set())
        for offset, block in log.items():
            if offset in views:
                continue
            facts.blocks_without_view += 1
            facts.bytes_without_view += block.size
            if facts.blocks_without_view <= BLOCKS_REPORTED_MAX:
                text = (
                    f"no view names this block of ledger {block.ledger_id}, entries "
                    f"{block.first} to {block.last}: deleted, written again or never finished"
                )
                file = str(log_dir / log_file_name(log_id))
                found.findings.append(Finding(NOTE, file, offset, text, offset + block.size))
