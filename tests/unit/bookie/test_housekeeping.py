"""What collections and failures leave behind: room, spares, tombstones, and the next attempt."""

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk
from tests.unit.bookie.test_collector import BROKEN, LIVES
from tests.unit.bookie.test_collector import Rig as LogsRig
from tests.unit.bookie.test_upkeep import BY_HAND, FULL, GARBAGE, MOMENT_MS, Rig

from magnetar.bookie.cache.write_cache import segment_of
from magnetar.bookie.entry_log.logs import LogWriter
from magnetar.bookie.index import index as index_format
from magnetar.bookie.index.index import FLAG_DELETED, View
from magnetar.bookie.index.store import Batch
from magnetar.bookie.upkeep.disk_guard import RESERVE_NAME

from .conftest import DATA, SMALL, add, collect_garbage, read_all


@pytest.fixture
async def rigs() -> AsyncIterator[list[Rig]]:
    opened: list[Rig] = []
    yield opened
    for rig in opened:
        rig.disk.fault = None
        await rig.bookie.close()


# -- collections


def counted_syncs(rig: LogsRig) -> list[None]:
    """Returns a list with an element for each later sync of the index."""
    syncs: list[None] = []
    sync = rig.index.store.sync

    def counted() -> None:
        syncs.append(None)
        sync()

    rig.index.store.sync = counted  # type: ignore[method-assign]
    return syncs


def test_the_index_is_synced_for_moved_blocks_only() -> None:
    rig = LogsRig()
    for ledger_id in (1, 2, 3):
        rig.log(ledger_id)
        rig.record(ledger_id, FLAG_DELETED, deleted_ms=0)
    syncs = counted_syncs(rig)
    assert rig.collector.collect(0.9, 0, join_small=False).logs_removed == 3
    assert syncs == []
    rig.log(4, 5)
    rig.record(4, FLAG_DELETED, deleted_ms=0)
    report = rig.collector.collect(0.9, 0, join_small=False)
    assert (report.logs_compacted, report.logs_removed) == (1, 1)
    assert len(syncs) == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_a_block_with_several_views_is_copied_once(damaged: bool) -> None:
    rig = LogsRig()
    writer = LogWriter(rig.logs)
    entries = [b"1;%d" % number for number in range(5)]
    placed = writer.append(1, [segment_of(entries)], [(0, 5)], entries)
    dead = writer.append(2, [segment_of([bytes(4000)])], [(0, 1)], [bytes(4000)])
    writer.sync()
    writer.abandon()
    batch = Batch()
    for first, last in ((0, 1), (3, 4)):  # entry 2 was written again elsewhere
        index_format.put_view(batch, View(1, first, last, *placed))
    rig.index.add_usage(batch, placed.log_id, 1, placed.length)
    rig.index.add_usage(batch, dead.log_id, 2, 0)
    index_format.put_ledger(batch, 1, LIVES)
    rig.index.store.write(batch)
    if damaged:
        rig.disk.flip(rig.logs.path(placed.log_id), 8 * (placed.offset + placed.length // 2))
    reads: list[View] = []
    read_raw = rig.logs.read_raw

    def counted(view: View) -> bytes:
        reads.append(view)
        return read_raw(view)

    rig.logs.read_raw = counted  # type: ignore[method-assign]
    report = rig.collector.collect(0.9, 0, join_small=False)
    assert len(reads) == 1
    views = list(rig.index.views(1))
    assert [(view.first, view.last) for view in views] == [(0, 1), (3, 4)]
    if damaged:
        assert (report.bytes_copied, report.logs_damaged, report.logs_removed) == (0, 1, 0)
        assert {view.log_id for view in views} == {placed.log_id}
        return
    assert (report.bytes_copied, report.logs_compacted) == (placed.length, 1)
    assert report.bytes_compacted == report.bytes_freed - placed.length
    assert len({(view.log_id, view.offset, view.length) for view in views}) == 1
    assert views[0].log_id != placed.log_id
    assert list(rig.logs.read(views[1]).entries) == entries


def test_on_a_full_disk_the_log_with_the_fewest_live_bytes_is_rewritten_first() -> None:
    """Its copy may fit, and the room that it frees may be enough for the next one."""
    rig = LogsRig(replace(SMALL, entry_log_bytes=1 << 20))
    for live, size in ((1, 12_000), (2, 1_000)):
        rig.log(live, 10 + live, size=size)
        rig.record(10 + live, FLAG_DELETED, deleted_ms=0)
        rig.log(live, 10 + live, size=size)
        rig.record(10 + live, FLAG_DELETED, deleted_ms=0)
    rig.disk.capacity = rig.disk.used() + 6_000
    report = rig.collector.collect(0.9, 0, join_small=False)
    assert report.logs_compacted >= 2
    rig.readable([1, 2])
    assert not {3, 4} & set(rig.logs.ids())


async def test_a_collection_that_makes_room_ends_the_refusal_of_adds(rigs: list[Rig]) -> None:
    """The next check of the disk may be due much later."""
    rig = await Rig.open(BY_HAND)
    rigs.append(rig)
    await rig.add(0, 10)
    rig.bookie._guard.mark_full("no room")
    assert not rig.bookie.writable
    await collect_garbage(rig.bookie)
    assert rig.bookie.writable


async def test_a_ledgers_deletion_is_forgotten_with_its_tombstone(rigs: list[Rig]) -> None:
    rig = await Rig.open(replace(BY_HAND, tombstone_kept_s=5.0))
    rigs.append(rig)
    await rig.add(0, 10)
    await rig.bookie.delete_ledger(1)
    await rig.bookie.flush()
    assert await add(rig.bookie, 1, range(3)) is not None
    await collect_garbage(rig.bookie)
    assert await add(rig.bookie, 1, range(3)) is not None
    rig.clock.advance(5_000)
    await collect_garbage(rig.bookie)
    assert await add(rig.bookie, 1, range(3)) is None
    assert await read_all(rig.bookie, 1) == [0, 1, 2]


async def test_concurrent_collections_follow_each_other(rigs: list[Rig]) -> None:
    rig = await Rig.open(BY_HAND)
    rigs.append(rig)
    for ledger_id in range(1, 5):
        assert await add(rig.bookie, ledger_id, range(30)) is None
        await rig.bookie.flush()
        rig.bookie._parts.flusher._writer.abandon()
    for ledger_id in range(1, 4):
        await rig.bookie.delete_ledger(ledger_id)
    reports = await asyncio.gather(*(collect_garbage(rig.bookie) for _ in range(3)))
    assert sum(report.logs_removed for report in reports) == rig.bookie.stats().logs_removed == 3
    assert await read_all(rig.bookie, 4) == list(range(30))


# -- a full disk


async def test_a_flush_without_room_deletes_the_reserve_and_the_spares(rigs: list[Rig]) -> None:
    disk = SimDisk()
    rig = await Rig.open(replace(GARBAGE, journal_file_bytes=16 << 10), disk)
    rigs.append(rig)
    for first in range(0, 400, 50):
        await rig.add(first, 50)
        await rig.bookie.flush()
    spares = rig.bookie._parts.trim.spares
    assert spares
    assert RESERVE_NAME in disk.names(DATA)
    await rig.bookie.delete_ledger(1)
    rig.bookie._parts.flusher._writer.abandon()

    def fault(step: str, path: Path) -> OSError | None:
        return FULL if path.suffix == ".log" and step in ("create", "write") else None

    disk.fault = fault
    await add(rig.bookie, 2, range(3))
    seen: list[tuple[bool, bool, bool]] = []
    apply_deletes = rig.bookie._stage.apply_deletes

    async def noted() -> None:
        refusal = rig.bookie._guard.refusal is not None
        seen.append((RESERVE_NAME in disk.names(DATA), bool(spares), refusal))
        await apply_deletes()

    rig.bookie._stage.apply_deletes = noted  # type: ignore[method-assign]
    await collect_garbage(rig.bookie)
    assert seen == [(False, False, True)]
    names = disk.names(DATA / "journal")
    assert not [name for name in names if name.endswith(".spare")]


# -- failures of periodic work


async def fail(error: Exception) -> bool:
    raise error


async def test_an_unexpected_failure_never_delays_the_next_collection(rigs: list[Rig]) -> None:
    rig = await Rig.open(GARBAGE)
    rigs.append(rig)
    keeper = rig.bookie._keeper
    rig.clock.advance(9_000)
    await keeper._guarded("part", lambda: fail(RuntimeError("a bug")))
    rig.clock.advance(1_000 - MOMENT_MS)
    assert not await keeper._collect_if_due()
    rig.clock.advance(MOMENT_MS)
    assert await keeper._collect_if_due()


@pytest.mark.parametrize("error", [BROKEN, OSError(errno.ENOSPC, "No space left on device")])
async def test_a_failing_disk_does_not_collect_more_often(rigs: list[Rig], error: OSError) -> None:
    rig = await Rig.open(GARBAGE)
    rigs.append(rig)
    keeper = rig.bookie._keeper
    await keeper._guarded("part", lambda: fail(error))
    rig.clock.advance(10_000 - MOMENT_MS)
    assert not await keeper._collect_if_due()
    rig.clock.advance(MOMENT_MS)
    assert await keeper._collect_if_due()
