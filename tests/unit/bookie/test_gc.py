"""Collection of garbage: dead blocks are removed, live entries stay readable."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import EntryCorrupt, NoSuchLedger
from magnetar.bookie.entry_log.logs import EntryLogs
from magnetar.bookie.local import LocalBookie
from magnetar.disk.os_files import OsFiles

from .conftest import DATA, SMALL, Opener, add, collect_garbage, open_sim, read_all, until


def logs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "data" / "entry-logs").iterdir())


def size(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in logs(tmp_path))


async def fill(bookie: LocalBookie, ledgers: range, entries: int = 100) -> None:
    """Flushes each ledger separately; a log has several flushes."""
    for ledger_id in ledgers:
        assert await add(bookie, ledger_id, range(entries)) is None
        await bookie.flush()


async def test_logs_of_deleted_ledgers_are_removed(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await fill(bookie, range(30))
    before = logs(tmp_path)
    assert len(before) > 3
    for ledger_id in range(25):
        await bookie.delete_ledger(ledger_id)
    report = await collect_garbage(bookie)
    assert report.logs_removed >= len(before) - 3
    assert report.bytes_freed > 100_000
    assert size(tmp_path) < 110_000
    for ledger_id in range(25, 30):
        assert await read_all(bookie, ledger_id) == list(range(100))
    assert await bookie.list_ledgers() == list(range(25, 30))


async def test_half_dead_logs_are_rewritten(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await fill(bookie, range(30))
    for ledger_id in range(0, 30, 2):
        await bookie.delete_ledger(ledger_id)
    before = size(tmp_path)
    report = await collect_garbage(bookie)
    assert report.logs_compacted > 3
    assert size(tmp_path) < before * 0.7
    for ledger_id in range(1, 30, 2):
        assert await read_all(bookie, ledger_id) == list(range(100))
    await bookie.close()
    bookie = await open_bookie()
    for ledger_id in range(1, 30, 2):
        assert await read_all(bookie, ledger_id) == list(range(100))
    # All remaining logs are live, except the one that was written last.
    assert (await collect_garbage(bookie)).logs_compacted <= 1
    report = await collect_garbage(bookie)
    assert (report.logs_compacted, report.logs_removed) == (0, 0)


async def test_live_entries_are_readable_while_they_move(open_bookie: Opener) -> None:
    bookie = await open_bookie(replace(SMALL, read_cache_bytes=0))
    await fill(bookie, range(40))
    stop = asyncio.Event()
    reads = 0

    async def reader(ledger_id: int) -> None:
        nonlocal reads
        while not stop.is_set():
            assert await read_all(bookie, ledger_id) == list(range(100))
            reads += 1

    async with asyncio.TaskGroup() as group:
        for ledger_id in (1, 7, 21, 33, 39):
            group.create_task(reader(ledger_id))
        await asyncio.sleep(0.01)
        for turn in range(5):
            for ledger_id in range(turn, 40, 8):
                if ledger_id not in (1, 7, 21, 33, 39):
                    await bookie.delete_ledger(ledger_id)
            await fill(bookie, range(100 + 10 * turn, 104 + 10 * turn))
            await collect_garbage(bookie)
        await until(lambda: reads > 10)
        stop.set()
    assert bookie.stats().logs_compacted + bookie.stats().logs_removed > 3


async def test_dead_bytes_of_rewritten_entries_are_collected(
    open_bookie: Opener, tmp_path: Path
) -> None:
    bookie = await open_bookie()
    for _ in range(10):
        await fill(bookie, range(1, 4))
    before = size(tmp_path)
    await fill(bookie, range(50, 60))
    await collect_garbage(bookie)
    assert size(tmp_path) - before < 0
    for ledger_id in range(1, 4):
        assert await read_all(bookie, ledger_id) == list(range(100))


async def test_log_with_a_damaged_block_is_kept(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await fill(bookie, range(30))
    await bookie.close()
    first = logs(tmp_path)[0]
    content = bytearray(first.read_bytes())
    content[content.index(b"1:50 ")] ^= 1
    first.write_bytes(content)
    bookie = await open_bookie()
    for ledger_id in range(0, 30, 2):
        await bookie.delete_ledger(ledger_id)
    report = await collect_garbage(bookie)
    assert report.logs_damaged == 1
    assert first.exists()
    with pytest.raises(EntryCorrupt, match=r"0000000001\.log at offset \d+") as raised:
        await bookie.read_entries(1, 50, 50, bytes_max=1)
    assert raised.value.path == str(first)
    assert raised.value.offset > 0
    for ledger_id in range(3, 30, 2):
        assert await read_all(bookie, ledger_id) == list(range(100))


async def test_small_logs_are_joined(open_bookie: Opener, tmp_path: Path) -> None:
    for ledger_id in range(6):
        bookie = await open_bookie()
        await add(bookie, ledger_id, range(10))
        await bookie.close()
    assert len(logs(tmp_path)) == 6
    bookie = await open_bookie()
    await collect_garbage(bookie)
    assert len(logs(tmp_path)) == 1
    for ledger_id in range(6):
        assert await read_all(bookie, ledger_id) == list(range(10))


async def test_tombstones_expire(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await fill(bookie, range(2))
    await bookie.delete_ledger(0)
    assert (await collect_garbage(bookie)).tombstones_dropped == []
    await bookie.close()
    bookie = await open_bookie(replace(SMALL, tombstone_kept_s=0.0))
    assert (await collect_garbage(bookie)).tombstones_dropped == [0]
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(0)
    assert await bookie.list_ledgers() == [1]


async def test_collections_run_periodically(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie(replace(SMALL, gc_interval_s=0.02))
    await fill(bookie, range(30))
    for ledger_id in range(30):
        await bookie.delete_ledger(ledger_id)
    # All except the current log and the one that was current in the last collection.
    await until(lambda: len(logs(tmp_path)) <= 2 and bookie.stats().gc_bytes_freed > 100_000)


async def test_unreadable_log_does_not_block_collection_of_others(tmp_path: Path) -> None:
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
    await fill(bookie, range(30))
    before = [path for path in disk.inodes if path.suffix == ".log"]
    for ledger_id in range(30):
        await bookie.delete_ledger(ledger_id)
    stubborn = before[0]
    disk.fault = lambda step, path: (
        OSError(errno.EIO, "Input/output error") if step == "remove" and path == stubborn else None
    )
    report = await collect_garbage(bookie)
    assert report.logs_removed >= len(before) - 2
    assert stubborn in disk.inodes
    disk.fault = None
    await collect_garbage(bookie)
    assert stubborn not in disk.inodes
    await bookie.close()


def test_removed_log_is_not_reopened(tmp_path: Path) -> None:
    """Its handle would keep its bytes on the disk."""

    class Racing(OsFiles):
        """Opens a file for a reader right before it is removed."""

        logs: EntryLogs

        def remove(self, path: Path) -> None:
            self.logs.file(1)
            super().remove(path)

    files = Racing()
    files.logs = logs = EntryLogs(files, tmp_path, bytes(16), SMALL)
    log_id, _ = logs.create()
    logs.file(log_id)
    logs.remove(log_id)
    with pytest.raises(FileNotFoundError):
        logs.file(log_id)
