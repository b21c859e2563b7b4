"""Flushes: when they run, when adds are held, and failing disks."""

import asyncio
import errno
import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import BookieError, BookieReadOnly, EntryCorrupt, NoSuchLedger
from magnetar.bookie.cache import write_stage

from .conftest import DATA, SMALL, Opener, add, entry, open_sim, read_all, until


async def test_a_full_half_is_flushed_and_memory_stays_bounded(open_bookie: Opener) -> None:
    bookie = await open_bookie(replace(SMALL, write_cache_bytes=50_000))
    for turn in range(40):
        assert await add(bookie, 1, range(turn * 100, turn * 100 + 100)) is None
        assert bookie.stats().write_cache_bytes < 3 * 50_000
    assert bookie.stats().flushes > 5
    assert await read_all(bookie, 1) == list(range(4000))


async def test_flush_releases_its_entries(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    first = weakref.ref(bookie._halves.active)
    await bookie.flush()
    await add(bookie, 1, range(3, 6))
    second = weakref.ref(bookie._halves.active)
    await bookie.flush()
    await until(lambda: first() is None and second() is None)


async def test_old_half_is_flushed(open_bookie: Opener) -> None:
    bookie = await open_bookie(replace(SMALL, flush_age_s=0.01))
    await add(bookie, 1, range(3))
    await until(lambda: bookie.stats().flushes == 1)
    assert bookie.stats().write_cache_entries == 0
    await bookie.ledger_end(2, fence=True)
    await until(lambda: bookie.stats().flushes == 2)


@pytest.mark.parametrize(
    "flush",
    [
        {"flush_age_s": 0.05, "flush_idle_s": 1e9},
        {"flush_age_s": 1e9, "flush_idle_s": 0.05, "flush_idle_bytes_min": 1},
    ],
    ids=["constant light load", "a pause"],
)
async def test_freed_memory_is_released_after_a_flush_that_no_load_forced(
    open_bookie: Opener, monkeypatch: pytest.MonkeyPatch, flush: dict[str, float]
) -> None:
    """Otherwise the bookie keeps the memory that its flushes freed until it is full again."""
    released = threading.Event()
    monkeypatch.setattr(write_stage, "release_freed_memory", released.set)
    bookie = await open_bookie(replace(SMALL, **flush, tick_s=0.01))  # type: ignore[arg-type]
    await add(bookie, 1, range(3))
    await until(released.is_set)


async def test_large_half_is_flushed_in_a_pause(open_bookie: Opener) -> None:
    bookie = await open_bookie(replace(SMALL, flush_idle_s=0.01, flush_idle_bytes_min=5_000))
    await add(bookie, 1, range(3))
    await asyncio.sleep(0.05)
    assert bookie.stats().flushes == 0
    await add(bookie, 1, range(3, 100))
    await until(lambda: bookie.stats().flushes == 1)


async def test_nothing_is_flushed_without_need(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await bookie.flush()
    assert bookie.stats().flushes == 0
    assert bookie.stats().entry_logs == 0


async def test_failing_flush_refuses_adds_and_loses_no_entry() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    tight = replace(SMALL, write_cache_bytes=20_000, flush_retry_s=0.001)
    bookie = await open_sim(disk, index, tight)
    broken = OSError(errno.EIO, "Input/output error")
    disk.fault = lambda _, path: broken if path.suffix == ".log" else None
    answers: list[BookieError | None] = []
    for entry_id in range(1000):
        bookie.add_entries(
            1, (entry_id,), [entry(1, entry_id)], last_add_confirmed=-1, on_added=answers.append
        )
        await asyncio.sleep(0)
    await until(lambda: len(answers) == 1000)
    kept = [number for number, error in enumerate(answers) if error is None]
    assert kept == list(range(len(kept)))
    assert 100 < len(kept) < 500
    assert isinstance(answers[-1], BookieReadOnly)
    assert "entry logs cannot be written" in str(answers[-1])
    assert not bookie.writable
    assert bookie.stats().write_cache_bytes < 3 * 20_000
    with pytest.raises(OSError, match="Input/output"):
        await bookie.flush()
    # Requests that need no room are accepted meanwhile.
    await bookie.ledger_end(7, fence=True)
    assert await read_all(bookie, 1) == kept
    disk.fault = None
    await until(lambda: bookie.writable)
    assert await add(bookie, 2, range(10)) is None
    assert await read_all(bookie, 1) == kept
    await bookie.close()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced), tight)
    assert await read_all(bookie, 1) == kept
    assert await read_all(bookie, 2) == list(range(10))
    await bookie.close()


async def test_a_flush_that_could_not_begin_is_retried_no_sooner_than_after_its_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt reads the index on the thread of all requests."""
    disk = SimDisk()
    settings = replace(SMALL, write_cache_bytes=2_000, flush_retry_s=1000.0, tick_s=1000.0)
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), settings)
    attempts: list[object] = []

    def broken(_: object) -> object:
        attempts.append(_)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(bookie._ledgers, "take", broken)
        answers: list[BookieError | None] = []
        for entry_id in range(200):
            data = [entry(1, entry_id)]
            bookie.add_entries(1, (entry_id,), data, last_add_confirmed=-1, on_added=answers.append)
            if entry_id % 10 == 9:
                # Committed behind the failure, as adds that were on their way to the disk.
                bookie._stage.committed(bookie._stage._position)
                await asyncio.sleep(0)
        await until(lambda: len(answers) == 200)
    assert isinstance(answers[-1], BookieReadOnly)
    assert len(attempts) == 1
    kept = [number for number, error in enumerate(answers) if error is None]
    await bookie.flush()
    assert await read_all(bookie, 1) == kept
    await bookie.close()


async def test_adds_beyond_the_queue_bound_are_refused() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, replace(SMALL, journal_queue_bytes_max=30_000))
    answers: list[BookieError | None] = []
    for entry_id in range(1000):
        bookie.add_entries(
            1, (entry_id,), [entry(1, entry_id)], last_add_confirmed=-1, on_added=answers.append
        )
    # The bound counts entries; the last head exceeds it.
    assert bookie.pending_bytes < 30_000 + 100
    await until(lambda: len(answers) == 1000)
    kept = answers.count(None)
    assert 100 < kept < 300
    assert not any(answers[:kept])
    assert "queue is full" in str(answers[kept])
    assert await read_all(bookie, 1) == list(range(kept))
    await bookie.close()


async def test_entries_are_read_while_their_flush_fails() -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
    await add(bookie, 1, range(100))
    broken = OSError(errno.EIO, "Input/output error")
    disk.fault = lambda _, path: broken if path.suffix == ".log" else None
    with pytest.raises(OSError, match="Input/output"):
        await bookie.flush()
    await add(bookie, 1, range(100, 150))
    assert await read_all(bookie, 1) == list(range(150))
    disk.fault = None
    await bookie.flush()
    assert bookie.stats().write_cache_entries == 0
    assert await read_all(bookie, 1) == list(range(150))
    await bookie.close()


async def test_a_full_disk_is_read_only_until_something_is_deleted() -> None:
    disk = SimDisk(capacity=600_000)
    index = SimIndexStore(disk, DATA / "index")
    sized = replace(
        SMALL,
        disk_usage_high=0.8,
        disk_usage_low=0.6,
        journal_file_bytes=64 << 10,
        journal_recycled_files_max=0,
        write_cache_bytes=20_000,
        gc_full_interval_s=0.01,
    )
    bookie = await open_sim(disk, index, sized)
    ledger_id = 0
    answer = None
    while ledger_id < 100:
        ledger_id += 1
        answer = await add(bookie, ledger_id, range(50))
        if answer is not None:
            break  # at once: a check between two turns may find room
        await asyncio.sleep(0.005)
    assert isinstance(answer, BookieReadOnly)
    assert not bookie.writable
    assert "full" in bookie.stats().read_only_reason
    # Reads, fences and deletes continue.
    assert await read_all(bookie, 1) == list(range(50))
    await bookie.ledger_end(1, fence=True)
    for deleted in range(1, ledger_id - 2):
        await bookie.delete_ledger(deleted)
    await until(lambda: bookie.writable)
    assert await add(bookie, 200, range(50)) is None
    for deleted in range(1, ledger_id - 2):
        with pytest.raises(NoSuchLedger):
            await bookie.ledger_end(deleted)
    assert await read_all(bookie, ledger_id - 1) == list(range(50))
    await bookie.close()


async def test_deletes_free_a_disk_that_others_filled() -> None:
    """The disk is completely full without an earlier warning: deletes still make room."""
    disk = SimDisk(capacity=1 << 40)
    index = SimIndexStore(disk, DATA / "index")
    tight = replace(
        SMALL,
        disk_usage_high=2.0,
        disk_usage_low=2.0,
        write_cache_bytes=20_000,
        journal_file_bytes=64 << 10,
        journal_recycled_files_max=0,
        gc_full_interval_s=0.02,
    )
    bookie = await open_sim(disk, index, tight)
    for ledger_id in range(30):
        assert await add(bookie, ledger_id, range(50)) is None
    await bookie.flush()
    kept = []
    refused_read_only = 0
    for ledger_id in range(100, 200):
        disk.capacity = disk.used()  # others take all freed bytes
        if await add(bookie, ledger_id, range(50)) is None:
            kept.append(ledger_id)
        elif not bookie.writable:
            # Only here: a check of the disk between two turns may find a byte that was freed.
            refused_read_only += 1
        await asyncio.sleep(0)
    assert len(kept) < 50
    assert refused_read_only
    logs = [path for path in disk.inodes if path.suffix == ".log"]
    disk.capacity = disk.used()
    with pytest.raises(OSError, match="No space"):
        await bookie.flush()
    # Failed attempts leave no files.
    assert [path for path in disk.inodes if path.suffix == ".log"] == logs
    for ledger_id in range(25):
        await bookie.delete_ledger(ledger_id)
    async with asyncio.timeout(20):
        # Without thresholds, each add tries again whether the disk has room.
        while await add(bookie, 300, range(50)) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        while True:  # the journal needs less than the entry log
            with suppress(OSError):
                await bookie.flush()
                break
            await asyncio.sleep(0.001)
    for ledger_id in (*range(25, 30), *kept, 300):
        assert await read_all(bookie, ledger_id) == list(range(50))
    await bookie.close()


async def test_a_bookie_opens_on_a_full_disk() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    tight = replace(SMALL, disk_usage_high=2.0, write_cache_bytes=20_000)
    bookie = await open_sim(disk, index, replace(tight, write_cache_bytes=1 << 20))
    for ledger_id in range(30):
        assert await add(bookie, ledger_id, range(50)) is None
    await bookie.abort()
    disk.capacity = disk.used() + 100
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced), tight)
    for ledger_id in range(30):
        assert await read_all(bookie, ledger_id) == list(range(50))
    disk.capacity = 1 << 40
    await until(lambda: bookie.writable)
    await bookie.flush()
    assert await add(bookie, 300, range(50)) is None
    await bookie.close()


async def test_failed_journal_makes_the_bookie_read_only() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    await add(bookie, 1, range(10))
    faults = [OSError(errno.EIO, "Input/output error")]
    disk.fault = lambda step, path: (
        faults.pop() if step == "sync" and path.suffix == ".journal" and faults else None
    )
    assert isinstance(await add(bookie, 1, range(10, 20)), BookieReadOnly)
    assert isinstance(await add(bookie, 1, range(10, 20)), BookieReadOnly)
    assert not bookie.writable
    assert await read_all(bookie, 1) == list(range(10))
    with pytest.raises(BookieReadOnly):
        await bookie.ledger_end(1, fence=True)
    with pytest.raises(BookieReadOnly):
        await bookie.delete_ledger(1)
    await bookie.close()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced))
    assert bookie.writable
    assert set(await read_all(bookie, 1)) >= set(range(10))
    await bookie.close()


async def test_close_leaves_nothing_to_replay(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(100))
    await bookie.close()
    assert isinstance(await add(bookie, 1, range(100, 101)), BookieReadOnly)
    bookie = await open_bookie()
    assert bookie.stats().write_cache_entries == 0
    assert await read_all(bookie, 1) == list(range(100))


async def test_delete_that_frees_the_full_half_releases_the_journal_after_a_failed_flush() -> None:
    disk = SimDisk()
    tight = replace(SMALL, write_cache_bytes=20_000, flush_retry_s=1000.0, tick_s=1000.0)
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"), tight)
    broken = OSError(errno.EIO, "Input/output error")
    disk.fault = lambda _, path: broken if path.suffix == ".log" else None
    stage = bookie._stage
    assert await add(bookie, 1, range(150)) is None
    await until(lambda: stage._job is not None and not stage._running)
    # The other half fills while the flush is run again, so that the journal is held. A delete of
    # what filled it was under way already. Then the flush fails again.
    filling = asyncio.ensure_future(add(bookie, 2, range(150)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(bookie._changes._deleted, bookie._ledgers.get(2))
    stage._run()
    assert await filling is None
    await until(lambda: not stage._running)
    async with asyncio.timeout(20):
        await bookie.delete_ledger(1)
    disk.fault = None
    await bookie.close()


async def test_torn_hole_is_handled_on_a_full_disk() -> None:
    """The bookie opens with a torn hole on a full disk; the checkpoint moves once it has room."""
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, SMALL)
    for ledger_id in range(5):
        assert await add(bookie, ledger_id, range(20)) is None
    await bookie.abort()
    (path,) = (path for path in disk.inodes if path.suffix == ".journal")
    disk.flip(path, 8 * (disk.inodes[path].data.index(b"2:0 ") + 1))
    disk.capacity = disk.used() + 100
    faults = [OSError(errno.ENOSPC, "No space left on device")]
    disk.fault = lambda step, _: faults.pop() if step == "index sync" and faults else None
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced), SMALL)
    assert not faults
    with pytest.raises(EntryCorrupt):
        await bookie.read_entries(2, 0, 19, bytes_max=1 << 20)
    for ledger_id in (0, 1, 3, 4):
        assert await read_all(bookie, ledger_id) == list(range(20))
    disk.capacity = 1 << 40
    await until(lambda: bookie.writable)
    await bookie.flush()
    await bookie.close()
    # Recorded, with its evidence.
    assert path.with_name(path.name + ".damaged") in disk.inodes
    index = bookie._parts.index.store  # type: ignore[assignment]
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced), SMALL)
    with pytest.raises(EntryCorrupt, match="damaged"):
        await bookie.read_entries(2, 0, 19, bytes_max=1 << 20)
    assert await read_all(bookie, 4) == list(range(20))
    await bookie.close()
