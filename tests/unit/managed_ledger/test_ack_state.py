"""Parts of the ack state that the cursor's state machine does not come by, and its scale."""

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from magnetar.core.ids import Position
from magnetar.managed_ledger.ack_state import BATCH_MESSAGES_MAX, AckState
from magnetar.managed_ledger.cursor_codec_v1 import decode, encode_snapshot
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.id_runs import run_end, runs
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo


def index_of(*ledgers: tuple[int, int]) -> LedgerIndex:
    index = LedgerIndex()
    for ledger_id, entries in ledgers:
        index.add(LedgerInfo(ledger_id, 1, entries=entries, size_bytes=entries, closed_ms=1))
    return index


@given(st.sets(st.integers(0, 70)), st.integers(-1, 70))
def test_runs_of_ids(ids: set[int], start: int) -> None:
    bitmap = BitMap(ids)
    end = start
    while end + 1 in ids:
        end += 1
    assert run_end(bitmap, start) == end
    found = list(runs(bitmap))
    spelled = [entry_id for first, last in found for entry_id in range(first, last + 1)]
    assert spelled == sorted(ids)
    assert all(last + 1 not in ids for _, last in found)


def test_mark_delete_continues_where_ledgers_between_are_gone() -> None:
    index = index_of((3, 4), (5, 2), (9, 3))
    state = AckState(index, Position(1, 7), tracked=False)  # ledger 1 was trimmed
    state.restore(
        {3: BitMap([0, 1, 2, 3, 77]), 4: BitMap([1]), 5: BitMap([0])},
        {(5, 1): 0b1, (4, 0): 0b1, (3, 1): 0b1},
    )
    assert state.mark_delete == (5, 0)
    assert (state.holes_count, state.batches, state.backlog) == (0, {(5, 1): 1}, 4)


def test_one_late_ack_closes_a_million_holes_at_once() -> None:
    state = AckState(index_of((1, 1_000_000), (2, 10)), Position(1, -1), tracked=True)
    for entry_id in range(1, 1_000_000):
        state.ack(1, entry_id)
    state.ack(2, 0)
    assert (state.holes_count, state.ranges_count) == (1_000_000, 2)
    state.ack(1, 0)
    assert (state.mark_delete, state.holes_count) == ((2, 0), 0)


def test_a_million_random_holes_are_kept_and_fit_little() -> None:
    """features.md §4, row 10: Pulsar keeps 10,000 and silently forgets the rest."""
    entries = 4_000_000
    state = AckState(index_of((1, entries)), Position(1, -1), tracked=False)
    acked = random.Random(7).sample(range(1, entries), 1_000_000)
    for entry_id in acked:
        state.ack(1, entry_id)
    assert state.holes_count == 1_000_000
    parts = encode_snapshot(0, state.mark_delete, state.holes, state.batches)
    assert sum(map(len, parts)) < 1_000_000
    restored = AckState(state._index, state.mark_delete, tracked=False)
    holes = BitMap()
    for part in parts:
        holes |= decode(part).holes[1]
    restored.restore({1: holes}, {})
    assert restored.holes == state.holes
    assert restored.holes[1] == BitMap(array("I", sorted(acked)))
    assert restored.backlog == entries - 1_000_000


def test_what_clients_make_up_changes_nothing() -> None:
    state = AckState(index_of((3, 4), (5, 2)), Position(3, 0), tracked=True)
    for ledger_id, entry_id in ((2, 0), (3, -1), (3, 4), (4, 0), (5, 2), (5, 2**40), (2**63, 0)):
        state.ack(ledger_id, entry_id)
        assert not state.ack_batch(ledger_id, entry_id, 0, 2) or (ledger_id, entry_id) < (3, 1)
        assert state.remaining_batch(ledger_id, entry_id) is None
        state.ack_batch_cumulative((ledger_id, entry_id), 0, 2)
    state.ack_cumulative((5, 2))
    state.ack_cumulative((2**62, 2**62))
    assert not state.is_acked(5, 2**40)
    assert (state.mark_delete, state.holes_count, state.batches) == ((3, 0), 0, {})


def test_batches_of_clients_that_do_not_say_their_size() -> None:
    state = AckState(index_of((3, 4)), Position(3, -1), tracked=True)
    assert not state.ack_batch(3, 0, 0b110, 0)
    assert not state.ack_batch(3, 1, 0b110, BATCH_MESSAGES_MAX + 1)
    assert not state.ack_batch(3, 0, 0b011, 0)
    assert state.remaining_batch(3, 0) == 0b010
    assert state.ack_batch(3, 0, 0b101, 0)
    assert state.mark_delete == (3, 0)


def test_filtering_keeps_the_list_where_nothing_is_acked() -> None:
    state = AckState(index_of((3, 6), (5, 6)), Position(3, 0), tracked=True)
    entries = [Entry(3, entry_id, b"") for entry_id in range(1, 6)]
    assert state.filter_unacked(entries) is entries
    state.ack(5, 3)
    assert state.filter_unacked(entries) is entries
    state.ack(3, 4)
    assert [entry.entry_id for entry in state.filter_unacked(entries)] == [1, 2, 3, 5]
    assert state.filter_unacked(entries[:3]) == entries[:3]
    both = [*entries, *(Entry(5, entry_id, b"") for entry_id in range(6))]
    state.ack_cumulative((3, 2))
    kept = [(entry.ledger_id, entry.entry_id) for entry in state.filter_unacked(both)]
    assert kept == [(3, 3), (3, 5), (5, 0), (5, 1), (5, 2), (5, 4), (5, 5)]
    state.ack_cumulative((5, 3))
    assert [entry.entry_id for entry in state.filter_unacked(both)] == [4, 5]
    assert state.filter_unacked([]) == []


def test_bits_beyond_a_batchs_size_count_for_nothing() -> None:
    """A client may send whole words: the rest of the last one names no message."""
    state = AckState(index_of((3, 5)), Position(3, -1), tracked=True)
    assert not state.ack_batch(3, 1, (1 << 64) - 1, 4)
    assert state.remaining_batch(3, 1) is None, "no message was acked"
    assert not state.ack_batch(3, 1, (1 << 64) - 2, 4)
    assert state.remaining_batch(3, 1) == 0b1110
    assert state.ack_batch(3, 1, (1 << 64) - (1 << 4), 4)
    assert state.is_acked(3, 1)
    assert state.ack_batch(3, 0, 1 << 63, 4)
    assert state.mark_delete == (3, 1)


def test_an_ack_of_what_an_artifact_holds_moves_mark_delete_there_and_no_further() -> None:
    """The log's own entries are trimmed; a cursor before them continues in the artifact."""
    state = AckState(index_of((5, 3), (7, 2)), Position(1, -1), tracked=True)
    state.ack_cumulative((1, 3))
    assert state.mark_delete == (1, 3)
    state.ack_cumulative((1, 2))
    assert state.mark_delete == (1, 3)
    state.ack_cumulative((4, 9))
    assert (state.mark_delete, state.backlog) == ((4, 9), 5)
    state.ack_cumulative((5, 0))
    assert (state.mark_delete, state.backlog) == ((5, 0), 4)


def test_a_batch_size_is_believed_up_to_its_bound() -> None:
    """A client sends the size: without a bound it could cost the broker gigabytes."""
    state = AckState(index_of((3, 4)), Position(3, -1), tracked=True)
    whole = (1 << BATCH_MESSAGES_MAX) - 1
    assert not state.ack_batch(3, 1, whole, BATCH_MESSAGES_MAX)
    assert state.remaining_batch(3, 1) is None, "no message of it is acked"
    larger = (1 << BATCH_MESSAGES_MAX + 1) - 1
    assert not state.ack_batch(3, 2, larger, BATCH_MESSAGES_MAX + 1)
    assert state.remaining_batch(3, 2) == larger, "its size counts as unknown"
