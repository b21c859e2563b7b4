"""A dropped copy leaves nothing behind: no cached block, no damage; a bad ledger is skipped."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import BookieError, EntryUnknown, NoSuchEntry, NoSuchLedger
from magnetar.bookie.index.index import Index
from magnetar.bookie.index.store import IndexDamaged, RocksIndexStore
from magnetar.bookie.local import LocalBookie

from .conftest import DATA, SMALL, add, entry, open_sim, read_all

INDEX = DATA / "index"


class BadIndex(RocksIndexStore):
    """An index whose record of one ledger cannot be read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.bad_key = b""

    def get(self, key: bytes) -> bytes | None:
        if key == self.bad_key:
            raise IndexDamaged("a bad checksum", "000001.sst", 7)
        return super().get(key)


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[LocalBookie]:
    opened = await LocalBookie.open(tmp_path, "b1", settings=SMALL, open_index=BadIndex)
    yield opened
    await opened.close()


async def copy_back(bookie: LocalBookie, ledger_id: int, ids: range) -> None:
    """Adds entries like autorecovery."""
    answer: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    entries = [entry(ledger_id, entry_id) for entry_id in ids]
    bookie.add_entries(
        ledger_id,
        ids,
        entries,
        last_add_confirmed=-1,
        on_added=answer.set_result,
        recovery=True,
    )
    async with asyncio.timeout(20):
        assert await answer is None


async def test_an_entry_that_did_not_come_back_is_not_read_from_the_cache(
    bookie: LocalBookie,
) -> None:
    await add(bookie, 1, range(20))
    await add(bookie, 2, range(20))
    await bookie.flush()
    for ledger_id in (1, 2):
        assert await read_all(bookie, ledger_id) == list(range(20))
    cached = bookie.stats().read_cache_bytes
    assert cached > 0
    assert await bookie.drop_copies([1]) == [1]
    assert bookie.stats().read_cache_bytes == cached / 2, "ledger 2 stays cached"
    await copy_back(bookie, 1, range(10, 20))
    await bookie.flush()
    with pytest.raises(NoSuchEntry):
        await bookie.read_entries(1, 3, 3, bytes_max=1)
    assert [item.entry_id for item in await bookie.read_entries(1, 10, 19, bytes_max=10_000)] == [
        *range(10, 20)
    ]


async def test_a_ledger_whose_record_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    indexes: list[BadIndex] = []

    def open_index(path: Path) -> BadIndex:
        indexes.append(BadIndex(path))
        return indexes[-1]

    bookie = await LocalBookie.open(tmp_path, "b1", settings=SMALL, open_index=open_index)
    for ledger_id in (1, 2, 3):
        await add(bookie, ledger_id, range(3))
    await bookie.close()
    bookie = await LocalBookie.open(tmp_path, "b1", settings=SMALL, open_index=open_index)
    try:
        indexes[-1].bad_key = b"l" + (2).to_bytes(8, "big")
        assert await bookie.drop_copies([1, 2, 3]) == [1, 3]
        indexes[-1].bad_key = b""
        assert await bookie.list_ledgers() == [2]
        assert await read_all(bookie, 2) == [0, 1, 2]
    finally:
        await bookie.close()


async def test_the_damage_of_a_copy_is_forgotten_with_it() -> None:
    """A whole copy comes back: the journal that was damaged has no part in it any more."""
    disk = SimDisk()
    index = SimIndexStore(disk, INDEX)
    bookie = await open_sim(disk, index)
    for ids in (range(2), range(2, 3), range(3, 4)):
        await add(bookie, 1, ids)
    await bookie.abort()
    (journal,) = [path for path in disk.inodes if path.suffix == ".journal"]
    disk.flip(journal, (bytes(disk.inodes[journal].data).index(entry(1, 2)[:5]) + 20) * 8)
    bookie = await open_sim(disk, index)
    assert bookie.stats().damaged_ranges == 1
    assert await bookie.drop_copies([1]) == [1]
    assert bookie.stats().damaged_ranges == 0
    assert list(Index(index).damages()) == []
    with pytest.raises((NoSuchLedger, EntryUnknown)):
        await bookie.read_entries(1, 0, 0, bytes_max=1)
    await copy_back(bookie, 1, range(2))
    with pytest.raises((NoSuchEntry, EntryUnknown)):
        await bookie.read_entries(1, 2, 2, bytes_max=1)
    await bookie.close()


async def test_a_drop_that_succeeds_at_last_makes_the_copy_certain_again() -> None:
    """After a failed drop no absence is certain; after the next one it is."""
    disk = SimDisk()
    index = SimIndexStore(disk, INDEX)
    bookie = await open_sim(disk, index)
    await add(bookie, 1, range(3))
    await bookie.ledger_end(1, fence=True)
    await bookie.flush()
    disk.fault = lambda _, path: OSError(errno.ENOSPC, "no room") if path == INDEX else None
    with pytest.raises(OSError, match="no room"):
        await bookie.drop_copies([1])
    disk.fault = None
    with pytest.raises(EntryUnknown):
        await bookie.read_entries(1, 7, 7, bytes_max=1)
    assert await bookie.drop_copies([1]) == [1]
    await copy_back(bookie, 1, range(3))
    with pytest.raises(NoSuchEntry):
        await bookie.read_entries(1, 7, 7, bytes_max=1)
    await bookie.close()
