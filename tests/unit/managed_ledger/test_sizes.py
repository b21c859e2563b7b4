"""Sizes and places in a log of ledgers of many shapes, against a walk over all places."""

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo

Counts = list[tuple[int, int]]
"""Of each ledger: entries, and bytes of one of them."""
counts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=1, max_size=6)


def made(shape: Counts, trimmed: int) -> LedgerIndex:
    index = LedgerIndex()
    for number, (entries, size) in enumerate(shape):
        size_bytes = entries * size + (3 if entries else 0)  # no multiple of the entries
        index.add(LedgerInfo(2 * number + 1, 1, entries=entries, size_bytes=size_bytes))
    index.remove({info.ledger_id for info in index.infos[:trimmed]})
    return index


def places(index: LedgerIndex) -> list[Position]:
    return [
        Position(info.ledger_id, entry_id)
        for info in index.infos
        for entry_id in range(-1, info.entries)
    ]


@settings(max_examples=200)
@given(counts, st.data(), st.integers(0, 200))
def test_the_first_place_that_leaves_so_many_bytes(
    shape: Counts, data: st.DataObject, size_bytes: int
) -> None:
    index = made(shape, data.draw(st.integers(0, len(shape) - 1)))
    found = index.place_leaving(size_bytes)
    fitting = [place for place in places(index) if index.bytes_after(*place) <= size_bytes]
    assert index.bytes_after(*found) <= size_bytes
    assert found == fitting[0]


@settings(max_examples=200)
@given(counts, st.data())
def test_bytes_behind_a_place_are_those_of_later_ledgers_and_a_part_of_its_own(
    shape: Counts, data: st.DataObject
) -> None:
    trimmed = data.draw(st.integers(0, len(shape) - 1))
    index = made(shape, trimmed)
    kept = index.infos
    assert index.size_bytes == sum(info.size_bytes for info in kept)
    assert index.entries == sum(info.entries for info in kept)
    for ledger_id in range(-1, 2 * len(shape) + 2):
        later = sum(info.size_bytes for info in kept if info.ledger_id > ledger_id)
        own = index.get(ledger_id)
        assert (own is not None) is (ledger_id in [info.ledger_id for info in kept])
        assert index.last_entry_of(ledger_id) == (own.entries - 1 if own else -1)
        for entry_id in range(-1, 6):
            mean = 0
            if own is not None and own.entries:
                passed = min(entry_id + 1, own.entries)
                mean = own.size_bytes - own.size_bytes * passed // own.entries
            assert index.bytes_after(ledger_id, entry_id) == later + mean


def test_sizes_and_ranks_continue_behind_what_was_trimmed() -> None:
    index = LedgerIndex()
    for ledger_id, entries in ((1, 3), (4, 2)):
        index.add(LedgerInfo(ledger_id, 1, entries=entries, size_bytes=entries * 10))
    index.remove({1, 4})
    assert (index.entries, index.size_bytes, index.rank_end) == (0, 0, 5)
    assert index.place_leaving(0) == index.last_confirmed == Position(4, 1)
    info = LedgerInfo(6, 1)
    index.add(info)
    for entries, size_bytes in ((1, 7), (2, 5)):
        index.grow(info, entries, size_bytes)
    assert (index.entries, index.size_bytes, index.rank_end) == (3, 12, 8)
    assert index.bytes_after(4, 1) == index.bytes_after(6, -1) == 12
    assert [index.bytes_after(6, entry_id) for entry_id in range(3)] == [8, 4, 0]
    assert index.place_leaving(11) == (6, 0)
    assert [index.rank(6, entry_id) for entry_id in range(-1, 4)] == [5, 6, 7, 8, 8]
    assert list(accumulate([index.rank(1, 9), index.rank(4, 9)])) == [5, 10]
    assert index.first_position == (6, -1)
    index.remove(set())
    assert index.size_bytes == 12


def test_the_last_confirmed_place_is_that_of_the_last_entry_there_ever_was() -> None:
    index = LedgerIndex()
    assert index.last_confirmed == EARLIEST
    index.add(LedgerInfo(3, 1))
    assert index.last_confirmed == (3, -1)
    index.add(LedgerInfo(5, 1))
    assert index.last_confirmed == (3, -1)
    index.add(LedgerInfo(7, 1, entries=2))
    assert index.last_confirmed == (7, 1)
    index.add(LedgerInfo(9, 1))
    assert index.last_confirmed == (7, 1)
    index.remove({9})
    assert index.last_confirmed == (7, 1)
    assert LedgerIndex(Position(4, 2)).last_confirmed == (4, 2)
