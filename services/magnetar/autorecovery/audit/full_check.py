"""The periodic check of every copy of every ledger, by the auditor, at a bounded rate.

The check saves its progress after each page, so that another auditor continues there. It lists an
unhealthy ledger with `prove` set: the ledger's record is right, so only reading the copies shows
the damage. A ledger that is already listed keeps its record, except that a lost one is restored
again if its copies have more damage than the record names.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from magnetar.autorecovery.check.ledger_check import Finding, LedgerChecker, LedgerReport
from magnetar.autorecovery.check.prover import Verdict
from magnetar.autorecovery.check.repairer import HOPELESS, WRONG_COPIES
from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.pages import newest_ledger, read_page
from magnetar.autorecovery.records import (
    CHECK_STATE_KEY,
    LOST_RANGES_MAX,
    PAGE_LEDGERS,
    CheckState,
    LostEntries,
    RecordState,
    UnderReplicated,
    decode_check,
    is_due,
    readable,
    record_key,
)
from magnetar.autorecovery.repair.next_step import requeued
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.ledger.metadata import NO_ENTRY
from magnetar.metadata.records import encode
from magnetar.metadata.store import ABSENT, BadRevision, LeaseLost, MetadataStore, Put, StoreClosed

CHECK_DUE_INTERVAL_S: Final = 60.0
"""How often the auditor tests whether a check is due; also the pause after a failure."""

log = get_logger("magnetar.autorecovery")


def has_new_damage(record: UnderReplicated, findings: Sequence[Finding]) -> bool:
    """Whether a lost ledger has wrong copies of entries that its record does not name. Pure.

    Copies on bookies that do not answer are no damage: the audit of the bookies restores those. Of
    a record with LOST_RANGES_MAX ranges, only entries up to the last range count, because others
    may have been left out.
    """
    if record.state is not RecordState.LOST:
        return False
    is_full = len(record.lost) >= LOST_RANGES_MAX
    end = record.lost[-1].last if is_full else max((f.last for f in findings), default=NO_ENTRY)
    return any(
        not _is_named(range(finding.first, min(finding.last, end) + 1), record.lost)
        for finding in findings
        if finding.verdict in HOPELESS
        or any(answer.text in WRONG_COPIES for answer in finding.answers)
    )


def _is_named(entries: range, lost: Sequence[LostEntries]) -> bool:
    """Whether the ranges cover all of the entries."""
    return all(any(part.first <= entry <= part.last for part in lost) for entry in entries)


class FullCheck:
    """Reads and compares all copies of all ledgers, once per `check_interval_s`."""

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
        self._next_test_at = 0.0

    def start_if_due(self, lock: LeaseLock) -> None:
        """Starts a check if one is due and none is running. `lock` is the auditor's."""
        if not self._settings.check_interval_s or self._clock.monotonic() < self._next_test_at:
            return
        if self._task is None or self._task.done():
            self._next_test_at = self._clock.monotonic() + CHECK_DUE_INTERVAL_S
            self._task = self._tasks.start(self._run(lock), "run")

    def cancel(self) -> None:
        """Cancels the running check: this node is no longer the auditor."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self) -> None:
        """Cancels the running check; none can be started afterwards."""
        await self._tasks.stop()

    async def _run(self, lock: LeaseLock) -> None:
        try:
            stored = await self._store.get(CHECK_STATE_KEY)
            now_ms = self._clock.now_ms()
            state = CheckState(begun_ms=now_ms) if stored is None else decode_check(stored.value)
            if stored is None:
                # The first check of a new cluster is due after one interval.
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
            log.info("check interrupted, will continue later", error=str(error))

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
        """Lists the ledger; if it is already listed, requeues it if the record is out of date."""
        log.warning(
            "copies are missing or wrong",
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
                raise LockLost("another node is the auditor") from error
            await self._requeue(report, lock)

    async def _requeue(self, report: LedgerReport, lock: LeaseLock) -> None:
        """Requeues a ledger that is listed as lost, if the report has damage that is not named."""
        key = record_key(report.ledger_id)
        stored = await self._store.get(key)
        record = None if stored is None else readable(key, stored.value)
        if stored is None or record is None or not has_new_damage(record, report.findings):
            return
        after = requeued(record, (), bookies_changed=True)
        try:
            await self._store.transact([lock.check(), Put(key, encode(after), stored.revision)])
        except BadRevision as error:
            if error.key != key:
                raise LockLost("another node is the auditor") from error

    async def _save(self, state: CheckState, lock: LeaseLock) -> None:
        try:
            value = msgspec.json.encode(state)
            await self._store.transact([lock.check(), Put(CHECK_STATE_KEY, value)])
        except BadRevision as error:
            raise LockLost("another node is the auditor") from error
