"""Emptying a bookie: what it refuses, what it waits for, and that it believes only proofs."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import structs
from tests.unit.autorecovery.stage import Stage, data_of, names_of, run

from magnetar.autorecovery import drains
from magnetar.autorecovery.check_all import CheckRun, CheckSummary
from magnetar.autorecovery.decommission import MARK_SETTLES_S, Decommission, Left
from magnetar.autorecovery.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.proving import Prover
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


async def wait_until_empty(job: Decommission, limit_s: float = 600) -> Left:
    async with asyncio.timeout(limit_s):
        while True:
            left = await job.look()
            if not left.ledgers:
                return left
            await asyncio.sleep(2)


def test_a_living_bookie_is_emptied_and_may_go() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        for ledger_id in (1, 2, 1005):
            await stage.ledger(ledger_id, (0, "a b c"), last=20)
        await stage.ledger(1006, (0, "b c d"), last=20)
        await stage.node()
        job = job_on(stage, "a")
        first = await job.look_first()
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


def test_a_dead_bookie_is_emptied_too() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=20)
        await stage.node()
        stage.bookies.lose(stage.by_name["a"])
        job = job_on(stage, "a")
        first = await job.look_first()
        assert (first.living, first.problem) == (False, "")
        await job.mark()
        await wait_until_empty(job)
        summary, _ = await prove(stage, job)
        assert (summary.exit_code, summary.ledgers) == (0, 1)
        await stage.stop()

    run(main)


def test_too_few_others_are_refused_before_anything_is_done() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(7, (0, "a b c"), last=20)
        first = await job_on(stage, "a").look_first()
        assert "2 bookies would be left" in first.problem
        assert "ledger 7" in first.problem
        assert await stage.store.get(draining_key("a")) is None
        unknown = await job_on(stage, "nobody").look_first()
        assert "no bookie nobody was ever registered" in unknown.problem
        await stage.stop()

    run(main)


def test_what_stands_in_the_way_is_named_with_its_reason() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=8)
        await stage.ledger(2, (0, "a b c"), last=-1, state=LedgerState.OPEN)
        stage.by_name["a"].corrupt.add((1, 3))
        stage.by_name["b"].drop(1, 3)
        job = job_on(stage, "a")
        await job.look_first()
        await job.mark()
        left = await job.look()
        assert not left.audited
        assert [(one.ledger_id, one.why) for one in left.in_the_way] == [
            (1, "waits for the auditor"),
            (2, "open: its writer goes on elsewhere, or it is ended after the grace time"),
        ]
        stage.bookies.drain(stage.by_name["a"])
        await stage.node()
        await asyncio.sleep(25)
        left = await job.look()
        assert left.audited
        assert (left.ledgers, left.hopeless) == (2, 1)
        assert left.in_the_way[0].ledger_id == 1
        assert left.in_the_way[0].why == "entries 3-3 have no copy that could be read"
        await stage.stop()

    run(main)


def test_moved_is_not_believed_without_proof() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "a b c"), last=8)
        await stage.node()
        job = job_on(stage, "a")
        await job.look_first()
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
    """A record may name it again: they go with it all the same."""

    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b c"), last=8, write_quorum=3)
        await stage.ledger(2, (0, "b c"), last=8)
        stage.by_name["a"].put(2, 0, data_of(2, 0), 0)
        job = job_on(stage, "a")
        await job.look_first()
        summary, reports = await prove(stage, job)
        assert summary.exit_code == 1
        verdicts = {report.ledger_id: report.verdict for report in reports}
        assert verdicts == {1: "too few proven copies", 2: "healthy"}
        await stage.stop()

    run(main)


@pytest.mark.parametrize("repairing", [False, True])
def test_copies_on_the_bookie_prove_nothing_where_the_record_changes_meanwhile(
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
        checking = CheckRun(
            stage.store, checker, checker if repairing else None, not_counting={"a"}
        )
        await checking.run(ledgers(), reports.append, summary := CheckSummary())
        assert [report.verdict for report in reports] == ["too few proven copies"]
        assert summary.exit_code == 1
        await stage.stop()

    run(main)


def test_its_own_word_counts_where_no_record_names_it_any_more() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=8)
        stage.by_name["a"].put(1, 0, b"left from an earlier run", 0)
        stage.by_name["a"].put(99, 0, b"of a ledger that was deleted", 0)
        await stage.store.delete(ledger_key(99))
        job = job_on(stage, "a")
        assert (await job.look_first()).ledgers == 0
        summary, reports = await prove(stage, job)
        assert [report.ledger_id for report in reports] == [1]
        assert summary.exit_code == 0
        await stage.stop()

    run(main)


def test_an_ensemble_that_never_got_an_entry_is_nobodys_need() -> None:
    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), (9, "a c d"), last=8)
        job = job_on(stage, "a")
        first = await job.look_first()
        assert (first.ledgers, first.problem) == (0, "")
        assert (await job.look()).ledgers == 0
        await stage.stop()

    run(main)


def test_a_proof_waits_until_every_writer_has_seen_the_mark() -> None:
    """Until then one of them may still begin a ledger on the bookie."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        await stage.ledger(1, (0, "b c d"), last=20)
        job = job_on(stage, "a")
        await job.mark()
        await prove(stage, job)

        async def writer() -> None:
            await asyncio.sleep(MARK_SETTLES_S - 0.5)
            await stage.ledger(2, (0, "a b c"), last=20)

        left, _ = await asyncio.gather(job.late(), writer())
        assert left.ledgers == 1
        await stage.stop()

    run(main)


def test_a_mark_that_was_taken_away_and_put_again_is_another_one() -> None:
    """In between the bookie may have got new ledgers."""

    async def main() -> None:
        stage = Stage("a", "b", "c", "d")
        job, other = job_on(stage, "a"), job_on(stage, "a")
        await job.mark()
        await other.mark()
        assert await job.still_marked()
        assert await other.still_marked()
        await drains.cancel(stage.store, "a")
        assert not await job.still_marked()
        await other.mark()
        assert await other.still_marked()
        assert not await job.still_marked()
        await stage.stop()

    run(main)
