"""Proofs: which bookies are asked, which copies count, and which copies are rewritten."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.autorecovery.stage import Stage, data_of, run

from magnetar.autorecovery.check.check_all import (
    CheckRun,
    CheckSummary,
    all_ledgers,
    selected_ledgers,
)
from magnetar.autorecovery.check.ledger_check import FINDINGS_MAX, LedgerChecker, LedgerReport
from magnetar.autorecovery.check.prover import WINDOW_ENTRIES, Prover, Verdict, judge
from magnetar.autorecovery.check.repairer import Repaired, Repairer
from magnetar.autorecovery.copier import Copier
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.shape import OPEN_END, slots_used, stripe_starts
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    EntryProof,
    EntryProofs,
    EntryUnknown,
    ProofKind,
)
from magnetar.core.errors import MetadataError
from magnetar.ledger.metadata import LedgerState, ledger_key
from magnetar.ledger.quorum import slots_of

STRIPED = {"stripe_entries": 512}
A, B, C = (BookieIdentity(name, "1") for name in "abc")


class Rig:
    def __init__(self, *, bytes_per_s: int = 0) -> None:
        self.stage = Stage("a", "b", "c", "d")
        clock = self.stage.clock
        self.prover = Prover(self.stage.bookies, ByteRate(bytes_per_s, clock), 30.0)
        rate, stats = ByteRate(0, clock), AutorecoveryStats(clock, 100)
        copier = Copier(self.stage.bookies, self.stage.settings, rate, stats)
        self.repairer = Repairer(self.prover, copier)
        self.checker = LedgerChecker(self.stage.bookies, self.prover, None, 30.0)
        self.repairing = LedgerChecker(self.stage.bookies, self.prover, self.repairer, 30.0)
        self.asked: list[tuple[str, int, int]] = []
        for name in "abcd":
            self._watch(name)

    def _watch(self, name: str) -> None:
        bookie = self.stage.by_name[name]
        prove = bookie.prove_entries

        async def noted(ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
            self.asked.append((name, first, last))
            assert count_max == last - first + 1
            return await prove(ledger_id, first, last, count_max=count_max)

        bookie.prove_entries = noted  # type: ignore[method-assign]

    async def check(self, ledger_id: int = 1, **how: set[str]) -> LedgerReport:
        return await self.checker.check(await self.stage.metadata(ledger_id), **how)


def test_a_whole_ledger_is_healthy_and_every_copy_of_it_was_read() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), (4, "b c"), last=9)
        report = await rig.check()
        size = sum(len(data_of(1, entry_id)) for entry_id in range(10))
        assert report == LedgerReport(1, "healthy", LedgerState.CLOSED, 10, size, 2)
        assert sorted(rig.asked) == [("a", 0, 3), ("b", 0, 3), ("b", 4, 9), ("c", 4, 9)]

    run(main)


def test_excluded_bookies_are_not_asked() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b c"), last=9)
        report = await rig.check(excluded={"b"})
        assert {name for name, _, _ in rig.asked} == {"a", "c"}
        assert (report.verdict, report.entries_wrong) == ("too few proven copies", 7)
        assert all(
            answer.bookie.bookie_id != "b"
            for finding in report.findings
            for answer in finding.answers
        )

    run(main)


def test_findings_name_runs_of_entries_with_the_same_answers() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), last=400, changes=STRIPED)
        first = rig.stage.by_name["a"]
        for entry_id in (3, 4, 6):
            first.drop(1, entry_id)
        first.corrupt.add((1, 5))
        rig.stage.by_name["b"].drop(1, 6)
        report = await rig.check()
        assert [(finding.first, finding.last, finding.verdict) for finding in report.findings] == [
            (3, 4, "too few proven copies"),
            (5, 5, "too few proven copies"),
            (6, 6, "lost"),
        ]
        assert (report.entries_wrong, report.verdict) == (4, "lost")
        for entry_id in range(8, 8 + 2 * FINDINGS_MAX, 2):
            first.drop(1, entry_id)
        report = await rig.check()
        assert len(report.findings) == FINDINGS_MAX
        assert report.entries_wrong == 4 + FINDINGS_MAX

    run(main)


def test_a_bookie_whose_proofs_make_no_progress_is_unavailable() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), last=9)
        asked = []

        async def stuck(ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
            asked.append(first)
            assert len(asked) < 5
            return EntryProofs([], first if first else 4)

        rig.stage.by_name["a"].prove_entries = stuck  # type: ignore[method-assign]
        report = await rig.check()
        assert asked == [0, 4]
        assert report.verdict == Verdict.UNPROVEN

    run(main)


def test_a_proof_in_several_answers_counts_completely() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), last=9)
        prove = rig.stage.by_name["a"].prove_entries

        async def pieces(ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
            end = min(last, first + 2)
            answer = await prove(ledger_id, first, end, count_max=end - first + 1)
            return EntryProofs(answer.proofs, end + 1)

        rig.stage.by_name["a"].prove_entries = pieces  # type: ignore[method-assign]
        assert (await rig.check()).verdict == Verdict.HEALTHY
        assert [asked[1:] for asked in rig.asked if asked[0] == "a"] == [
            (0, 2),
            (3, 5),
            (6, 8),
            (9, 9),
        ]

    run(main)


def test_the_answer_instead_of_a_proof_decides_between_unproven_and_missing() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), last=3, changes=STRIPED)
        failed: list[tuple[object, str]] = []
        rig.stage.bookies.failed = lambda identity, error: failed.append(  # type: ignore[method-assign]
            (identity, f"{type(error).__name__}: {error}")
        )
        bookie = rig.stage.by_name["a"]

        async def late(*_: object, **__: object) -> EntryProofs:
            await asyncio.Event().wait()
            return EntryProofs([], 0)

        async def broken(*_: object, **__: object) -> EntryProofs:
            raise BookieError("no")

        async def unknown(*_: object, **__: object) -> EntryProofs:
            raise EntryUnknown("no")

        async def marked(_: int, first: int, last: int, **__: object) -> EntryProofs:
            kinds = [ProofKind.UNKNOWN, ProofKind.CORRUPT]
            return EntryProofs([EntryProof(first + at, kinds[at % 2]) for at in range(4)], last + 1)

        results = []
        for prove in (late, broken, unknown, marked):
            bookie.prove_entries = prove  # type: ignore[method-assign, assignment]
            report = await rig.check()
            results.append(
                (report.verdict, [finding.answers[0].text for finding in report.findings])
            )
        rig.stage.bookies.lose(bookie)
        report = await rig.check()
        results.append((report.verdict, [finding.answers[0].text for finding in report.findings]))
        assert results == [
            (Verdict.UNPROVEN, ["unavailable"]),
            (Verdict.UNPROVEN, ["unavailable"]),
            (Verdict.TOO_FEW, ["unknown"]),
            (Verdict.TOO_FEW, ["unknown", "corrupt", "unknown", "corrupt"]),
            (Verdict.TOO_FEW, ["not registered"]),
        ]
        assert failed == [
            (bookie.identity, "BookieLate: bookie a did not answer within 30 s"),
            (bookie.identity, "BookieError: no"),
        ]

    run(main)


def test_a_bookie_that_has_left_is_not_registered_although_its_address_is_known() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), last=3)
        bookie = rig.stage.by_name["a"]
        bookie.silent = True
        assert (await rig.check()).verdict == Verdict.UNPROVEN
        get = rig.stage.bookies.get
        rig.stage.bookies.lose(bookie)
        rig.stage.bookies.get = lambda identity: get(identity) or bookie  # type: ignore[method-assign]
        assert (await rig.check()).verdict == Verdict.TOO_FEW

    run(main)


def test_long_ledgers_are_proven_a_window_at_a_time_and_no_faster_than_the_rate() -> None:
    async def main() -> None:
        rig = Rig(bytes_per_s=1000)
        last = WINDOW_ENTRIES + 5
        await rig.stage.ledger(1, (0, "a b"), last=last)
        began = asyncio.get_running_loop().time()
        report = await rig.check()
        assert report.entries == last + 1
        assert sorted(rig.asked) == [
            (name, first, end)
            for name in "ab"
            for first, end in ((0, WINDOW_ENTRIES - 1), (WINDOW_ENTRIES, last))
        ]
        whole_s = 2 * sum(len(data_of(1, entry_id)) for entry_id in range(WINDOW_ENTRIES)) / 1000
        assert asyncio.get_running_loop().time() - began == pytest.approx(whole_s)

    run(main)


@pytest.mark.parametrize("confirmed", [-1, 4, 9])
def test_an_open_ledger_is_checked_as_far_as_it_is_confirmed(confirmed: int) -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), (3, "b c"), last=9, state=LedgerState.OPEN)
        for name in "bc":
            rig.stage.by_name[name]._ledgers[1].last_add_confirmed = -1
        rig.stage.by_name["c"]._ledgers[1].last_add_confirmed = confirmed
        report = await rig.check()
        assert (report.verdict, report.entries) == (Verdict.HEALTHY, max(3, confirmed + 1))
        assert not rig.stage.by_name["c"]._ledgers[1].fenced

    run(main)


def test_only_wrong_copies_are_rewritten() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b c"), last=9, write_quorum=3)
        a, b = rig.stage.by_name["a"], rig.stage.by_name["b"]
        a.drop(1, 2)
        b.corrupt.add((1, 3))
        a._ledgers[1].entries[4] = b"another"
        report = await rig.repairing.check(await rig.stage.metadata(1))
        assert (report.repaired_entries, report.repair_failed) == (3, "")
        assert (await rig.check()).verdict == Verdict.HEALTHY
        assert a.holds(1)[4] == data_of(1, 4)
        assert rig.stage.by_name["c"].adds == 0

    run(main)


def test_nothing_is_written_if_no_copy_is_known_to_be_right() -> None:
    async def main() -> None:
        rig = Rig()
        metadata = await rig.stage.ledger(1, (0, "a b"), last=9)
        a, b = rig.stage.by_name["a"], rig.stage.by_name["b"]
        a._ledgers[1].entries[4] = b"another"
        for bookie in (a, b):
            bookie.drop(1, 6)
        held: list[int] = []
        repaired = await rig.repairer.repair(metadata, lambda: held.append(1))
        assert [entry_id for entry_id, _ in repaired.hopeless] == [4, 6]
        assert held == [1]
        assert (a.adds, b.adds, repaired.failed) == (0, 0, "")

    run(main)


def test_a_repair_reports_its_failures() -> None:
    async def main() -> None:
        rig = Rig()
        metadata = await rig.stage.ledger(1, (0, "a b"), last=9)
        a, b = rig.stage.by_name["a"], rig.stage.by_name["b"]
        a.drop(1, 2)
        a.full = True
        repaired = await rig.repairer.repair(metadata, lambda: None)
        assert repaired.failed == "copies could not be rewritten: bookie a (1): full"
        a.full = False
        for bookie in (a, b):
            bookie.silent = True
        repaired = await rig.repairer.repair(metadata, lambda: None)
        assert repaired.failed == "entry 9 could not be proven on any bookie"
        assert repaired.hopeless == []
        a.silent = b.silent = False

        async def unreadable(*_: object, **__: object) -> list[object]:
            raise BookieError("no")

        b.read_entries = unreadable  # type: ignore[method-assign, assignment]
        repaired = await rig.repairer.repair(metadata, lambda: None)
        assert repaired.failed == "entry 2 was proven, but could not be read"

    run(main)


def test_the_end_of_an_open_ledger_is_not_repaired() -> None:
    async def main() -> None:
        rig = Rig()
        opened = await rig.stage.ledger(1, (0, "a b"), (5, "b c"), last=9, state=LedgerState.OPEN)
        rig.stage.by_name["a"].drop(1, 2)
        rig.stage.by_name["c"].drop(1, 7)
        repaired = await rig.repairer.repair(opened, lambda: None)
        assert repaired.copied.entries == 1
        assert 7 not in rig.stage.by_name["c"].holds(1)
        assert isinstance(repaired, Repaired)

    run(main)


def test_a_run_reports_and_counts_every_ledger() -> None:
    async def main() -> None:
        rig = Rig()
        for ledger_id in (1, 2, 3, 1004):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=1)
        rig.stage.by_name["a"].drop(2, 0)
        await rig.stage.store.put(ledger_key(3), b"")
        summary = CheckSummary()
        reports: list[LedgerReport] = []
        check = CheckRun(rig.stage.store, rig.checker, None, at_once=1)
        await check.run(all_ledgers(rig.stage.store, summary), reports.append, summary)
        assert [(report.ledger_id, report.verdict) for report in reports] == [
            (1, "healthy"),
            (2, "too few proven copies"),
            (1004, "healthy"),
        ]
        assert (summary.ledgers, summary.entries) == (3, 6)
        assert summary.bytes == sum(report.bytes for report in reports)
        assert summary.verdicts == {"healthy": 2, "too few proven copies": 1}
        assert summary.unreadable == [ledger_key(3)]
        named = CheckSummary()
        ledgers = [
            ledger async for ledger in selected_ledgers(rig.stage.store, [1, 3, 77, 3], named)
        ]
        assert [ledger.ledger_id for ledger in ledgers] == [1]
        assert named.unreadable == [ledger_key(3)]

    run(main)


def test_a_run_checks_a_ledger_again_that_was_changed_or_deleted() -> None:
    async def main() -> None:
        rig = Rig()
        old = [await rig.stage.ledger(ledger_id, (0, "a b"), last=1) for ledger_id in (1, 2, 3)]
        for ledger_id in (1, 2, 3):
            rig.stage.by_name["a"].drop(ledger_id, 0)
        await rig.stage.ledger(1, (0, "c b"), last=1)
        await rig.stage.store.delete(ledger_key(2))
        await rig.stage.store.put(ledger_key(3), b"")

        async def listed() -> object:
            for ledger in old:
                yield ledger

        summary = CheckSummary()
        reports: list[LedgerReport] = []
        check = CheckRun(rig.stage.store, rig.checker, None)
        await check.run(listed(), reports.append, summary)  # type: ignore[arg-type]
        assert [(report.ledger_id, report.verdict) for report in reports] == [(1, "healthy")]
        assert summary.unreadable == [ledger_key(3)]

    run(main)


def test_a_run_with_repair_reports_the_state_after_it() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), last=1)
        rig.stage.by_name["a"].drop(1, 0)
        summary = CheckSummary()
        reports: list[LedgerReport] = []
        check = CheckRun(rig.stage.store, rig.checker, rig.repairing)
        await check.run(all_ledgers(rig.stage.store, summary), reports.append, summary)
        assert [(report.verdict, report.repaired_entries) for report in reports] == [("healthy", 1)]
        assert (summary.entries_repaired, summary.exit_code) == (1, 0)

    run(main)


def test_a_run_ends_with_the_first_error_that_no_bookie_raised() -> None:
    async def main() -> None:
        rig = Rig()
        for ledger_id in (1, 2, 3):
            await rig.stage.ledger(ledger_id, (0, "a b"), last=1)
        seen = []

        def fail(report: LedgerReport) -> None:
            seen.append(report.ledger_id)
            raise MetadataError("the list is full")

        check = CheckRun(rig.stage.store, rig.checker, None, at_once=1)
        with pytest.raises(MetadataError, match="the list is full"):
            await check.run(all_ledgers(rig.stage.store, CheckSummary()), fail, CheckSummary())
        assert seen == [1]

    run(main)


def test_the_length_of_an_entry_is_that_of_its_right_copies() -> None:
    good, other = ("present", 3, 11), ("present", 5, 12)
    most = judge(7, [A, B, C], {A: {7: other}, B: {7: good}, C: {7: good}}, 3)
    assert (most.length_bytes, most.good) == (3, (B, C))
    none = judge(7, [A], {A: {}}, 1)
    assert (none.length_bytes, none.good) == (0, ())
    tie = judge(7, [A, B], {A: {7: good}, B: {7: other}}, 1)
    assert {answer.text for answer in tie.answers} == {
        "differs, and no majority tells which is right"
    }
    assert tie.verdict is Verdict.DIVERGENT


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 30),
    st.integers(-1, 40),
)
def test_the_bookies_that_hold_a_range_are_those_of_its_entries(
    size: int, quorum: int, stripe: int, first: int, count: int
) -> None:
    last = first + count - 1
    entries = range(first, last + 1)
    wanted = {slot for entry in entries for slot in slots_of(size, quorum, stripe, entry)}
    assert slots_used(size, quorum, stripe, first, last) == wanted
    starts = list(stripe_starts(stripe, first, last))
    assert {entry // stripe for entry in starts} == {entry // stripe for entry in entries}
    assert len(starts) == len({entry // stripe for entry in entries})
    assert all(first <= entry <= last for entry in starts)
    assert OPEN_END < -1
