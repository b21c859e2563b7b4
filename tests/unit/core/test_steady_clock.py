"""What is kept by its age does not seem older than it is, while one of two clocks is right."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.core.steady_clock import APART_MS_MAX, SteadyClock

YEAR_MS = 365 * 86_400_000


class TwoClocks:
    """The wall clock is wrong by `skew_ms`."""

    def __init__(self) -> None:
        self.true_ms = 1_700_000_000_000
        self.skew_ms = 0

    def now_ms(self) -> int:
        return self.true_ms + self.skew_ms

    def monotonic(self) -> float:
        return self.true_ms / 1000 - 1_600_000_000.25


jumps = st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(-YEAR_MS, YEAR_MS)))


@given(jumps)
def test_no_age_is_greater_than_it_is(moves: list[tuple[int, int]]) -> None:
    """The wall clock jumps as it likes after the start; notes are taken and judged throughout."""
    clocks = TwoClocks()
    clock = SteadyClock(clocks)
    notes = []
    for passed_ms, skew_ms in moves:
        clocks.true_ms += passed_ms
        clocks.skew_ms = skew_ms
        notes.append((clocks.true_ms, clock.now_ms()))
        for true_ms, noted_ms in notes:
            assert clock.judged_ms() - noted_ms <= clocks.true_ms - true_ms
        assert clock.agrees is (abs(skew_ms) <= APART_MS_MAX)
        assert clock.apart_ms == skew_ms


@given(jumps)
def test_a_clock_put_right_after_the_start_does_no_harm_either(
    moves: list[tuple[int, int]],
) -> None:
    """It was wrong when the process began, and is right from now on."""
    clocks = TwoClocks()
    clocks.skew_ms = moves[0][1] if moves else 0
    clock = SteadyClock(clocks)
    clocks.skew_ms = 0
    notes = []
    for passed_ms, _ in moves:
        clocks.true_ms += passed_ms
        notes.append((clocks.true_ms, clock.now_ms()))
        for true_ms, noted_ms in notes:
            assert clock.judged_ms() - noted_ms <= clocks.true_ms - true_ms


def test_while_both_agree_they_are_the_time() -> None:
    clocks = TwoClocks()
    clock = SteadyClock(clocks)
    clocks.true_ms += 5_000
    assert clock.now_ms() == clock.judged_ms() == clocks.true_ms
    assert clock.monotonic() == clocks.monotonic()
    assert SteadyClock.of(clock) is clock


def test_a_note_of_a_jump_that_was_taken_back_is_seen() -> None:
    clocks = TwoClocks()
    clock = SteadyClock(clocks)
    clocks.skew_ms = YEAR_MS
    noted_ms = clock.now_ms()
    assert not clock.is_future(noted_ms)
    clocks.skew_ms = 0
    assert clock.is_future(noted_ms)
    assert not clock.is_future(clock.now_ms() + APART_MS_MAX)


@given(st.lists(st.integers(0, 10_000), min_size=2))
def test_a_stamp_is_not_in_the_future_of_a_right_wall_clock(eighths: list[int]) -> None:
    """The wall clock has whole milliseconds, the monotonic one has more."""

    class Fine(TwoClocks):
        true_eighths = 0

        def now_ms(self) -> int:
            return self.true_ms + self.true_eighths // 8

        def monotonic(self) -> float:
            return self.true_eighths / 8_000

    clocks = Fine()
    clocks.true_eighths = eighths[0]
    clock = SteadyClock(clocks)
    for passed in eighths[1:]:
        clocks.true_eighths += passed
        assert clock.now_ms() == clocks.now_ms()
