"""What a cursor has acknowledged, against a set of acked entries and a dict of batch remains."""

from collections.abc import Callable
from random import Random

import pytest
from pyroaring import BitMap

from magnetar.core.ids import Position
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo

BATCH = 3
WHOLE = (1 << BATCH) - 1
Stored = tuple[Position, dict[int, BitMap], dict[tuple[int, int], int]]


class Hooked(AckState):
    """Counts how often mark-delete comes to the end of a ledger."""

    __slots__ = ("consumed", "touches")

    def __init__(self, index: LedgerIndex, mark: Position, *, tracked: bool) -> None:
        super().__init__(index, mark, tracked=tracked)
        self.consumed = self.touches = 0

    def _touched(self) -> None:
        super()._touched()
        self.touches += 1

    def _ledger_consumed(self) -> None:
        self.consumed += 1


class Model:
    """The state, and the expected one."""

    def __init__(self, counts: list[int], rng: Random) -> None:
        self.rng = rng
        self.index = LedgerIndex()
        self.entries: list[Position] = []
        for number, count in enumerate(counts):
            closed_ms = int(number < len(counts) - 1)
            info = LedgerInfo(2 * number + 3, 1, closed_ms=closed_ms)
            self.index.add(info)
            self.grow(count)
        self.mark = self.index.first_position
        self.state = Hooked(self.index, self.mark, tracked=True)
        self.acked: set[Position] = set()
        self.batches: dict[Position, int] = {}
        self.stored: Stored = self.snapshot()
        self.state.take_fresh()

    def grow(self, count: int) -> None:
        info = self.index.infos[-1]
        if count:
            self.entries += [Position(info.ledger_id, info.entries + n) for n in range(count)]
            self.index.grow(info, count, count * 10)

    def roll(self) -> None:
        last = self.index.infos[-1]
        last.closed_ms = 1
        self.index.add(LedgerInfo(last.ledger_id + 2, 1))

    # -- the oracle

    def advance(self) -> None:
        for position in self.entries:
            if position > self.mark:
                if position not in self.acked:
                    break
                self.mark = position
        self.acked = {position for position in self.acked if position > self.mark}
        self.batches = {
            key: left
            for key, left in self.batches.items()
            if key > self.mark and key not in self.acked
        }

    def ack(self, position: Position) -> None:
        self.state.ack(*position)
        if position in self.entries and position > self.mark:
            self.acked.add(position)
        self.advance()

    def ack_cumulative(self, position: Position) -> None:
        expected = self.state.mark_delete_after(position)
        self.state.ack_cumulative(position)
        if position <= self.entries[-1]:
            self.acked |= {one for one in self.entries if self.mark < one <= position}
        self.advance()
        assert expected == self.mark

    def ack_batch(self, position: Position, remaining: int, size: int) -> None:
        whole = self.state.ack_batch(*position, remaining, size)
        self._batch(position, remaining, size)
        assert whole is (position <= self.mark or position in self.acked)

    def _batch(self, position: Position, remaining: int, size: int) -> None:
        if position in self.entries and position > self.mark and position not in self.acked:
            known = self.batches.get(position, WHOLE if size else -1)
            left = known & remaining
            if not left:
                self.acked.add(position)
            elif left != WHOLE or position in self.batches or not size:
                self.batches[position] = left
        self.advance()

    def ack_batch_cumulative(self, position: Position, remaining: int) -> None:
        self.state.ack_batch_cumulative(position, remaining, BATCH)
        if position in self.entries:
            self.acked |= {one for one in self.entries if self.mark < one < position}
            self.advance()
            self._batch(position, remaining, BATCH)

    def reset(self, position: Position) -> None:
        self.mark = self.index.previous_position(*position)
        self.state._reset(self.mark)
        self.acked, self.batches = set(), {}
        self.stored = self.snapshot()  # a reset is stored whole

    def snapshot(self) -> Stored:
        state = self.state
        holes = {ledger_id: bitmap.copy() for ledger_id, bitmap in state.holes.items()}
        return state.mark_delete, holes, dict(state.batches)

    def store(self) -> None:
        """Asserts that the stored state plus the delta is the present state."""
        fresh = self.state.take_fresh()
        _, holes, batches = self.stored
        for ledger_id, bitmap in fresh.holes.items():
            holes[ledger_id] = holes.get(ledger_id, BitMap()) | bitmap
        for key in fresh.batches:
            if key in self.state.batches:
                batches[key] = self.state.batches[key]
        self.stored = self.state.mark_delete, holes, batches
        restored = AckState(self.index, self.state.mark_delete, tracked=True)
        restored.restore(
            {ledger_id: bitmap.copy() for ledger_id, bitmap in holes.items()}, dict(batches)
        )
        assert restored.mark_delete == self.state.mark_delete
        assert restored.holes == self.state.holes
        assert restored.batches == self.state.batches
        assert restored.holes_count == self.state.holes_count

    # -- what must hold

    def check(self) -> None:
        state, places = self.state, self.places()
        assert state.mark_delete == self.mark
        assert state.holes_count == len(self.acked)
        assert state.batches == self.batches
        unacked = [one for one in self.entries if one > self.mark and one not in self.acked]
        assert state.backlog == len(unacked)
        assert state.oldest_unacked == (unacked[0] if unacked else None)
        for place in places:
            assert state.is_acked(*place) is (place <= self.mark or place in self.acked)
            assert state.unacked_up_to(place) == sum(one <= place for one in unacked)
            assert state.remaining_batch(*place) == self.batches.get(place)
        shown = [
            Position(after.ledger_id, entry_id)
            for after, last in state.ranges()
            for entry_id in range(after.entry_id + 1, last.entry_id + 1)
        ]
        assert shown == sorted(self.acked)
        assert state.ranges_count == len(list(state.ranges()))
        start = self.rng.randrange(len(self.entries) + 1)
        window = [Entry(*one, b"") for one in self.entries[start:][: self.rng.randrange(1, 6)]]
        kept = [one.position for one in state.filter_unacked(window)]
        assert kept == [one.position for one in window if one.position in unacked]
        total = sum(info.size_bytes for info in self.index.infos)
        passed = sum(one <= self.mark for one in self.entries) * 10
        beyond = len(unacked) + len(self.acked)
        expected = (total - passed) * len(unacked) // beyond if beyond else 0
        assert state.backlog_bytes_estimate == expected

    def places(self) -> list[Position]:
        ledgers = [info.ledger_id for info in self.index.infos]
        return [
            Position(ledger_id, entry_id)
            for ledger_id in range(ledgers[0] - 1, ledgers[-1] + 2)
            for entry_id in range(-1, 4)
        ]

    def place(self) -> Position:
        """Mostly an entry, sometimes what a client makes up."""
        near = [one for one in self.entries if one > self.mark][:4]
        choice = self.rng.random()
        if choice < 0.5 and near:
            return self.rng.choice(near)
        return self.rng.choice(self.entries if choice < 0.85 else self.places())


def steps(model: Model) -> list[Callable[[], None]]:
    rng = model.rng
    return [
        *[lambda: model.ack(model.place())] * 8,
        *[lambda: model.ack_batch(model.place(), rng.randrange(1 << BATCH), BATCH)] * 4,
        lambda: model.ack_batch(model.place(), rng.randrange(1 << BATCH), 0),
        lambda: model.ack_batch_cumulative(model.place(), rng.randrange(1 << BATCH)),
        lambda: model.ack_cumulative(model.place()),
        lambda: model.grow(rng.randrange(3)),
        model.roll,
        *[model.store] * 2,
    ]


@pytest.mark.parametrize("seeds", [range(start, start + 6) for start in range(0, 180, 6)])
def test_the_ack_state_is_what_was_acked(seeds: range) -> None:
    for seed in seeds:
        rng = Random(seed)
        run(Model([rng.randrange(1, 5) for _ in range(rng.randrange(1, 5))], rng))


def run(model: Model) -> None:
    for _ in range(14):
        state = model.state
        if model.rng.random() < 0.04:
            model.reset(model.rng.choice(model.entries))
            model.check()
            continue
        before = model.snapshot()
        state.consumed = 0
        dirty = state._dirty
        step = model.rng.choice(steps(model))
        step()
        model.check()
        if step == model.store:
            assert not state._dirty
            assert (state._fresh is None) is True
        else:
            assert state._dirty is (dirty or before != model.snapshot())
        moved = before[0] != state.mark_delete
        closed = model.index.infos[-1].ledger_id != state.mark_delete.ledger_id
        at_end = state.mark_delete.entry_id == model.index.last_entry_of(
            state.mark_delete.ledger_id
        )
        over = before[0].ledger_id != state.mark_delete.ledger_id
        assert (state.consumed > 0) is (moved and (over or (closed and at_end)))


@pytest.mark.parametrize("cumulative", [False, True])
def test_in_order_acks_say_when_they_come_to_the_end_of_a_closed_ledger(
    cumulative: bool,
) -> None:
    """Then it can be trimmed; the next ack may be long in coming."""
    index = LedgerIndex()
    for ledger_id, count in ((1, 4), (2, 2)):
        index.add(LedgerInfo(ledger_id, 1, entries=count, closed_ms=int(ledger_id == 1)))
    state = Hooked(index, Position(1, -1), tracked=True)
    seen = []
    for position in ((1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)):
        if cumulative:
            state.ack_cumulative(position)
        else:
            state.ack(*position)
        seen.append(state.consumed)
    assert seen == [0, 0, 0, 1, 2, 2]


def test_a_state_without_a_log_keeps_no_changes() -> None:
    index = LedgerIndex()
    index.add(LedgerInfo(1, 1, entries=5))
    state = AckState(index, Position(1, -1), tracked=False)
    state.ack(1, 2)
    state.ack_batch(1, 3, 0b1, 2)
    fresh = state.take_fresh()
    assert (fresh.holes, fresh.batches) == ({}, set())


def test_what_was_stored_counts_as_far_as_its_entries_still_exist() -> None:
    index = LedgerIndex()
    for ledger_id, count in ((3, 4), (5, 3), (7, 0), (9, 2)):
        index.add(LedgerInfo(ledger_id, 1, entries=count, closed_ms=1))
    stored = {1: BitMap([0]), 3: BitMap(range(6)), 5: BitMap([1, 2, 3]), 7: BitMap([0])}
    remains = {(3, 1): 1, (3, 3): 1, (5, 0): 5, (5, 2): 1, (5, 3): 1, (9, 1): 2, (9, 2): 2}
    state = AckState(index, Position(3, 1), tracked=True)
    state.restore(stored, remains)
    assert state.mark_delete == (3, 3)
    assert state.holes == {5: BitMap([1, 2])}
    assert state.holes_count == 2
    assert state.batches == {(5, 0): 5, (9, 1): 2}
    state.ack(5, 0)
    assert state.mark_delete == (5, 2)
    assert (state.holes_count, state.batches) == (0, {(9, 1): 2})


def test_after_a_seek_to_a_shorter_ledger_its_own_end_counts() -> None:
    index = LedgerIndex()
    for ledger_id, count in ((3, 4), (5, 12)):
        index.add(LedgerInfo(ledger_id, 1, entries=count, closed_ms=1))
    for cumulative in (False, True):
        state = AckState(index, Position(5, -1), tracked=False)
        state.ack(5, 0)
        state._reset(Position(3, -1))
        for entry_id in range(6):
            if cumulative:
                state.ack_cumulative((3, entry_id))
            else:
                state.ack(3, entry_id)
        assert state.mark_delete == (3, 3)
