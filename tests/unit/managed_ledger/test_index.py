"""Position arithmetic, against a flat list of all entries there ever were."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.errors import LedgerIdRegression
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo

Shape = tuple[LedgerIndex, list[Position], int]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """An index of closed ledgers and perhaps an open one, of which a head was trimmed."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    steps = draw(st.lists(st.integers(1, 3), min_size=len(counts), max_size=len(counts)))
    index, entries, ledger_id = LedgerIndex(), [], 0
    for count, step in zip(counts, steps, strict=True):
        ledger_id += step
        info = LedgerInfo(ledger_id, 1, entries=count, size_bytes=count * 10, closed_ms=1)
        index.add(info)
        entries += [Position(ledger_id, entry_id) for entry_id in range(count)]
    if draw(st.booleans()):
        index.add(LedgerInfo(ledger_id + 1, 1))  # open and empty
    trimmed = draw(st.integers(0, len(counts) - 1))
    gone = {info.ledger_id for info in index.infos[:trimmed]}
    index.remove(gone)
    return index, entries, sum(counts[:trimmed])


places = st.builds(Position, st.integers(-1, 20), st.integers(-1, 6))


@given(shapes(), places)
def test_locate_next_and_previous(shape: Shape, place: Position) -> None:
    index, entries, trimmed = shape
    kept = entries[trimmed:]
    after = [position for position in kept if position > place]
    if after:
        assert index.next_position(*place) == after[0]
    else:
        assert index.next_position(*place) > place
        assert index.locate(*index.next_position(*place)) is None
    before = [position for position in kept if position < place]
    assert index.previous_position(*place) == (before[-1] if before else index.first_position)


@st.composite
def gappy_shapes(draw: st.DrawFn) -> tuple[LedgerIndex, list[Position]]:
    """An index with ledgers without entries anywhere, perhaps of nothing else; what it keeps."""
    counts = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=1, max_size=9))
    index = LedgerIndex()
    for at, count in enumerate(counts):
        index.add(LedgerInfo(2 * at + 1, 1, size_bytes=count * 10, entries=count, closed_ms=1))
    trimmed = draw(st.integers(0, len(counts) - 1))
    index.remove({info.ledger_id for info in index.infos[:trimmed]})
    kept = [
        Position(2 * at + 1, entry_id)
        for at, count in enumerate(counts)
        for entry_id in range(count)
        if at >= trimmed
    ]
    return index, kept


@settings(max_examples=400)
@given(gappy_shapes(), places)
def test_ledgers_without_entries_are_passed_over(
    shape: tuple[LedgerIndex, list[Position]], place: Position
) -> None:
    index, kept = shape
    later = [position for position in kept if position.ledger_id > place.ledger_id]
    found = index.ledger_after(place.ledger_id)
    assert (found and found.ledger_id) == (later[0].ledger_id if later else None)

    since = [position for position in kept if position >= place]
    located = index.locate(*place)
    here = None if located is None else Position(located[0].ledger_id, located[1])
    assert here == (since[0] if since else None)

    after = [position for position in kept if position > place]
    following = index.next_position(*place)
    assert following == after[0] if after else following > place

    upto = [position for position in kept if position <= place]
    assert index.floor(*place) == (upto[-1] if upto else index.first_position)
    before = [position for position in kept if position < place]
    assert index.previous_position(*place) == (before[-1] if before else index.first_position)


def test_the_next_entry_is_behind_any_number_of_ledgers_without_entries() -> None:
    index = LedgerIndex()
    for ledger_id, count in ((1, 2), (5, 0), (7, 0), (9, 1), (11, 0)):
        index.add(LedgerInfo(ledger_id, 1, entries=count, closed_ms=1))
    assert index.next_position(1, 1) == Position(9, 0)
    assert index.ledger_after(9) is None


@given(shapes(), places)
def test_ranks_count_all_entries_up_to_a_place(shape: Shape, place: Position) -> None:
    index, entries, trimmed = shape
    upto = sum(position <= place for position in entries)
    assert index.rank(*place) == max(upto, trimmed if place < entries[trimmed] else upto)
    assert index.rank_end == len(entries)
    assert index.entries == len(entries) - trimmed
    assert index.size_bytes == index.entries * 10
    assert index.last_confirmed == entries[-1]


@given(shapes(), st.data())
def test_every_rank_has_its_entry(shape: Shape, data: st.DataObject) -> None:
    index, entries, trimmed = shape
    rank = data.draw(st.integers(trimmed + 1, len(entries)))
    assert index.position_at(rank) == entries[rank - 1]
    assert index.rank(*entries[rank - 1]) == rank
    assert index.bytes_after(*entries[rank - 1]) == (len(entries) - rank) * 10


def test_a_log_that_never_had_a_ledger() -> None:
    index = LedgerIndex()
    assert index.last_confirmed == index.first_position == EARLIEST
    assert index.locate(*EARLIEST) is None
    assert index.floor(5, 5) == EARLIEST
    assert index.bytes_after(*EARLIEST) == 0
    index.add(LedgerInfo(7, 1))
    assert index.last_confirmed == index.first_position == Position(7, -1)


def test_counts_continue_where_everything_was_trimmed() -> None:
    index = LedgerIndex()
    index.add(LedgerInfo(3, 1, entries=5, size_bytes=50, closed_ms=1))
    index.remove({3})
    assert (index.entries, index.size_bytes, index.rank_end) == (0, 0, 5)
    assert index.last_confirmed == index.first_position == Position(3, 4)
    info = LedgerInfo(4, 1)
    index.add(info)
    index.grow(info, 2, 20)
    assert (index.entries, index.rank_end, index.rank(3, 4)) == (2, 7, 5)


@pytest.mark.parametrize("ledger_id", [2, 3])
def test_a_ledger_id_must_be_above_all_before(ledger_id: int) -> None:
    """apache/pulsar#20094: a returning broker took an old ledger, and message ids went back."""
    index = LedgerIndex()
    index.add(LedgerInfo(3, 1, entries=1, closed_ms=1))
    with pytest.raises(LedgerIdRegression):
        index.add(LedgerInfo(ledger_id, 1))
    with pytest.raises(LedgerIdRegression):
        LedgerIndex(Position(3, 0)).add(LedgerInfo(ledger_id, 1))
