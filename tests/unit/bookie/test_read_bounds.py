"""Reads at the bounds of what a bookie has: missing logs, losses, counts, former copies."""

import asyncio
from collections.abc import Collection
from dataclasses import replace

import pytest
from tests.support.memory_bookie import MemoryBookie

from magnetar.bookie.api import EntryCorrupt, NoSuchEntry
from magnetar.bookie.entry_log.logs import file_name
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import Damage, View
from magnetar.bookie.index.store import Batch
from magnetar.bookie.registration import known_key
from magnetar.bookie.upkeep.ledger_garbage import LEDGER_ID_KEY, LEDGERS_PREFIX, LedgerGarbage
from magnetar.metadata.memory import MemoryStore

from .conftest import SMALL, Opener, add
from .test_reader_parts import LOGS, PER_BLOCK, SIZE, Rig


def two_logs() -> Rig:
    """Ledger 1 with two blocks in each of two logs."""
    rig = Rig(2)
    rig.writer.abandon()
    batch = Batch()
    for number in (2, 3):
        view = rig.block(1, number * PER_BLOCK)
        rig.views.append(view)
        index_format.put_view(batch, view)
    rig.index.store.write(batch)
    rig.writer.sync()
    rig.ledgers.get(1).last_indexed = 4 * PER_BLOCK - 1
    return rig


async def test_entries_before_a_missing_log_are_read() -> None:
    rig = two_logs()
    rig.disk.remove(LOGS / file_name(2))
    assert await rig.ids(0, 15) == list(range(8))
    assert await rig.ids(5, 15) == [5, 6, 7]
    lookups: list[int] = []
    find = rig.index.find

    def counted(ledger_id: int, entry_id: int) -> View | None:
        lookups.append(entry_id)
        return find(ledger_id, entry_id)

    rig.index.find = counted  # type: ignore[method-assign]
    with pytest.raises(EntryCorrupt, match=r"0000000002\.log is missing") as failure:
        await rig.ids(8, 15)
    assert failure.value.offset == rig.views[2].offset
    assert lookups.count(8) == 2, "a block that did not move is not looked up again and again"


async def test_entries_before_a_bad_block_are_read() -> None:
    rig = two_logs()
    rig.disk.flip(LOGS / file_name(2), 8 * (rig.views[3].offset + 60))
    for first in (0, 4, 8, 11):
        assert await rig.ids(first, 15) == list(range(first, 12))
    with pytest.raises(EntryCorrupt) as failure:
        await rig.ids(12, 15)
    assert failure.value.offset == rig.views[3].offset


@pytest.mark.parametrize(("lost", "read"), [(8, [*range(8)]), (12, [*range(8), *range(12, 16)])])
async def test_only_a_loss_within_a_hole_ends_a_read(lost: int, read: list[int]) -> None:
    """Entry 12 was damaged and written again; 8 to 11 belong to other bookies, or are lost."""
    rig = Rig(4, skip=frozenset({2}))
    rig.ledgers.add_damage(Damage(1, lost, lost, "x.journal", 7))
    assert await rig.ids(0, 15) == read


async def test_reads_are_counted_by_their_entries_and_bytes() -> None:
    rig = Rig(2)
    await rig.ids(1, 3, bytes_max=5 * SIZE)
    assert (rig.reader.entries_read, rig.reader.bytes_read) == (3, 3 * SIZE)
    await rig.ids(0, 7, bytes_max=2 * SIZE + 50)
    assert (rig.reader.entries_read, rig.reader.bytes_read) == (5, 5 * SIZE)
    await rig.ids(0, 7, bytes_max=1)
    assert (rig.reader.entries_read, rig.reader.bytes_read) == (6, 6 * SIZE)


async def test_damage_is_forgotten_with_the_copy_that_had_it(open_bookie: Opener) -> None:
    """Entries that autorecovery does not copy back are absent, not damaged."""
    bookie = await open_bookie(replace(SMALL, tick_s=1000.0))
    assert await add(bookie, 1, range(3)) is None
    bookie._ledgers.add_damage(Damage(1, 4, 4, "x.journal", 7))
    with pytest.raises(EntryCorrupt):
        await bookie.read_entries(1, 4, 4, bytes_max=1000)
    assert await bookie.drop_copies([1]) == [1]
    assert bookie.stats().damaged_ranges == 0
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    bookie.add_entries(
        1, range(2), [b"a", b"b"], last_add_confirmed=-1, on_added=answer.set_result, recovery=True
    )
    async with asyncio.timeout(20):
        assert await answer is None
    with pytest.raises(NoSuchEntry):
        await bookie.read_entries(1, 4, 4, bytes_max=1000)


class Former:
    """Records the ledgers whose copies are checked."""

    def __init__(self) -> None:
        self.asked: list[set[int]] = []

    async def collect(self, ledger_ids: Collection[int]) -> list[int]:
        self.asked.append(set(ledger_ids))
        return [2]


async def test_ledgers_here_with_a_record_are_checked_for_former_copies() -> None:
    bookie, store = MemoryBookie("b1"), MemoryStore()
    for ledger_id in (1, 2, 3):
        bookie.add_entries(
            ledger_id, range(1), [b"x"], last_add_confirmed=-1, on_added=lambda _: None
        )
    await store.put(known_key(bookie.identity), b"{}")
    await store.put(LEDGER_ID_KEY, b"3")
    for ledger_id in (1, 2, 7):
        await store.put(f"{LEDGERS_PREFIX}{ledger_id:020d}", b"{}")
    valid = True
    garbage, former = LedgerGarbage(bookie, store, lambda: valid), Former()
    assert await garbage.collect_former() == []
    garbage.former = former
    assert await garbage.collect_former() == [], "before a comparison nothing is known"
    assert former.asked == []
    assert await garbage.compare() == []
    assert await garbage.collect_former() == [2]
    assert former.asked == [{1, 2}]
    assert garbage.deleted == 1
    assert await garbage.collect_former() == [], "once per comparison"
    assert await garbage.compare() == [3], "the last id that was given out, too"
    assert garbage.deleted == 2
    valid = False
    assert await garbage.collect_former() == []
    assert len(former.asked) == 1
    assert await bookie.list_ledgers() == [1, 2]
