"""The periodic check of every copy of every ledger, by the auditor, at a bounded rate.

It notes after each page how far it is, so that another auditor goes on there. A ledger that is not
healthy is listed with `prove`: its record looks right, so only reading finds what is wrong. Entries
that the list names as lost already, or that are parked, are not listed anew.
"""

import asyncio
from typing import Final

import msgspec

from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.next_step import is_due
from magnetar.autorecovery.pages import newest_ledger, read_page
from magnetar.autorecovery.proving import Verdict
from magnetar.autorecovery.records import (
    CHECK_STATE_KEY,
    PAGE_LEDGERS,
    CheckState,
    UnderReplicated,
    decode_check,
    encode,
    record_key,
)
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.metadata.store import ABSENT, BadRevision, LeaseLost, MetadataStore, Put, StoreClosed

LOOK_AGAIN_S: Final = 60.0
"""Between two looks at whether it is due; also the pause after a failure."""

log = get_logger("magnetar.autorecovery")


class FullCheck:
    """See the module's text."""

    def __init__(
        self,
        store: MetadataStore,
        checker: LedgerChecker,
        clock: Clock,
        settings: AutorecoverySettings,
        stats: AutorecoveryStats,
    ) -> None:
        self._store = store
        self._checker = checker
        self._clock = clock
        self._settings = settings
        self._stats = stats
        self._tasks = TaskSet("autorecovery-check")
        self._task: asyncio.Task[None] | None = None
        self._look_at = 0.0

    def look(self, lock: LeaseLock) -> None:
        """Starts it where it is due and does not run. `lock` is the auditor's."""
        if not self._settings.check_interval_s or self._clock.monotonic() < self._look_at:
            return
        if self._task is None or self._task.done():
            self._look_at = self._clock.monotonic() + LOOK_AGAIN_S
            self._task = self._tasks.start(self._run(lock), "run")

    def interrupt(self) -> None:
        """Another is the auditor now, or the process ends."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self) -> None:
        """For good."""
        await self._tasks.stop()

    async def _run(self, lock: LeaseLock) -> None:
        try:
            stored = await self._store.get(CHECK_STATE_KEY)
            now_ms = self._clock.now_ms()
            state = CheckState(begun_ms=now_ms) if stored is None else decode_check(stored.value)
            if stored is None:
                # A new cluster has nothing to check yet.
                await self._save(state, lock)
            if state.next_page < 0:
                if not is_due(state.begun_ms, now_ms, self._settings.check_interval_s):
                    return
                state = CheckState(now_ms, 0)
            await self._check_from(state, lock)
        except (LockLost, LeaseLost, StoreClosed):
            return
        except (MetadataError, TimeoutError) as error:
            self._stats.failed(error)
            log.info("check interrupted", error=str(error))

    async def _check_from(self, state: CheckState, lock: LeaseLock) -> None:
        pages = await newest_ledger(self._store) // PAGE_LEDGERS + 1
        for number in range(state.next_page, pages):
            page = await read_page(self._store, number)
            for ledger in page.ledgers:
                lock.check()
                report = await self._checker.check(ledger.metadata)
                self._stats.ledgers_checked += 1
                if report.verdict not in (Verdict.HEALTHY, Verdict.UNPROVEN):
                    await self._list(report, lock)
            if page.ledgers or number % PAGE_LEDGERS == 0:
                await self._save(CheckState(state.begun_ms, number + 1), lock)
        await self._save(CheckState(state.begun_ms), lock)
        self._stats.checks += 1
        log.info("all copies of all ledgers checked", ledgers=self._stats.ledgers_checked)

    async def _list(self, report: LedgerReport, lock: LeaseLock) -> None:
        """Puts the ledger on the list, unless it is there."""
        log.warning(
            "copies are wrong",
            ledger=report.ledger_id,
            verdict=report.verdict,
            entries=report.entries_wrong,
        )
        now_ms = self._clock.now_ms()
        grace_ms = int(self._settings.open_ledger_grace_s * 1000)
        reason = f"{report.verdict}: {report.entries_wrong} entries"
        record = UnderReplicated(
            report.ledger_id, (reason,), now_ms, grace_until_ms=now_ms + grace_ms, prove=True
        )
        key = record_key(report.ledger_id)
        try:
            await self._store.transact([lock.check(), Put(key, encode(record), ABSENT)])
        except BadRevision as error:
            if error.key != key:
                raise LockLost("another is the auditor") from error

    async def _save(self, state: CheckState, lock: LeaseLock) -> None:
        try:
            value = msgspec.json.encode(state)
            await self._store.transact([lock.check(), Put(CHECK_STATE_KEY, value)])
        except BadRevision as error:
            raise LockLost("another is the auditor") from error
