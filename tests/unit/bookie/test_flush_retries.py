"""Flushes after failures: the retries, their times, and the data that needs no second write."""

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.bookie.test_upkeep import BROKEN, BY_HAND, MOMENT_MS, Rig

from magnetar.bookie.api import LedgerFenced, NoSuchLedger

from .conftest import DATA, SMALL, add, open_sim, read_all, until


@pytest.fixture
async def rigs() -> AsyncIterator[list[Rig]]:
    opened: list[Rig] = []
    yield opened
    for rig in opened:
        rig.disk.fault = None
        await rig.bookie.close()


NEVER = replace(BY_HAND, flush_age_s=1e9, flush_idle_s=1e9, flush_retry_s=7.0)
"""Only a request, a full half or a retry flushes."""


def logs_fail(_: str, path: Path) -> OSError | None:
    return BROKEN if path.suffix == ".log" else None


async def test_a_half_that_could_not_be_taken_is_retried_although_it_is_new(
    rigs: list[Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig.open(NEVER)
    rigs.append(rig)
    await rig.add(0)

    def unreadable(_: object) -> None:
        raise BROKEN

    with monkeypatch.context() as patch:
        patch.setattr(rig.bookie._ledgers, "take", unreadable)
        with pytest.raises(OSError, match="Input/output"):
            await rig.bookie.flush()
    rig.clock.advance(7_000 - MOMENT_MS)
    assert await rig.tick() == 0
    rig.clock.advance(MOMENT_MS)
    assert await rig.tick() == 1


async def test_a_half_that_a_start_on_a_full_disk_left_is_flushed_once_there_is_room() -> None:
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    settings = replace(SMALL, disk_usage_high=2.0, flush_age_s=1e9, flush_idle_s=1e9)
    bookie = await open_sim(disk, index, replace(settings, write_cache_bytes=1 << 20))
    for ledger_id in range(30):
        assert await add(bookie, ledger_id, range(50)) is None
    await bookie.abort()
    disk.capacity = disk.used() + 100
    bookie = await open_sim(
        disk,
        SimIndexStore(disk, DATA / "index", index.synced),
        replace(settings, write_cache_bytes=20_000),
    )
    assert bookie.stats().write_cache_bytes > 20_000
    disk.capacity = 1 << 40
    await until(lambda: bookie.stats().write_cache_entries == 0)
    assert await read_all(bookie, 29) == list(range(50))
    await bookie.close()


async def test_a_replay_whose_flush_finds_no_room_keeps_fences_and_deletes() -> None:
    """The first flush that has room moves the checkpoint past their records."""
    disk = SimDisk()
    index = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, index)
    for ledger_id in (1, 2, 3):
        assert await add(bookie, ledger_id, range(3)) is None
    await bookie.flush()
    await bookie.ledger_end(2, fence=True)
    await bookie.ledger_end(7, fence=True)
    await bookie.delete_ledger(3)
    for first in range(3, 103, 10):
        assert await add(bookie, 1, range(first, first + 10)) is None
    await bookie.abort()
    disk.fault = lambda step, path: (
        OSError(errno.ENOSPC, "No space left on device")
        if path.suffix == ".log" and step in ("create", "write")
        else None
    )
    index = SimIndexStore(disk, DATA / "index", index.synced)
    small = replace(SMALL, write_cache_bytes=3_000, tick_s=1000.0)
    bookie = await open_sim(disk, index, small)
    disk.fault = None
    await bookie.flush()
    await bookie.abort()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index", index.synced))
    assert bookie.stats().write_cache_entries == 0, "nothing is replayed"
    for ledger_id in (2, 7):
        assert (await bookie.ledger_end(ledger_id)).fenced
        assert isinstance(await add(bookie, ledger_id, range(9, 10)), LedgerFenced)
    assert isinstance(await add(bookie, 3, range(9, 10)), NoSuchLedger)
    assert await read_all(bookie, 1) == list(range(103))
    await bookie.close()


async def test_a_confirmation_that_says_nothing_new_needs_no_flush(rigs: list[Rig]) -> None:
    rig = await Rig.open(NEVER)
    rigs.append(rig)
    await rig.add(0, 3)
    await rig.bookie.note_confirmed([(1, 1)])
    await rig.bookie.flush()
    for entry_id in (0, 1):
        await rig.bookie.note_confirmed([(1, entry_id)])
        assert not rig.bookie._stage.dirty
    await rig.bookie.note_confirmed([(1, 2)])
    assert rig.bookie._stage.dirty
    assert (await rig.bookie.ledger_end(1)).last_add_confirmed == 2


async def test_entries_of_a_ledger_deleted_after_a_failed_flush_are_not_written(
    rigs: list[Rig],
) -> None:
    rig = await Rig.open(NEVER)
    rigs.append(rig)
    await rig.add(0, 100)
    assert await add(rig.bookie, 2, range(3)) is None
    rig.disk.fault = logs_fail
    with pytest.raises(OSError, match="Input/output"):
        await rig.bookie.flush()
    await rig.bookie.delete_ledger(1)
    rig.disk.fault = None
    await rig.bookie.flush()
    assert 300 < rig.bookie.stats().flush_bytes < 2_000
    assert {view.ledger_id for view in rig.bookie._parts.index.all_views()} == {2}
    with pytest.raises(NoSuchLedger):
        await rig.bookie.ledger_end(1)


async def test_a_failed_request_to_flush_is_not_repeated_by_itself(rigs: list[Rig]) -> None:
    rig = await Rig.open(NEVER)
    rigs.append(rig)
    await rig.add(0)
    rig.disk.fault = logs_fail
    requests = [asyncio.ensure_future(rig.bookie.flush()) for _ in range(2)]
    for result in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(result, OSError)
    await rig.add(1)
    rig.disk.fault = None
    rig.clock.advance(7_000)
    assert await rig.tick() == 1
    assert rig.bookie.stats().write_cache_entries == 1, "nobody waits for the second entry"
    await rig.bookie.flush()
    assert await read_all(rig.bookie, 1) == [0, 1]


async def test_a_flush_of_earlier_entries_hides_no_later_ones(rigs: list[Rig]) -> None:
    """Autorecovery adds entries below those that the index has."""
    rig = await Rig.open(NEVER)
    rigs.append(rig)
    await rig.add(5, 5)
    await rig.bookie.flush()
    await rig.add(0, 3)
    await rig.bookie.flush()
    bookie = rig.bookie
    assert [item.entry_id for item in await bookie.read_entries(1, 9, 9, bytes_max=1000)] == [9]
    assert [item.entry_id for item in await bookie.read_entries(1, 5, 9, bytes_max=1000)] == [
        *range(5, 10)
    ]


async def test_only_deletes_reach_the_index_before_a_flush(rigs: list[Rig]) -> None:
    rig = await Rig.open(NEVER)
    rigs.append(rig)
    await rig.add(0, 3)
    await rig.bookie.flush()
    await rig.bookie.delete_ledger(1)
    assert await add(rig.bookie, 2, range(3)) is None
    await rig.bookie.ledger_end(3, fence=True)
    await rig.bookie._stage.apply_deletes()
    index = rig.bookie._parts.index
    assert [ledger_id for ledger_id, _ in index.ledgers()] == [1]
    record = index.ledger(1)
    assert record is not None
    assert record.deleted_ms == rig.clock.now_ms()
    assert list(index.all_views()) == []
    assert rig.bookie._stage.dirty, "the flush writes the others"


async def test_a_bookie_that_pauses_does_not_stall(rigs: list[Rig]) -> None:
    rig = await Rig.open(replace(NEVER, disk_stall_s=30.0))
    rigs.append(rig)
    await rig.add(0)
    await rig.bookie.flush()
    rig.clock.advance(100_000)
    assert rig.bookie.stats().fault == ""
    rig.disk.fault = lambda _, path: (
        OSError(errno.EIO, "Input/output error") if path.suffix == ".log" else None
    )
    await rig.add(1)
    with pytest.raises(OSError, match="Input/output"):
        await rig.bookie.flush()
    rig.clock.advance(100_000)
    assert rig.bookie.stats().fault == "", "a failed flush is not under way"
