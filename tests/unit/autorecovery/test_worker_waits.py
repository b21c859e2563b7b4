"""The times of attempts at waiting ledgers and of lost bookies, and the results of a check."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.autorecovery.stage import Stage, run
from tests.unit.autorecovery.test_auditing import Rig as AuditRig
from tests.unit.autorecovery.test_auditing import rigged
from tests.unit.autorecovery.test_drain_worker import Checker
from tests.unit.autorecovery.test_restoring import SETTINGS, Rig

from magnetar.autorecovery.check.ledger_check import LedgerReport
from magnetar.autorecovery.drain.decommission import Decommission
from magnetar.autorecovery.members import BookieState, MemberWatch
from magnetar.autorecovery.records import CheckState, UnderReplicated, record_key
from magnetar.autorecovery.repair.next_step import Outcome, OutcomeKind
from magnetar.autorecovery.repair.worker import WAITING_RETRY_S
from magnetar.ledger.metadata import LedgerState, ledger_key
from magnetar.metadata.records import encode


class Waits:
    """A running worker whose attempts end as a test decides, and the times of the attempts."""

    def __init__(self, outcome: Outcome) -> None:
        self.rig = Rig("a", "b")
        self.attempts: list[float] = []

        async def restore(record: UnderReplicated, check_lock: object) -> Outcome:
            self.attempts.append(self.now)
            return outcome

        self.rig.replicator.restore = restore  # type: ignore[method-assign]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        await self.rig.session.start()
        self.rig.worker.start()
        await asyncio.sleep(1)

    async def put(self, **changes: Any) -> None:
        record = msgspec.structs.replace(UnderReplicated(1, ("gone",), 0), **changes)
        await self.rig.stage.store.put(record_key(1), encode(record))

    async def stop(self) -> None:
        await self.rig.worker.stop()
        await self.rig.session.stop()
        await self.rig.stage.stop()


def test_a_ledger_is_attempted_when_it_becomes_due_not_at_the_next_poll() -> None:
    async def main() -> None:
        waits = Waits(Outcome(OutcomeKind.REPAIRED))
        await waits.start()
        due_s = waits.now + SETTINGS.poll_interval_s / 4
        await waits.put(
            not_before_ms=waits.rig.stage.clock.now_ms() + int(due_s * 1000 - waits.now * 1000)
        )
        await asyncio.sleep(SETTINGS.poll_interval_s)
        assert waits.attempts == [pytest.approx(due_s, abs=0.1)]
        await waits.stop()

    run(main)


def test_a_rewritten_record_is_attempted_although_it_had_a_long_wait() -> None:
    async def main() -> None:
        waits = Waits(Outcome(OutcomeKind.WAITS, "grace", wait_ms=20_000))
        await waits.start()
        await waits.put()
        await asyncio.sleep(WAITING_RETRY_S / 2)
        assert len(waits.attempts) == 1
        await asyncio.sleep(WAITING_RETRY_S)
        assert len(waits.attempts) == 1, "it waits"
        await waits.put()
        await asyncio.sleep(WAITING_RETRY_S / 2)
        assert len(waits.attempts) == 2
        await waits.stop()

    run(main)


def test_a_bookie_that_returned_gets_the_whole_delay_again() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        bookie = stage.by_name["b"]
        watch = MemberWatch(stage.bookies, stage.clock, 10)
        watch.observe()
        await asyncio.sleep(100)
        stage.bookies.lose(bookie)
        assert watch.observe().state_of(bookie.identity) is BookieState.AWAY
        await asyncio.sleep(6)
        stage.bookies.back(bookie)
        watch.observe()
        stage.bookies.lose(bookie)
        assert watch.observe().state_of(bookie.identity) is BookieState.AWAY
        await asyncio.sleep(6)
        assert watch.observe().state_of(bookie.identity) is BookieState.AWAY
        await asyncio.sleep(4)
        assert watch.observe().state_of(bookie.identity) is BookieState.GONE
        await stage.stop()

    run(main)


@pytest.mark.parametrize(
    ("trouble", "verdict"),
    [
        ("differs", "divergent"),
        ("missing", "too few proven copies"),
        ("lost", "lost"),
        ("late", ""),
    ],
)
def test_a_full_check_lists_every_wrong_ledger_and_no_unproven_ledger(
    trouble: str, verdict: str
) -> None:
    async def test(rig: AuditRig) -> None:
        await rig.stage.ledger(1, (0, "a b"), last=3)
        a, b = rig.stage.by_name["a"], rig.stage.by_name["b"]
        if trouble == "differs":
            a.holds(1)[2] = b"of another write"
        elif trouble == "late":
            b.silent = True
        else:
            for bookie in (a, b) if trouble == "lost" else (a,):
                bookie.drop(1, 2)
        await rig.check._check_from(CheckState(0, 0), rig.lock)
        listed = await rig.listed()
        assert [record.reasons for record in listed.values()] == (
            [(f"{verdict}: 1 entries",)] if verdict else []
        )
        assert all(record.prove for record in listed.values())

    rigged(test)


def test_a_ledger_that_was_only_closed_counts_as_repaired() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), state=LedgerState.OPEN)
        await rig.ready()
        await rig.lose("a")
        outcome = await rig.restore()
        assert (outcome.kind, outcome.entries) == (OutcomeKind.REPAIRED, 0)

    run(main)


def test_a_deleted_ledger_is_done_although_a_bookie_with_a_new_copy_has_left() -> None:
    async def main() -> None:
        rig = Rig("a", "b", "c")
        await rig.stage.ledger(1, (0, "a b"), last=3)
        await rig.ready()
        await rig.lose("a")
        transact = rig.view.transact

        async def late(operations: Any) -> int:
            await rig.stage.store.delete(ledger_key(1))
            rig.stage.bookies.lose(rig.stage.by_name["c"])
            return await transact(operations)

        rig.view.transact = late  # type: ignore[method-assign]
        assert (await rig.restore()).kind is OutcomeKind.DELETED

    run(main)


def test_a_proof_covers_the_ledgers_that_the_bookie_lists() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "b c"), last=3)
        stage.by_name["a"].put(1, 0, b"left", 0)
        reports: list[LedgerReport] = []
        job = Decommission(stage.store, stage.bookies, stage.clock, "a")
        await job.prove(Checker(stage), reports.append)
        assert [report.ledger_id for report in reports] == [1]
        await stage.stop()

    run(main)
