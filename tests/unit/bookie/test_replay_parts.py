"""Parts of a start and a flush: damage and its evidence, failed attempts, and the sizes of the
journal's files."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import BookieReadOnly, LedgerFenced
from magnetar.bookie.index.index import Index
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal import scan as journal_scan
from magnetar.bookie.journal.files import JournalPosition, file_name
from magnetar.bookie.journal.replay import ReplayResult
from magnetar.bookie.journal.scan import BadRange
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.stats import LATENCY_BUCKETS_MS, Histogram

from .conftest import DATA, SMALL, add, collect_garbage, open_sim, read_all
from .test_journal import DIRECTORY, SETTINGS, START, Rig
from .test_journal_bounds import writer

BY_HAND = replace(SMALL, tick_s=1000.0)
BROKEN = OSError(errno.EIO, "Input/output error")
JOURNAL = DATA / "journal"
LOGS = DATA / "entry-logs"


def bad(*, last_seq: int = -1, harmless: bool = False) -> BadRange:
    return BadRange(JOURNAL / file_name(1), 1, 0, 9, 1, last_seq, "bad", None, harmless=harmless)


@pytest.mark.parametrize(
    ("torn", "damage", "must_checkpoint"),
    [
        ([], [], False),
        ([bad()], [], False),
        ([bad(), bad(last_seq=0)], [], True),
        ([bad(last_seq=7)], [], True),
        ([], [bad(harmless=True)], False),
        ([], [bad(harmless=True, last_seq=0)], True),
        ([], [bad(harmless=True), bad()], True),
        ([bad()], [bad(harmless=True)], False),
    ],
)
def test_checkpoint_moves_past_bad_bytes_only_if_the_next_start_would_misread_them(
    torn: list[BadRange], damage: list[BadRange], must_checkpoint: bool
) -> None:
    assert (
        ReplayResult(JournalPosition(1, 0, 0), 0, 0, torn, damage).must_checkpoint
        == must_checkpoint
    )


async def started(disk: SimDisk, times: int, *, entries: int = 0) -> SimIndexStore:
    """Returns a directory after a number of starts; the first process adds entries."""
    index = SimIndexStore(disk, DATA / "index")
    for number in range(times):
        bookie = await open_sim(disk, index, BY_HAND)
        if not number:
            for entry_id in range(entries):
                await add(bookie, 1, [entry_id])
            await bookie.flush()
        await bookie.abort()
        index = SimIndexStore(disk, DATA / "index", index.synced)
    return index


async def test_missing_newest_journal_file_is_damage_behind_the_last_record() -> None:
    disk = SimDisk()
    index = await started(disk, 2, entries=3)
    disk.remove(JOURNAL / file_name(2))
    disk.sync_directory(JOURNAL)
    bookie = await open_sim(disk, index, BY_HAND)
    (result,) = bookie._parts.recovered.damage
    assert (result.path, result.file_id) == (JOURNAL / file_name(2), 2)
    assert (result.offset, result.end, result.first_seq, result.last_seq) == (0, 0, 4, 4)
    assert bookie.stats().ledgers_in_limbo_through == 1
    assert isinstance(await add(bookie, 1, [3]), LedgerFenced), "the lost record may be a fence"
    position = bookie._journal._writer.position
    assert (position.file_id, position.seq) == (3, 4), "the lost number is not used again"
    await bookie.close()


@pytest.mark.parametrize("begun", [True, False], ids=["records behind the gap", "no record"])
async def test_journal_that_begins_behind_the_indexs_end_is_damage(begun: bool) -> None:
    """Files between them are lost, and the checkpoint is damaged: only the index shows the gap."""
    disk = SimDisk()
    index = await started(disk, 1, entries=3)
    bookie = await open_sim(disk, index, BY_HAND)
    for entry_id in range(3, 6):
        await add(bookie, 1, [entry_id])
    await bookie.abort()
    index = SimIndexStore(disk, DATA / "index", index.synced)
    bookie = await open_sim(disk, index, BY_HAND)
    if begun:
        await add(bookie, 1, [6])
    await bookie.abort()
    index = SimIndexStore(disk, DATA / "index", index.synced)
    disk.remove(JOURNAL / file_name(1))
    disk.remove(JOURNAL / file_name(2))
    disk.flip(DATA / "checkpoint", 200)
    flushed = Index(index).flushed_seq
    assert flushed is not None
    bookie = await open_sim(disk, index, BY_HAND)
    (found,) = bookie._parts.recovered.damage
    assert (found.first_seq, found.last_seq) == (flushed + 1, 6)
    assert bookie.stats().ledgers_in_limbo_through == 1
    assert isinstance(await add(bookie, 1, [7]), LedgerFenced), "a lost record may be a fence"
    await bookie.close()


async def test_bad_header_before_a_missing_file_is_kept_as_evidence() -> None:
    """Only the newest file's header may be torn, and this file was not the newest."""
    disk = SimDisk()
    index = await started(disk, 3)
    disk.remove(JOURNAL / file_name(3))
    disk.flip(JOURNAL / file_name(2), 100)
    bookie = await open_sim(disk, index, BY_HAND)
    assert {item.file_id for item in bookie._parts.recovered.damage} == {2, 3}
    assert f"{file_name(2)}.damaged" in disk.names(JOURNAL)
    await bookie.close()


async def test_a_flush_whose_log_was_not_synced_is_repeated_in_a_new_one() -> None:
    """A later sync of the same file does not restore writes that the disk dropped."""
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), BY_HAND)
    await add(bookie, 1, range(3))
    for _ in range(3):
        disk.fault = lambda step, path: BROKEN if step == "sync" and path.suffix == ".log" else None
        with pytest.raises(OSError, match="Input/output"):
            await bookie.flush()
        assert disk.names(LOGS) == [], "attempts that failed do not pile up"
    disk.fault = None
    await bookie.flush()
    assert disk.names(LOGS) == ["0000000004.log"]
    assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.abort()


async def test_adds_that_are_held_for_a_flush_are_refused_once_it_has_failed() -> None:
    """Both halves are full then. Fences need no room."""
    disk = SimDisk()
    settings = replace(BY_HAND, write_cache_bytes=1000, journal_commit_bytes_max=1)
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), settings)
    disk.fault = lambda step, path: BROKEN if step == "create" and path.suffix == ".log" else None
    adding = [
        asyncio.ensure_future(add(bookie, ledger_id, [0], size=1000)) for ledger_id in (1, 2, 3)
    ]
    answers = await asyncio.gather(*adding)
    assert answers[:2] == [None, None]
    assert isinstance(answers[2], BookieReadOnly)
    assert "entry logs cannot be written" in str(answers[2])
    assert not bookie.writable
    assert isinstance(await add(bookie, 4, [0]), BookieReadOnly)
    assert (await bookie.ledger_end(4, fence=True)).fenced
    disk.fault = None
    await bookie.flush()
    assert bookie.writable
    assert await add(bookie, 5, [0]) is None
    for ledger_id in (1, 2):
        assert await read_all(bookie, ledger_id, size=1000) == [0]
    await bookie.close()


async def test_failed_drop_leaves_every_ledger_unchanged() -> None:
    disk = SimDisk()

    class Unreadable(SimIndexStore):
        fails = False

        def get(self, key: bytes) -> bytes | None:
            if self.fails:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().get(key)

    index = Unreadable(disk, DATA / "index")
    bookie = await open_sim(disk, index, BY_HAND)
    await add(bookie, 1, range(3))
    index.fails = True
    with pytest.raises(OSError, match="No space"):
        await bookie.drop_copies([1, 2])
    index.fails = False
    state = bookie._ledgers.get(1)
    assert (state.dropping, state.pending) == (False, 0)
    assert await read_all(bookie, 1) == [0, 1, 2]
    assert isinstance(await add(bookie, 1, [3]), LedgerFenced | BookieReadOnly)
    assert await bookie.drop_copies([1]) == [1]
    await bookie.close()


def test_window_returns_the_bytes_at_any_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_scan, "CHUNK_BYTES", 64)
    content = bytes(number % 251 for number in range(500))
    disk = SimDisk()
    file = disk.open(JOURNAL / "file", create=True)
    file.write([content], 0)
    window = journal_scan._Window(file)
    for offset in (0, 8, 63, 64, 56, 200, 0, 199, 136, 137, 490, 400, 0):
        for length in (1, 8, 64, 65, 120):
            begin = window.at(offset, length)
            assert begin >= 0
            assert window.data[begin : begin + length] == content[offset : offset + length]


@pytest.mark.parametrize("kib", [8, 9, 16])
def test_journal_file_uses_its_preallocated_bytes(kib: int) -> None:
    """A whole step, or only the reserve on a full disk."""
    settings = replace(SETTINGS, journal_reserve_bytes=8 << 10)
    disk = SimDisk(capacity=kib << 10)
    created, _ = writer(disk, settings)
    allocated = 16 << 10 if kib == 16 else 8 << 10
    assert len(disk.inodes[DIRECTORY / file_name(1)].data) == allocated
    assert created.room == allocated - START


@pytest.mark.parametrize("full", [False, True])
def test_spare_is_extended_to_a_whole_step(full: bool) -> None:
    settings = replace(SETTINGS, journal_reserve_bytes=8 << 10)
    disk = SimDisk()
    spare = DIRECTORY / file_name(1).replace(".journal", ".spare")
    file = disk.open(spare, create=True)
    file.write([b"former life".ljust(6 << 10, b".")], 0, durable=True)
    if full:
        disk.capacity = 8 << 10
    created, _ = writer(disk, settings, start=2)
    allocated = 8 << 10 if full else 16 << 10
    data = disk.inodes[DIRECTORY / file_name(2)].data
    assert len(data) == allocated
    assert bytes(data[START : 6 << 10]).strip(b".") == b""
    assert created.room == allocated - START
    assert codec.decode_file_header(bytes(data[:START])).recycled


@pytest.mark.parametrize(("more", "commits"), [(-1, 2), (0, 2), (1, 1)])
async def test_commit_takes_records_up_to_its_byte_bound(more: int, commits: int) -> None:
    size = 400 + codec.HEAD_BYTES
    rig = Rig(SimDisk(), settings=replace(SETTINGS, journal_commit_bytes_max=size + more))
    rig.add(b"x" * 400)
    rig.add(b"y" * 400)
    await rig.settle()
    written = [commit for commit in rig.commits if commit.bytes_written]
    assert len(written) == commits


def test_durations_are_counted_in_their_bucket() -> None:
    created = Histogram()
    for bound_ms in LATENCY_BUCKETS_MS:
        created.add(bound_ms / 1000)
    assert created.counts == [1] * len(LATENCY_BUCKETS_MS) + [0]
    created.add(60.0)
    created.add(0.0)
    created.add(0.00011)
    assert created.counts == [2, 2] + [1] * (len(LATENCY_BUCKETS_MS) - 2) + [1]
    assert created.count == len(LATENCY_BUCKETS_MS) + 3
    assert created.sum_s == pytest.approx(sum(LATENCY_BUCKETS_MS) / 1000 + 60.00011)


async def test_the_time_of_every_commit_is_counted(tmp_path: Path) -> None:
    bookie = await LocalBookie.open(tmp_path / "data", "b1", settings=SMALL)
    for entry_id in range(3):
        await add(bookie, 1, [entry_id])
    stats = bookie.stats()
    assert stats.journal_commits == sum(stats.journal_sync_latencies.counts) == 3
    assert len(stats.journal_sync_latencies.counts) == len(LATENCY_BUCKETS_MS) + 1
    assert 0 < stats.journal_sync_latencies.sum_s < 60
    await bookie.close()


class Steps:
    """Records the steps of a disk, in order: (step, name of the file)."""

    def __init__(self, disk: SimDisk) -> None:
        self.done: list[tuple[str, str]] = []
        disk.fault = self._note

    def _note(self, step: str, path: Path) -> None:
        self.done.append((step, path.name))

    def first(self, step: str, suffix: str) -> int:
        return min(self._of(step, suffix))

    def last(self, step: str, suffix: str) -> int:
        return max(self._of(step, suffix))

    def _of(self, step: str, suffix: str) -> list[int]:
        result = [
            at
            for at, (done, name) in enumerate(self.done)
            if done == step and name.endswith(suffix)
        ]
        assert result, (step, suffix, self.done)
        return result


@pytest.mark.parametrize("spares", [0, 3])
async def test_flush_trims_the_journal_last(spares: int) -> None:
    """Blocks, then the index, then the mark, then the journal's files."""
    disk = SimDisk()
    settings = replace(
        BY_HAND, journal_file_bytes=16 << 10, journal_recycled_files_max=spares, block_bytes=1 << 10
    )
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), settings)
    for entry_id in range(60):
        await add(bookie, 1, [entry_id], size=1000)
    assert len([item for item in disk.names(JOURNAL) if item.endswith(".journal")]) > 2
    steps = Steps(disk)
    await bookie.flush()
    written, synced = steps.last("write", ".log"), steps.first("sync", ".log")
    assert written < synced < steps.first("index sync", "index")
    marked = steps.last("rename", "checkpoint.tmp")
    assert steps.last("index sync", "index") < steps.first("write", "checkpoint.tmp") < marked
    named = min(
        at
        for at, done in enumerate(steps.done)
        if at > marked and done == ("sync directory", "data")
    )
    assert named < steps.first("rename" if spares else "remove", ".journal")
    disk.fault = None
    await bookie.close()


async def test_collection_removes_a_log_last() -> None:
    """The copies of its blocks, then the index, then the log."""
    disk = SimDisk()
    settings = replace(BY_HAND, gc_major_live_ratio=0.9)
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), settings)
    for ledger_id in (1, 2):
        await add(bookie, ledger_id, range(3))
    await bookie.flush()
    (old,) = disk.names(LOGS)
    bookie._parts.flusher._writer.abandon()
    await bookie.delete_ledger(1)
    await bookie.flush()
    steps = Steps(disk)
    report = await collect_garbage(bookie)
    assert (report.logs_compacted, report.logs_removed) == (1, 1)
    (new,) = disk.names(LOGS)
    named = steps.last("index sync", "index")
    assert steps.last("write", new) < steps.last("sync", new) < named
    assert named < steps.first("remove", old)
    disk.fault = None
    assert await read_all(bookie, 2) == [0, 1, 2]
    await bookie.close()
