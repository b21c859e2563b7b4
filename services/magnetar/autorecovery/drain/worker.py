"""Executes the requested drains; one node per drain, by a lock.

The worker runs a `Decommission` for each record of `drains` and writes its progress there. It also
continues drains of other nodes. The worker sets the mark (`/bookies-draining/{id}`) in a
transaction that checks the record's revision, so a cancelled drain leaves no mark. Every later
write checks the mark's revision, so no state outlives the mark.

If a ledger fails the proof, the drain ends REFUSED and names the ledger. The worker also lists the
ledger for repair, so that a new request may succeed. Bounds: POLL_INTERVAL_S between two reads,
DRAINS_AT_ONCE drains per node, NAMED_MAX named ledgers.
"""

import asyncio
from collections.abc import Coroutine
from typing import Final

import msgspec

from magnetar.autorecovery.check.check_all import CheckSummary
from magnetar.autorecovery.check.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.check.prover import Verdict
from magnetar.autorecovery.drain.decommission import (
    NAMED_MAX,
    Decommission,
    InTheWay,
    Preflight,
    Remaining,
    unreadable_records,
)
from magnetar.autorecovery.drain.drains import (
    Drain,
    DrainState,
    decode,
    delete_unmarked,
    drain_key,
    drain_lock_key,
    known_incarnations,
    read_with_revisions,
    refusal,
    update_operation,
)
from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.records import UnderReplicated, record_key
from magnetar.bookie.api import BookieError
from magnetar.bookie.registration import DRAINING_PREFIX, draining_key
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskScope, TaskSet
from magnetar.ledger.bookies import BookieSet
from magnetar.metadata.records import encode as encode_record
from magnetar.metadata.session import MetadataSession
from magnetar.metadata.store import (
    ABSENT,
    BadRevision,
    Check,
    LeaseLost,
    MetadataStore,
    Operation,
    Put,
    Record,
    StoreClosed,
)

POLL_INTERVAL_S: Final = 1.0
IDLE_INTERVAL_S: Final = 3.0
DRAINS_AT_ONCE: Final = 4
STUCK_POLLS_MAX: Final = 10
"""Reads in a row without a movable ledger after which a drain is refused."""
STORE_TIMEOUT_S: Final = 60.0

ADD_OR_RESTART: Final = (
    "Add bookies or restart the missing ones; `magnetar ledger check LEDGER` shows every copy"
)

log = get_logger("magnetar.autorecovery")


class DrainCancelled(Exception):
    """The drain's record changed, or its mark is gone: the run must end."""


class DrainWorker:
    """Executes drains on one node. `start`, then `stop`."""

    def __init__(
        self,
        store: MetadataStore,
        session: MetadataSession,
        bookies: BookieSet,
        checker: LedgerChecker,
        clock: Clock,
        token: str,
    ) -> None:
        self._store = store
        self._session = session
        self._bookies = bookies
        self._checker = checker
        self._clock = clock
        self._token = token
        self._busy: set[str] = set()
        self._tasks = TaskSet("autorecovery-drain")

    def start(self) -> None:
        """Starts to read the list of drains, and to execute those that are due."""
        self._tasks.start(self._run(), "run")

    async def stop(self) -> None:
        """Cancels the drains; another node continues them."""
        await self._tasks.stop()

    async def _run(self) -> None:
        while True:
            try:
                if self._session.valid:
                    await self._round()
            except StoreClosed:
                return
            except (MetadataError, TimeoutError) as error:
                log.info("drains not read, will retry", error=str(error))
            await asyncio.sleep(IDLE_INTERVAL_S)

    async def _round(self) -> None:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            drains = await read_with_revisions(self._store)
            marked = set(await self._store.children(DRAINING_PREFIX))
        for drain, revision in drains:
            if drain.state is DrainState.REMOVABLE and drain.bookie_id not in marked:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await delete_unmarked(self._store, drain, revision)
                continue
            busy = drain.bookie_id in self._busy or len(self._busy) >= DRAINS_AT_ONCE
            if not drain.state.ended and not busy:
                self._busy.add(drain.bookie_id)
                self._tasks.start(self._drain(drain.bookie_id), drain.bookie_id)

    async def _drain(self, bookie_id: str) -> None:
        lock = LeaseLock(self._store, self._session, drain_lock_key(bookie_id), self._token)
        try:
            if not await lock.take():
                return
            run = _DrainRun(self._store, self._bookies, self._checker, self._clock, bookie_id, lock)
            await run.execute()
            await lock.release()
        except (DrainCancelled, LockLost, LeaseLost, StoreClosed) as error:
            log.info("drain ended early", bookie=bookie_id, why=str(error) or "cancelled")
            await lock.give_up()
        except (MetadataError, BookieError, TimeoutError) as error:
            log.info("drain interrupted, will be retried", bookie=bookie_id, error=str(error))
            await lock.give_up()
        finally:
            self._busy.discard(bookie_id)


class _DrainRun:
    """The execution of one drain, from its current state to its end."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieSet,
        checker: LedgerChecker,
        clock: Clock,
        bookie_id: str,
        lock: LeaseLock,
    ) -> None:
        self._store = store
        self._checker = checker
        self._clock = clock
        self._lock = lock
        self._job = Decommission(store, bookies, clock, bookie_id)
        self._drain = Drain(bookie_id, DrainState.REQUESTED, 0)
        self._revision = ABSENT
        self._mark = ABSENT
        """The mark's revision; ABSENT until the mark is known to exist."""

    async def execute(self) -> None:
        """Drains the bookie.

        Raises DrainCancelled, LockLost, or an error after which a new run may continue the drain.
        """
        key = drain_key(self._job.bookie_id)
        stored = await self._store.get(key)
        if stored is None:
            raise DrainCancelled
        self._drain, self._revision = decode(key, stored.value), stored.revision
        if self._drain.state.ended:
            return
        mark = await self._store.get(draining_key(self._job.bookie_id))
        if mark is None and self._drain.state is not DrainState.REQUESTED:
            await delete_unmarked(self._store, self._drain, self._revision)
            raise DrainCancelled("its mark is gone")
        first = await self._job.preflight()
        # A bookie that was never registered holds nothing, so its drain succeeds.
        if first.problem and (first.living or first.ledgers):
            await self._refuse(first.problem, await self._job.remaining())
            return
        await self._start_copying(first, mark)
        while await self._wait_until_copied():
            if await self._prove():
                return

    async def _start_copying(self, first: Preflight, mark: Record | None) -> None:
        """Writes the mark and the record in one transaction; keeps an existing mark."""
        key, since = draining_key(self._job.bookie_id), str(self._drain.requested_ms).encode()
        await self._save(
            Put(key, since, ABSENT) if mark is None else Check(key, mark.revision),
            state=DrainState.COPYING,
            ledgers_total=max(self._drain.ledgers_total, first.ledgers),
            bytes_total=max(self._drain.bytes_total, first.bytes),
            ledgers_left=first.ledgers,
            bytes_left=first.bytes,
        )
        self._mark = self._revision if mark is None else mark.revision
        self._job.note_mark(self._mark)

    async def _wait_until_copied(self) -> bool:
        """Waits until no ledger names the bookie; returns False if it refused the drain."""
        stuck = 0
        while True:
            left = await self._job.remaining()
            if not left.ledgers and left.unreadable:
                await self._refuse(unreadable_records(left.unreadable), left)
                return False
            if not left.ledgers:
                return True
            stuck = stuck + 1 if left.hopeless == left.ledgers else 0
            if stuck >= STUCK_POLLS_MAX:
                why = f"autorecovery cannot move the remaining ledgers. {ADD_OR_RESTART}"
                await self._refuse(why, left)
                return False
            await self._save_remaining(left)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _save_remaining(self, left: Remaining) -> None:
        """Writes the ledgers that are left to copy."""
        await self._save(
            state=DrainState.COPYING,
            ledgers_left=left.ledgers,
            bytes_left=left.bytes,
            ledgers_open=left.open,
            in_the_way=tuple(left.in_the_way[:NAMED_MAX]),
        )

    async def _prove(self) -> bool:
        """Ends the drain by a proof; returns False if ledgers arrived that the proof lacks."""
        await self._save(
            state=DrainState.PROVING, ledgers_left=0, bytes_left=0, ledgers_open=0, in_the_way=()
        )
        wrong: list[LedgerReport] = []
        incarnations = await known_incarnations(self._store, self._job.bookie_id)

        def on_report(report: LedgerReport) -> None:
            if report.verdict != Verdict.HEALTHY:
                wrong.append(report)

        summary = await self._unless_cancelled(self._job.prove(self._checker, on_report))
        proven = summary.verdicts.get(Verdict.HEALTHY.value, 0)
        now_ms = self._clock.now_ms()
        if not summary.exit_code and not wrong:
            late = await self._job.late_arrivals()
            if late.unreadable:
                await self._refuse(unreadable_records(late.unreadable), late)
                return True
            if late.ledgers or late.unproven:
                await self._save_remaining(late)
                return False
            await self._save(
                state=DrainState.REMOVABLE,
                ledgers_proven=proven,
                proven_ms=now_ms,
                incarnations=incarnations,
            )
            log.info("bookie may be removed", bookie=self._job.bookie_id, ledgers=proven)
            return True
        await self._refuse_unproven(summary, wrong, now_ms)
        return True

    async def _unless_cancelled(self, proof: Coroutine[object, None, CheckSummary]) -> CheckSummary:
        """Runs a proof, which may take hours; cancels it if the drain's record changes."""
        async with TaskScope("autorecovery drains") as scope:
            task = scope.start(proof, f"proof of {self._job.bookie_id}")
            while not (await asyncio.wait([task], timeout=IDLE_INTERVAL_S))[0]:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    stored = await self._store.get(drain_key(self._job.bookie_id))
                if stored is None or stored.revision != self._revision:
                    raise DrainCancelled
            return task.result()

    async def _refuse_unproven(
        self, summary: CheckSummary, wrong: list[LedgerReport], now_ms: int
    ) -> None:
        """Names the ledgers that failed the proof, and lists them for repair."""
        wrong.sort(key=lambda report: report.ledger_id)
        for report in wrong[:NAMED_MAX]:
            await self._list_for_repair(report, now_ms)
        left = Remaining(ledgers=len(wrong), in_the_way=[_failed_proof(report) for report in wrong])
        proven = summary.verdicts.get(Verdict.HEALTHY.value, 0)
        self._drain = msgspec.structs.replace(self._drain, ledgers_proven=proven)
        why = (
            f"{len(wrong)} ledgers have too few copies that could be proven on other bookies; "
            f"autorecovery replicates them if it can. {ADD_OR_RESTART}"
        )
        if summary.unreadable:
            why = unreadable_records(summary.unreadable)
        await self._refuse(why, left)

    async def _list_for_repair(self, report: LedgerReport, now_ms: int) -> None:
        """Lists the ledger for repair, unless it is listed or its proof had no answer."""
        if report.verdict == Verdict.UNPROVEN:
            return
        reason = f"{report.verdict}: {report.entries_wrong} entries, found by the proof of a drain"
        record = UnderReplicated(report.ledger_id, (reason,), now_ms, prove=True)
        key = record_key(report.ledger_id)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._store.transact(
                    [self._lock.check(), Put(key, encode_record(record), ABSENT)]
                )
        except BadRevision as error:
            if error.key != key:
                raise LockLost("another node executes this drain") from error

    async def _refuse(self, why: str, left: Remaining) -> None:
        now_ms = self._clock.now_ms()
        drain = msgspec.structs.replace(self._drain, ledgers_left=left.ledgers)
        self._drain = refusal(drain, why, left.in_the_way, now_ms)
        await self._save()
        log.warning("drain refused", bookie=self._job.bookie_id, why=why, ledgers=left.ledgers)

    async def _save(self, *more: Operation, **changes: object) -> None:
        """Updates the record, in a transaction that checks its revision, the lock and the mark."""
        drain = msgspec.structs.replace(self._drain, updated_ms=self._clock.now_ms(), **changes)
        operations = [self._lock.check(), update_operation(drain, self._revision), *more]
        if self._mark != ABSENT:
            operations.append(Check(draining_key(self._job.bookie_id), self._mark))
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                self._revision = await self._store.transact(operations)
        except BadRevision as error:
            if error.key == self._lock.key:
                raise LockLost("another node executes this drain") from error
            raise DrainCancelled from error
        self._drain = drain


def _failed_proof(report: LedgerReport) -> InTheWay:
    first = report.findings[0]  # an unhealthy report has at least one
    answers = ", ".join(f"{answer.bookie.bookie_id}: {answer.text}" for answer in first.answers)
    example = f"; entries {first.first} to {first.last}: {answers}"
    hopeless = report.verdict == Verdict.LOST
    text = f"{report.verdict}: {report.entries_wrong} of {report.entries} entries{example}"
    return InTheWay(report.ledger_id, text, hopeless)
