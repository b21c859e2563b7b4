"""Periodic work and disk limits of a bookie, at their exact times and bytes."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.ledger.stage import ManualClock

from magnetar.bookie.api import BookieReadOnly, LedgerFenced, NoSuchLedger
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.upkeep.disk_guard import RESERVE_NAME, DiskGuard
from magnetar.disk.files import DiskUsage

from .conftest import DATA, SMALL, add, collect_garbage, read_all

FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")
BY_HAND = replace(SMALL, tick_s=1000.0, disk_check_interval_s=1e6, gc_interval_s=1e6)
MOMENT_MS = 1


class Rig:
    """A bookie on a simulated disk; the test drives its clock and housekeeper."""

    def __init__(self, disk: SimDisk, bookie: LocalBookie, clock: ManualClock) -> None:
        self.disk, self.bookie, self.clock = disk, bookie, clock

    @classmethod
    async def open(cls, settings: BookieSettings = BY_HAND, disk: SimDisk | None = None) -> "Rig":
        disk = disk or SimDisk()
        index = SimIndexStore(disk, DATA / "index")
        clock = ManualClock()
        bookie = await LocalBookie.open(
            DATA,
            "b1",
            settings=settings,
            clock=clock,
            files=disk,
            open_index=lambda _: index,
            threads=False,
        )
        return cls(disk, bookie, clock)

    async def add(self, first: int, count: int = 1, size: int = 100) -> None:
        assert await add(self.bookie, 1, range(first, first + count), size=size) is None

    async def tick(self) -> int:
        """Runs a tick of the write stage; returns the number of flushes."""
        self.bookie._stage.tick()
        for _ in range(3):
            await asyncio.sleep(0)
        return self.bookie.stats().flushes


@pytest.fixture
async def rigs() -> AsyncIterator[list[Rig]]:
    opened: list[Rig] = []
    yield opened
    for rig in opened:
        rig.disk.fault = None
        await rig.bookie.close()


async def test_half_is_flushed_exactly_at_flush_age(rigs: list[Rig]) -> None:
    rig = await Rig.open(replace(BY_HAND, flush_age_s=60.0, flush_idle_bytes_min=1 << 30))
    rigs.append(rig)
    assert await rig.tick() == 0
    rig.clock.advance(100_000)
    assert await rig.tick() == 0, "there is nothing"
    await rig.add(0)
    rig.clock.advance(60_000 - MOMENT_MS)
    assert await rig.tick() == 0
    rig.clock.advance(MOMENT_MS)
    assert await rig.tick() == 1
    assert rig.bookie.stats().write_cache_entries == 0
    await rig.add(1)
    rig.clock.advance(60_000 - MOMENT_MS)
    assert await rig.tick() == 1, "its age counts from the last flush"
    rig.clock.advance(MOMENT_MS)
    assert await rig.tick() == 2


@pytest.mark.parametrize("more", [0, 1], ids=["enough", "a byte too few"])
async def test_large_half_is_flushed_when_adds_pause(rigs: list[Rig], more: int) -> None:
    rig = await Rig.open(
        replace(BY_HAND, flush_age_s=1e6, flush_idle_s=5.0, flush_idle_bytes_min=1000)
    )
    rigs.append(rig)
    await rig.add(0, size=1000 - 48 - 160 - more)
    rig.clock.advance(5_000 - MOMENT_MS)
    assert await rig.tick() == 0
    rig.clock.advance(MOMENT_MS)
    assert await rig.tick() == (0 if more else 1)


async def test_failed_flush_is_retried_after_its_delay(rigs: list[Rig]) -> None:
    rig = await Rig.open(replace(BY_HAND, flush_age_s=60.0, flush_retry_s=7.0))
    rigs.append(rig)
    await rig.add(0)
    tries: list[str] = []

    def fault(step: str, path: Path) -> OSError | None:
        if path.suffix != ".log" or step != "create":
            return None
        tries.append(step)
        return BROKEN

    rig.disk.fault = fault
    with pytest.raises(OSError, match="Input/output"):
        await rig.bookie.flush()
    rig.clock.advance(7_000 - MOMENT_MS)
    await rig.tick()
    assert len(tries) == 1
    rig.clock.advance(MOMENT_MS)
    await rig.tick()
    assert len(tries) == 2
    rig.clock.advance(7_000 - MOMENT_MS)
    assert await rig.tick() == 0
    rig.disk.fault = None
    rig.clock.advance(MOMENT_MS)
    assert await rig.tick() == 1
    assert await read_all(rig.bookie, 1) == [0]


async def test_failed_load_of_states_is_retried_after_its_delay(
    rigs: list[Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig.open(replace(BY_HAND, flush_age_s=1.0, flush_retry_s=7.0))
    rigs.append(rig)
    await rig.add(0)
    asked: list[object] = []

    def unreadable(ledgers: object) -> None:
        asked.append(ledgers)
        raise BROKEN

    with monkeypatch.context() as patch:
        patch.setattr(rig.bookie._ledgers, "take", unreadable)
        rig.clock.advance(1_000)
        await rig.tick()
        assert len(asked) == 1
        rig.clock.advance(7_000 - MOMENT_MS)
        await rig.tick()
        assert len(asked) == 1
        rig.clock.advance(MOMENT_MS)
        await rig.tick()
        assert len(asked) == 2
    rig.clock.advance(7_000)
    assert await rig.tick() == 1
    assert await read_all(rig.bookie, 1) == [0]


async def test_bookie_without_threads_uses_none(rigs: list[Rig]) -> None:
    """A simulation decides what happens next."""
    before = set(threading.enumerate())
    rig = await Rig.open()
    rigs.append(rig)
    await rig.add(0, 10)
    await rig.bookie.flush()
    await read_all(rig.bookie, 1)
    await rig.bookie.drop_copies([1])
    await rig.bookie.list_emptied()
    await collect_garbage(rig.bookie)
    await rig.bookie._keeper._check_disk()
    assert set(threading.enumerate()) <= before


async def test_work_is_counted(rigs: list[Rig]) -> None:
    rig = await Rig.open()
    rigs.append(rig)
    await rig.add(0, 3)
    await rig.add(3)
    stats = rig.bookie.stats()
    assert (stats.entries_added, stats.bytes_added) == (4, 400)
    assert stats.journal_commits == 2
    assert sum(stats.journal_sync_latencies.counts) == 2
    assert stats.journal_sync_latencies.sum_s > 0
    assert stats.journal_bytes > 400
    assert stats.journal_pending_bytes == 0
    assert stats.write_cache_entries == 4
    assert (stats.writable, stats.read_only_reason, stats.fault) == (True, "", "")
    assert stats.disk_bytes_total == rig.disk.capacity
    assert stats.ledgers_in_limbo_through == -1
    assert stats.damaged_ranges == 0
    await rig.bookie.flush()
    flushed = rig.bookie.stats()
    assert (flushed.flushes, flushed.entry_logs, flushed.write_cache_entries) == (1, 1, 0)
    assert flushed.flush_bytes > 400
    await rig.bookie.delete_ledger(1)
    await rig.bookie.flush()
    await add(rig.bookie, 2, range(3))
    rig.bookie._parts.logs.settings = replace(BY_HAND, entry_log_bytes=1)
    await rig.bookie.flush()
    report = await collect_garbage(rig.bookie)
    counted = rig.bookie.stats()
    assert counted.logs_removed == report.logs_removed == 1
    assert counted.gc_bytes_freed == report.bytes_freed > 400


async def test_latencies_and_failures_are_counted(rigs: list[Rig]) -> None:
    """By entry, as the requests may have many."""
    rig = await Rig.open()
    rigs.append(rig)
    await rig.add(0, 3)
    await rig.add(3)
    stats = rig.bookie.stats()
    assert sum(stats.add_latencies.counts) == stats.entries_added == 4
    assert (stats.adds_failed, stats.reads_failed, sum(stats.read_latencies.counts)) == (0, 0, 0)
    await read_all(rig.bookie, 1)
    with pytest.raises(NoSuchLedger):
        await rig.bookie.read_entries(2, 0, 0, bytes_max=1)
    await rig.bookie.ledger_end(1, fence=True)
    assert isinstance(await add(rig.bookie, 1, (4, 5)), LedgerFenced)
    await rig.bookie.delete_ledger(1)
    stats = rig.bookie.stats()
    assert sum(stats.read_latencies.counts) == stats.entries_read == 4
    assert (stats.adds_failed, stats.reads_failed, stats.ledgers_deleted) == (2, 1, 1)
    assert sum(stats.add_latencies.counts) == 4


def guard(capacity: int = 1000, **settings: float) -> tuple[DiskGuard, SimDisk]:
    expected = {
        "disk_usage_high": 0.9,
        "disk_usage_low": 0.8,
        "disk_free_bytes_min": 50,
        "disk_reserve_bytes": 0,
    }
    disk = SimDisk(capacity)
    return DiskGuard(disk, DATA, BookieSettings(**(expected | settings))), disk  # type: ignore[arg-type]


def usage(free: int, total: int = 1000) -> DiskUsage:
    return DiskUsage(total, free)


def test_disk_is_full_at_the_high_mark_and_has_room_below_the_low_mark() -> None:
    created, _ = guard()
    for free, refused in (
        (101, False),
        (100, True),
        (150, True),
        (200, True),
        (201, False),
        (101, False),
    ):
        created.update(usage(free))
        assert (created.refusal is not None) == refused, free
        assert created.usage.free == free


def test_minimum_free_bytes_and_twice_as_many_to_become_writable() -> None:
    created, _ = guard(disk_usage_high=1.0, disk_usage_low=1.0)
    for free, refused in ((50, False), (49, True), (99, True), (100, False)):
        created.update(usage(free))
        assert (created.refusal is not None) == refused, free


def test_write_error_on_a_full_disk_counts_until_the_next_check() -> None:
    created, _ = guard()
    created.mark_full("no room")
    assert isinstance(created.refusal, BookieReadOnly)
    assert "no room" in str(created.refusal)
    created.update(usage(500))
    assert created.refusal is None


@pytest.mark.parametrize(("capacity", "taken"), [(4 * 64, True), (4 * 64 - 1, False)])
def test_reserve_is_allocated_with_room_for_four(capacity: int, taken: bool) -> None:
    created, disk = guard(capacity, disk_reserve_bytes=64, disk_free_bytes_min=0)
    assert (RESERVE_NAME in disk.names(DATA)) == taken
    if taken:
        assert len(disk.inodes[DATA / RESERVE_NAME].data) == 64
        steps = disk.steps
        created._take_reserve()
        assert disk.steps == steps, "there is one"
        created.delete_reserve()
        assert disk.names(DATA) == []
        created.delete_reserve()


def test_without_a_size_there_is_no_reserve() -> None:
    created, disk = guard(disk_reserve_bytes=0)
    created.mark_full("no room")
    created.update(usage(500))
    assert created.refusal is None
    assert disk.names(DATA) == []


def test_reserve_that_does_not_fit_is_removed() -> None:
    created, disk = guard(disk_reserve_bytes=64, disk_free_bytes_min=0)
    created.delete_reserve()
    disk.fault = lambda step, _: FULL if step == "preallocate" else None
    created._take_reserve()
    assert disk.names(DATA) == []
    disk.fault = lambda step, _: BROKEN if step == "remove" else None
    created._take_reserve()
    created.delete_reserve()
    assert disk.names(DATA) == [RESERVE_NAME], "what cannot be removed ends nothing"


def test_reserve_is_allocated_again_once_the_disk_has_room() -> None:
    created, disk = guard(disk_reserve_bytes=64, disk_free_bytes_min=0)
    created.delete_reserve()
    created.mark_full("no room")
    created.update(usage(500))
    assert disk.names(DATA) == [RESERVE_NAME]
    no_room, disk = guard(100, disk_reserve_bytes=20, disk_free_bytes_min=101)
    assert no_room.refusal is not None
    assert disk.names(DATA) == []


async def test_the_disk_is_measured_when_it_is_due(rigs: list[Rig]) -> None:
    rig = await Rig.open(replace(BY_HAND, disk_check_interval_s=5.0))
    rigs.append(rig)
    keeper = rig.bookie._keeper
    rig.clock.advance(5_000 - MOMENT_MS)
    assert not await keeper._check_disk()
    rig.clock.advance(MOMENT_MS)
    assert await keeper._check_disk()
    assert not await keeper._check_disk()
    rig.clock.advance(5_000)
    assert await keeper._check_disk()


class Collections:
    """Records the collections that the housekeeper starts."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[float, bool]] = []
        collector = rig.bookie._keeper._collector
        collect = collector.collect

        def noted(live_ratio: float, now_ms: int, *, join_small: bool) -> object:
            assert now_ms == rig.clock.now_ms()
            self.asked.append((live_ratio, join_small))
            return collect(live_ratio, now_ms, join_small=join_small)

        monkeypatch.setattr(collector, "collect", noted)

    def taken(self) -> list[tuple[float, bool]]:
        asked, self.asked = self.asked, []
        return asked


GARBAGE = replace(
    BY_HAND,
    gc_interval_s=10.0,
    gc_minor_interval_s=30.0,
    gc_minor_live_ratio=0.2,
    gc_major_interval_s=70.0,
    gc_major_live_ratio=0.8,
    gc_full_interval_s=3.0,
)


async def test_minor_and_major_collections_follow_their_intervals(
    rigs: list[Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig.open(GARBAGE)
    rigs.append(rig)
    asked = Collections(rig, monkeypatch)
    keeper = rig.bookie._keeper
    rig.clock.advance(10_000 - MOMENT_MS)
    assert not await keeper._collect_if_due()
    rig.clock.advance(MOMENT_MS)
    for number in range(1, 15):
        assert await keeper._collect_if_due()
        assert not await keeper._collect_if_due()
        major, minor = number in (7, 14), number in (3, 6, 9, 12)
        assert asked.taken() == [(0.8 if major else 0.2 if minor else 0.0, major)], number
        rig.clock.advance(10_000)
    await collect_garbage(rig.bookie)
    assert asked.taken() == [(0.8, True)]


async def test_full_disk_shortens_the_interval_of_major_collections(
    rigs: list[Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig.open(GARBAGE)
    rigs.append(rig)
    asked = Collections(rig, monkeypatch)
    keeper, disk_guard = rig.bookie._keeper, rig.bookie._guard
    rig.clock.advance(1_000)
    disk_guard.mark_full("no room")
    monkeypatch.setattr(disk_guard, "update", lambda _: None)
    assert not await keeper._collect_if_due()
    rig.clock.advance(3_000 - MOMENT_MS)
    assert not await keeper._collect_if_due()
    rig.clock.advance(MOMENT_MS)
    for _ in range(3):
        assert await keeper._collect_if_due()
        assert asked.taken() == [(0.8, True)]
        rig.clock.advance(3_000)


async def test_deletes_apply_when_the_flush_has_no_room(
    rigs: list[Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig.open(GARBAGE)
    rigs.append(rig)
    monkeypatch.setattr(rig.bookie._guard, "update", lambda _: None)
    full: list[str] = []
    monkeypatch.setattr(rig.bookie._guard, "mark_full", full.append)
    await rig.add(0, 10)
    await add(rig.bookie, 2, range(3))
    await rig.bookie.flush()
    rig.bookie._parts.flusher._writer.abandon()
    await rig.bookie.delete_ledger(1)
    await add(rig.bookie, 2, range(3, 4))
    rig.disk.fault = lambda step, path: (
        FULL if path.suffix == ".log" and step in ("create", "write") else None
    )
    await collect_garbage(rig.bookie)
    assert list(rig.bookie._parts.index.views(1)) == []
    assert len(full) == 2, "of the flush, and of the collection that met the same"
    assert RESERVE_NAME not in rig.disk.names(DATA) or not rig.bookie._parts.trim.spares
    rig.disk.fault = None
    rig.clock.advance(10_000)
    await rig.tick()
    assert await read_all(rig.bookie, 2) == [0, 1, 2, 3]


async def test_disk_error_is_raised_to_the_caller_of_a_collection(rigs: list[Rig]) -> None:
    rig = await Rig.open(GARBAGE)
    rigs.append(rig)
    await rig.add(0)
    rig.disk.fault = lambda _, path: BROKEN if path.suffix == ".log" else None
    with pytest.raises(OSError, match="Input/output"):
        await collect_garbage(rig.bookie)


async def test_unexpected_failure_is_a_fault_until_its_part_succeeds(
    rigs: list[Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await Rig.open(GARBAGE)
    rigs.append(rig)
    keeper = rig.bookie._keeper
    fails = [RuntimeError("a bug"), BROKEN, None]

    async def work() -> bool:
        error = fails.pop(0)
        if error is not None:
            raise error
        return True

    await keeper._guarded("part", work)
    assert "part failed" in rig.bookie.stats().fault
    rig.clock.advance(3_000)
    assert await keeper._collect_if_due(), "it is tried again soon"
    await keeper._guarded("part", work)
    assert rig.bookie.stats().fault == "", "a failing disk is foreseen"
    keeper._faults.note("part", RuntimeError("a bug"))
    await keeper._guarded("part", work)
    assert rig.bookie.stats().fault == ""
    keeper._faults.note("part", RuntimeError("a bug"))

    async def not_due() -> bool:
        return False

    await keeper._guarded("part", not_due)
    assert "part failed" in rig.bookie.stats().fault
    keeper._faults.clear("part")
