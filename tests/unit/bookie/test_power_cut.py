"""A power cut at every write, sync and rename of a workload: acknowledged entries survive.

The bookie runs on a simulated disk that loses or tears unsynced writes. After each cut it is opened
again: every acknowledged entry is readable with its bytes, fences and deletes hold, torn writes are
not reported as damage, and the bookie works.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import BookieError, LedgerFenced, NoSuchEntry, NoSuchLedger
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.settings import BookieSettings

from .conftest import collect_garbage

DATA = Path("/data")
SETTINGS = BookieSettings(
    journal_file_bytes=12 << 10,
    journal_preallocate_bytes=4 << 10,
    journal_reserve_bytes=512,
    journal_recycled_files_max=2,
    write_cache_bytes=6 << 10,
    block_bytes=700,
    block_bytes_max=1400,
    entry_log_bytes=8 << 10,
    disk_free_bytes_min=0,
    disk_reserve_bytes=1 << 10,
    tombstone_kept_s=0.0,
)


@dataclass
class Told:
    """The requests that the bookie confirmed."""

    acked: dict[tuple[int, int], bytes] = field(default_factory=dict)
    tried: dict[tuple[int, int], bytes] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    deleting: set[int] = field(default_factory=set)


async def opened(disk: SimDisk, index: SimIndexStore) -> LocalBookie:
    return await LocalBookie.open(
        DATA, "b", settings=SETTINGS, files=disk, open_index=lambda _: index, threads=False
    )


async def adds(
    bookie: LocalBookie, reported: Told, groups: Sequence[tuple[int, Sequence[int], int]], turn: int
) -> None:
    """Adds groups (ledger, ids, entry size) at once, and waits for all answers."""
    remaining = len(groups)
    answered = asyncio.Event()

    def done(ledger_id: int, ids: Sequence[int], error: BookieError | None) -> None:
        nonlocal remaining
        remaining -= 1
        if error is None:
            reported.acked.update({(ledger_id, id_): reported.tried[ledger_id, id_] for id_ in ids})
        if not remaining:
            answered.set()

    for ledger_id, ids, size in groups:
        entries = [b"%d/%d/" % (ledger_id, id_) * (size // 8 + turn % 2) for id_ in ids]
        for id_, entry in zip(ids, entries, strict=True):
            reported.tried[ledger_id, id_] = entry
        bookie.add_entries(
            ledger_id, ids, entries, last_add_confirmed=-1, on_added=partial(done, ledger_id, ids)
        )
    await answered.wait()


async def workload(bookie: LocalBookie, reported: Told, disk: SimDisk) -> None:
    """Adds of several shapes, flushes, rolls, fences, deletes and a collection."""
    for turn in range(9):
        base = turn * 10
        await adds(bookie, reported, [(1, range(base, base + 10), 60)], turn)
        await adds(
            bookie,
            reported,
            [(2 if turn <= 3 else 20, range(base, base + 3), 300), (3, range(base, base + 1), 900)]
            + [(4, [base + 1, base + 4, base + 9], 40)] * 2,
            turn,
        )
        if turn in (2, 5):
            await adds(bookie, reported, [(5 + turn, range(4), 200)], turn)
            reported.fenced |= await attempt(bookie.ledger_end(5 + turn, fence=True), 5 + turn)
        if turn in (3, 6):
            ledger_id = 2 if turn == 3 else 7
            reported.deleting.add(ledger_id)
            reported.deleted |= await attempt(bookie.delete_ledger(ledger_id), ledger_id)
            await attempt(collect_garbage(bookie), 0)
        if disk.dead:
            return
    await attempt(bookie.flush(), 0)


async def attempt(work: object, ledger_id: int) -> set[int]:
    """Returns {ledger_id} if the work succeeds, an empty set if the disk is off."""
    try:
        await work  # type: ignore[misc]
    except (BookieError, OSError):
        return set()
    return {ledger_id}


async def check(bookie: LocalBookie, reported: Told) -> None:
    """Checks that all acknowledged entries exist, and no entries that were never sent."""
    stats = bookie.stats()
    assert stats.damaged_ranges == 0
    assert stats.ledgers_in_limbo_through == -1
    for (ledger_id, entry_id), entry in reported.tried.items():
        if ledger_id in reported.deleted:
            continue
        try:
            result = await bookie.read_entries(ledger_id, entry_id, entry_id, bytes_max=1)
        except (NoSuchEntry, NoSuchLedger):
            lost = (ledger_id, entry_id) in reported.acked and ledger_id not in reported.deleting
            assert not lost, f"acknowledged {ledger_id}:{entry_id} is lost"
        else:
            # A later turn may have sent the same id with other bytes, acknowledged or not.
            assert result[0].data[:6] == entry[:6]
    for ledger_id in reported.deleted:
        with pytest.raises(NoSuchLedger):
            await bookie.ledger_end(ledger_id)
    for ledger_id in reported.fenced - reported.deleting:
        refused: list[BookieError | None] = []
        bookie.add_entries(ledger_id, (99,), (b"",), last_add_confirmed=-1, on_added=refused.append)
        await asyncio.sleep(0)
        assert isinstance(refused[0], LedgerFenced)


async def cut_and_check(step: int, seed: int) -> bool:
    """Runs a workload with a power cut and checks; returns whether the workload completed."""
    rng = random.Random(seed)
    disk = SimDisk()
    disk.cut_at = step
    reported = Told()
    index = SimIndexStore(disk, DATA / "index")
    bookie = None
    try:
        bookie = await opened(disk, index)
        await workload(bookie, reported, disk)
    except OSError:
        assert disk.dead
    finished = not disk.dead
    disk.dead = True
    if bookie is not None:
        await bookie.abort()
    # Twice: the second start opens the result of the first, after another cut.
    for _ in range(2):
        disk = disk.after_cut(rng)
        index = SimIndexStore(disk, DATA / "index", index.synced)
        bookie = await opened(disk, index)
        await check(bookie, reported)
        await adds(bookie, reported, [(100, range(3), 500), (1, range(200, 210), 100)], 0)
        await check(bookie, reported)
        disk.dead = True
        await bookie.abort()
    return finished


@pytest.mark.parametrize("seed", range(4))
async def test_power_cut_at_every_step(seed: int) -> None:
    step = 1
    while not await cut_and_check(step, seed=step * 31 + seed):
        step += 1
    assert step > 100, "the workload ended too soon to mean anything"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 100))
async def test_power_cut_at_every_step_many_times(seed: int) -> None:
    step = 1
    while not await cut_and_check(step, seed=step * 31 + seed):
        step += 1
