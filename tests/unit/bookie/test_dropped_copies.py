"""Dropped copies: deleted from disk, fenced forever, and ready to be copied back."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.bookie.api import (
    BookieError,
    BookieReadOnly,
    EntryUnknown,
    LedgerFenced,
    NoSuchLedger,
)
from magnetar.bookie.index.store import RocksIndexStore
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.parts import OpenIndex
from magnetar.bookie.settings import BookieSettings

from .conftest import collect_garbage

SETTINGS = BookieSettings(
    journal_preallocate_bytes=1 << 20,
    entry_log_bytes=1 << 20,
    disk_usage_high=1.0,
    disk_usage_low=1.0,
    tombstone_kept_s=0.0,
)
ALL = 1 << 62
ENTRIES = [b"entry %d " % number * 100 for number in range(20)]


class Disk:
    """A data directory whose bookie can be stopped and killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bookie: LocalBookie
        self.open_index: OpenIndex = RocksIndexStore

    async def open(self) -> LocalBookie:
        self.bookie = await LocalBookie.open(
            self._path, "b1", settings=SETTINGS, open_index=self.open_index
        )
        return self.bookie

    async def again(self, how: str) -> LocalBookie:
        await (self.bookie.abort() if how == "killed" else self.bookie.close())
        return await self.open()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    disk = Disk(tmp_path / "b1")
    await disk.open()
    yield disk
    await disk.bookie.close()


async def add(bookie: LocalBookie, ledger_id: int, *, recovery: bool = False) -> None:
    """Adds ENTRIES; raises the bookie's error."""
    future: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    bookie.add_entries(
        ledger_id,
        range(len(ENTRIES)),
        ENTRIES,
        last_add_confirmed=-1,
        on_added=future.set_result,
        recovery=recovery,
    )
    error = await future
    if error is not None:
        raise error


async def read(bookie: LocalBookie, ledger_id: int) -> list[bytes]:
    result = await bookie.read_entries(ledger_id, 0, len(ENTRIES) - 1, bytes_max=ALL)
    return [stored.data for stored in result]


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("flushed", [False, True])
async def test_dropped_copy_is_absent_and_stays_fenced(
    disk: Disk, how: str, *, flushed: bool
) -> None:
    bookie = disk.bookie
    for ledger_id in (1, 2, 3):
        await add(bookie, ledger_id)
    if flushed:
        await bookie.flush()
    assert await bookie.drop_copies([1, 3, 99]) == [1, 3]
    for _ in range(2):
        assert await bookie.list_ledgers() == [2]
        assert await bookie.list_emptied() == [1, 3]
        assert await read(bookie, 2) == ENTRIES
        with pytest.raises(NoSuchLedger):
            await read(bookie, 1)
        with pytest.raises(LedgerFenced):
            await add(bookie, 1)
        end = await bookie.ledger_end(3, fence=True)
        assert (end.last_entry, end.fenced) == (-1, True)
        assert await bookie.drop_copies([1]) == []
        await collect_garbage(bookie)
        bookie = await disk.again(how)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_dropped_copy_can_be_copied_back(disk: Disk, how: str) -> None:
    bookie = disk.bookie
    await add(bookie, 1)
    await bookie.drop_copies([1])
    await add(bookie, 1, recovery=True)
    for _ in range(3):
        assert await bookie.list_ledgers() == [1]
        assert await bookie.list_emptied() == []
        assert await read(bookie, 1) == ENTRIES
        with pytest.raises(LedgerFenced):
            await add(bookie, 1)
        bookie = await disk.again(how)


async def test_dropped_copies_free_disk_space(disk: Disk) -> None:
    bookie = disk.bookie
    for ledger_id in range(1, 41):
        await add(bookie, ledger_id)
    await bookie.flush()
    assert len(await bookie.drop_copies(range(1, 41))) == 40
    await disk.again("stopped")  # the newest log is left
    report = await collect_garbage(disk.bookie)
    assert report.bytes_freed > 0
    assert disk.bookie.stats().entry_logs == 0


async def test_deleted_ledger_leaves_no_state(disk: Disk) -> None:
    bookie = disk.bookie
    await add(bookie, 1)
    await bookie.drop_copies([1])
    await bookie.delete_ledger(1)
    with pytest.raises(NoSuchLedger):
        await add(bookie, 1, recovery=True)
    await collect_garbage(bookie)
    bookie = await disk.again("stopped")
    assert await bookie.list_emptied() == []
    await add(bookie, 1)


async def test_ledger_with_pending_adds_is_not_dropped(disk: Disk) -> None:
    bookie = disk.bookie
    await add(bookie, 1)
    adding = asyncio.ensure_future(add(bookie, 1))
    await asyncio.sleep(0)  # it is on its way to the journal
    assert await bookie.drop_copies([1]) == []
    await adding
    assert await read(bookie, 1) == ENTRIES


async def test_adds_are_refused_while_a_copy_is_dropped(disk: Disk) -> None:
    bookie = disk.bookie
    await add(bookie, 1)
    dropping = asyncio.ensure_future(bookie.drop_copies([1]))
    await asyncio.sleep(0)  # it has begun
    with pytest.raises(BookieReadOnly, match="being dropped"):
        await add(bookie, 1, recovery=True)
    with pytest.raises(BookieReadOnly, match="being dropped"):
        await bookie.delete_ledger(1)
    assert await dropping == [1]
    await add(bookie, 1, recovery=True)
    assert await read(bookie, 1) == ENTRIES


async def test_more_copies_are_dropped_than_ledgers_are_kept_in_memory(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ledger_id in (1, 2, 3):
        await add(disk.bookie, ledger_id)
    bookie = await disk.again("stopped")
    monkeypatch.setattr("magnetar.bookie.index.ledgers.STATES_KEPT_MAX", 1)
    dropping = asyncio.ensure_future(bookie.drop_copies([1, 2, 3]))
    await asyncio.sleep(0)  # it has begun
    for ledger_id in (1, 2, 3):
        with pytest.raises(BookieReadOnly, match="being dropped"):
            await add(bookie, ledger_id, recovery=True)
    assert await dropping == [1, 2, 3]
    assert await bookie.list_ledgers() == []
    assert await bookie.list_emptied() == [1, 2, 3]


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_fence_during_a_drop_leaves_the_copy_dropped(disk: Disk, how: str) -> None:
    bookie = disk.bookie
    for ledger_id in (1, 2):
        await add(bookie, ledger_id)
    dropping = asyncio.ensure_future(bookie.drop_copies([1, 2]))
    fences = []
    for _ in range(20):
        fences.append(asyncio.ensure_future(bookie.ledger_end(2, fence=True)))
        await asyncio.sleep(0)
    assert await dropping == [1, 2]
    await asyncio.gather(*fences, return_exceptions=True)
    for _ in range(2):
        with pytest.raises(NoSuchLedger):
            await read(bookie, 2)
        assert await bookie.list_ledgers() == []
        assert await bookie.list_emptied() == [1, 2]
        bookie = await disk.again(how)


class SlowIndex(RocksIndexStore):
    """An index whose syncs wait or fail on demand."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncs_begun = threading.Semaphore(0)
        self.full = False

    def sync(self) -> None:
        self.syncs_begun.release()
        self.may_sync.wait()
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().sync()


@pytest.mark.parametrize("full", [False, True])
async def test_reads_never_report_a_dropped_entry_as_never_stored(
    disk: Disk, *, full: bool
) -> None:
    """Recovery treats NoSuchEntry as certain, and may close a ledger before such an entry."""
    await add(disk.bookie, 1)
    indexes: list[SlowIndex] = []

    def open_index(path: Path) -> SlowIndex:
        indexes.append(SlowIndex(path))
        return indexes[-1]

    disk.open_index = open_index
    bookie = await disk.again("stopped")
    await bookie.ledger_end(1, fence=True)
    await bookie.flush()
    index = indexes[-1]
    while index.syncs_begun.acquire(blocking=False):
        pass
    index.may_sync.clear()
    dropping = asyncio.ensure_future(bookie.drop_copies([1]))
    await asyncio.to_thread(index.syncs_begun.acquire)
    with pytest.raises(NoSuchLedger):
        await read(bookie, 1)
    index.full = full
    index.may_sync.set()
    if not full:
        assert await dropping == [1]
        with pytest.raises(NoSuchLedger):
            await read(bookie, 1)
        return
    with pytest.raises(OSError, match="No space"):
        await dropping
    with pytest.raises(EntryUnknown):
        await read(bookie, 1)
    index.full = False
    assert await bookie.drop_copies([1]) == [1]
    assert await bookie.list_emptied() == [1]
