"""The histogram of latencies: exact counts, bounded errors, whatever the values."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.perf.histogram import VALUE_MAX, Histogram

VALUES = st.lists(st.integers(-5, VALUE_MAX * 2) | st.integers(0, 5000), max_size=60)
PERCENTS = (0.0, 10.0, 50.0, 95.0, 99.0, 99.999, 100.0)


def counted(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(VALUES)
def test_percentiles_are_near_the_exact_ones(values: list[int]) -> None:
    histogram = counted(values)
    exact = sorted(min(max(value, 0), VALUE_MAX) for value in values)
    assert histogram.count == len(values)
    assert histogram.maximum == max(exact, default=0)
    assert histogram.mean * len(exact) == (0 if not exact else sum(exact) / len(exact) * len(exact))
    for percent, found in zip(PERCENTS, histogram.percentiles(*PERCENTS), strict=True):
        if not exact:
            assert found == 0
            continue
        wanted = exact[max(ceil(percent / 100 * len(exact)), 1) - 1]
        assert wanted <= found <= wanted * (1 + 1 / 1024)


@given(VALUES, VALUES)
def test_a_sum_is_what_one_histogram_would_have_counted(
    first: list[int], second: list[int]
) -> None:
    whole = counted(first)
    whole.add(counted(second))
    together = counted(first + second)
    assert whole.percentiles(*PERCENTS) == together.percentiles(*PERCENTS)
    assert (whole.count, whole.total, whole.maximum) == (
        together.count,
        together.total,
        together.maximum,
    )
