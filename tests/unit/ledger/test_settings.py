"""What a ledger's settings accept, to the very boundary."""

from dataclasses import fields
from typing import Any

import pytest

from magnetar.ledger.settings import QUORUM_MAX, SINGLE, LedgerSettings, Quorums

COUNTS = ("stripe_entries", "late_bytes_max", "changes_at_once_max", "count_entries")
TIMES = tuple(field.name for field in fields(LedgerSettings) if field.name.endswith("_s"))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (3, 2, 1), (QUORUM_MAX,) * 3])
def test_quorums_may_be_equal(shape: tuple[int, int, int]) -> None:
    assert LedgerSettings(*shape).quorums == Quorums(*shape)


@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 1, 2), (1, 1, 0), (QUORUM_MAX + 1, 1, 1)])
def test_quorums_are_refused_where_one_is_larger_than_the_one_before(
    shape: tuple[int, int, int],
) -> None:
    with pytest.raises(ValueError, match="each must be at least the next"):
        LedgerSettings(*shape)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_begin_with_one(name: str) -> None:
    assert getattr(LedgerSettings(**{name: 1}), name) == 1
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        LedgerSettings(**{name: 0})


@pytest.mark.parametrize("name", TIMES)
def test_times_are_above_zero(name: str) -> None:
    accepted: Any = {name: 0.001}
    assert getattr(LedgerSettings(**accepted), name) == 0.001
    for refused in (0.0, -1.0, float("nan")):
        values: Any = {name: refused}
        with pytest.raises(ValueError, match=f"{name} must be above 0"):
            LedgerSettings(**values)


def test_a_standalone_has_one_copy() -> None:
    assert SINGLE.quorums == Quorums(1, 1, 1)
