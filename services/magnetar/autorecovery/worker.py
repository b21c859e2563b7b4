"""Takes under-replicated ledgers from the list, one lock each, and has them restored.

Every node runs one. It reads the list a page at a time whenever a watch tells of a change, whenever
something becomes due, and every `poll_interval_s`. A ledger is worked on by whoever holds its lock,
a key under the node's lease; the transaction that ends the attempt also gives up the lock. Whatever
an attempt runs into counts as an attempt, so that nothing is tried without end.
"""

import asyncio
import contextlib
from random import Random
from typing import Final

from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.next_step import Outcome, OutcomeKind, left_ms, next_record
from magnetar.autorecovery.records import (
    RECORDS_PREFIX,
    RecordState,
    UnderReplicated,
    encode,
    lock_key,
    readable,
    record_key,
)
from magnetar.autorecovery.replicator import Replicator
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.core.clock import Clock
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
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
"""When to look again at what another node works on."""
WAITING_RETRY_S: Final = 1.0
"""When to look again at a ledger that waits, at the earliest, whatever clocks say."""
TROUBLE_RETRY_S: Final = 1.0
STORE_TIMEOUT_S: Final = 30.0

log = get_logger("magnetar.autorecovery")


class Worker:
    """See the module's text. `start`, then `stop`."""

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
        """Ledgers that this process has found to wait, by its own monotonic clock. If the clocks of
        two processes differ by more than any wait, each takes the other's time for wrong."""

    def start(self) -> None:
        self._tasks.start(self._watch(), "watch")
        self._tasks.start(self._work(), "work")

    async def stop(self) -> None:
        """Cuts off what it does: a copy that was not finished is made again by the next."""
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
                log.info("watch of the list ended", error=str(error))
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
        """Reads the list once and starts what is due; how long until the next, at most."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            names = list(await self._store.children(RECORDS_PREFIX))
        # Nodes begin at different places, so that they get in each other's way less.
        begin = self._rng.randrange(len(names)) if names else 0
        wait_s = self._settings.poll_interval_s
        counts = dict.fromkeys(RecordState, 0)
        due_count = 0
        for name in names[begin:] + names[:begin]:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                stored = await self._store.list(f"{RECORDS_PREFIX}{name}/")
            for one in stored:
                record = readable(one.key, one.value)
                if record is None:
                    continue
                counts[record.state] += 1
                if record.state is not RecordState.WAITING:
                    continue
                now_ms = self._clock.now_ms()
                left_s = left_ms(record.not_before_ms, now_ms, self._settings) / 1000
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
        self._stats.looked(
            listed=sum(counts.values()),
            due=due_count,
            parked=counts[RecordState.PARKED],
            lost=counts[RecordState.LOST],
        )
        return wait_s

    async def _start(self, ledger_id: int) -> None:
        await self._free.acquire()
        self._busy.add(ledger_id)
        if self._tasks.start(self._one(ledger_id), f"ledger {ledger_id}") is None:
            self._done(ledger_id)

    def _done(self, ledger_id: int) -> None:
        self._busy.discard(ledger_id)
        self._free.release()

    async def _one(self, ledger_id: int) -> None:
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
        """Gives up the lock, if no transaction did. Until then the ledger counts as busy."""
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
            log.error("attempt failed", ledger=ledger_id, error=repr(error), exc_info=bug)
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
        self._tell(record, outcome, after)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._store.transact([lock.release_with(), change])
        except BadRevision as error:
            if error.key == lock.key:
                raise LockLost(f"{lock.key} was taken by another") from error
            return  # the auditor has written the record anew: it is looked at again
        lock.forget()

    def _is_due(self, record: UnderReplicated) -> bool:
        waiting = record.state is RecordState.WAITING
        return waiting and left_ms(record.not_before_ms, self._clock.now_ms(), self._settings) <= 0

    def _tell(
        self, record: UnderReplicated, outcome: Outcome, after: UnderReplicated | None
    ) -> None:
        self._stats.ended(outcome.kind)
        ledger, detail = record.ledger_id, outcome.detail
        if after is None:
            size = outcome.bytes
            log.info("ledger done", ledger=ledger, outcome=outcome.kind, bytes=size)
        elif after.state is RecordState.LOST:
            ranges = ", ".join(f"{one.first}-{one.last}" for one in after.lost)
            log.error("entries are lost: no bookie has a copy", ledger=ledger, entries=ranges)
        elif after.state is RecordState.PARKED:
            log.error("ledger stays under-replicated", ledger=ledger, detail=detail)
        else:
            log.info("ledger waits", ledger=ledger, detail=detail, attempts=after.attempts)
