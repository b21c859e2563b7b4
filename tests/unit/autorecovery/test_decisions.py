"""The pure functions: missing copies by the record, the copies to make, and the verdict."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.autorecovery.answers import CORRUPT, NOT_REGISTERED
from magnetar.autorecovery.check.prover import Verdict, judge
from magnetar.autorecovery.members import BookieState, Members
from magnetar.autorecovery.records import (
    Answer,
    LostEntries,
    RecordState,
    UnderReplicated,
    merge_lost,
)
from magnetar.autorecovery.repair.assessment import Lacking, assess, target_for
from magnetar.autorecovery.repair.next_step import Outcome, OutcomeKind, next_record, requeued
from magnetar.autorecovery.repair.replacement import SPLITS_MAX, copy_tasks, ranges, replace_bookies
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.shape import Part, holders, parts
from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.bookies import BookieInfo
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from magnetar.ledger.quorum import write_set

SETTINGS = AutorecoverySettings()


def bookie(name: str) -> BookieIdentity:
    return BookieIdentity(name, "1")


def names(text: str) -> tuple[BookieIdentity, ...]:
    return tuple(bookie(name) for name in text.split())


def members(living: str, draining: str = "", away: str = "", full: str = "") -> Members:
    infos = {identity: BookieInfo(identity) for identity in names(living)}
    infos |= {identity: BookieInfo(identity, writable=False) for identity in names(full)}
    infos |= {identity: BookieInfo(identity, draining=True) for identity in names(draining)}
    return Members(infos, frozenset(names(away)))


def ledger(
    *ensembles: tuple[int, str],
    last: int = 99,
    state: LedgerState = LedgerState.CLOSED,
    quorum: int = 2,
    stripe: int = 1,
) -> LedgerMetadata:
    return LedgerMetadata(
        1,
        tuple(Ensemble(first, names(text)) for first, text in ensembles),
        0,
        ensemble_size=3,
        write_quorum=quorum,
        ack_quorum=1,
        stripe_entries=stripe,
        state=state,
        last_entry=last if state is LedgerState.CLOSED else -1,
    )


def test_a_ledger_on_living_bookies_is_healthy() -> None:
    assert assess(ledger((0, "a b c")), members("a b c")).healthy
    assert assess(ledger((0, "a b c"), state=LedgerState.OPEN), members("a b c")).healthy


def test_every_ensemble_of_a_lost_bookie_is_lacking() -> None:
    assessment = assess(ledger((0, "a b c"), (10, "b c d"), (20, "a c d")), members("a c d e"))
    assert [(part.part.first, part.part.last, part.lost) for part in assessment.closed_parts] == [
        (0, 9, names("b")),
        (10, 19, names("b")),
    ]
    assert not assessment.needs_end


def test_the_last_ensemble_of_an_open_ledger_belongs_to_its_writer() -> None:
    record = ledger((0, "a b c"), (10, "a b d"), state=LedgerState.OPEN)
    assessment = assess(record, members("a c d e"))
    assert [part.part.first for part in assessment.closed_parts] == [0]
    assert assessment.open_part is not None
    assert assessment.open_part.part.first == 10
    assert assessment.needs_end


def test_a_short_open_ledger_is_closed_if_a_bookie_is_available() -> None:
    short = ledger((0, "a b"), state=LedgerState.OPEN, quorum=3)
    assert assess(short, members("a b")).healthy
    assert assess(short, members("a b", draining="c")).healthy
    assert assess(short, members("a b", full="c")).healthy
    assessment = assess(short, members("a b c"))
    assert assessment.needs_end
    assert assessment.reasons == ("fewer copies than wanted: 2 of 3",)


def test_an_unfinished_recovery_needs_an_end() -> None:
    assessment = assess(ledger((0, "a b"), state=LedgerState.IN_RECOVERY), members("a b"))
    assert assessment.needs_end
    assert not assessment.healthy


def test_bookies_that_hold_nothing_do_not_matter() -> None:
    assert assess(ledger((0, "a b c"), last=-1), members("a")).healthy
    assert assess(ledger((0, "a"), last=-1), members("a b")).healthy, "there is nothing to copy"
    # Entry 0 is on a and b only.
    assert assess(ledger((0, "a b c"), last=0), members("a b")).healthy
    assert not assess(ledger((0, "a b c"), last=1), members("a b")).healthy
    # With stripes of ten entries, so are the first ten.
    assert assess(ledger((0, "a b c"), last=9, stripe=10), members("a b")).healthy


def test_an_ensemble_that_is_too_small_lacks_copies() -> None:
    assessment = assess(ledger((0, "a")), members("a b"))
    assert [part.size_wanted for part in assessment.closed_parts] == [2]
    assert target_for(assessment.closed_parts[0], members("a b"), Random(1), {}) == names("a b")


def test_the_assessment_waits_for_a_bookie_that_is_away() -> None:
    assessment = assess(ledger((0, "a b")), members("a c", away="b"))
    assert assessment.waiting
    assert not assessment.closed_parts
    assert not assessment.healthy


def test_bookies_that_are_gone_are_replaced_before_draining_bookies() -> None:
    (lacking,) = assess(ledger((0, "a b c")), members("b d", draining="a")).closed_parts
    assert lacking.lost == names("a c")
    assert target_for(lacking, members("b d", draining="a"), Random(1), {}) == names("a b d")


def test_refused_full_and_draining_bookies_are_no_replacement() -> None:
    (lacking,) = assess(ledger((0, "a b c")), members("a b d")).closed_parts
    assert target_for(lacking, members("a b d"), Random(1), {bookie("d"): "full"}) == names("a b c")
    assert target_for(lacking, members("a b", draining="d"), Random(1), {}) == names("a b c")


def test_a_replacement_comes_from_another_rack_if_possible() -> None:
    infos = {identity: BookieInfo(identity, rack="/r/1") for identity in names("a b d e")}
    infos[bookie("z")] = BookieInfo(bookie("z"), rack="/r/2")
    current = Members(infos)
    (lacking,) = assess(ledger((0, "a b c"), quorum=3), current).closed_parts
    for seed in range(20):
        assert target_for(lacking, current, Random(seed), {})[2] == bookie("z")


shapes = st.tuples(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(0, 40), st.integers(0, 60)
)


@given(shapes, st.randoms(use_true_random=False), st.integers(0, 3))
def test_exactly_the_missing_copies_of_the_new_ensemble_are_made(
    shape: tuple[int, int, int, int, int], rng: Random, grow: int
) -> None:
    size, quorum, stripe, first, count = shape
    old = tuple(bookie(f"o{number}") for number in range(size))
    new = [
        bookie(f"n{number}") if rng.random() < 0.4 else identity
        for number, identity in enumerate(old)
    ]
    target = (*new, *(bookie(f"g{number}") for number in range(grow)))
    record = LedgerMetadata(
        1, (Ensemble(first, old),), 0, write_quorum=quorum, stripe_entries=stripe
    )
    part = Part(0, first, first + count - 1, old)
    current = Members({identity: BookieInfo(identity) for identity in (*old, *target)})
    copied: dict[int, tuple[BookieIdentity, ...]] = {}
    for window in copy_tasks(record, part, target, current):
        for entry_id, need in window.items():
            assert set(need.sources) == set(holders(old, quorum, stripe, entry_id))
            copied[entry_id] = need.targets
            assert need.targets, "nothing is read that is not needed"
    for entry_id in range(first, first + count):
        have = {*holders(old, quorum, stripe, entry_id), *copied.get(entry_id, ())}
        assert have >= set(holders(target, quorum, stripe, entry_id))


@given(st.sets(st.integers(10, 40), max_size=20))
def test_lost_entries_keep_their_bookies_and_all_others_move(lost: set[int]) -> None:
    record = ledger((0, "a b"), (10, "a c"), (41, "b c"))
    part = parts(record)[1]
    target = names("d c")
    changed = replace_bookies(record, part, target, ranges(sorted(lost)))
    if changed is None:
        assert lost == set(range(10, 41))
        return
    firsts = [ensemble.first_entry for ensemble in changed.ensembles]
    assert firsts == sorted(set(firsts))
    for entry_id in range(100):
        moved = 10 <= entry_id <= 40 and entry_id not in lost
        before = set(write_set(record, entry_id))
        after = set(write_set(changed, entry_id))
        assert after == ({bookie("d"), bookie("c")} if moved else before)


@pytest.mark.parametrize("more", [0, 1])
def test_an_ensemble_is_split_at_a_bounded_number_of_lost_ranges(more: int) -> None:
    record = ledger((0, "a b"))
    lost = [(2 * number, 2 * number) for number in range(SPLITS_MAX + more)]
    (part,) = parts(msgspec.structs.replace(record, last_entry=3 * SPLITS_MAX))
    changed = replace_bookies(record, part, names("d b"), lost)
    assert (changed is None) is bool(more)
    if changed is not None:
        assert len(changed.ensembles) == 2 * SPLITS_MAX


@given(st.lists(st.sampled_from(list(OutcomeKind)), max_size=60), st.randoms())
def test_no_ledger_is_retried_forever(kinds: list[OutcomeKind], rng: Random) -> None:
    record: UnderReplicated | None = UnderReplicated(1, ("gone",), 0)
    now_ms, attempts = 0, 0
    for kind in kinds:
        assert record is not None
        if record.state is not RecordState.WAITING:
            assert kind is not None
            break
        attempts += kind is not OutcomeKind.WAITS
        record = next_record(record, Outcome(kind, wait_ms=10), now_ms, SETTINGS, rng)
        if record is None:
            break
        assert record.attempts <= SETTINGS.attempts_max
        if record.state is RecordState.WAITING:
            assert record.not_before_ms > now_ms
            now_ms = record.not_before_ms
    assert attempts <= SETTINGS.attempts_max


def test_parked_and_lost_ledgers_are_requeued_when_the_bookies_change() -> None:
    parked = UnderReplicated(1, ("gone",), 5, RecordState.PARKED, attempts=8)
    lost = UnderReplicated(1, ("gone",), 5, RecordState.LOST, attempts=1)
    assert requeued(parked, (), bookies_changed=True).state is RecordState.WAITING
    assert requeued(parked, (), bookies_changed=False).attempts == 0
    again = requeued(lost, (), bookies_changed=True)
    assert again.state is RecordState.WAITING
    assert again.prove, "a lost ledger must be read even if its record is right"
    assert requeued(lost, (), bookies_changed=False) == lost


def test_a_lost_ledger_is_requeued_when_an_absent_bookie_returns() -> None:
    present, absent = BookieIdentity("a", "1"), BookieIdentity("b", "1")
    answers = (Answer(present, CORRUPT), Answer(absent, NOT_REGISTERED))
    entries = (LostEntries(3, 3, answers),)
    lost = UnderReplicated(1, ("gone",), 5, RecordState.LOST, attempts=1, lost=entries)
    assert requeued(lost, {present}, bookies_changed=False) == lost
    again = requeued(lost, {present, absent}, bookies_changed=False)
    assert (again.state, again.attempts, again.lost) == (RecordState.WAITING, 0, ())


A, B, C = names("a b c")


def verdict(**copies: tuple[str, int, int] | str | None) -> Verdict:
    """Returns the verdict on entry 7, given each bookie's answer."""
    proven = {
        bookie(name): answer if isinstance(answer, str) else ({} if answer is None else {7: answer})
        for name, answer in copies.items()
    }
    return judge(7, list(proven), proven, len(proven)).verdict


def test_the_verdict_on_one_entry() -> None:
    good, other = ("present", 3, 11), ("present", 3, 12)
    assert verdict(a=good, b=good) is Verdict.HEALTHY
    assert verdict(a=good, b=None) is Verdict.TOO_FEW
    assert verdict(a=good, b=("corrupt", 0, 0)) is Verdict.TOO_FEW
    assert verdict(a=good, b="not registered") is Verdict.TOO_FEW
    assert verdict(a=good, b="unavailable") is Verdict.UNPROVEN
    assert verdict(a=good, b=other) is Verdict.DIVERGENT
    assert verdict(a=good, b=good, c=other) is Verdict.DIVERGENT
    assert verdict(a=None, b="unknown") is Verdict.LOST
    assert verdict(a=None, b="not registered") is Verdict.LOST
    assert verdict(a=None, b="unavailable") is Verdict.TOO_FEW


def test_the_majority_of_copies_is_right_and_a_tie_is_undecided() -> None:
    good, other = ("present", 3, 11), ("present", 3, 12)
    most = judge(7, [A, B, C], {A: {7: good}, B: {7: other}, C: {7: good}}, 3)
    assert most.good == (A, C)
    assert Answer(B, "differs from most") in most.answers
    tie = judge(7, [A, B], {A: {7: good}, B: {7: other}}, 2)
    assert tie.good == ()


def test_equal_losses_are_merged_into_ranges() -> None:
    answers = (Answer(A, "unknown"),)
    merged = merge_lost([(1, answers), (2, answers), (4, answers), (5, (Answer(A, "corrupt"),))])
    assert [(entries.first, entries.last) for entries in merged] == [(1, 2), (4, 4), (5, 5)]


def test_the_state_of_a_bookie_is_that_of_its_incarnation() -> None:
    current = members("a")
    assert current.state_of(bookie("a")) is BookieState.LIVING
    assert current.state_of(BookieIdentity("a", "2")) is BookieState.GONE


def test_a_lacking_ensemble_has_the_wanted_size() -> None:
    assert Lacking(Part(0, 0, 9, names("a b c")), (), 2).size_wanted == 3


def test_the_digest_changes_with_every_difference_that_affects_a_ledger() -> None:
    sets = [
        members("a b c"),
        members("a b"),
        members("a b c d"),
        members("a b", draining="c"),
        members("a b", full="c"),
    ]
    assert len({snapshot.digest for snapshot in sets}) == len(sets)
    assert members("a b", away="c").digest == members("a b c").digest, "it may be a restart"
