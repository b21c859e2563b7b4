"""Decommissions: their refusals, their waits, and that only proofs count."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import structs
from tests.unit.autorecovery.stage import Stage, data_of, names_of, run

from magnetar.autorecovery.check.check_all import CheckRun, CheckSummary
from magnetar.autorecovery.check.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain.decommission import MARK_SETTLES_S, Decommission, Remaining
from magnetar.autorecovery.rate import ByteRate
from magnetar.bookie.registration import draining_key
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, LedgerState, ledger_key


def job_on(stage: Stage, name: str) -> Decommission:
    return Decommission(stage.store, stage.bookies, stage.clock, name)


async def prove(stage: Stage, job: Decommission) -> tuple[CheckSummary, list[LedgerReport]]:
    reports: list[LedgerReport] = []
    return await job.prove(checker_of(stage), reports.append), reports


def checker_of(stage: Stage) -> LedgerChecker:
    prover = Prover(stage.bookies, ByteRate(0, stage.clock), 30.0)
    return LedgerChecker(stage.bookies, prover, None, 30.0)


async def wait_until_empty(job: Decommission, limit_s: float = 600) -> Remaining:
    async with asyncio.timeout(limit_s):
        while True:
            left = await job.remaining()
            if not left.ledgers:
                return left
            await asyncio.sleep(2)


def test_a_living_bookie_is_drained_and_removable() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        for ledger_id in (1, 2, 1005):
            await stage.ledger(ledger_id, (0, "a b c"), last=20)
        await stage.ledger(1006, (0, "b c d"), last=20)
        await stage.node()
        job = job_on(stage, "a")
        first = await job.preflight()
        assert (first.ledgers, first.others, first.needed, first.problem) == (3, 3, 3, "")
        await job.mark()
        assert await stage.store.get(draining_key("a")) is not None
        stage.bookies.drain(stage.by_name["a"])
        await wait_until_empty(job)
        summary, reports = await prove(stage, job)
        assert (summary.exit_code, summary.ledgers) == (0, 3)
        assert {report.ledger_id for report in reports} == {1, 2, 1005}
        assert await drains.cancel(stage.store, "a")
        assert not await drains.cancel(stage.store, "a")
        await stage.stop()

    run(main)


def test_a_dead_bookie_is_drained_too() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=20)
        await stage.node()
        stage.bookies.lose(stage.by_name["a"])
        job = job_on(stage, "a")
        first = await job.preflight()
        assert (first.living, first.problem) == (False, "")
        await job.mark()
        await wait_until_empty(job)
        summary, _ = await prove(stage, job)
        assert (summary.exit_code, summary.ledgers) == (0, 1)
        await stage.stop()

    run(main)


def test_a_decommission_with_too_few_other_bookies_is_refused_first() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(7, (0, "a b c"), last=20)
        first = await job_on(stage, "a").preflight()
        assert "2 writable bookies would be left" in first.problem
        assert "ledger 7" in first.problem
        assert await stage.store.get(draining_key("a")) is None
        unknown = await job_on(stage, "nobody").preflight()
        assert "no bookie nobody was ever registered" in unknown.problem
        await stage.stop()

    run(main)


def test_ledgers_that_still_need_the_bookie_are_named_with_the_reason() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=8)
        await stage.ledger(2, (0, "a b c"), last=-1, state=LedgerState.OPEN)
        stage.by_name["a"].corrupt.add((1, 3))
        stage.by_name["b"].drop(1, 3)
        job = job_on(stage, "a")
        await job.preflight()
        await job.mark()
        left = await job.remaining()
        assert not left.audited
        assert [(ledger.ledger_id, ledger.why) for ledger in left.in_the_way] == [
            (1, "waits for the auditor"),
            (2, "open: its writer replaces the bookie, or it is closed after the grace time"),
        ]
        stage.bookies.drain(stage.by_name["a"])
        await stage.node()
        await asyncio.sleep(25)
        left = await job.remaining()
        assert left.audited
        assert (left.ledgers, left.hopeless) == (2, 1)
        assert left.in_the_way[0].ledger_id == 1
        assert left.in_the_way[0].why == "entries 3-3 have no readable copy"
        await stage.stop()

    run(main)


def test_a_moved_ledger_needs_a_proof() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=8)
        await stage.node()
        job = job_on(stage, "a")
        await job.preflight()
        stage.bookies.drain(stage.by_name["a"])
        await wait_until_empty(job)
        assert names_of(await stage.metadata(1)) == [(0, "d b c")]
        stage.by_name["b"].corrupt.add((1, 0))
        summary, reports = await prove(stage, job)
        assert summary.exit_code == 1
        (report,) = reports
        assert (report.verdict, report.entries_wrong) == ("too few proven copies", 1)
        await stage.stop()

    run(main)


def test_copies_on_the_bookie_itself_prove_nothing() -> None:
    """Even if a record names the bookie again, its copies do not count."""

    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b c"), last=8, write_quorum=3)
        await stage.ledger(2, (0, "b c"), last=8)
        stage.by_name["a"].put(2, 0, data_of(2, 0), 0)
        job = job_on(stage, "a")
        await job.preflight()
        summary, reports = await prove(stage, job)
        assert summary.exit_code == 1
        verdicts = {report.ledger_id: report.verdict for report in reports}
        assert verdicts == {1: "too few proven copies", 2: "healthy"}
        await stage.stop()

    run(main)


@pytest.mark.parametrize("repairing", [False, True])
def test_copies_on_the_bookie_prove_nothing_if_the_record_changes_meanwhile(
    repairing: bool,
) -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d", "e", "f")
        now = await stage.ledger(1, (0, "a b c"), last=8, write_quorum=3)
        elsewhere = tuple(stage.by_name[name].identity for name in "def")
        read_before = structs.replace(now, ensembles=(Ensemble(0, elsewhere),))

        async def ledgers() -> AsyncIterator[LedgerMetadata]:
            yield read_before

        reports: list[LedgerReport] = []
        checker = checker_of(stage)
        checking = CheckRun(stage.store, checker, checker if repairing else None, excluded={"a"})
        await checking.run(ledgers(), reports.append, summary := CheckSummary())
        assert [report.verdict for report in reports] == ["too few proven copies"]
        assert summary.exit_code == 1
        await stage.stop()

    run(main)


def test_ledgers_that_only_the_bookie_lists_are_proven() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=8)
        stage.by_name["a"].put(1, 0, b"left from an earlier run", 0)
        stage.by_name["a"].put(99, 0, b"of a ledger that was deleted", 0)
        await stage.store.delete(ledger_key(99))
        job = job_on(stage, "a")
        assert (await job.preflight()).ledgers == 0
        summary, reports = await prove(stage, job)
        assert [report.ledger_id for report in reports] == [1]
        assert summary.exit_code == 0
        await stage.stop()

    run(main)


def test_an_empty_ensemble_does_not_need_the_bookie() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), (9, "a c d"), last=8)
        job = job_on(stage, "a")
        first = await job.preflight()
        assert (first.ledgers, first.problem) == (0, "")
        assert (await job.remaining()).ledgers == 0
        await stage.stop()

    run(main)


def test_a_proof_waits_until_every_writer_has_seen_the_mark() -> None:
    """Until then a writer may still create a ledger on the bookie."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        job = job_on(stage, "a")
        await job.mark()
        await prove(stage, job)

        async def writer() -> None:
            await asyncio.sleep(MARK_SETTLES_S - 0.5)
            await stage.ledger(2, (0, "a b c"), last=20)

        left, _ = await asyncio.gather(job.late_arrivals(), writer())
        assert left.ledgers == 1
        await stage.stop()

    run(main)


def test_a_mark_that_was_deleted_and_rewritten_is_another_mark() -> None:
    """The bookie may have received new ledgers in between."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        job, other = job_on(stage, "a"), job_on(stage, "a")
        await job.mark()
        await other.mark()
        assert await job.is_still_marked()
        assert await other.is_still_marked()
        await drains.cancel(stage.store, "a")
        assert not await job.is_still_marked()
        await other.mark()
        assert await other.is_still_marked()
        assert not await job.is_still_marked()
        await stage.stop()

    run(main)
