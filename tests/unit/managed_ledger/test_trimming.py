"""Which ledgers may go: consumed, closed, and not kept by retention."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.trim_plan import consumed, trimmable

NOW = 1000


def log(*ledgers: tuple[int, int], newest: int = 0) -> LedgerIndex:
    """Closed ledgers, each as (entries, when it was closed), of 10 bytes an entry; an open one."""
    index = LedgerIndex()
    for number, (entries, closed_ms) in enumerate(ledgers):
        index.add(
            LedgerInfo(number + 1, 1, entries=entries, size_bytes=10 * entries, closed_ms=closed_ms)
        )
    index.add(LedgerInfo(len(ledgers) + 1, 1, entries=newest, size_bytes=10 * newest))
    return index


def ids(infos: list[LedgerInfo]) -> list[int]:
    return [info.ledger_id for info in infos]


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, []), (2, []), (3, [1]), (4, [1, 2]), (5, [1, 2]), (6, [1, 2, 3]), (9, [1, 2, 3])],
)
def test_a_ledger_is_consumed_with_its_last_entry(rank: int, expected: list[int]) -> None:
    index = log((3, 1), (1, 1), (2, 1), newest=3)
    assert ids(consumed(index, rank)) == expected


def test_an_empty_ledger_goes_with_those_before_it() -> None:
    assert ids(consumed(log((0, 1), (1, 1), (0, 1)), 0)) == [1]
    assert ids(consumed(log((0, 1), (1, 1), (0, 1)), 1)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("retention", "expected"),
    [
        (Retention(0, 0), [1, 2, 3]),
        (Retention(-1, -1), []),
        (Retention(-1, 0), [1, 2, 3]),
        (Retention(0, -1), [1, 2, 3]),
        (Retention(-1, 100), [1, 2]),  # closed 100 ms ago: its time is over
        (Retention(-1, 101), [1]),
        (Retention(-1, 901), []),
        (Retention(-1, 900), [1]),
        (Retention(60, -1), [1]),  # 80 bytes in all, 60 without the first
        (Retention(61, -1), []),
        (Retention(50, -1), [1, 2]),
        (Retention(51, -1), [1]),
        (Retention(30, -1), [1, 2, 3]),
        (Retention(51, 100), [1, 2]),  # the earlier of both counts
        (Retention(50, 901), [1, 2]),
    ],
)
def test_retention_keeps_up_to_its_time_and_its_size(
    retention: Retention, expected: list[int]
) -> None:
    index = log((2, 100), (1, 900), (2, 950), newest=3)
    assert ids(trimmable(index, index.rank_end, retention, NOW)) == expected


def test_a_ledger_that_is_kept_keeps_all_behind_it() -> None:
    """Ranks and positions have no gaps: a young ledger in front of old ones holds them."""
    index = log((1, 990), (1, 100), (1, 100))
    assert trimmable(index, 3, Retention(-1, 100), NOW) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, NOW)), max_size=5),
    st.integers(0, 9),
    st.integers(-1, 60),
    st.integers(-1, NOW),
)
def test_what_goes_was_consumed_and_is_over_a_limit(
    ledgers: list[tuple[int, int]], rank: int, size_bytes: int, time_ms: int
) -> None:
    index = log(*ledgers, newest=1)
    going = trimmable(index, rank, Retention(size_bytes, time_ms), NOW)
    assert going == index.infos[: len(going)]
    assert sum(info.entries for info in going) <= rank
    left = index.size_bytes
    for info in going:
        left -= info.size_bytes
        assert info.closed_ms
        assert 0 <= time_ms <= NOW - info.closed_ms or 0 <= size_bytes <= left
