"""Corner cases of proofs: empty entries, equal checksums, mixed and late answers."""

import asyncio
from typing import Any

import pytest
from tests.unit.autorecovery.stage import Stage, run
from tests.unit.autorecovery.test_copying import LEDGER
from tests.unit.autorecovery.test_copying import Rig as CopyRig
from tests.unit.autorecovery.test_proving import STRIPED, A, B, C, Rig

from magnetar.autorecovery.answers import (
    CORRUPT,
    NO_ENTRY,
    NOT_REGISTERED,
    UNAVAILABLE,
    UNKNOWN,
)
from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.check.prover import PRESENT, Prover, Verdict, judge
from magnetar.autorecovery.members import MemberWatch
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.records import Answer
from magnetar.autorecovery.repair.replacement import is_abandoned
from magnetar.autorecovery.repair.replicator import _may_exist
from magnetar.autorecovery.shape import Part
from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    EntryProof,
    EntryProofs,
    ProofKind,
)


def test_an_empty_entry_that_the_target_cannot_read_back_is_not_proven_there() -> None:
    """Its length and checksum equal those of a proof without content."""

    async def main() -> None:
        rig = CopyRig(last=0)
        for name in "ab":
            rig.stage.by_name[name].holds(LEDGER)[0] = b""
        target = rig.stage.by_name["c"]

        async def corrupt(ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
            return EntryProofs([EntryProof(first, ProofKind.CORRUPT)], last + 1)

        target.prove_entries = corrupt  # type: ignore[method-assign]
        done = await rig.copy({0: rig.need("a", "c")})
        assert done.refused == {target.identity: "1 entries are not proven there"}
        assert (done.entries, rig.stats.entries_copied) == (0, 0)

    run(main)


@pytest.mark.parametrize(("length", "crc"), [(1, 0), (-1, 0), (0, 1)])
def test_a_copy_of_another_length_or_checksum_is_not_proven(length: int, crc: int) -> None:
    async def main() -> None:
        rig = CopyRig(last=3)
        target = rig.stage.by_name["c"]
        prove = target.prove_entries

        async def altered(ledger_id: int, first: int, last: int, *, count_max: int) -> EntryProofs:
            answer = await prove(ledger_id, first, last, count_max=count_max)
            proofs = [
                EntryProof(proof.entry_id, proof.kind, proof.length_bytes + length, proof.crc ^ crc)
                if proof.entry_id == 2
                else proof
                for proof in answer.proofs
            ]
            return EntryProofs(proofs, answer.next_entry)

        target.prove_entries = altered  # type: ignore[method-assign]
        done = await rig.copy_all("a", "c")
        assert done.refused == {target.identity: "1 entries are not proven there"}

    run(main)


def test_copies_that_differ_are_divergent_however_many_agree() -> None:
    good, other = (PRESENT, 5, 1), (PRESENT, 5, 2)
    copies = judge(7, [A, B, C], {A: {7: good}, B: {7: good}, C: {7: other}}, 2)
    assert copies.verdict is Verdict.DIVERGENT


def test_the_verdict_on_a_ledger_is_the_worst_on_any_of_its_entries() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.stage.ledger(1, (0, "a b"), last=9, changes=STRIPED)
        for name in "ab":
            rig.stage.by_name[name].drop(1, 3)
        rig.stage.by_name["a"].drop(1, 7)
        assert (await rig.check()).verdict == Verdict.LOST

    run(main)


def test_the_proof_of_a_bookie_that_leaves_afterwards_counts() -> None:
    """Another bookie is silent at that moment, which must not discard the earlier proofs."""

    async def main() -> None:
        stage = Stage("a", "b", "c")
        await stage.ledger(1, (0, "a b"), last=3, changes=STRIPED)
        a, b = stage.by_name["a"], stage.by_name["b"]
        prove = a.prove_entries

        async def proves_and_leaves(
            ledger_id: int, first: int, last: int, *, count_max: int
        ) -> EntryProofs:
            answer = await prove(ledger_id, first, last, count_max=count_max)
            stage.bookies.lose(a)
            return answer

        a.prove_entries = proves_and_leaves  # type: ignore[method-assign]
        b.silent = True
        prover = Prover(stage.bookies, ByteRate(0, stage.clock), 30.0)
        checker = LedgerChecker(stage.bookies, prover, None, 30.0)
        report = await checker.check(await stage.metadata(1))
        assert report.verdict == Verdict.UNPROVEN
        (finding,) = report.findings
        assert [answer.text for answer in finding.answers] == [PRESENT, UNAVAILABLE]

    run(main)


@pytest.mark.parametrize(
    ("standing", "waits_for"),
    [
        ("living", {UNAVAILABLE, NOT_REGISTERED}),
        ("draining", {UNAVAILABLE, NOT_REGISTERED}),
        ("away", {UNAVAILABLE, NOT_REGISTERED, NO_ENTRY, CORRUPT, UNKNOWN}),
        ("gone", set()),
    ],
)
def test_an_entry_is_not_named_lost_while_a_bookie_may_still_have_it(
    standing: str, waits_for: set[str]
) -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        bookie = stage.by_name["a"]
        watch = MemberWatch(stage.bookies, stage.clock, 0 if standing == "gone" else 10)
        watch.observe()
        if standing == "draining":
            stage.bookies.drain(bookie)
        elif standing != "living":
            stage.bookies.lose(bookie)
        members = watch.observe()
        assert members.state_of(bookie.identity) == standing
        texts = {UNAVAILABLE, NOT_REGISTERED, NO_ENTRY, CORRUPT, UNKNOWN}
        waited = {text for text in texts if _may_exist([Answer(bookie.identity, text)], members)}
        assert waited == waits_for

    run(main)


@pytest.mark.parametrize(
    ("first", "last", "abandoned"),
    [(4, 8, True), (5, 7, True), (3, 8, False), (4, 9, False), (9, 9, False), (3, 3, False)],
)
def test_a_part_is_abandoned_only_if_all_its_entries_are(
    first: int, last: int, abandoned: bool
) -> None:
    assert is_abandoned(Part(1, first, last, (A, B)), {0: 2, 4: 8}) is abandoned


@pytest.mark.parametrize("trouble", ["silent source", "late source", "silent target"])
def test_a_bookie_that_fails_a_copy_is_reported_to_the_bookie_set(trouble: str) -> None:
    async def main() -> None:
        rig = CopyRig(last=3)
        failed: list[str] = []

        def noted(identity: BookieIdentity, error: BookieError) -> None:
            failed.append(identity.bookie_id)

        rig.stage.bookies.failed = noted  # type: ignore[method-assign]
        if trouble == "late source":

            async def never(*_: Any, **__: Any) -> Any:
                await asyncio.Event().wait()

            rig.stage.by_name["a"].read_entries = never  # type: ignore[method-assign]
        else:
            rig.stage.by_name["a" if trouble == "silent source" else "c"].silent = True
        await rig.copy_all("a b", "c")
        assert set(failed) == {"c" if trouble == "silent target" else "a"}

    run(main)
