"""The decisions of `ledger.quorum` against a model that tries every possibility."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookie.api import BookieIdentity
from magnetar.ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from magnetar.ledger.quorum import (
    UNENDED,
    absence_needs,
    answers_cover,
    ensemble_of,
    every_bookie,
    fence_covers,
    last_of,
    run_last,
    slots_of,
    stripe_last,
    with_ensemble,
    write_set,
    write_sets,
)

BOOKIES = [BookieIdentity(f"b{n}", "0") for n in range(8)]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Size of an ensemble (perhaps smaller than wanted), write quorum, ack quorum."""
    write_quorum = draw(st.integers(1, 4))
    ack_quorum = draw(st.integers(1, write_quorum))
    return draw(st.integers(ack_quorum, 6)), write_quorum, ack_quorum


def subsets(items: tuple[int, ...], size: int) -> list[set[int]]:
    return [set(some) for some in combinations(items, size)]


@given(shapes(), st.integers(1, 9), st.integers(0, 10_000))
def test_an_entry_is_on_as_many_bookies_as_wanted_one_after_the_other(
    shape: tuple[int, int, int], stripe: int, entry_id: int
) -> None:
    size, write_quorum, _ = shape
    slots = slots_of(size, write_quorum, stripe, entry_id)
    assert len(set(slots)) == len(slots) == min(write_quorum, size)
    assert slots[0] == entry_id // stripe % size
    assert all((a + 1) % size == b for a, b in pairwise(slots))
    last = stripe_last(stripe, entry_id)
    assert all(
        slots_of(size, write_quorum, stripe, entry) == slots for entry in range(entry_id, last + 1)
    )


@given(shapes(), st.data())
def test_a_fence_covers_when_no_ack_quorum_is_left(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    size, write_quorum, ack_quorum = shape
    fenced = data.draw(st.sets(st.integers(0, size - 1)))
    possible = any(
        not quorum & fenced
        for slots in write_sets(size, write_quorum)
        for quorum in subsets(slots, ack_quorum)
    )
    assert fence_covers(size, write_quorum, ack_quorum, fenced) is not possible


@given(shapes(), st.integers(0, 50), st.data())
def test_absence_is_certain_when_no_ack_quorum_can_have_it(
    shape: tuple[int, int, int], entry_id: int, data: st.DataObject
) -> None:
    size, write_quorum, ack_quorum = shape
    slots = slots_of(size, write_quorum, 3, entry_id)
    without = data.draw(st.sets(st.sampled_from(slots)))
    possible = any(not quorum & without for quorum in subsets(slots, ack_quorum))
    assert (len(without) >= absence_needs(size, write_quorum, ack_quorum)) is not possible


def ledger(*firsts: int, size: int = 3, **changes: object) -> LedgerMetadata:
    """A ledger of 3/2/2 with stripes of 4, whose ensembles begin at these entries."""
    fields: dict[str, object] = {"write_quorum": 2, "ack_quorum": 2, "stripe_entries": 4}
    ensembles = tuple(
        Ensemble(first, tuple(BOOKIES[index : index + size])) for index, first in enumerate(firsts)
    )
    return LedgerMetadata(7, ensembles, 0, ensemble_size=3, **(fields | changes))  # type: ignore[arg-type]


def test_an_entry_belongs_to_the_last_ensemble_that_begins_at_or_before_it() -> None:
    metadata = ledger(0, 10, 11)
    for entry_id, index in ((0, 0), (9, 0), (10, 1), (11, 2), (10**9, 2)):
        assert ensemble_of(metadata, entry_id) is metadata.ensembles[index]
    assert write_set(metadata, 10) == (BOOKIES[3], BOOKIES[1])


def test_a_run_ends_with_its_stripe_its_ensemble_or_its_ledger() -> None:
    metadata = ledger(0, 10)
    assert [run_last(metadata, entry) for entry in (0, 3, 4, 9, 10, 12)] == [3, 3, 7, 9, 11, 15]
    closed = ledger(0, 10, state=LedgerState.CLOSED, last_entry=13)
    assert run_last(closed, 12) == 13
    unstriped = ledger(0, 10, size=2)
    assert [run_last(unstriped, entry) for entry in (0, 9, 10)] == [9, 9, UNENDED]


def test_every_bookie_of_a_ledger_is_listed_once() -> None:
    metadata = ledger(0, 5, 9)
    assert every_bookie(metadata) == tuple(BOOKIES[:5])


def test_a_new_ensemble_replaces_what_is_behind_its_first_entry() -> None:
    metadata = ledger(0, 5, 9)
    new = (BOOKIES[6], BOOKIES[7])
    assert with_ensemble(metadata, 12, new) == (*metadata.ensembles, Ensemble(12, new))
    assert with_ensemble(metadata, 9, new) == (*metadata.ensembles[:2], Ensemble(9, new))
    assert with_ensemble(metadata, 7, new) == (*metadata.ensembles[:2], Ensemble(7, new))
    same = metadata.ensembles[1].bookies
    assert with_ensemble(metadata, 8, same) == metadata.ensembles[:2]


def test_an_entry_before_the_ledger_is_none_of_its() -> None:
    with pytest.raises(ValueError, match="begins behind entry 4"):
        ensemble_of(ledger(5, 10), 4)
    assert ensemble_of(ledger(5, 10), 5).first_entry == 5


def test_an_ensemble_ends_where_the_next_begins_or_the_ledger_ends() -> None:
    metadata = ledger(0, 10, 25)
    assert [last_of(metadata, index) for index in (0, 1, 2)] == [9, 24, UNENDED]
    closed = ledger(0, 10, state=LedgerState.CLOSED, last_entry=13)
    assert [last_of(closed, index) for index in (0, 1)] == [9, 13]
    recovering = ledger(0, state=LedgerState.IN_RECOVERY, last_entry=3)
    assert last_of(recovering, 0) == UNENDED
    assert last_of(ledger(0, 10, state=LedgerState.CLOSED, last_entry=4), 0) == 4


@given(shapes(), st.data())
def test_answers_cover_where_every_ack_quorum_has_one_that_answered(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    size, write_quorum, ack_quorum = shape
    first = Ensemble(0, tuple(BOOKIES[:1]))
    last = Ensemble(5, tuple(BOOKIES[1 : size + 1]))
    metadata = LedgerMetadata(
        7, (first, last), 0, size, write_quorum=write_quorum, ack_quorum=ack_quorum
    )
    slots = data.draw(st.sets(st.integers(0, size - 1)))
    answered = {last.bookies[slot] for slot in slots} | set(first.bookies)
    assert answers_cover(metadata, answered) is all(
        quorum & slots
        for held in write_sets(size, write_quorum)
        for quorum in subsets(held, ack_quorum)
    )
