"""Token buckets with all kinds of clocks: bounded by rate and burst, and without starvation."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.rates.token_bucket import TokenBucket

RATES = st.floats(0.1, 1e6)
PERIODS = st.sampled_from([1.0, 2.0, 10.0, 60.0])
STEPS = st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 2_000)), min_size=1, max_size=60)
"""How long passes, and how much wants to go then."""
SLACK = 1e-6
"""The relative error of floating point sums."""


def taken_at(bucket: TokenBucket, steps: list[tuple[float, int]]) -> list[tuple[float, int]]:
    now_s, taken = 0.0, []
    for passed_s, wanted in steps:
        now_s += passed_s
        bucket.refill(now_s)
        if bucket.ready:
            bucket.take(wanted)
            taken.append((now_s, wanted))
    return taken


@given(RATES, PERIODS, STEPS)
def test_no_window_sees_more_than_the_rate_a_burst_and_one_thing(
    per_period: float, period_s: float, steps: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(per_period, period_s, 0.0)
    taken = taken_at(bucket, steps)
    largest = max((wanted for _, wanted in taken), default=0)
    for first, (since_s, _) in enumerate(taken):
        total = 0
        for at_s, wanted in taken[first:]:
            total += wanted
            most = bucket.rate * (at_s - since_s) + bucket.burst + largest
            assert total <= most * (1 + SLACK) + SLACK


@given(RATES, PERIODS, STEPS)
def test_a_sender_that_waits_the_returned_time_succeeds(
    per_period: float, period_s: float, steps: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(per_period, period_s, 0.0)
    now_s = 0.0
    for passed_s, wanted in steps:
        now_s += passed_s
        bucket.refill(now_s)
        if not bucket.ready:
            now_s += bucket.wait_s(1.0) * (1 + SLACK) + SLACK
            bucket.refill(now_s)
            assert bucket.ready
        bucket.take(wanted)


@given(RATES, PERIODS, st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=40))
def test_a_clock_that_jumps_brings_one_burst_at_most_and_takes_nothing(
    per_period: float, period_s: float, times: list[float]
) -> None:
    bucket = TokenBucket(per_period, period_s, 0.0)
    bucket.take(bucket.tokens)
    for now_s in times:
        before = bucket.tokens
        assert before <= bucket.refill(now_s) <= bucket.burst
    # It continues from the clock's new time.
    bucket.refill(times[-1] + bucket.wait_s(1.0) * (1 + SLACK) + SLACK)
    assert bucket.ready


@given(RATES, RATES, st.integers(0, 10_000))
def test_a_changed_rate_delays_no_waiter(before: float, after: float, taken: int) -> None:
    bucket = TokenBucket(before, 1.0, 0.0)
    bucket.take(taken)
    debt_s = max(0.0, -bucket.tokens / bucket.rate)
    bucket.set_rate(after, 1.0, 0.0)
    assert max(0.0, -bucket.tokens / bucket.rate) <= debt_s * (1 + SLACK)
    assert bucket.tokens <= bucket.burst
