"""Restores the ledgers on the list of under-replicated ledgers; every node runs one worker.

The worker reads the list, a page at a time, when a watch reports a change, when a ledger becomes
due, and every `poll_interval_s`. It holds a ledger's lock, a key under the node's lease, during an
attempt; the transaction that ends the attempt also releases the lock. An attempt that raises counts
as failed, so that no ledger is retried forever.
"""

import asyncio
import contextlib
from random import Random
from typing import Final

from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.records import (
    RECORDS_PREFIX,
    RecordState,
    UnderReplicated,
    lock_key,
    readable,
    record_key,
)
from magnetar.autorecovery.repair.next_step import Outcome, OutcomeKind, next_record, remaining_ms
from magnetar.autorecovery.repair.replicator import Replicator
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.records import encode
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    BadRevision,
    Delete,
    LeaseLost,
    MetadataStore,
    Operation,
    Put,
    StoreClosed,
)

HELD_RETRY_S: Final = 5.0
"""The time until the next read of the list while ledgers are due, as another node may hold them."""
WAITING_RETRY_S: Final = 1.0
"""The minimum time between two attempts at a ledger that waits, even if the clocks differ."""
TROUBLE_RETRY_S: Final = 1.0
STORE_TIMEOUT_S: Final = 30.0

log = get_logger("magnetar.autorecovery")


class Worker:
    """Attempts the due ledgers, `ledgers_at_once` concurrently. `start`, then `stop`."""

    def __init__(
        self,
        store: MetadataStore,
        session: MetadataSession,
        replicator: Replicator,
        clock: Clock,
        settings: AutorecoverySettings,
        stats: AutorecoveryStats,
        token: str,
        rng: Random,
    ) -> None:
        self._store = store
        self._session = session
        self._replicator = replicator
        self._clock = clock
        self._settings = settings
        self._stats = stats
        self._token = token
        self._rng = rng
        self._tasks = TaskSet("autorecovery-worker")
        self._changed = asyncio.Event()
        self._free = asyncio.Semaphore(settings.ledgers_at_once)
        self._busy: set[int] = set()
        self._waits_until_s: dict[int, float] = {}
        """Ledgers whose last attempt here ended with WAITS, with the earliest next attempt by the
        monotonic clock. The record's time is not enough: if the wall clocks of two processes differ
        by more than the longest wait, each ignores the other's times."""

    def start(self) -> None:
        """Starts to watch the list and to attempt due ledgers."""
        self._tasks.start(self._watch(), "watch")
        self._tasks.start(self._work(), "work")

    async def stop(self) -> None:
        """Cancels the attempts; another worker repeats them."""
        await self._tasks.stop()

    async def _watch(self) -> None:
        while True:
            watch = self._store.watch(RECORDS_PREFIX)
            try:
                async for _ in watch:
                    self._changed.set()
            except StoreClosed:
                return
            except MetadataError as error:
                log.info(
                    "watch of under-replicated ledgers ended, will reopen it", error=str(error)
                )
            finally:
                watch.close()
            self._changed.set()
            await asyncio.sleep(TROUBLE_RETRY_S)

    async def _work(self) -> None:
        while True:
            self._changed.clear()
            wait_s = TROUBLE_RETRY_S
            if self._session.valid:
                try:
                    wait_s = await self._round()
                except StoreClosed:
                    return
                except (MetadataError, TimeoutError) as error:
                    self._stats.failed(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def _round(self) -> float:
        """Reads the list once and starts the due attempts; returns the time until the next read."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            names = list(await self._store.children(RECORDS_PREFIX))
        # Nodes start at different pages, so that they compete less for locks.
        begin = self._rng.randrange(len(names)) if names else 0
        wait_s = self._settings.poll_interval_s
        counts = dict.fromkeys(RecordState, 0)
        due_count = 0
        for name in names[begin:] + names[:begin]:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                stored = await self._store.list(f"{RECORDS_PREFIX}{name}/")
            for stored_record in stored:
                record = readable(stored_record.key, stored_record.value)
                if record is None:
                    continue
                counts[record.state] += 1
                if record.state is not RecordState.WAITING:
                    continue
                now_ms = self._clock.now_ms()
                left_s = remaining_ms(record.not_before_ms, now_ms, self._settings) / 1000
                if left_s > 0:
                    wait_s = min(wait_s, left_s)
                    continue
                due_count += 1
                wait_s = min(wait_s, HELD_RETRY_S)
                if self._waits_until_s.get(record.ledger_id, 0.0) > self._clock.monotonic():
                    continue
                if record.ledger_id not in self._busy:
                    await self._start(record.ledger_id)
        now_s = self._clock.monotonic()
        waits = self._waits_until_s.items()
        self._waits_until_s = {ledger_id: until for ledger_id, until in waits if until > now_s}
        self._stats.list_read(
            listed=sum(counts.values()),
            due=due_count,
            parked=counts[RecordState.PARKED],
            lost=counts[RecordState.LOST],
        )
        return wait_s

    async def _start(self, ledger_id: int) -> None:
        await self._free.acquire()
        self._busy.add(ledger_id)
        if self._tasks.start(self._attempt_under_lock(ledger_id), f"ledger {ledger_id}") is None:
            self._done(ledger_id)

    def _done(self, ledger_id: int) -> None:
        self._busy.discard(ledger_id)
        self._free.release()

    async def _attempt_under_lock(self, ledger_id: int) -> None:
        lock = LeaseLock(self._store, self._session, lock_key(ledger_id), self._token)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                if not await lock.take():
                    self._stats.ended("held by another node")
                    return
            await self._attempt(ledger_id, lock)
        except (LockLost, LeaseLost):
            lock.forget()
            self._stats.ended("lock lost")
        except StoreClosed:
            return
        except (MetadataError, TimeoutError) as error:
            self._stats.failed(error)
        finally:
            self._free.release()
            if self._tasks.start(self._release(ledger_id, lock), "release") is None:
                self._busy.discard(ledger_id)

    async def _release(self, ledger_id: int, lock: LeaseLock) -> None:
        """Releases the lock unless a transaction did. Until then the ledger counts as busy."""
        try:
            await lock.give_up()
        finally:
            self._busy.discard(ledger_id)

    async def _attempt(self, ledger_id: int, lock: LeaseLock) -> None:
        key = record_key(ledger_id)
        async with asyncio.timeout(STORE_TIMEOUT_S):
            stored = await self._store.get(key)
        record = None if stored is None else readable(key, stored.value)
        if stored is None or record is None or not self._is_due(record):
            return
        try:
            outcome = await self._replicator.restore(record, lock.check)
        except (LockLost, LeaseLost, StoreClosed):
            raise
        except (MagnetarError, TimeoutError, ValueError, LookupError, OSError) as error:
            self._stats.failed(error)
            bug = error if isinstance(error, ValueError | LookupError) else None
            log.error(
                "attempt to restore a ledger failed",
                ledger=ledger_id,
                error=repr(error),
                exc_info=bug,
            )
            outcome = Outcome(OutcomeKind.FAILED, f"{type(error).__name__}: {error}")
        if outcome.kind is OutcomeKind.WAITS:
            pause_s = min(outcome.wait_ms / 1000, WAITING_RETRY_S)
            self._waits_until_s[ledger_id] = self._clock.monotonic() + pause_s
        after = next_record(record, outcome, self._clock.now_ms(), self._settings, self._rng)
        change: Operation = (
            Delete(key, stored.revision)
            if after is None
            else Put(key, encode(after), stored.revision)
        )
        lock.check()
        self._log_outcome(record, outcome, after)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._store.transact([lock.release_with(), change])
        except BadRevision as error:
            if error.key == lock.key:
                raise LockLost(f"another node has taken {lock.key}") from error
            return  # the auditor changed the record, so the next round reads it again
        lock.forget()

    def _is_due(self, record: UnderReplicated) -> bool:
        waiting = record.state is RecordState.WAITING
        return (
            waiting
            and remaining_ms(record.not_before_ms, self._clock.now_ms(), self._settings) <= 0
        )

    def _log_outcome(
        self, record: UnderReplicated, outcome: Outcome, after: UnderReplicated | None
    ) -> None:
        self._stats.ended(outcome.kind)
        ledger, detail = record.ledger_id, outcome.detail
        if after is None:
            size = outcome.bytes
            log.info(
                "ledger removed from the list", ledger=ledger, outcome=outcome.kind, bytes=size
            )
        elif after.state is RecordState.LOST:
            ranges = ", ".join(f"{entries.first}-{entries.last}" for entries in after.lost)
            log.error("entries are lost: no bookie has a copy", ledger=ledger, entries=ranges)
        elif after.state is RecordState.PARKED:
            log.error(
                "ledger parked until the set of bookies changes", ledger=ledger, detail=detail
            )
        else:
            log.info(
                "ledger waits for the next attempt",
                ledger=ledger,
                detail=detail,
                attempts=after.attempts,
            )
