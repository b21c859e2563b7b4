"""Small parts of a bookie: states of ledgers, the index, the write cache."""

from collections.abc import Sequence

import pytest
from tests.support.memory_bookie import MemoryBookie
from tests.support.memory_index import MemoryIndexStore

from magnetar.bookie.api import (
    BookieError,
    BookieReadOnly,
    LedgerFenced,
    NoSuchLedger,
)
from magnetar.bookie.cache.write_cache import (
    ENTRY_OVERHEAD_BYTES,
    GROUP_OVERHEAD_BYTES,
    LedgerEntries,
    WriteCacheHalf,
    segment_of,
)
from magnetar.bookie.index import index
from magnetar.bookie.index import ledgers as ledgers_module
from magnetar.bookie.index.index import (
    FLAG_DELETED,
    FLAG_EMPTIED,
    FLAG_FENCED,
    Index,
    LedgerRecord,
    View,
)
from magnetar.bookie.index.ledgers import Ledgers, LedgerState
from magnetar.bookie.index.store import Batch
from magnetar.bookie.packed import ascending


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
def test_add_refusals_by_ledger_state(
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
def test_ledger_record_of_a_state(fenced: bool, deleted_ms: int, emptied: bool, flags: int) -> None:
    state = LedgerState(1)
    state.fenced, state.deleted_ms, state.emptied = fenced, deleted_ms, emptied
    state.last_add_confirmed, state.last_entry, state.length_bytes = 3, 4, 5
    assert state.record == LedgerRecord(3, 4, 5, deleted_ms, flags)


def test_ledger_length_is_counted_while_entries_arrive_in_order() -> None:
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
    result = Index(MemoryIndexStore())
    batch = Batch()
    for ledger_id, flags in records:
        deleted_ms = 5 if flags & FLAG_DELETED else -1
        index.put_ledger(batch, ledger_id, LedgerRecord(1, 2, 3, deleted_ms, flags))
    result.store.write(batch)
    return result


def test_state_is_loaded_from_the_index() -> None:
    ledgers = Ledgers(
        stored((1, 0), (2, FLAG_FENCED), (3, FLAG_DELETED), (4, FLAG_FENCED | FLAG_EMPTIED))
    )
    first, second, third, fourth, fifth = (ledgers.get(ledger_id) for ledger_id in range(1, 6))
    assert (first.exists, first.fenced, first.deleted, first.emptied) == (True, False, False, False)
    assert (first.last_add_confirmed, first.last_entry, first.length_bytes) == (1, 2, 3)
    assert first.last_indexed == 2
    assert second.fenced
    assert second.fence_durable
    assert third.deleted
    assert (fourth.exists, fourth.emptied, fourth.fenced) == (False, True, True)
    assert (fifth.exists, fifth.last_indexed) == (False, -1)
    assert ledgers.get(1) is first
    for ledger_id in (-1, 1 << 63):
        with pytest.raises(ValueError, match="no ledger id"):
            ledgers.get(ledger_id)
    assert ledgers.ids(ledgers.indexed_ids()) == [1, 2]
    assert ledgers.emptied_ids() == [4]
    assert ledgers.all_ids() == {1, 2, 3, 4, 5}
    fifth.exists = True
    second.deleted_ms = 9
    assert ledgers.ids([1, 2]) == [1, 5]


def test_busy_state_of_a_deleted_ledger_is_not_evicted() -> None:
    for name in ("pending", "unflushed", "alive", "dirty", "nothing"):
        ledgers = Ledgers(stored((1, FLAG_DELETED)))
        state = ledgers.get(1)
        if name == "alive":
            state.deleted_ms = -1
        elif name == "dirty":
            ledgers.dirty[1] = state
        elif name != "nothing":
            setattr(state, name, True)
        ledgers.flushing = True
        ledgers.flushed([1, 2])
        assert not ledgers.flushing
        assert (ledgers.get(1) is state) == (name != "nothing"), name


def test_idle_states_are_evicted_above_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledgers_module, "STATES_KEPT_MAX", 4)
    ledgers = Ledgers(stored())
    kept = {ledger_id: ledgers.get(ledger_id) for ledger_id in range(3)}
    kept[0].pending, kept[1].unflushed = 1, True
    ledgers.dirty[2] = kept[2]
    idle = ledgers.get(3)
    ledgers.get(4)
    assert all(ledgers.get(ledger_id) is state for ledger_id, state in kept.items())
    assert ledgers.get(3) is not idle
    ledgers = Ledgers(stored())
    first = ledgers.get(0)
    ledgers.take([0])
    for ledger_id in range(1, 9):
        ledgers.get(ledger_id)
    assert ledgers.get(0) is first, "a flush has it"


def test_limbo_accepts_recovery_adds_only() -> None:
    ledgers = Ledgers(stored((1, 0), (2, 0)))
    second = ledgers.get(2)
    ledgers.set_limbo(1)
    assert ledgers.get(1).fenced
    assert not second.fenced
    assert (ledgers.is_limbo(1), ledgers.is_limbo(2)) == (True, False)
    ledgers.set_limbo(2)
    assert second.fenced


def test_a_ledger_that_is_emptied_after_the_index_was_read_is_not_listed() -> None:
    ledgers = Ledgers(stored((1, 0), (2, 0), (3, 0)))
    indexed = ledgers.indexed_ids()
    ledgers.get(1).mark_emptied()
    ledgers.get(3).deleted_ms = 5
    ledgers.get(4).added(0, 0, 1, -1)
    assert ledgers.ids(indexed) == [2, 4]


def test_still_emptied_excludes_ledgers_with_later_adds() -> None:
    ledgers = Ledgers(stored(*((ledger_id, FLAG_EMPTIED) for ledger_id in (1, 2, 3))))
    ledgers.get(2).added(0, 0, 1, -1)
    ledgers.get(3).deleted_ms = 5
    ledgers.get(1)
    assert ledgers.still_emptied([1, 2, 3, 4]) == [1, 4]


def viewed(*spans: tuple[int, int, int]) -> Index:
    result = Index(MemoryIndexStore())
    batch = Batch()
    for ledger_id, first, last in spans:
        index.put_view(batch, View(ledger_id, first, last, 1, first, 1))
    result.store.write(batch)
    return result


def test_find_returns_the_view_of_any_entry_or_the_next_view() -> None:
    result = viewed((1, 2, 4), (1, 6, 6), (2, 0, 9), (3, 5, 5))

    def span(view: View | None) -> tuple[int, int] | None:
        return None if view is None else (view.first, view.last)

    assert [span(result.find(1, entry_id)) for entry_id in range(8)] == [
        None,
        None,
        (2, 4),
        (2, 4),
        (2, 4),
        None,
        (6, 6),
        None,
    ]
    assert span(result.find_from(1, 0, 1)) is None
    assert span(result.find_from(1, 0, 2)) == (2, 4)
    assert span(result.find_from(1, 4, 4)) == (2, 4)
    assert span(result.find_from(1, 5, 5)) is None
    assert span(result.find_from(1, 5, 6)) == (6, 6)
    assert span(result.find_from(1, 7, 99)) is None, "the next ledger's are not its own"
    assert span(result.find_from(3, 0, 4)) is None
    assert span(result.find_from(3, 0, 5)) == (5, 5)
    assert [span(view) for view in result.views(1, 4, 6)] == [(2, 4), (6, 6)]
    assert [span(view) for view in result.views(1, 5, 5)] == []
    assert [span(view) for view in result.views(1, 2, 5)] == [(2, 4)]
    assert [span(view) for view in result.views(1)] == [(2, 4), (6, 6)]
    assert len(list(result.all_views())) == 4


def test_usage_is_per_log_and_never_negative() -> None:
    result = viewed()
    for log_id, ledger_id, change in ((1, 7, 5), (1, 7, 6), (1, 8, 1), (2, 7, 3), (2, 7, -9)):
        batch = Batch()
        result.add_usage(batch, log_id, ledger_id, change)
        result.store.write(batch)
    assert list(result.usage(1)) == [(7, 11), (8, 1)]
    assert list(result.usage(2)) == [(7, 0)]
    batch = Batch()
    result.add_usage(batch, 1, 9, 2)
    result.add_usage(batch, 1, 9, 2)
    index.drop_usage(batch, 2)
    result.store.write(batch)
    assert list(result.usage(1)) == [(7, 11), (8, 1), (9, 4)]
    assert list(result.usage(2)) == []


def test_drop_of_a_ledger_keeps_adjacent_ids() -> None:
    result = viewed((1, 0, 0), (2, 0, 0), (2, 9, 9), (3, 0, 0))
    batch = Batch()
    index.drop_entries(batch, 2)
    result.store.write(batch)
    assert [view.ledger_id for view in result.all_views()] == [1, 3]


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


def test_only_consecutive_groups_share_a_run() -> None:
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


def test_a_late_group_stays_one_segment_per_run_of_ids() -> None:
    """Each segment costs a CRC and a row in its block's head."""
    held = LedgerEntries()
    put(held, [20, 21])
    put(held, [3, 4, 5, 9, 10, 18, 19])
    groups = [(run.first, [segment.count for segment in run.segments]) for run in held.runs]
    assert groups == [(3, [3]), (9, [2]), (18, [2]), (20, [2])]
    assert len(shown(held)) == 4


def test_rewritten_entries_are_replaced_within_their_group() -> None:
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


def test_half_counts_its_entries_and_bytes() -> None:
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


@pytest.mark.parametrize(
    "groups",
    [[[0, 2, 4]], [range(3), range(3)], [range(4), [1, 2, 7]], [[5, 9], range(3, 8)]],
    ids=["holes", "the same again", "some again", "between"],
)
def test_a_dropped_ledger_takes_what_it_was_charged(groups: list[Sequence[int]]) -> None:
    """Otherwise the bound of memory shifts with every deletion of such a ledger."""
    half = WriteCacheHalf()
    half.add(1, range(2), [b"x", b"y"], segment_of([b"x", b"y"]))
    alone = half.charge, half.count
    for ids in groups:
        entries = [bytes(10 + entry_id) for entry_id in ids]
        half.add(2, ids, entries, segment_of(entries))
    half.drop(2)
    assert (half.charge, half.count) == alone
    half.drop(1)
    assert (half.charge, half.count) == (0, 0)


def test_consecutive_ids_become_a_range() -> None:
    assert ascending([3, 4, 5]) == range(3, 6)
    assert ascending((7,)) == range(7, 8)
    assert ascending([]) == range(0)
    assert ascending([3, 5]) == (3, 5)
    assert ascending(range(2, 9, 3)) == (2, 5, 8)
    for ids in ([3, 3], [4, 3], [3, 4, 4]):
        with pytest.raises(ValueError, match="must ascend"):
            ascending(ids)


async def test_copy_dropped_by_the_memory_bookie_stays_fenced() -> None:
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
