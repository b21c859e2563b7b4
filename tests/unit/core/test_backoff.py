"""Back-off: pauses double up to a maximum, are jittered, and start over after a success."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.backoff import Backoff, backoff_s


class Fixed:
    """Returns one end of each range."""

    def __init__(self, share: float) -> None:
        self.share = share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.share


@pytest.mark.parametrize(
    ("failures", "bound_s"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (9, 3.0)]
)
def test_a_pause_is_between_half_and_all_of_a_bound_that_doubles(
    failures: int, bound_s: float
) -> None:
    assert backoff_s(failures, 0.5, 3.0, Fixed(0.0)) == bound_s / 2
    assert backoff_s(failures, 0.5, 3.0, Fixed(1.0)) == bound_s


@given(st.integers(1, 10_000), st.floats(0.001, 10.0), st.floats(0.001, 1_000.0))
def test_no_number_of_failures_exceeds_the_maximum(
    failures: int, first_s: float, max_s: float
) -> None:
    assert 0.0 < backoff_s(failures, first_s, max_s, random) <= max_s


def test_a_success_makes_the_next_pause_the_first_again() -> None:
    backoff = Backoff(1.0, 60.0, Fixed(1.0))
    assert [backoff.failed_s() for _ in range(3)] == [1.0, 2.0, 4.0]
    backoff.reset()
    assert backoff.failed_s() == 1.0
