"""What a read loads: blocks by requested bytes, moved blocks, read-ahead."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.memory_index import MemoryIndexStore
from tests.support.sim_disk import SimDisk, SimFile

from magnetar.bookie.api import EntryCorrupt, EntryUnknown, NoSuchEntry, NoSuchLedger
from magnetar.bookie.cache import reader as reads_module
from magnetar.bookie.cache.reader import Reader
from magnetar.bookie.cache.write_cache import Halves, WriteCacheHalf, segment_of
from magnetar.bookie.entry_log.logs import EntryLogs, LogWriter, file_name
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import Damage, Index, LedgerRecord, View
from magnetar.bookie.index.ledgers import Ledgers
from magnetar.bookie.index.store import Batch
from magnetar.bookie.settings import BookieSettings

from .conftest import SMALL

LOGS = Path("/logs")
SIZE = 100
PER_BLOCK = 4


class CountingFile(SimFile):
    """Records its reads."""

    reads: list[tuple[str, int, int]]

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append((self.path.name, offset, length))
        return super().read(offset, length)


class CountingDisk(SimDisk):
    """Keeps every read of a log, as (name, offset, bytes)."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[str, int, int]] = []

    def open(self, path: Path, **options: object) -> SimFile:
        file = super().open(path, **options)  # type: ignore[arg-type]
        counting = CountingFile(self, path, file._inode)
        counting.reads = self.reads
        return counting


class Rig:
    """Ledger 1 in adjacent blocks of four entries in one log, and a reader."""

    def __init__(
        self,
        blocks: int,
        settings: BookieSettings = SMALL,
        pool: ThreadPoolExecutor | None = None,
        skip: frozenset[int] = frozenset(),
    ) -> None:
        self.disk = CountingDisk()
        self.logs = EntryLogs(self.disk, LOGS, bytes(16), settings)
        self.index = Index(MemoryIndexStore())
        self.writer = LogWriter(self.logs)
        self.views: list[View] = []
        batch = Batch()
        for number in range(blocks):
            if number in skip:
                continue
            view = self.block(1, number * PER_BLOCK)
            self.views.append(view)
            index_format.put_view(batch, view)
        last = blocks * PER_BLOCK - 1
        index_format.put_ledger(batch, 1, LedgerRecord(last, last, -1, -1, 0))
        self.index.store.write(batch)
        self.writer.sync()
        self.writer.committed()
        self.ledgers = Ledgers(self.index)
        self.halves = Halves(WriteCacheHalf())
        self.reader = Reader(
            ledgers=self.ledgers,
            halves=self.halves,
            index=self.index,
            logs=self.logs,
            settings=settings,
            pool=pool,
        )

    def block(self, ledger_id: int, first: int, count: int = PER_BLOCK) -> View:
        """Writes a block of consecutive entries."""
        entries = [entry(first + number) for number in range(count)]
        placed = self.writer.append(ledger_id, [segment_of(entries)], [(first, count)], entries)
        return View(ledger_id, first, first + count - 1, *placed)

    async def ids(self, first: int, last: int, bytes_max: int = 1 << 20) -> list[int]:
        result = await self.reader.read(1, first, last, bytes_max=bytes_max)
        assert [item.data for item in result] == [entry(item.entry_id) for item in result]
        return [item.entry_id for item in result]

    def loaded(self) -> list[int]:
        """Returns the first entries of the cached blocks."""
        return sorted(first for _, first in self.reader.cache._recent)


def entry(entry_id: int) -> bytes:
    return b"%d;" % entry_id * (SIZE // len(b"%d;" % entry_id)) + bytes(
        SIZE % len(b"%d;" % entry_id)
    )


async def test_a_short_read_loads_its_block_and_no_other() -> None:
    rig = Rig(4)
    assert await rig.ids(5, 5) == [5]
    assert rig.loaded() == [4]
    assert await rig.ids(6, 7) == [6, 7]
    assert len(rig.disk.reads) == 1, "the block was here"
    assert (rig.reader.cache.hits, rig.reader.cache.misses) == (1, 1)


async def test_long_read_loads_its_blocks_with_one_disk_read() -> None:
    rig = Rig(6)
    wanted = rig.views[0].length + rig.views[1].length
    assert (await rig.ids(0, 23, bytes_max=wanted))[:8] == list(range(8))
    assert rig.disk.reads[0] == (file_name(1), rig.views[0].offset, wanted)


async def test_an_answer_that_is_full_to_the_byte_loads_nothing_more() -> None:
    rig = Rig(6)
    assert await rig.ids(0, 23, bytes_max=PER_BLOCK * SIZE) == [0, 1, 2, 3]
    assert len(rig.disk.reads) == 1


async def test_one_more_byte_loads_one_more_block() -> None:
    rig = Rig(6)
    wanted = rig.views[0].length + rig.views[1].length
    await rig.ids(0, 23, bytes_max=wanted + 1)
    assert rig.disk.reads[0][2] == wanted + rig.views[2].length


async def test_no_block_behind_the_last_entry_is_loaded() -> None:
    rig = Rig(6)
    assert await rig.ids(0, 7) == list(range(8))
    assert rig.loaded() == [0, 4]
    rig = Rig(6)
    assert await rig.ids(0, 3) == list(range(4))
    assert rig.loaded() == [0]


async def test_load_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(8, replace(SMALL, block_bytes_max=0))
    block_bytes = rig.views[0].length
    monkeypatch.setattr(reads_module, "LOAD_BYTES_MAX", 2 * block_bytes)
    assert await rig.ids(0, 31) == list(range(32))
    assert [length for _, _, length in rig.disk.reads] == [2 * block_bytes] * 4


async def test_damage_in_a_later_load_does_not_hide_the_blocks_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(8, replace(SMALL, block_bytes_max=0))
    monkeypatch.setattr(reads_module, "LOAD_BYTES_MAX", 2 * rig.views[0].length)
    rig.disk.flip(LOGS / file_name(1), 8 * (rig.views[2].offset + rig.views[2].length - SIZE))
    assert await rig.ids(0, 31) == list(range(8))
    with pytest.raises(EntryCorrupt) as raised:
        await rig.ids(8, 31)
    assert raised.value.offset == rig.views[2].offset


@pytest.mark.parametrize("bad", [1, 2, 3])
async def test_damage_behind_another_ledgers_blocks_hides_no_block_before_it(bad: int) -> None:
    """Blocks that are not adjacent take several disk reads for one load."""
    rig = Rig(0)
    batch = Batch()
    for number in range(4):
        rig.views.append(rig.block(1, number * PER_BLOCK))
        rig.block(2, number * PER_BLOCK)
        index_format.put_view(batch, rig.views[-1])
    index_format.put_ledger(batch, 1, LedgerRecord(15, 15, -1, -1, 0))
    rig.index.store.write(batch)
    rig.writer.sync()
    rig.writer.committed()
    rig.ledgers = rig.reader._ledgers = Ledgers(rig.index)
    rig.disk.flip(LOGS / file_name(1), 8 * (rig.views[bad].offset + rig.views[bad].length - SIZE))
    good = bad * PER_BLOCK
    assert await rig.ids(0, 15) == list(range(good))
    assert [offset for _, offset, _ in rig.disk.reads[: bad + 1]] == [
        view.offset for view in rig.views[: bad + 1]
    ]
    with pytest.raises(EntryCorrupt) as raised:
        await rig.ids(good, 15)
    assert raised.value.offset == rig.views[bad].offset
    if bad < 3:
        assert await rig.ids(good + PER_BLOCK, 15) == list(range(good + PER_BLOCK, 16))


@pytest.mark.parametrize("wanted", [1, 1 << 20], ids=["one block", "a run of blocks"])
async def test_moved_block_is_looked_up_again(wanted: int) -> None:
    rig = Rig(3)
    moved = rig.disk.inodes[LOGS / file_name(1)]

    class Moving(MemoryIndexStore):
        """The collector moves the log right behind each look-up, until it has come to `last`."""

        last = 4

        def move(self) -> None:
            number = max(rig.logs.ids())
            if number == self.last:
                return
            rig.disk.inodes.pop(LOGS / file_name(number))
            rig.logs.close()
            rig.disk.inodes[LOGS / file_name(number + 1)] = moved
            batch = Batch()
            for view in list(rig.index.all_views()):
                index_format.put_view(batch, structs.replace(view, log_id=number + 1))
            MemoryIndexStore.write(self, batch)

        def last_at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
            result = super().last_at_or_before(key)
            self.move()
            return result

    store = Moving()
    store._data, store._keys = rig.index.store._data, rig.index.store._keys  # type: ignore[attr-defined]
    rig.index.store = store
    # The magic of a block names its log: only the log that it was written to reads it.
    with pytest.raises(EntryCorrupt, match=r"0000000004\.log"):
        await rig.ids(0, 11, bytes_max=wanted)


async def test_missing_log_is_reported() -> None:
    rig = Rig(3)
    rig.disk.inodes.pop(LOGS / file_name(1))
    with pytest.raises(EntryCorrupt, match="is missing") as raised:
        await rig.ids(5, 5)
    assert raised.value.path == str(LOGS / file_name(1))
    assert raised.value.offset == rig.views[1].offset


@pytest.mark.parametrize("wanted", [1, 1 << 20], ids=["one block", "a run of blocks"])
async def test_log_that_is_removed_with_its_views_during_a_read_is_reported(wanted: int) -> None:
    """The ledger is deleted and collected between the read's look-up and its read of the log."""
    rig = Rig(3)

    class Collected(MemoryIndexStore):
        def last_at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
            result = super().last_at_or_before(key)
            rig.disk.inodes.pop(LOGS / file_name(1), None)
            rig.logs.close()
            self._data, self._keys = {}, []
            return result

    store = Collected()
    store._data, store._keys = rig.index.store._data, rig.index.store._keys  # type: ignore[attr-defined]
    rig.index.store = store
    with pytest.raises(EntryCorrupt, match="is missing") as raised:
        await rig.ids(0, 11, bytes_max=wanted)
    assert raised.value.path == str(LOGS / file_name(1))


async def test_damage_behind_good_blocks_is_reported_only_when_reached() -> None:
    rig = Rig(4)
    rig.disk.flip(LOGS / file_name(1), 8 * (rig.views[2].offset + rig.views[2].length - SIZE))
    assert await rig.ids(0, 15) == list(range(8))
    with pytest.raises(EntryCorrupt) as raised:
        await rig.ids(8, 15)
    assert raised.value.offset == rig.views[2].offset
    assert await rig.ids(12, 15) == [12, 13, 14, 15]


async def test_only_entries_before_the_write_cache_are_read_from_disk() -> None:
    rig = Rig(4)
    group = [b"new" for _ in range(3)]
    rig.halves.active.add(1, range(8, 11), group, segment_of(group))
    result = await rig.reader.read(1, 4, 15, bytes_max=1 << 20)
    assert [item.entry_id for item in result] == list(range(4, 16))
    assert [item.data for item in result[4:7]] == group
    assert rig.disk.reads[0][1:] == (rig.views[1].offset, rig.views[1].length)
    rig.halves.flushing, rig.halves.active = rig.halves.active, WriteCacheHalf()
    newer = [b"newest"]
    rig.halves.active.add(1, range(9, 10), newer, segment_of(newer))
    result = await rig.reader.read(1, 8, 10, bytes_max=1 << 20)
    assert [item.data for item in result] == [b"new", b"newest", b"new"]


async def test_entries_above_last_indexed_are_not_searched_on_disk() -> None:
    rig = Rig(2)
    group = [b"new"]
    rig.halves.active.add(1, range(8, 9), group, segment_of(group))
    assert [item.data for item in await rig.reader.read(1, 8, 9, bytes_max=10)] == group
    with pytest.raises(NoSuchEntry):
        await rig.reader.read(1, 9, 9, bytes_max=10)
    assert not rig.disk.reads
    assert rig.reader.cache.misses == 0
    assert await rig.ids(7, 7) == [7]


async def test_hole_is_skipped_unless_it_may_be_a_loss() -> None:
    hole = frozenset({1})
    rig = Rig(3, skip=hole)
    assert await rig.ids(0, 11) == [0, 1, 2, 3, 8, 9, 10, 11]
    for doubt in ("half dropped", "limbo", "damage"):
        rig = Rig(3, skip=hole)
        if doubt == "half dropped":
            rig.ledgers.get(1).half_dropped = True
        elif doubt == "limbo":
            rig.ledgers.set_limbo(1)
        else:
            rig.ledgers.add_damage(Damage(1, 4, 4, "file", 7))
        assert await rig.ids(0, 11) == [0, 1, 2, 3], doubt
        error = {"damage": EntryCorrupt}.get(doubt, EntryUnknown)
        with pytest.raises(error):
            await rig.ids(4, 11)
        assert await rig.ids(8, 11) == [8, 9, 10, 11]
    rig = Rig(3, skip=hole)
    rig.ledgers.add_damage(Damage(1, 5, 7, "file", 7))
    assert await rig.ids(0, 11) == [0, 1, 2, 3], "a loss is in the hole"
    with pytest.raises(NoSuchEntry):
        await rig.ids(4, 11)
    with pytest.raises(EntryCorrupt) as raised:
        await rig.ids(5, 11)
    assert (raised.value.path, raised.value.offset) == ("file", 7)


async def test_absent_entry_error_gives_the_reason() -> None:
    rig = Rig(1)
    state = rig.ledgers.get(1)
    state.dropping = True
    with pytest.raises(NoSuchLedger, match="was dropped here"):
        await rig.ids(4, 4)
    assert await rig.ids(0, 3) == [0, 1, 2, 3], "what is here still is read"
    state.dropping, state.emptied = False, True
    with pytest.raises(NoSuchLedger, match="no ledger 1 here"):
        await rig.ids(0, 0)
    rig.ledgers.set_limbo(0)
    with pytest.raises(NoSuchLedger, match="no ledger 1 here"):
        await rig.ids(0, 0)
    rig.ledgers.set_limbo(1)
    with pytest.raises(EntryUnknown, match="may have been lost"):
        await rig.ids(0, 0)
    state.deleted_ms = 0
    with pytest.raises(NoSuchLedger, match="was deleted"):
        await rig.ids(0, 0)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(1)
    yield pool
    pool.shutdown()


async def settled(rig: Rig) -> None:
    """Waits for the read-ahead."""
    for ahead in list(rig.reader._ahead.values()):
        await asyncio.shield(ahead)


async def test_blocks_ahead_of_a_sequential_reader_are_loaded_meanwhile(
    pool: ThreadPoolExecutor,
) -> None:
    settings = replace(SMALL, read_ahead_bytes=1)
    rig = Rig(8, settings, pool)
    block_bytes = rig.views[0].length
    assert await rig.ids(0, 3) == [0, 1, 2, 3]
    assert not rig.reader._ahead, "one read is no sequence"
    assert await rig.ids(4, 5) == [4, 5]
    await settled(rig)
    assert rig.loaded() == [0, 4, 8]
    assert await rig.ids(6, 7) == [6, 7]
    rig = Rig(8, replace(SMALL, read_ahead_bytes=2 * block_bytes), pool)
    await rig.ids(0, 3)
    await rig.ids(4, 7)
    await settled(rig)
    assert rig.loaded() == [0, 4, 8, 12]
    misses = rig.reader.cache.misses
    assert await rig.ids(8, 15) == list(range(8, 16))
    assert rig.reader.cache.misses == misses


async def test_read_that_ends_early_triggers_read_ahead(pool: ThreadPoolExecutor) -> None:
    rig = Rig(8, replace(SMALL, read_ahead_bytes=1), pool)
    assert await rig.ids(0, 31, bytes_max=SIZE) == [0]
    await settled(rig)
    assert rig.loaded() == [0, 4]


async def test_nothing_is_read_ahead_behind_the_end_nor_twice(pool: ThreadPoolExecutor) -> None:
    rig = Rig(3, replace(SMALL, read_ahead_bytes=1 << 20), pool)
    await rig.ids(0, 3)
    await rig.ids(8, 11)
    reads = len(rig.disk.reads)
    await rig.ids(4, 7)
    assert not rig.reader._ahead, "what follows is here"
    await rig.ids(8, 11)
    assert not rig.reader._ahead
    assert len(rig.disk.reads) == reads + 1
    short = Rig(2, replace(SMALL, read_ahead_bytes=1 << 20), pool)
    await short.ids(0, 3)
    await short.ids(4, 7)
    assert not short.reader._ahead, "the end was read"
    off = Rig(3, replace(SMALL, read_ahead_bytes=0), pool)
    await off.ids(0, 3)
    await off.ids(4, 5)
    assert not off.reader._ahead


async def test_reader_waits_for_its_read_ahead(pool: ThreadPoolExecutor) -> None:
    rig = Rig(8, replace(SMALL, read_ahead_bytes=1 << 20), pool)
    await rig.ids(0, 3)
    await rig.ids(4, 4)
    assert rig.reader._ahead
    reads = len(rig.disk.reads)
    assert await rig.ids(8, 31) == list(range(8, 32))
    assert len(rig.disk.reads) <= reads + 1
    assert not rig.reader._ahead


@pytest.mark.parametrize("change", ["rewritten", "deleted"])
async def test_read_ahead_of_rewritten_blocks_is_not_cached(
    pool: ThreadPoolExecutor, change: str
) -> None:
    rig = Rig(8, replace(SMALL, read_ahead_bytes=1 << 20), pool)
    await rig.ids(0, 3)
    await rig.ids(4, 4)
    assert rig.reader._ahead
    if change == "rewritten":
        rig.reader.rewritten(1)
    else:
        rig.ledgers.get(1).deleted_ms = 5
        rig.reader.cache.drop_ledger(1)
    await settled(rig)
    assert rig.loaded() == []


async def test_read_ahead_error_is_raised_by_the_read_that_needs_the_block(
    pool: ThreadPoolExecutor,
) -> None:
    rig = Rig(8, replace(SMALL, read_ahead_bytes=1), pool)
    rig.disk.flip(LOGS / file_name(1), 8 * (rig.views[2].offset + rig.views[2].length - SIZE))
    await rig.ids(0, 3)
    assert await rig.ids(4, 7) == [4, 5, 6, 7]
    await settled(rig)
    with pytest.raises(EntryCorrupt):
        await rig.ids(8, 8)
    assert await rig.ids(12, 12) == [12]


async def test_only_the_latest_end_of_a_sequential_reader_is_kept() -> None:
    """A reader that starts over is not sequential."""
    rig = Rig(3)
    for first in (0, 4, 8):
        await rig.ids(first, first + 3)
        assert list(rig.reader._ends) == [(1, first + 4)]
    await rig.ids(0, 3)
    assert list(rig.reader._ends) == [(1, 12), (1, 4)]


async def test_the_ends_of_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "ENDS_MAX", 2)
    rig = Rig(4)
    for first in (0, 4, 8):
        await rig.ids(first, first)
    assert list(rig.reader._ends) == [(1, 5), (1, 9)]
    await rig.ids(5, 6)
    assert list(rig.reader._ends) == [(1, 9), (1, 7)], "a reader that goes on has one end"
