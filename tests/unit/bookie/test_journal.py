"""The journal: group commit, order, bounds, full and failing disks."""

import asyncio
import errno
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk

from magnetar.bookie.api import BookieError, BookieReadOnly
from magnetar.bookie.journal import codec_v1 as codec
from magnetar.bookie.journal.files import (
    JournalPosition,
    JournalTrim,
    JournalWriter,
    file_ids,
    file_name,
)
from magnetar.bookie.journal.journal import Commit, Journal, QueuedRecord
from magnetar.bookie.journal.scan import JournalScan
from magnetar.bookie.settings import BookieSettings
from magnetar.disk import files as files_api
from magnetar.disk.os_file import OsFile
from magnetar.disk.os_files import OsFiles

DIRECTORY = Path("/journal")
SALT = bytes(16)
START = codec.FILE_HEADER_BYTES
SETTINGS = BookieSettings(
    journal_file_bytes=64 << 10,
    journal_preallocate_bytes=16 << 10,
    journal_reserve_bytes=2 << 10,
    journal_queue_bytes_max=40_000,
    journal_queue_bytes_low=10_000,
)


class Rig:
    """A journal on a simulated disk, and its callbacks."""

    def __init__(self, disk: SimDisk, *, settings: BookieSettings = SETTINGS) -> None:
        self.disk = disk
        self.trim = JournalTrim(disk, DIRECTORY, settings)
        self.commits: list[Commit] = []
        self.full: list[BookieError] = []
        self.failed: list[BookieError] = []
        self.done: list[QueuedRecord] = []
        self.files_begun: list[int] = []
        newest = max(file_ids(disk, DIRECTORY), default=0)
        scan = self.scan()
        last = max((item.record.seq for item in scan.records(0, START, 0)), default=0)
        self.writer = JournalWriter(
            files=disk,
            directory=DIRECTORY,
            incarnation=SALT,
            settings=settings,
            start=JournalPosition(newest + 1, codec.FILE_HEADER_BYTES, last),
            spares=self.trim.spares,
            on_new_file=self.files_begun.append,
        )
        self.journal = Journal(
            self.writer,
            settings,
            on_commit=self.commits.append,
            on_full=self.full.append,
            on_failed=self.failed.append,
            threaded=False,
        )

    def add(self, entry: bytes, ledger_id: int = 1, entry_id: int = 0) -> None:
        self.journal.append(
            codec.KIND_ADD,
            ledger_id,
            self.done.append,
            entry,
            entry_ids=range(entry_id, entry_id + 1),
            lengths=codec.pack_lengths([entry]),
            body=(entry,),
            body_bytes=len(entry),
            body_crc=codec.entries_crc([entry]),
        )

    def fence(self, ledger_id: int) -> None:
        self.journal.append(codec.KIND_FENCE, ledger_id, self.done.append)

    async def settle(self) -> list[QueuedRecord]:
        answered = asyncio.Event()
        self.journal.refuse(lambda _: answered.set(), None, BookieError("behind all others"))
        await asyncio.wait_for(answered.wait(), 20)
        done, self.done = self.done, []
        return done

    def scan(self) -> JournalScan:
        return JournalScan(self.disk, DIRECTORY, SALT)

    def read_back(self) -> list[tuple[int, int, bytes]]:
        """Returns (kind, sequence number, body) of all records; no range may be bad."""
        scan = self.scan()
        result = [
            (item.record.kind, item.record.seq, item.body)
            for item in scan.records(0, codec.FILE_HEADER_BYTES, -1)
        ]
        assert not scan.classify()
        return result


async def test_queued_records_are_committed_with_one_sync() -> None:
    rig = Rig(SimDisk())
    steps = rig.disk.steps
    for n in range(50):
        rig.add(b"entry %d" % n)
    done = await rig.settle()
    assert [item.context for item in done] == [b"entry %d" % n for n in range(50)]
    assert not any(item.error for item in done)
    assert len(rig.commits) == 1
    # One write, one sync.
    assert rig.disk.steps - steps == 2
    assert [body for _, _, body in rig.read_back()] == [b"entry %d" % n for n in range(50)]


async def test_a_commit_is_bounded() -> None:
    rig = Rig(SimDisk(), settings=BookieSettings(journal_commit_bytes_max=1000))
    for _ in range(10):
        rig.add(b"x" * 400)
    await rig.settle()
    # The third record of 472 bytes exceeds 1,000. The last is `settle`'s.
    assert [len(commit.records) for commit in rig.commits] == [3, 3, 3, 1 + 1]


async def test_numbers_continue_across_files() -> None:
    rig = Rig(SimDisk())
    for n in range(30):
        rig.add(bytes([n]) * 9000)
        await rig.settle()
    assert len(rig.files_begun) > 3
    assert rig.files_begun == file_ids(rig.disk, DIRECTORY)
    assert [seq for _, seq, _ in rig.read_back()] == list(range(1, 31))


async def test_a_file_that_a_power_cut_left_under_both_names_is_one_spare_at_most() -> None:
    disk = SimDisk()
    rig = Rig(disk)
    for n in range(10):
        rig.add(bytes([n]) * 9000)
        await rig.settle()
    for file_id in rig.files_begun[:2]:
        journal = DIRECTORY / file_name(file_id)
        disk.inodes[journal.with_suffix(".spare")] = disk.inodes[journal]
    rig = Rig(disk)
    assert not rig.trim.spares
    for n in range(10):
        rig.add(bytes([n]) * 9000)
        await rig.settle()
    rig.trim(rig.commits[-1].end)
    assert len(rig.trim.spares) == len(set(rig.trim.spares)) > 0
    for n in range(30):
        rig.add(bytes([n]) * 9000)
        await rig.settle()
    assert not rig.failed


async def test_trimmed_files_are_recycled() -> None:
    rig = Rig(SimDisk())
    for n in range(60):
        rig.add(bytes([n]) * 9000)
        await rig.settle()
        if n % 10 == 9:
            rig.trim(rig.commits[-1].end)
    names = rig.disk.names(DIRECTORY)
    spares = [name for name in names if name.endswith(".spare")]
    assert 0 < len(spares) <= SETTINGS.journal_recycled_files_max
    # The current file has records of a former life behind its tail; the scan ignores them.
    numbers = [seq for _, seq, _ in rig.read_back()]
    assert numbers == list(range(numbers[0], 61))
    header = codec.decode_file_header(rig.disk.read_all(rig.writer.path)[: codec.FILE_HEADER_BYTES])
    assert header.recycled


async def test_queue_is_bounded_and_low_water_is_notified() -> None:
    rig = Rig(SimDisk())
    rig.journal.hold()
    lows: list[int] = []
    rig.journal.notify_low(lambda: lows.append(-1))
    for _ in range(4):
        assert rig.journal.overflow(9000) is None
        rig.add(b"x" * 9000)
    assert rig.journal.pending_bytes > 36_000
    assert "queue is full" in str(rig.journal.overflow(9000))
    rig.journal.notify_low(lambda: lows.append(rig.journal.pending_bytes))
    await asyncio.sleep(0)
    assert lows == [-1]
    rig.journal.release()
    await rig.settle()
    assert rig.journal.overflow(9000) is None
    assert lows == [-1, 0]


async def test_fences_are_committed_while_adds_are_refused() -> None:
    rig = Rig(SimDisk())
    rig.journal.hold()
    rig.add(b"a")
    rig.fence(1)
    rig.add(b"b")
    refusal = BookieReadOnly("no room")
    rig.journal.release(refusal)
    assert [item.error for item in await rig.settle()] == [refusal, None, refusal]
    rig.journal.release()
    rig.add(b"c")
    assert (await rig.settle())[0].error is None
    kinds = [kind for kind, _, _ in rig.read_back()]
    assert kinds == [codec.KIND_GAP, codec.KIND_FENCE, codec.KIND_GAP, codec.KIND_ADD]


async def test_nothing_is_committed_while_held() -> None:
    rig = Rig(SimDisk())
    rig.journal.hold()
    rig.add(b"x")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not rig.done
    rig.journal.release()
    assert len(await rig.settle()) == 1


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_failed_sync_is_final(kind: str) -> None:
    rig = Rig(SimDisk())
    rig.add(b"good")
    await rig.settle()
    faults = [OSError(errno.EIO, "Input/output error")]
    rig.disk.fault = lambda step, _: faults.pop() if step == kind and faults else None
    rig.add(b"bad")
    rig.add(b"worse")
    done = await rig.settle()
    assert [type(item.error) for item in done] == [BookieReadOnly] * 2
    # The disk works again, but its losses are unknown, so the failure stays final.
    assert not faults
    rig.add(b"late")
    rig.fence(1)
    done = await rig.settle()
    assert [type(item.error) for item in done] == [BookieReadOnly] * 2
    assert len(rig.failed) == 1
    assert rig.journal.failure is rig.failed[0]
    assert rig.journal.pending_bytes == 0


async def test_a_full_disk_refuses_adds_and_takes_fences() -> None:
    rig = Rig(SimDisk(capacity=20_000))
    for n in range(12):
        rig.add(b"%02d" % n * 800, entry_id=n)
        if n % 3 == 0:
            rig.fence(n)
    done = await rig.settle()
    adds = [item.error for item in done if item.is_add]
    assert all(isinstance(error, BookieReadOnly) for error in adds)
    assert [item.error for item in done if not item.is_add] == [None] * 4
    assert rig.full
    assert rig.journal.failure is None
    # Room again: a gap record covers the refused numbers, so that the scan reports no hole.
    rig.disk.capacity = 1 << 30
    rig.add(b"after")
    done = await rig.settle()
    assert done[0].error is None
    kinds = [kind for kind, _, _ in rig.read_back()]
    assert kinds.count(codec.KIND_FENCE) == 4
    assert kinds.count(codec.KIND_ADD) == 1
    assert codec.KIND_GAP in kinds


async def test_failing_completion_does_not_affect_others() -> None:
    rig = Rig(SimDisk())

    def broken(_: QueuedRecord) -> None:
        raise RuntimeError("a bug of the caller's")

    rig.add(b"a")
    rig.journal.append(codec.KIND_FENCE, 1, broken)
    rig.add(b"b")
    assert [item.context for item in await rig.settle()] == [b"a", b"b"]


class CountingFiles(OsFiles):
    """Counts durable writes, and can block one."""

    def __init__(self) -> None:
        self.durable = 0
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        append: files_api.Append | None = None,
    ) -> OsFile:
        file = super().open(path, create=create, read_only=read_only)
        files = self

        class Counted(OsFile):
            def write(self, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
                if durable:
                    files.waiting.set()
                    files.gate.wait(20)
                    files.durable += 1
                return super().write(buffers, offset, durable=durable)

        counted = Counted(path, file._fd)
        file._fd = -1
        return counted


def threaded(
    tmp_path: Path,
    files: OsFiles,
    done: Callable[[Commit], None],
    failed: Callable[[BookieError], None] = lambda _: None,
) -> Journal:
    writer = JournalWriter(
        files=files,
        directory=tmp_path,
        incarnation=SALT,
        settings=BookieSettings(journal_preallocate_bytes=1 << 20),
        start=JournalPosition(1, codec.FILE_HEADER_BYTES, 0),
        spares=deque(),
        on_new_file=lambda _: None,
    )
    return Journal(
        writer,
        BookieSettings(journal_mark_idle_s=0.001),
        on_commit=done,
        on_full=lambda _: None,
        on_failed=failed,
    )


async def test_thread_commits_records_that_queue_up_during_a_sync(tmp_path: Path) -> None:
    files = CountingFiles()
    commits: list[Commit] = []
    all_done = asyncio.Event()

    def committed(commit: Commit) -> None:
        commits.append(commit)
        if sum(len(item.records) for item in commits) == 101:
            all_done.set()

    journal = threaded(tmp_path, files, committed)
    files.gate.clear()
    files.waiting.clear()
    journal.append(codec.KIND_FENCE, 1, lambda _: None)
    await asyncio.to_thread(files.waiting.wait, 20)
    for n in range(100):
        journal.append(codec.KIND_FENCE, n, lambda _: None)
    before = files.durable
    files.gate.set()
    await asyncio.wait_for(all_done.wait(), 20)
    assert [len(item.records) for item in commits] == [1, 100]
    assert files.durable - before == 2
    await journal.close()


async def test_mark_is_written_when_adds_pause(tmp_path: Path) -> None:
    journal = threaded(tmp_path, OsFiles(), lambda _: None)
    path = tmp_path / "0000000000000001.journal"
    done = asyncio.Event()
    journal.append(codec.KIND_FENCE, 1, lambda _: done.set())
    await asyncio.wait_for(done.wait(), 20)
    kinds: list[int] = []
    while codec.KIND_MARK not in kinds:
        await asyncio.sleep(0.002)
        scan = JournalScan(OsFiles(), path.parent, SALT)
        kinds = [item.record.kind for item in scan.file_records(1, codec.FILE_HEADER_BYTES)]
    assert kinds == [codec.KIND_FENCE, codec.KIND_MARK]
    assert scan.durable_seq == 1
    await journal.close()
