"""What no part of a bookie foresees: it is seen from outside, and nobody waits for ever."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import BookieReadOnly
from magnetar.bookie.files import DiskUsage
from magnetar.bookie.index_store import Batch

from .conftest import DATA, SMALL, add, open_sim, read_all, until


class BuggyDisk(SimDisk):
    """A disk whose figures cannot be had while `bug` is set."""

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


async def test_housekeeping_goes_on_and_the_bookie_is_unhealthy_meanwhile() -> None:
    disk = BuggyDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
    assert not bookie.stats().fault
    disk.bug = True
    await until(lambda: "disk check failed: RuntimeError" in bookie.stats().fault)
    assert await add(bookie, 1, range(3)) is None
    disk.bug = False
    await until(lambda: not bookie.stats().fault)
    await bookie.close()


async def test_a_flush_that_ends_with_a_bug_is_run_again() -> None:
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


async def test_closing_releases_the_disks_whatever_the_last_flush_does() -> None:
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


async def test_a_failed_journal_is_a_fault_for_good() -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
    disk.fault = lambda _, path: (
        OSError(5, "Input/output error") if path.suffix == ".journal" else None
    )
    assert isinstance(await add(bookie, 1, range(3)), BookieReadOnly)
    disk.fault = None
    assert "journal stopped until a restart" in bookie.stats().fault
    await bookie.close()
