"""Small parts of a bookie on their own: states of ledgers, the index, the cache."""

import pytest

from magnetar.bookie import index, ledgers
from magnetar.bookie.api import (
    BookieError,
    BookieReadOnly,
    LedgerFenced,
    NoSuchLedger,
)
from magnetar.bookie.index import FLAG_DELETED, FLAG_EMPTIED, FLAG_FENCED, Index, LedgerRecord, View
from magnetar.bookie.index_store import Batch, MemoryIndexStore
from magnetar.bookie.ledgers import Ledgers, LedgerState
from magnetar.bookie.memory import MemoryBookie
from magnetar.bookie.packed import ascending
from magnetar.bookie.write_cache import (
    ENTRY_OVERHEAD_BYTES,
    GROUP_OVERHEAD_BYTES,
    LedgerEntries,
    WriteCacheHalf,
    segment_of,
)

# -- the state of a ledger ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "writer", "recovery"),
    [
        ({}, None, None),
        ({"fenced": True}, LedgerFenced, None),
        ({"dropping": True}, BookieReadOnly, BookieReadOnly),
        ({"dropping": True, "fenced": True}, BookieReadOnly, BookieReadOnly),
        ({"deleted_ms": 0}, NoSuchLedger, NoSuchLedger),
        ({"deleted_ms": 5, "fenced": True}, NoSuchLedger, NoSuchLedger),
        ({"deleting": "under way"}, NoSuchLedger, NoSuchLedger),
        ({"deleted_ms": -1}, None, None),
    ],
    ids=str,
)
def test_who_may_add_to_a_ledger(
    states: dict[str, object],
    writer: type[BookieError] | None,
    recovery: type[BookieError] | None,
) -> None:
    state = LedgerState(1)
    for name, value in states.items():
        setattr(state, name, value)
    for by_recovery, expected in ((False, writer), (True, recovery)):
        refusal = state.refusal(recovery=by_recovery)
        assert (None if refusal is None else type(refusal)) == expected


@pytest.mark.parametrize(
    ("fenced", "deleted_ms", "emptied", "flags"),
    [
        (False, -1, False, 0),
        (True, -1, False, FLAG_FENCED),
        (True, 0, False, FLAG_FENCED | FLAG_DELETED),
        (False, 7, True, FLAG_DELETED),
        (True, -1, True, FLAG_FENCED | FLAG_EMPTIED),
    ],
)
def test_what_goes_to_the_index_of_a_ledger(
    fenced: bool, deleted_ms: int, emptied: bool, flags: int
) -> None:
    state = LedgerState(1)
    state.fenced, state.deleted_ms, state.emptied = fenced, deleted_ms, emptied
    state.last_add_confirmed, state.last_entry, state.length_bytes = 3, 4, 5
    assert state.record == LedgerRecord(3, 4, 5, deleted_ms, flags)


def test_the_length_of_a_ledger_counts_while_each_entry_came_once() -> None:
    state = LedgerState(1)
    state.emptied = True
    state.added(0, 1, 10, -1)
    assert (state.exists, state.unflushed, state.emptied) == (True, True, False)
    assert (state.last_entry, state.length_bytes, state.last_add_confirmed) == (1, 10, -1)
    state.added(2, 5, 20, 1)
    assert (state.last_entry, state.length_bytes, state.last_add_confirmed) == (5, 30, 1)
    state.added(5, 6, 20, 0)
    assert (state.last_entry, state.length_bytes, state.last_add_confirmed) == (6, -1, 1)
    state.added(7, 7, 20, 9)
    assert (state.length_bytes, state.last_add_confirmed) == (-1, 9)
    state.added(3, 3, 1, 2)
    assert (state.last_entry, state.last_add_confirmed) == (7, 9)


def stored(*records: tuple[int, int]) -> Index:
    """An index with ledgers and their flags."""
    found = Index(MemoryIndexStore())
    batch = Batch()
    for ledger_id, flags in records:
        deleted_ms = 5 if flags & FLAG_DELETED else -1
        index.put_ledger(batch, ledger_id, LedgerRecord(1, 2, 3, deleted_ms, flags))
    found.store.write(batch)
    return found


def test_a_state_is_loaded_as_it_was_kept() -> None:
    known = Ledgers(
        stored((1, 0), (2, FLAG_FENCED), (3, FLAG_DELETED), (4, FLAG_FENCED | FLAG_EMPTIED))
    )
    first, second, third, fourth, fifth = (known.get(ledger_id) for ledger_id in range(1, 6))
    assert (first.exists, first.fenced, first.deleted, first.emptied) == (True, False, False, False)
    assert (first.last_add_confirmed, first.last_entry, first.length_bytes) == (1, 2, 3)
    assert first.last_indexed == 2
    assert second.fenced
    assert second.fence_durable
    assert third.deleted
    assert (fourth.exists, fourth.emptied, fourth.fenced) == (False, True, True)
    assert (fifth.exists, fifth.last_indexed) == (False, -1)
    assert known.get(1) is first
    for ledger_id in (-1, 1 << 63):
        with pytest.raises(ValueError, match="no ledger id"):
            known.get(ledger_id)
    assert known.ids(known.indexed_ids()) == [1, 2]
    assert known.emptied_ids() == [4]
    assert known.known_ids() == {1, 2, 3, 4, 5}
    fifth.exists = True
    second.deleted_ms = 9
    assert known.ids([1, 2]) == [1, 5]


def test_nothing_of_a_deleted_ledger_is_forgotten_while_something_is_under_way() -> None:
    for name in ("pending", "unflushed", "alive", "dirty", "nothing"):
        known = Ledgers(stored((1, FLAG_DELETED)))
        state = known.get(1)
        if name == "alive":
            state.deleted_ms = -1
        elif name == "dirty":
            known.dirty[1] = state
        elif name != "nothing":
            setattr(state, name, True)
        known.flushing = True
        known.flushed([1, 2])
        assert not known.flushing
        assert (known.get(1) is state) == (name != "nothing"), name


def test_idle_states_are_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledgers, "STATES_KEPT_MAX", 4)
    known = Ledgers(stored())
    kept = {ledger_id: known.get(ledger_id) for ledger_id in range(3)}
    kept[0].pending, kept[1].unflushed = 1, True
    known.dirty[2] = kept[2]
    idle = known.get(3)
    known.get(4)
    assert all(known.get(ledger_id) is state for ledger_id, state in kept.items())
    assert known.get(3) is not idle
    known = Ledgers(stored())
    first = known.get(0)
    known.take([0])
    for ledger_id in range(1, 9):
        known.get(ledger_id)
    assert known.get(0) is first, "a flush has it"


def test_in_limbo_only_a_recovery_adds() -> None:
    known = Ledgers(stored((1, 0), (2, 0)))
    second = known.get(2)
    known.set_limbo(1)
    assert known.get(1).fenced
    assert not second.fenced
    assert (known.is_limbo(1), known.is_limbo(2)) == (True, False)
    known.set_limbo(2)
    assert second.fenced


def test_of_emptied_ledgers_those_count_that_nothing_was_added_to() -> None:
    known = Ledgers(stored(*((ledger_id, FLAG_EMPTIED) for ledger_id in (1, 2, 3))))
    known.get(2).added(0, 0, 1, -1)
    known.get(3).deleted_ms = 5
    known.get(1)
    assert known.still_emptied([1, 2, 3, 4]) == [1, 4]


# -- the index ------------------------------------------------------------------------------------


def viewed(*spans: tuple[int, int, int]) -> Index:
    found = Index(MemoryIndexStore())
    batch = Batch()
    for ledger_id, first, last in spans:
        index.put_view(batch, View(ledger_id, first, last, 1, first, 1))
    found.store.write(batch)
    return found


def test_a_view_is_found_by_any_of_its_entries_and_else_the_next_one() -> None:
    found = viewed((1, 2, 4), (1, 6, 6), (2, 0, 9), (3, 5, 5))

    def span(view: View | None) -> tuple[int, int] | None:
        return None if view is None else (view.first, view.last)

    assert [span(found.find(1, entry_id)) for entry_id in range(8)] == [
        None,
        None,
        (2, 4),
        (2, 4),
        (2, 4),
        None,
        (6, 6),
        None,
    ]
    assert span(found.find_from(1, 0, 1)) is None
    assert span(found.find_from(1, 0, 2)) == (2, 4)
    assert span(found.find_from(1, 4, 4)) == (2, 4)
    assert span(found.find_from(1, 5, 5)) is None
    assert span(found.find_from(1, 5, 6)) == (6, 6)
    assert span(found.find_from(1, 7, 99)) is None, "the next ledger's are not its own"
    assert span(found.find_from(3, 0, 4)) is None
    assert span(found.find_from(3, 0, 5)) == (5, 5)
    assert [span(view) for view in found.views(1, 4, 6)] == [(2, 4), (6, 6)]
    assert [span(view) for view in found.views(1, 5, 5)] == []
    assert [span(view) for view in found.views(1, 2, 5)] == [(2, 4)]
    assert [span(view) for view in found.views(1)] == [(2, 4), (6, 6)]
    assert len(list(found.all_views())) == 4


def test_the_usage_of_a_log_is_its_own_and_never_below_nothing() -> None:
    found = viewed()
    for log_id, ledger_id, change in ((1, 7, 5), (1, 7, 6), (1, 8, 1), (2, 7, 3), (2, 7, -9)):
        batch = Batch()
        found.add_usage(batch, log_id, ledger_id, change)
        found.store.write(batch)
    assert list(found.usage(1)) == [(7, 11), (8, 1)]
    assert list(found.usage(2)) == [(7, 0)]
    batch = Batch()
    found.add_usage(batch, 1, 9, 2)
    found.add_usage(batch, 1, 9, 2)
    index.drop_usage(batch, 2)
    found.store.write(batch)
    assert list(found.usage(1)) == [(7, 11), (8, 1), (9, 4)]
    assert list(found.usage(2)) == []


def test_dropping_a_ledger_leaves_its_neighbours() -> None:
    found = viewed((1, 0, 0), (2, 0, 0), (2, 9, 9), (3, 0, 0))
    batch = Batch()
    index.drop_entries(batch, 2)
    found.store.write(batch)
    assert [view.ledger_id for view in found.all_views()] == [1, 3]


# -- the write cache ------------------------------------------------------------------------------


def put(held: LedgerEntries, ids: list[int], mark: bytes = b"") -> None:
    entries = [mark + b"%d" % entry_id for entry_id in ids]
    held.append(ids, entries, segment_of(entries))


def shown(held: LedgerEntries) -> list[tuple[int, list[bytes]]]:
    for run in held.runs:
        at = 0
        for segment in run.segments:
            assert segment == segment_of(run.entries[at : at + segment.count])
            at += segment.count
        assert at == len(run.entries)
    return [(run.first, run.entries) for run in held.runs]


def test_groups_that_go_on_share_a_run_and_others_do_not() -> None:
    held = LedgerEntries()
    assert held.last == -1
    put(held, [3, 4])
    put(held, [5])
    put(held, [7])
    assert shown(held) == [(3, [b"3", b"4", b"5"]), (7, [b"7"])]
    assert held.last == 7
    put(held, [6])
    assert [entry for _, entries in shown(held) for entry in entries] == [
        b"3",
        b"4",
        b"5",
        b"6",
        b"7",
    ]
    put(held, [1, 2])
    assert held.find(0) is held.runs[0]
    assert held.runs[0].first == 1
    assert held.find(8) is None


def test_entries_that_come_again_are_replaced_and_the_rest_of_their_group_is_kept() -> None:
    held = LedgerEntries()
    put(held, [3, 4, 5])
    put(held, [8])
    put(held, [2, 4, 5, 6, 9], b"new ")
    flat = {run.first + at: data for run in held.runs for at, data in enumerate(run.entries)}
    assert flat == {
        2: b"new 2",
        3: b"3",
        4: b"new 4",
        5: b"new 5",
        6: b"new 6",
        8: b"8",
        9: b"new 9",
    }
    shown(held)
    firsts = [run.first for run in held.runs]
    assert firsts == sorted(firsts)
    segments = [segment for run in held.runs for segment in run.segments]
    put(held, [4], b"new ")
    assert [segment for run in held.runs for segment in run.segments] == segments


def test_a_half_counts_what_it_holds() -> None:
    half = WriteCacheHalf()
    for ledger_id, count in ((1, 2), (1, 1), (2, 3)):
        entries = [bytes(10)] * count
        first = half.ledgers[ledger_id].last + 1 if ledger_id in half.ledgers else 0
        half.add(ledger_id, range(first, first + count), entries, segment_of(entries))
    assert half.count == 6
    assert half.charge == 6 * (10 + ENTRY_OVERHEAD_BYTES) + 3 * GROUP_OVERHEAD_BYTES
    half.drop(9)
    half.drop(1)
    assert half.count == 3
    assert half.charge == 3 * (10 + ENTRY_OVERHEAD_BYTES) + GROUP_OVERHEAD_BYTES
    assert half.slice(1, 0, 9, 9) is None
    assert half.slice(2, 0, 9, 9) == (range(3), [bytes(10)] * 3)
    assert half.slice(2, 1, 1, 9) == (range(1, 2), [bytes(10)])
    assert half.slice(2, 0, 9, 2) == (range(2), [bytes(10)] * 2)
    assert half.slice(2, 3, 9, 9) is None


# -- ids ------------------------------------------------------------------------------------------


def test_ids_that_follow_each_other_are_a_range() -> None:
    assert ascending([3, 4, 5]) == range(3, 6)
    assert ascending((7,)) == range(7, 8)
    assert ascending([]) == range(0)
    assert ascending([3, 5]) == (3, 5)
    assert ascending(range(2, 9, 3)) == (2, 5, 8)
    for ids in ([3, 3], [4, 3], [3, 4, 4]):
        with pytest.raises(ValueError, match="must ascend"):
            ascending(ids)


# -- the bookie in memory -------------------------------------------------------------------------


async def test_a_copy_that_was_dropped_in_memory_stays_fenced() -> None:
    bookie = MemoryBookie()
    answers: list[BookieError | None] = []

    async def add(ledger_id: int, *, recovery: bool = False) -> type[BookieError] | None:
        bookie.add_entries(
            ledger_id,
            range(1),
            [b"x"],
            last_add_confirmed=-1,
            on_added=answers.append,
            recovery=recovery,
        )
        await bookie.ledger_end(99, fence=True)
        error = answers.pop()
        return None if error is None else type(error)

    assert await add(1) is None
    assert await bookie.drop_copies([1, 5]) == [1]
    assert await bookie.list_emptied() == [1]
    assert await add(1) is LedgerFenced
    assert (await bookie.ledger_end(1, fence=True)).fenced
    assert await add(1, recovery=True) is None
    assert await bookie.list_emptied() == []
    assert await add(1) is LedgerFenced
    await bookie.delete_ledger(7)
    assert await add(7) is None, "what was never here is not deleted"
    await bookie.delete_ledger(7)
    assert await add(7) is NoSuchLedger
    await bookie.drop_copies([1])
    await bookie.delete_ledger(1)
    assert await bookie.list_emptied() == []
    assert await add(1, recovery=True) is NoSuchLedger
