"""The bookie's periodic work: flush old entries, check the disk, collect garbage.

A minor collection rewrites logs whose live share is below `gc_minor_live_ratio`, a major one those
below `gc_major_live_ratio`; every collection removes logs without live entries. While the disk is
full, major collections run every `gc_full_interval_s`, as nothing else makes room.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from magnetar.bookie.cache.write_stage import WriteStage
from magnetar.bookie.entry_log.collector import Collector, GcReport
from magnetar.bookie.faults import Faults
from magnetar.bookie.index.ledgers import Ledgers
from magnetar.bookie.journal.files import FULL_ERRNOS, JournalTrim
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.stats import Counters
from magnetar.bookie.threads import run_on
from magnetar.bookie.upkeep.disk_guard import DiskGuard
from magnetar.core.clock import Clock
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet

log = get_logger("magnetar.bookie.upkeep.housekeeper")


class Housekeeper:
    """Runs periodic work and collections on request. For the event loop's thread."""

    def __init__(
        self,
        *,
        stage: WriteStage,
        guard: DiskGuard,
        collector: Collector,
        trim: JournalTrim,
        ledgers: Ledgers,
        counters: Counters,
        faults: Faults,
        settings: BookieSettings,
        clock: Clock,
        threaded: bool,
    ) -> None:
        self._stage = stage
        self._guard = guard
        self._collector = collector
        self._trim = trim
        self._ledgers = ledgers
        self._counters = counters
        self._faults = faults
        self._settings = settings
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "bookie-gc") if threaded else None
        now = clock.monotonic()
        self._next_check = now + settings.disk_check_interval_s
        self._next_gc = now + settings.gc_interval_s
        self._next_minor = now + settings.gc_minor_interval_s
        self._next_major = now + settings.gc_major_interval_s
        self._tasks = TaskSet("bookie")
        self._tasks.start(self._run(), "housekeeping")

    async def collect(self, live_ratio: float, *, join_small: bool = True) -> GcReport:
        """Removes dead logs and rewrites logs whose live share is below `live_ratio`.

        Collections that run at the same time follow each other on their thread.
        """
        await self._put_deletes_into_index()
        now_ms = self._clock.now_ms()
        report = await run_on(
            self._pool,
            lambda: self._collector.collect(live_ratio, now_ms, join_small=join_small),
        )
        self._ledgers.forget(report.tombstones_dropped)
        counters = self._counters
        counters.logs_removed += report.logs_removed
        counters.logs_compacted += report.logs_compacted
        counters.gc_bytes_freed += report.bytes_freed
        counters.gc_bytes_compacted += report.bytes_compacted
        self._guard.update(await run_on(self._pool, self._guard.measure))
        return report

    async def _put_deletes_into_index(self) -> None:
        try:
            await self._stage.flush()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._guard.mark_full(str(error))
            self._guard.delete_reserve()
            self._trim.drop_spares()
            await self._stage.apply_deletes()

    async def stop(self) -> None:
        """Ends the task and the thread, after the collection under way."""
        await self._tasks.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_s)
            # Guarded separately: a disk that cannot be measured must not stop the retry of a flush.
            await self._guarded("flush timer", self._tick)
            await self._guarded("disk check", self._check_disk)
            await self._guarded("collection of garbage", self._collect_if_due)

    async def _tick(self) -> bool:
        self._stage.tick()
        return True

    async def _guarded(self, part: str, work: Callable[[], Awaitable[bool]]) -> None:
        """Runs one part of the work. A failure is recorded and does not end the task."""
        try:
            if await work():
                self._faults.clear(part)
        except Exception as error:  # noqa: BLE001 - `Faults` logs unexpected errors
            log.error("housekeeping failed, will be retried", part=part, error=str(error))
            self._faults.note(part, error)
            if self._faults:
                # The bookie is unhealthy until a collection succeeds, and the next may be far off.
                full_s = self._settings.gc_full_interval_s
                self._next_gc = min(self._next_gc, self._clock.monotonic() + full_s)

    async def _check_disk(self) -> bool:
        """Checks the disk if a check is due; returns whether it was."""
        now = self._clock.monotonic()
        if now < self._next_check:
            return False
        self._next_check = now + self._settings.disk_check_interval_s
        self._guard.update(await run_on(self._pool, self._guard.measure))
        return True

    async def _collect_if_due(self) -> bool:
        """Collects garbage if a collection is due; returns whether it was."""
        settings = self._settings
        now = self._clock.monotonic()
        full = self._guard.refusal is not None
        if full:
            self._next_gc = min(self._next_gc, now + settings.gc_full_interval_s)
        if now < self._next_gc:
            return False
        ratio = 0.0
        if now >= self._next_minor:
            self._next_minor = now + settings.gc_minor_interval_s
            ratio = settings.gc_minor_live_ratio
            self._counters.gc_minor += 1
        major = full or now >= self._next_major
        if major:
            self._next_major = now + settings.gc_major_interval_s
            ratio = settings.gc_major_live_ratio
            self._counters.gc_major += 1
        self._next_gc = now + (settings.gc_full_interval_s if full else settings.gc_interval_s)
        await self.collect(ratio, join_small=major)
        return True
