"""Unexpected failures of a bookie: they are reported, and no caller waits forever."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import BookieReadOnly
from magnetar.bookie.faults import Faults
from magnetar.bookie.index.store import Batch
from magnetar.bookie.local import LocalBookie
from magnetar.disk.files import Append, DiskUsage
from magnetar.disk.os_file import OsFile
from magnetar.disk.os_files import OsFiles

from .conftest import DATA, SMALL, add, open_sim, read_all, until


class BuggyDisk(SimDisk):
    """A disk whose usage raises while `bug` is set."""

    bug = False

    def usage(self, path: Path) -> DiskUsage:
        if self.bug:
            raise RuntimeError("a bug")
        return super().usage(path)


class BuggyIndex(SimIndexStore):
    bug = False

    def write(self, batch: Batch) -> None:
        if self.bug:
            raise RuntimeError("a bug")
        super().write(batch)


def test_a_fault_is_logged_once_and_not_at_every_retry(caplog: pytest.LogCaptureFixture) -> None:
    """A part is retried many times a second: the log would fill the disk."""
    faults = Faults()
    logged = []
    for part, error in (
        ("flush", RuntimeError("a bug")),
        ("flush", RuntimeError("a bug")),
        ("flush", RuntimeError("another bug")),
        ("journal", RuntimeError("another bug")),
        ("flush", RuntimeError("another bug")),
    ):
        caplog.clear()
        faults.note(part, error)
        logged.append(len(caplog.records))
    assert logged == [1, 0, 1, 1, 0]
    faults.note("flush", OSError("the disk"))
    caplog.clear()
    faults.note("flush", RuntimeError("another bug"))
    assert len(caplog.records) == 1, "it failed again after it had worked"


async def test_housekeeping_continues_after_a_failure_and_the_bookie_is_unhealthy() -> None:
    disk = BuggyDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
    assert not bookie.stats().fault
    disk.bug = True
    await until(lambda: "disk check failed: RuntimeError" in bookie.stats().fault)
    assert await add(bookie, 1, range(3)) is None
    disk.bug = False
    await until(lambda: not bookie.stats().fault)
    await bookie.close()


async def test_flush_that_raises_unexpectedly_is_retried() -> None:
    disk = SimDisk()
    index = BuggyIndex(disk, DATA / "index")
    bookie = await open_sim(disk, index, replace(SMALL, flush_retry_s=0.001))
    await add(bookie, 1, range(3))
    index.bug = True
    with pytest.raises(RuntimeError, match="a bug"):
        await bookie.flush()
    assert "flush failed" in bookie.stats().fault
    index.bug = False
    await until(lambda: not bookie.stats().fault)
    assert bookie.stats().flushes == 1
    assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.close()


async def test_close_releases_the_disks_if_the_last_flush_fails() -> None:
    disk = SimDisk()
    index = BuggyIndex(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    await add(bookie, 1, range(3))
    index.bug = True
    await bookie.close()
    assert not bookie.writable
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced))
    assert await read_all(bookie, 1) == [0, 1, 2]
    await bookie.close()


@pytest.mark.parametrize("ends", ["close close", "close abort", "abort close", "abort abort"])
async def test_close_and_abort_release_the_disks_once(ends: str) -> None:
    """Another bookie may have opened the same files meanwhile."""
    disk = SimDisk()
    closed: list[SimIndexStore] = []

    class Index(SimIndexStore):
        def close(self) -> None:
            closed.append(self)
            super().close()

    index = Index(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    await add(bookie, 1, range(3))
    for end in ends.split():
        await getattr(bookie, end)()
        assert closed == [index]


@pytest.mark.parametrize("threads", [True, False])
async def test_release_of_memory_without_a_thread_does_nothing(
    threads: bool, tmp_path: Path
) -> None:
    """It is scheduled after a flush; the bookie may have no threads, or be closed by then."""
    if threads:
        bookie = await LocalBookie.open(tmp_path, "b1", settings=SMALL)
        bookie._stage._release_memory()
    else:
        disk = SimDisk()
        bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
        bookie._stage._release_memory()
    await bookie.close()
    bookie._stage._release_memory()


async def test_failed_journal_is_a_permanent_fault() -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
    disk.fault = lambda _, path: (
        OSError(5, "Input/output error") if path.suffix == ".journal" else None
    )
    assert isinstance(await add(bookie, 1, range(3)), BookieReadOnly)
    disk.fault = None
    assert "journal stopped until a restart" in bookie.stats().fault
    await bookie.close()


class HangingFiles(OsFiles):
    """A disk whose syncs of a kind of file hang within `hung`."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.waiting = 0
        """Syncs that hang or did."""
        self._moving = threading.Event()
        self._moving.set()

    @contextmanager
    def hung(self) -> Iterator[None]:
        self._moving.clear()
        try:
            yield
        finally:
            self._moving.set()

    def wait(self) -> None:
        if not self._moving.is_set():
            self.waiting += 1
            self._moving.wait()

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        append: Append | None = None,
    ) -> OsFile:
        file = super().open(path, create=create, read_only=read_only)
        if path.suffix != self.suffix:
            return file
        wait = self.wait

        class Hanging(OsFile):
            def write(self, buffers: Sequence[bytes], offset: int, *, durable: bool = False) -> int:
                if durable:
                    wait()
                return super().write(buffers, offset, durable=durable)

            def sync(self) -> None:
                wait()
                super().sync()

        hanging = Hanging(path, file._fd)
        file._fd = -1
        return hanging


STALLS_SOON = replace(SMALL, disk_stall_s=0.02)


async def test_hanging_journal_is_a_fault_and_confirms_nothing(tmp_path: Path) -> None:
    """A hanging disk reports no error; only the elapsed time shows it."""
    files = HangingFiles(".journal")
    bookie = await LocalBookie.open(tmp_path, "b1", settings=STALLS_SOON, files=files)
    assert await add(bookie, 1, range(3)) is None
    with files.hung():
        answer = asyncio.ensure_future(add(bookie, 1, range(3, 6)))
        await until(lambda: "journal stalled" in bookie.stats().fault)
        assert not answer.done()
    assert await answer is None
    await until(lambda: not bookie.stats().fault)
    assert await read_all(bookie, 1) == list(range(6))
    await bookie.close()


async def test_add_after_a_long_pause_is_not_a_stall(tmp_path: Path) -> None:
    files = HangingFiles(".journal")
    bookie = await LocalBookie.open(tmp_path, "b1", settings=SMALL, files=files)
    with files.hung():
        answer = asyncio.ensure_future(add(bookie, 1, range(3)))
        await until(lambda: bool(files.waiting))
        assert not bookie.stats().fault
    assert await answer is None
    await bookie.close()


async def test_hanging_flush_is_a_fault_until_it_ends(tmp_path: Path) -> None:
    files = HangingFiles(".log")
    bookie = await LocalBookie.open(tmp_path, "b1", settings=STALLS_SOON, files=files)
    await add(bookie, 1, range(3))
    with files.hung():
        flush = asyncio.ensure_future(bookie.flush())
        await until(lambda: "flush stalled" in bookie.stats().fault)
        assert not flush.done()
        assert await add(bookie, 1, range(3, 6)) is None  # the journal's disk is well
    await flush
    await until(lambda: not bookie.stats().fault)
    await bookie.close()
