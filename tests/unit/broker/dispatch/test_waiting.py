"""Positions that wait: to be sent again, or in line behind others of their key."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch import replay
from magnetar.broker.dispatch import waiting_lines as waiting
from magnetar.broker.dispatch.replay import RedeliveryCounts, ReplaySet
from magnetar.broker.dispatch.replay_reader import adjacent_run
from magnetar.broker.dispatch.waiting_lines import KeptEntries, WaitingLines
from magnetar.broker.subscription.consumer import Consumer
from magnetar.managed_ledger.entry import Entry

positions = st.tuples(st.integers(1, 2), st.integers(0, 30))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), positions),
            st.tuples(st.just("discard"), positions),
            st.tuples(st.just("discard_up_to"), positions),
            st.tuples(st.just("pop"), st.integers(0, 5)),
        ),
        max_size=60,
    )
)
def test_replay_set_is_an_ordered_set(steps):
    replays = ReplaySet()
    model: set[tuple[int, int]] = set()
    for step, argument in steps:
        if step == "pop":
            expected = sorted(model)[:argument]
            assert replays.pop(argument) == expected
            model -= set(expected)
        else:
            getattr(replays, step)(argument)
            if step == "add":
                model.add(argument)
            elif step == "discard":
                model.discard(argument)
            else:
                model = {each for each in model if each > argument}
        assert len(replays) == len(model)
        assert list(replays) == sorted(model)
        assert replays.first() == min(model, default=None)


def test_replay_set_forgets_what_was_acked_before_it_surfaced():
    replays = ReplaySet()
    for entry_id in range(5_000):
        replays.add((1, entry_id))
    for entry_id in range(1, 5_000):
        replays.discard((1, entry_id))
    assert len(replays._heap) < 2_000
    assert replays.pop(9) == [(1, 0)]


def test_redelivery_counts_are_bounded(monkeypatch):
    monkeypatch.setattr(replay, "COUNTED_POSITIONS_MAX", 3)
    counts = RedeliveryCounts()
    for entry_id in range(5):
        counts.increment((1, entry_id))
    counts.increment((1, 4))
    assert [counts.of((1, entry_id)) for entry_id in range(5)] == [0, 0, 1, 1, 2]
    counts.discard_up_to((1, 3))
    assert len(counts) == 1
    counts.discard((1, 3))
    assert len(counts) == 1
    counts.discard((1, 4))
    assert (len(counts), counts.of((1, 4))) == (0, 0)


@given(st.lists(st.tuples(positions, st.integers(1, 3)), unique_by=lambda each: each[0]))
def test_each_hash_comes_out_in_order_and_the_oldest_first(parked):
    lines, owner = WaitingLines(), cast("Consumer", object())
    for position, sticky_hash in parked:
        if lines.park(position, sticky_hash):
            lines.line_up(sticky_hash, owner)
    assert len(lines) == len(parked)
    out = []
    while (head := lines.head(owner)) is not None:
        position, sticky_hash = head
        out.append(head)
        if lines.drop_head(sticky_hash):
            lines.line_up(sticky_hash, owner)
    assert out == sorted(parked)
    assert len(lines) == 0


def test_dropping_what_was_skipped():
    lines, owner = WaitingLines(), cast("Consumer", object())
    for entry_id in range(10):
        lines.park((1, entry_id), 1 + entry_id % 2)
    lines.drop_up_to((1, 6))
    assert len(lines) == 3
    for sticky_hash in lines.by_hash:
        lines.line_up(sticky_hash, owner)
    assert lines.head(owner) == ((1, 7), 2)
    assert list(lines.behind_head(2, 5)) == [(1, 9)]


def test_adjacent_positions_are_read_together():
    assert adjacent_run([(1, 3), (1, 4), (1, 5), (1, 7), (2, 0)]) == ((1, 3), 3)
    assert adjacent_run([(1, 3), (2, 4)]) == ((1, 3), 1)


def test_kept_entries_are_bounded():
    kept = KeptEntries()
    entry = Entry(1, 0, b"x" * 10_000)
    for entry_id in range(1_000):
        kept.keep((1, entry_id), entry, 1)
    number = sum((1, entry_id) in kept for entry_id in range(1_000))
    assert number * len(entry.data) <= waiting.KEPT_BYTES_MAX
    assert number > 90
    kept.drop_up_to((1, 49))
    assert kept.take((1, 49)) is None
    assert kept.take((1, 50)) == (entry, 1)
    for entry_id in range(1_000):
        kept.take((1, entry_id))
    assert kept._bytes == 0
