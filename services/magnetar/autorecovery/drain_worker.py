"""Empties the bookies that somebody asked to be emptied, one node per bookie, by a lock.

`Decommission` knows how; this does it for each record of `drains`, writes the progress there, and
goes on with what another node began. The mark (`/bookies-draining/{id}`) is set in the same
transaction that holds the record to its revision, so that a cancelled drain leaves no mark behind.
Every later write checks the mark's revision, so that no state outlives the mark.

A copy that fails the proof ends the drain as refused, names the ledger, and puts it on the list of
autorecovery to be made right: asked again later, the drain may succeed. Bounds: LOOK_INTERVAL_S
between two looks, DRAINS_AT_ONCE drains of a node, NAMED_MAX ledgers named.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from magnetar.autorecovery.check_all import CheckSummary
from magnetar.autorecovery.decommission import (
    NAMED_MAX,
    Decommission,
    InTheWay,
    Left,
    Preflight,
    unreadable_records,
)
from magnetar.autorecovery.drains import (
    Drain,
    DrainState,
    decode,
    drain_key,
    drain_lock_key,
    end_unmarked,
    known_incarnations,
    put_over,
    read_with_revisions,
    refusal,
)
from magnetar.autorecovery.lease_lock import LeaseLock, LockLost
from magnetar.autorecovery.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.proving import Verdict
from magnetar.autorecovery.records import UnderReplicated, record_key
from magnetar.autorecovery.records import encode as encode_record
from magnetar.bookie.api import BookieError
from magnetar.bookie.registration import DRAINING_PREFIX, draining_key
from magnetar.core.clock import Clock
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.ledger.bookies import BookieSet
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

LOOK_INTERVAL_S: Final = 1.0
IDLE_INTERVAL_S: Final = 3.0
DRAINS_AT_ONCE: Final = 4
STUCK_LOOKS_MAX: Final = 10
"""Looks in a row at which autorecovery had given up on all that is left."""
STORE_TIMEOUT_S: Final = 60.0

ADD_OR_BRING_BACK: Final = (
    "Add bookies or bring back those that are missing; `magnetar ledger check LEDGER` shows every "
    "copy"
)

log = get_logger("magnetar.autorecovery")


class Cancelled(Exception):
    """The record or the mark is gone, or somebody asked anew: what was under way is over."""


class DrainWorker:
    """See the module's text."""

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
        self._tasks.start(self._look(), "look")

    async def stop(self) -> None:
        """Cuts off what it does; another node goes on."""
        await self._tasks.stop()

    async def _look(self) -> None:
        while True:
            try:
                if self._session.valid:
                    await self._round()
            except StoreClosed:
                return
            except (MetadataError, TimeoutError) as error:
                log.info("drains not looked at", error=str(error))
            await asyncio.sleep(IDLE_INTERVAL_S)

    async def _round(self) -> None:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            found = await read_with_revisions(self._store)
            marked = set(await self._store.children(DRAINING_PREFIX))
        for drain, revision in found:
            if drain.state is DrainState.REMOVABLE and drain.bookie_id not in marked:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await end_unmarked(self._store, drain, revision)
                continue
            busy = drain.bookie_id in self._busy or len(self._busy) >= DRAINS_AT_ONCE
            if not drain.state.ended and not busy:
                self._busy.add(drain.bookie_id)
                self._tasks.start(self._one(drain.bookie_id), drain.bookie_id)

    async def _one(self, bookie_id: str) -> None:
        lock = LeaseLock(self._store, self._session, drain_lock_key(bookie_id), self._token)
        try:
            if not await lock.take():
                return
            work = _Work(self._store, self._bookies, self._checker, self._clock, bookie_id, lock)
            await work.run()
            await lock.release()
        except (Cancelled, LockLost, LeaseLost, StoreClosed) as error:
            log.info("drain broken off", bookie=bookie_id, why=str(error) or "cancelled")
            await lock.give_up()
        except (MetadataError, BookieError, TimeoutError) as error:
            log.info("drain interrupted", bookie=bookie_id, error=str(error))
            await lock.give_up()
        finally:
            self._busy.discard(bookie_id)


class _Work:
    """One drain, from where it stands to its end."""

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
        """The mark's revision; ABSENT until it is known to stand."""

    async def run(self) -> None:
        """Raises Cancelled, LockLost, and what interrupts it: it may be begun again."""
        key = drain_key(self._job.bookie_id)
        stored = await self._store.get(key)
        if stored is None:
            raise Cancelled
        self._drain, self._revision = decode(key, stored.value), stored.revision
        if self._drain.state.ended:
            return
        mark = await self._store.get(draining_key(self._job.bookie_id))
        if mark is None and self._drain.state is not DrainState.REQUESTED:
            await end_unmarked(self._store, self._drain, self._revision)
            raise Cancelled("its mark is gone")
        first = await self._job.look_first()
        # One that never was here holds nothing: whoever asks may let it go.
        was_here = first.living or first.ledgers or first.others < first.needed
        if first.problem and was_here:
            await self._refuse(first.problem, await self._job.look())
            return
        await self._begin(first, mark)
        while await self._copied():
            if await self._proven():
                return

    async def _begin(self, first: Preflight, mark: Record | None) -> None:
        """The mark and the record go together. A mark that stands stays as it is."""
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
        self._job.marked(self._mark)

    async def _copied(self) -> bool:
        """Waits until nothing names it; False where that is not to be expected."""
        stuck = 0
        while True:
            left = await self._job.look()
            if not left.ledgers and left.unreadable:
                await self._refuse(unreadable_records(left.unreadable), left)
                return False
            if not left.ledgers:
                return True
            stuck = stuck + 1 if left.hopeless == left.ledgers else 0
            if stuck >= STUCK_LOOKS_MAX:
                why = f"autorecovery cannot move what is left. {ADD_OR_BRING_BACK}"
                await self._refuse(why, left)
                return False
            await self._note(left)
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _note(self, left: Left) -> None:
        """Writes what is left to be copied."""
        await self._save(
            state=DrainState.COPYING,
            ledgers_left=left.ledgers,
            bytes_left=left.bytes,
            ledgers_open=left.open,
            in_the_way=tuple(left.in_the_way[:NAMED_MAX]),
        )

    async def _proven(self) -> bool:
        """Ends the drain by a proof; False where ledgers came meanwhile that it does not cover."""
        await self._save(
            state=DrainState.PROVING, ledgers_left=0, bytes_left=0, ledgers_open=0, in_the_way=()
        )
        wrong: list[LedgerReport] = []
        incarnations = await known_incarnations(self._store, self._job.bookie_id)

        def on_report(report: LedgerReport) -> None:
            if report.verdict != Verdict.HEALTHY:
                wrong.append(report)

        summary = await self._while_wanted(self._job.prove(self._checker, on_report))
        proven = summary.verdicts.get(Verdict.HEALTHY.value, 0)
        now_ms = self._clock.now_ms()
        if not summary.exit_code and not wrong:
            late = await self._job.late()
            if late.unreadable:
                await self._refuse(unreadable_records(late.unreadable), late)
                return True
            if late.ledgers or late.unproven:
                await self._note(late)
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

    async def _while_wanted(self, proof: Coroutine[Any, Any, CheckSummary]) -> CheckSummary:
        """A proof may take hours: it is cut off once the drain is cancelled or asked for anew."""
        task = asyncio.create_task(proof, name=f"proof of {self._job.bookie_id}")
        try:
            while not (await asyncio.wait([task], timeout=IDLE_INTERVAL_S))[0]:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    stored = await self._store.get(drain_key(self._job.bookie_id))
                if stored is None or stored.revision != self._revision:
                    raise Cancelled
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _refuse_unproven(
        self, summary: CheckSummary, wrong: list[LedgerReport], now_ms: int
    ) -> None:
        """Names the ledgers whose proof failed, and has autorecovery copy them anew."""
        wrong.sort(key=lambda one: one.ledger_id)
        for report in wrong[:NAMED_MAX]:
            await self._enlist(report, now_ms)
        left = Left(ledgers=len(wrong), in_the_way=[_failed_proof(one) for one in wrong])
        proven = summary.verdicts.get(Verdict.HEALTHY.value, 0)
        self._drain = msgspec.structs.replace(self._drain, ledgers_proven=proven)
        why = (
            f"{len(wrong)} ledgers have too few copies elsewhere that could be proven; "
            f"autorecovery makes them anew where it can. {ADD_OR_BRING_BACK}"
        )
        if summary.unreadable:
            why = unreadable_records(summary.unreadable)
        await self._refuse(why, left)

    async def _enlist(self, report: LedgerReport, now_ms: int) -> None:
        """Has autorecovery put it right, unless it knows of it."""
        if report.verdict == Verdict.UNPROVEN:
            return
        reason = f"{report.verdict}: {report.entries_wrong} entries, found before a removal"
        record = UnderReplicated(report.ledger_id, (reason,), now_ms, prove=True)
        key = record_key(report.ledger_id)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._store.transact(
                    [self._lock.check(), Put(key, encode_record(record), ABSENT)]
                )
        except BadRevision as error:
            if error.key != key:
                raise LockLost("another works at it") from error

    async def _refuse(self, why: str, left: Left) -> None:
        now_ms = self._clock.now_ms()
        drain = msgspec.structs.replace(self._drain, ledgers_left=left.ledgers)
        self._drain = refusal(drain, why, left.in_the_way, now_ms)
        await self._save()
        log.warning("drain refused", bookie=self._job.bookie_id, why=why, ledgers=left.ledgers)

    async def _save(self, *more: Operation, **changes: object) -> None:
        """Over the record as we know it, while the lock is ours and the mark stands."""
        drain = msgspec.structs.replace(self._drain, updated_ms=self._clock.now_ms(), **changes)
        operations = [self._lock.check(), put_over(drain, self._revision), *more]
        if self._mark != ABSENT:
            operations.append(Check(draining_key(self._job.bookie_id), self._mark))
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                self._revision = await self._store.transact(operations)
        except BadRevision as error:
            if error.key == self._lock.key:
                raise LockLost("another works at it") from error
            raise Cancelled from error
        self._drain = drain


def _failed_proof(report: LedgerReport) -> InTheWay:
    said = ""
    if report.findings:
        first = report.findings[0]
        answers = ", ".join(f"{one.bookie.bookie_id}: {one.said}" for one in first.answers)
        said = f"; entries {first.first} to {first.last}: {answers}"
    hopeless = report.verdict == Verdict.LOST
    text = f"{report.verdict}: {report.entries_wrong} of {report.entries} entries{said}"
    return InTheWay(report.ledger_id, text, hopeless)
