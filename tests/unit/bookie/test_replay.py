"""Replay at a start: a second crash or a missing checkpoint must not hide losses."""

import random
from dataclasses import replace

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import EntryCorrupt, EntryUnknown
from magnetar.bookie.index.index import Index, put_flushed
from magnetar.bookie.index.store import Batch
from magnetar.bookie.journal.checkpoint import FILE_NAME
from magnetar.bookie.local import LocalBookie
from magnetar.core.units import KIB

from .conftest import DATA, SMALL, add, entry, open_sim

FEW_AT_ONCE = replace(SMALL, write_cache_bytes=4 * KIB)
"""Replay flushes while it reads."""


async def opened_again(
    disk: SimDisk, index: SimIndexStore, *, cut_at: int = -1
) -> tuple[SimDisk, SimIndexStore, LocalBookie | None]:
    """Opens after a power cut; None if the power is cut again during it, at step `cut_at`."""
    disk = disk.after_cut(random.Random(1))
    disk.cut_at = cut_at
    index = SimIndexStore(disk, DATA / "index", index.synced)
    try:
        return disk, index, await open_sim(disk, index, FEW_AT_ONCE)
    except OSError:
        assert disk.dead
        return disk, index, None


@pytest.mark.parametrize("bad", ["head", "body"])
async def test_interrupted_start_keeps_damage(bad: str) -> None:
    """Replay flushes records, but records the damage only at its end."""
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    for n in range(40):
        await add(bookie, 1, [n], size=500)
    await bookie.abort()
    (journal,) = [path for path in disk.inodes if path.suffix == ".journal"]
    place = bytes(disk.inodes[journal].data).index(entry(1, 3, 500)[:8])
    disk.flip(journal, (place - 30 if bad == "head" else place + 100) * 8)
    for step in range(1, 1000):
        again, store, bookie_2 = await opened_again(disk, index, cut_at=step)
        if bookie_2 is None:
            again, store, bookie_2 = await opened_again(again, store)
            assert bookie_2 is not None
            with pytest.raises((EntryCorrupt, EntryUnknown)):
                await bookie_2.read_entries(1, 3, 3, bytes_max=1)
            result = await bookie_2.read_entries(1, 4, 4, bytes_max=1)
            assert result[0].data == entry(1, 4, 500)
        if not again.dead:
            again.dead = True
            await bookie_2.abort()
        if again.cut_at == step and again.steps < step:
            return
    raise AssertionError("the start never ends")


async def test_without_a_checkpoint_an_index_that_ends_before_the_journal_is_in_doubt() -> None:
    """Records between the two are lost, and their ledgers are unknown."""
    disk = SimDisk()
    settings = replace(SMALL, journal_file_bytes=8 * KIB, journal_recycled_files_max=0)
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index, settings)
    for n in range(30):
        await add(bookie, 1, [n], size=500)
    await bookie.flush()
    await add(bookie, 1, [30], size=500)
    await bookie.abort()
    disk.inodes[DATA / FILE_NAME].data[20] ^= 1
    disk.inodes[DATA / FILE_NAME].sync()
    intact = dict(index.synced)
    old = Batch()
    put_flushed(old, 2)
    old.delete_range(b"b", b"c")
    index.write(old)
    index.sync()
    _, store, bookie_2 = await opened_again(disk, index)
    assert bookie_2 is not None
    with pytest.raises(EntryUnknown):
        await bookie_2.read_entries(1, 5, 5, bytes_max=1)
    await bookie_2.close()
    assert Index(store).limbo_through >= 1
    _, store, bookie_2 = await opened_again(disk, SimIndexStore(disk, DATA / "index", intact))
    assert bookie_2 is not None
    assert (await bookie_2.read_entries(1, 5, 5, bytes_max=1))[0].data == entry(1, 5, 500)
    await bookie_2.close()
    assert Index(store).limbo_through == -1


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_read_ends_before_a_loss(flushed: bool) -> None:
    """A reader treats skipped entries of an answer as absent, also within one block."""
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    for ids in ([0, 1, 2], [4], [6, 7], [9]):  # other bookies have the rest
        await add(bookie, 1, ids)
    await bookie.abort()
    (journal,) = [path for path in disk.inodes if path.suffix == ".journal"]
    disk.flip(journal, (bytes(disk.inodes[journal].data).index(entry(1, 6)[:5]) + 20) * 8)
    _, _, result = await opened_again(disk, index)
    assert result is not None
    if flushed:
        await result.flush()
    read = [item.entry_id for item in await result.read_entries(1, 0, 9, bytes_max=10_000)]
    assert read == [0, 1, 2, 4]
    read = [item.entry_id for item in await result.read_entries(1, 4, 9, bytes_max=10_000)]
    assert read == [4]
    with pytest.raises(EntryCorrupt):
        await result.read_entries(1, 6, 9, bytes_max=10_000)
    assert [item.entry_id for item in await result.read_entries(1, 9, 9, bytes_max=1)] == [9]
    await result.close()
