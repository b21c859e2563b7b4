"""A writer's pending adds to one bookie, and the write set of an entry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.ledger.cluster import Disk

from magnetar.bookie.api import BookieError, OnAdded
from magnetar.bookie.packed import pack
from magnetar.ledger.quorum import slots_of
from magnetar.ledger.replicas import Layout, Piece, Replica


class Sending(Disk):
    """Records the requests; the test answers them."""

    def __init__(self, name: str = "b") -> None:
        super().__init__(name)
        self.sent: list[tuple[range, list[bytes], int]] = []
        self.answers: list[OnAdded] = []

    def add_entries(
        self, ledger_id, entry_ids, entries, *, last_add_confirmed, on_added, recovery=False
    ) -> None:
        assert ledger_id == 7
        assert not recovery
        self.sent.append((entry_ids, entries, last_add_confirmed))
        self.answers.append(on_added)


class Owner:
    """A writer that notes what its replicas say."""

    ledger_id = 7

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.failed: list[BookieError] = []

    def piece_acked(self, piece: Piece) -> None:
        self.acked.append(piece.first)

    def replica_failed(self, replica: Replica, error: BookieError) -> None:
        self.failed.append(error)
        replica.stop(error)


def piece(first: int, count: int = 1) -> Piece:
    entries = [b"x"] * count
    return Piece(first, first + count, entries, count, 0b111, 0b111, first, count, None)


def send(replica: Replica, piece: Piece, last_add_confirmed: int) -> None:
    replica.send(piece, pack(piece.entries), last_add_confirmed)


def test_answers_are_for_what_was_sent_in_its_order() -> None:
    owner, bookie = Owner(), Sending()
    replica = Replica(owner, bookie, 0b10)
    pieces = [piece(0, 2), piece(2), piece(3)]
    for number, one in enumerate(pieces):
        send(replica, one, number - 1)
    assert [(list(ids), len(data), lac) for ids, data, lac in bookie.sent] == [
        ([0, 1], 2, -1),
        ([2], 1, 0),
        ([3], 1, 1),
    ]
    for number, on_added in enumerate(bookie.answers):
        assert owner.acked == [0, 2, 3][:number]
        on_added(None)
        assert [one.acked for one in pieces] == [0b10] * (number + 1) + [0] * (2 - number)
    assert owner.acked == [0, 2, 3]
    assert not replica.inflight
    send(replica, piece(4), 3)
    assert len(replica.inflight) == 1


def test_after_its_first_failure_nothing_of_it_counts() -> None:
    owner, bookie = Owner(), Sending()
    replica = Replica(owner, bookie, 1)
    pieces = [piece(0), piece(1)]
    for one in pieces:
        send(replica, one, -1)
    error = BookieError("refused")
    bookie.answers[0](error)
    bookie.answers[1](None)
    bookie.answers[1](BookieError("again"))
    send(replica, piece(2), -1)
    assert owner.failed == [error]
    assert owner.acked == []
    assert [one.acked for one in pieces] == [0, 0]
    assert len(bookie.sent) == 2
    assert not replica.overdue(1)


def test_a_bookie_is_overdue_that_has_not_moved_for_so_many_looks() -> None:
    owner, bookie = Owner(), Sending()
    replica = Replica(owner, bookie, 1)
    assert not any(replica.overdue(3) for _ in range(9))  # nothing is asked of it
    send(replica, piece(0), -1)
    send(replica, piece(1), -1)
    assert [replica.overdue(3) for _ in range(5)] == [False, False, False, True, True]
    bookie.answers[0](None)  # it moves
    assert [replica.overdue(3) for _ in range(4)] == [False, False, False, True]
    bookie.answers[1](None)
    assert not any(replica.overdue(3) for _ in range(9))
    send(replica, piece(2), -1)
    assert [replica.overdue(3) for _ in range(4)] == [False, False, False, True]


def test_a_slow_bookie_that_moves_is_not_overdue() -> None:
    owner, bookie = Owner(), Sending()
    replica = Replica(owner, bookie, 1)
    for number in range(20):
        send(replica, piece(number), -1)
    for on_added in bookie.answers:
        assert not any(replica.overdue(2) for _ in range(2))
        on_added(None)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(0, 200))
def test_an_entry_goes_to_its_write_set(size: int, write: int, stripe: int, entry_id: int) -> None:
    replicas = [Replica(Owner(), Disk(f"b{n}"), 1 << n) for n in range(size)]
    layout = Layout(0, replicas, write, stripe)
    mask, chosen = layout.set_of(entry_id)
    slots = slots_of(size, write, stripe, entry_id)
    assert [replica.identity.bookie_id for replica in chosen] == [f"b{slot}" for slot in slots]
    assert mask == sum(1 << slot for slot in slots)
    assert layout.mask == (1 << size) - 1
    assert layout.striped is (size > write)
    assert [one.bookie_id for one in layout.bookies] == [f"b{n}" for n in range(size)]


@pytest.mark.parametrize("first_entry", [0, 9])
def test_a_layout_keeps_where_it_begins(first_entry: int) -> None:
    assert Layout(first_entry, [Replica(Owner(), Disk("b"), 1)], 1, 1).first_entry == first_entry
