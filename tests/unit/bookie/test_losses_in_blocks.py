"""An answer ends before the first lost entry, also where one block has entries on both sides."""

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.bookie.test_reader_parts import Rig, entry

from magnetar.bookie.api import EntryCorrupt, NoSuchEntry
from magnetar.bookie.cache.write_cache import segment_of
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import Damage, Index, View
from magnetar.bookie.index.store import Batch

from .conftest import DATA, add, open_sim
from .conftest import entry as added

RANGES = [(0, 2), (3, 1), (6, 2)]
IDS = [0, 1, 3, 6, 7]


def stage(*damages: tuple[int, int]) -> Rig:
    """Ledger 1 in one block without entries 2, 4 and 5, of which those in `damages` were lost."""
    rig = Rig(0)
    entries = [entry(entry_id) for entry_id in IDS]
    placed = rig.writer.append(1, [segment_of(entries)], RANGES, entries)
    batch = Batch()
    index_format.put_view(batch, View(1, IDS[0], IDS[-1], *placed))
    rig.index.store.write(batch)
    rig.writer.sync()
    state = rig.ledgers.get(1)
    state.exists = True
    state.last_entry = state.last_indexed = IDS[-1]
    for first, last in damages:
        rig.ledgers.add_damage(Damage(1, first, last, "file", 7))
    return rig


@pytest.mark.parametrize(
    ("damage", "read"),
    [
        ((2, 2), [0, 1]),
        ((4, 4), [0, 1, 3]),
        ((5, 5), [0, 1, 3]),
        ((4, 5), [0, 1, 3]),
        ((2, 5), [0, 1]),
        ((8, 9), IDS),
        ((3, 3), IDS),
        ((6, 7), IDS),
    ],
)
async def test_an_answer_ends_before_the_first_lost_entry(
    damage: tuple[int, int], read: list[int]
) -> None:
    """Damage of entries that another record contains does not end an answer."""
    rig = stage(damage)
    assert await rig.ids(0, 9) == read
    if read != IDS:
        with pytest.raises((EntryCorrupt, NoSuchEntry)):
            await rig.ids(read[-1] + 1, 9)
    assert await rig.ids(6, 9) == [6, 7]
    assert await rig.ids(7, 7) == [7]


async def test_holes_that_were_never_stored_are_skipped() -> None:
    assert await stage().ids(0, 9) == IDS


async def test_damage_is_deleted_with_its_ledger() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    for ids in ([0, 1], [2], [3]):
        await add(bookie, 1, ids)
    await bookie.abort()
    (journal,) = [path for path in disk.inodes if path.suffix == ".journal"]
    disk.flip(journal, (bytes(disk.inodes[journal].data).index(added(1, 2)[:5]) + 20) * 8)
    bookie = await open_sim(disk, index)
    assert [(item.first, item.last) for item in Index(index).damages()] == [(2, 2)]
    await bookie.flush()
    await bookie.delete_ledger(1)
    await bookie.flush()
    assert list(Index(index).damages()) == []
    await add(bookie, 2, [0])
    await bookie.flush()
    assert list(Index(index).damages()) == []
    await bookie.close()
