"""Swaps and flushes the halves of the write cache, and throttles adds while both are full.

The active half is swapped when it is full, when it is old, when adds pause and it has much to
flush, or on request. One flush runs at a time. If the active half fills up meanwhile, the journal
is held, so that memory stays within two halves, the journal's queue and one commit. A failed flush
keeps its half and is retried, so no acknowledged entry is dropped; once the other half is full too,
adds are refused until a flush succeeds. Unexpected failures are recorded in `Faults` until then.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from magnetar.bookie.api import BookieReadOnly
from magnetar.bookie.cache.write_cache import Halves, WriteCacheHalf
from magnetar.bookie.entry_log.flush import Flusher, FlushJob
from magnetar.bookie.faults import Faults
from magnetar.bookie.index.index import FLAG_DELETED
from magnetar.bookie.index.ledgers import Ledgers
from magnetar.bookie.journal.files import JournalPosition
from magnetar.bookie.journal.journal import Journal
from magnetar.bookie.settings import BookieSettings
from magnetar.bookie.threads import run_on
from magnetar.core.log import get_logger
from magnetar.core.malloc import release_freed_memory

log = get_logger("magnetar.bookie.cache.write_stage")

TRIM_DELAY_S: Final = 0.2


class WriteStage:
    """Decides when to swap and flush. For the event loop's thread."""

    def __init__(
        self,
        *,
        halves: Halves,
        ledgers: Ledgers,
        journal: Journal,
        flusher: Flusher,
        position: JournalPosition,
        settings: BookieSettings,
        monotonic: Callable[[], float],
        on_flushed: Callable[[FlushJob], None],
        on_error: Callable[[BaseException], None],
        faults: Faults,
        threaded: bool,
    ) -> None:
        self._halves = halves
        self._ledgers = ledgers
        self._journal = journal
        self._flusher = flusher
        self._settings = settings
        self._monotonic = monotonic
        self._on_flushed = on_flushed
        self._on_error = on_error
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(1, "bookie-flush") if threaded else None
        self._job: FlushJob | None = None
        self._running = False
        self._run_at = 0.0
        self._flush_again = False
        self._closed = False
        self._trim_after = False
        self._waiters: list[asyncio.Future[None]] = []
        self._next_waiters: list[asyncio.Future[None]] = []
        self._last_swap = self._last_add = monotonic()
        self._retry_at = 0.0
        self._error: BaseException | None = None
        self.refusal: BookieReadOnly | None = None
        """The error that refuses adds while both halves are full and cannot be flushed."""
        self._position = position
        """The end of the last commit; all records before it are in the halves."""

    @property
    def dirty(self) -> bool:
        """Whether the active half has entries or the index lacks ledger states."""
        return bool(self._halves.active.ledgers or self._ledgers.dirty)

    @property
    def flushing_s(self) -> float:
        """Seconds since the current flush began; 0 if none is running."""
        return self._monotonic() - self._run_at if self._running else 0.0

    def committed(self, position: JournalPosition) -> None:
        """Records a commit, now in the active half; swaps, or holds the journal, if it is full."""
        self._position = position
        self._last_add = self._monotonic()
        if self._full():
            if self._running:
                self._journal.hold()
            elif self._job is None and self._monotonic() >= self._retry_at:
                self._swap()
            else:
                self._refuse()

    def _full(self) -> bool:
        return self._halves.active.charge >= self._settings.write_cache_bytes

    def _refuse(self) -> None:
        """Refuses adds until a flush succeeds: both halves are full and the flush fails."""
        self.refusal = BookieReadOnly(f"entry logs cannot be written: {self._error}")
        self._journal.release(self.refusal)

    def tick(self) -> None:
        """Flushes an old or idle half and retries a failed flush."""
        now = self._monotonic()
        if self._job is not None:
            if not self._running and now >= self._retry_at:
                self._run()
            return
        if not self.dirty:
            self._last_swap = now
            return
        if now < self._retry_at:
            return
        settings = self._settings
        idle = now - self._last_add >= settings.flush_idle_s
        much = self._halves.active.charge >= settings.flush_idle_bytes_min
        old = now - self._last_swap >= settings.flush_age_s
        if self._error is not None or self._full() or old or (idle and much):
            self._swap()
            self._trim_after = idle or old

    async def flush(self) -> None:
        """Returns when all entries completed before are synced to entry logs and index.

        Raises the error of a failed flush.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self._job is not None:
            self._next_waiters.append(waiter)
            self._flush_again = True
            if not self._running:
                self._run()
        elif self.dirty:
            self._waiters.append(waiter)
            self._swap()
        else:
            return
        await waiter

    async def apply_deletes(self) -> None:
        """Applies deletes to the index, which makes room, when a full disk prevents a flush."""
        records = [(id_, state.record) for id_, state in self._ledgers.dirty.items()]
        records += self._job.ledgers if self._job is not None else []
        records = [item for item in records if item[1].flags & FLAG_DELETED]
        if records:
            await run_on(self._pool, lambda: self._flusher.apply_deletes(records))

    async def empty(self, ledger_ids: Sequence[int]) -> None:
        """Drops ledgers' entries from the index. The caller flushes first."""
        await run_on(self._pool, lambda: self._flusher.empty(ledger_ids))

    def close(self) -> None:
        """Ends the thread."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._flusher.close()

    def _swap(self) -> None:
        halves = self._halves
        half = halves.active
        try:
            states = self._ledgers.take(half.ledgers)
        except Exception as error:  # noqa: BLE001 - logged; the half stays active with its adds
            self._failed(error)
            return
        halves.flushing, halves.active = half, WriteCacheHalf()
        records = [(ledger_id, state.record) for ledger_id, state in states.items()]
        last_indexed = {ledger_id: states[ledger_id].last_indexed for ledger_id in half.ledgers}
        for ledger_id, entries in half.ledgers.items():
            # From now on they may be in the index.
            states[ledger_id].last_indexed = max(last_indexed[ledger_id], entries.last)
        self._last_swap = self._monotonic()
        self._job = FlushJob(half, self._position, records, last_indexed)
        self._run()

    def _run(self) -> None:
        job = self._job
        assert job is not None  # noqa: S101 - callers checked
        self._running = True
        self._run_at = self._monotonic()
        for state in self._ledgers.dirty.values():
            if state.deleted:
                # Deleted since a failed attempt: its entries need not be written any more.
                job.half.drop(state.ledger_id)
        if self._pool is None:
            self._loop.call_soon(self._run_inline, job)
            return
        future = self._loop.run_in_executor(self._pool, self._flusher.run, job)
        future.add_done_callback(self._finished)

    def _run_inline(self, job: FlushJob) -> None:
        try:
            self._flusher.run(job)
        except Exception as error:  # noqa: BLE001 - logged; the job is retried
            self._failed(error)
        else:
            self._done(job)

    def _finished(self, future: "asyncio.Future[FlushJob]") -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._done(future.result())
        else:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        log.error("flush failed, will be retried", error=str(error))
        self._faults.note("flush", error)
        self._running = False
        self._error = error
        if self._full():
            self._refuse()
        else:
            # The half has room, perhaps because of deletes while the journal was held.
            self._journal.release(self.refusal)
        self._retry_at = self._monotonic() + self._settings.flush_retry_s
        self._on_error(error)
        waiters, self._waiters = self._waiters + self._next_waiters, []
        self._next_waiters = []
        self._flush_again = False
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _done(self, job: FlushJob) -> None:
        self._running = False
        self._job = None
        self._error = self.refusal = None
        self._faults.clear("flush")
        self._halves.flushing = None
        self._ledgers.flushed(ledger_id for ledger_id, _ in job.ledgers)
        self._on_flushed(job)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters, self._next_waiters = self._next_waiters, []
        flush_again, self._flush_again = self._flush_again, False
        if (self._full() or flush_again) and self.dirty:
            self._swap()
        else:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters = []
        self._journal.release(self.refusal)
        if self._trim_after:
            # Adds have paused. Delayed, as the flushed half is still referenced.
            self._trim_after = False
            self._loop.call_later(TRIM_DELAY_S, self._release_memory)

    def _release_memory(self) -> None:
        if self._pool is not None and not self._closed:
            self._pool.submit(release_freed_memory)
