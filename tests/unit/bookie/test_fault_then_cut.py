"""A step of the disk fails, and later the power is cut: all acknowledged entries survive.

A failed step leaves work half done, and no later step may rely on it: neither a retry, nor the
collector, nor the checkpoint. The disk drops all unsynced writes, so that the start after the cut
shows a step that did.
"""

import contextlib
import errno
import os
import random
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.bookie.test_power_cut import DATA, Told, adds, attempt, check, opened, workload

from magnetar.bookie.identity import DataDirError
from magnetar.bookie.index.store import IndexDamaged
from magnetar.bookie.local import LocalBookie

from .conftest import collect_garbage

STEPS_TO_CUT_MAX = 30


class FailingIndex(SimIndexStore):
    """Fails like RocksDB: a full disk keeps unsynced writes, any other error drops them."""

    def sync(self) -> None:
        try:
            super().sync()
        except OSError as error:
            if self._disk.dead or error.errno == errno.ENOSPC:
                raise
            lost = SimIndexStore(self._disk, self._path, self.synced)
            self._data, self._keys = lost._data, lost._keys
            self.generation += 1
            raise IndexDamaged(str(error), str(self._path), 0) from error


class Failing:
    """Fails some steps of a disk from number `first` on, and cuts the power later."""

    def __init__(self, disk: SimDisk, first: int, rng: random.Random) -> None:
        self.failed = False
        self._disk, self._rng = disk, rng
        self._seen = 0
        self._first = first
        self._end = first + rng.choice((1, 1, 3))
        self._number = rng.choice((errno.ENOSPC, errno.EIO))
        disk.fault = self._fault

    def _fault(self, kind: str, path: Path) -> OSError | None:
        self._seen += 1
        if not self._first <= self._seen < self._end:
            return None
        self.failed = True
        self._disk.cut_at = self._disk.steps + self._rng.randint(1, STEPS_TO_CUT_MAX)
        return OSError(self._number, os.strerror(self._number), str(path))


async def opened_at_last(disk: SimDisk, index: FailingIndex) -> LocalBookie | None:
    """Opens a bookie, retrying after the failure; None after a power cut."""
    while not disk.dead:
        with contextlib.suppress(OSError, DataDirError, IndexDamaged):
            return await opened(disk, index)
    return None


async def live(bookie: LocalBookie, reported: Told, disk: SimDisk) -> None:
    """The workload, and collections without a later flush that would sync their writes."""
    with contextlib.suppress(OSError):
        await workload(bookie, reported, disk)
        # A delete finds nothing of a ledger whose only add failed; that add may be on the disk.
        reported.deleted &= {ledger_id for ledger_id, _ in reported.acked}
        for ledger_id in (3, 20):
            reported.deleting.add(ledger_id)
            reported.deleted |= await attempt(bookie.delete_ledger(ledger_id), ledger_id)
        for _ in range(3):
            await attempt(collect_garbage(bookie), 0)
    reported.deleted &= {ledger_id for ledger_id, _ in reported.acked}


async def fail_and_check(step: int, seed: int) -> bool:
    """One life of a formatted bookie with a failure at `step`; True if it ends before that."""
    rng = random.Random(seed)
    disk = SimDisk()
    reported = Told()
    index = FailingIndex(disk, DATA / "index")
    await (await opened(disk, index)).close()
    failing = Failing(disk, step, rng)
    bookie = await opened_at_last(disk, index)
    if bookie is not None:
        await live(bookie, reported, disk)
        if not disk.dead:
            disk.fault = None
            disk.cut_at = -1
            await check(bookie, reported)
        disk.dead = True
        await bookie.abort()
    disk = disk.after_cut(rng)
    bookie = await opened(disk, FailingIndex(disk, DATA / "index", index.synced))
    await check(bookie, reported)
    await adds(bookie, reported, [(100, range(3), 500), (1, range(200, 210), 100)], 0)
    await check(bookie, reported)
    disk.dead = True
    await bookie.abort()
    return not failing.failed


@pytest.mark.parametrize("seed", range(2))
async def test_no_acknowledged_entry_is_lost_after_a_failed_step_and_power_cut(seed: int) -> None:
    step = 1
    while not await fail_and_check(step, seed=step * 37 + seed):
        step += 1
    assert step > 100, "the workload ended too soon to mean anything"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
async def test_no_acknowledged_entry_is_lost_after_a_failed_step_and_power_cut_many_seeds(
    seed: int,
) -> None:
    step = 1
    while not await fail_and_check(step, seed=step * 37 + seed):
        step += 1
