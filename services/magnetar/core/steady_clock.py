"""A clock for data that is deleted by age: computed ages are never too great.

The wall clock jumps: faulty time servers, manual changes, suspended machines. Data that is deleted
because of a jump is lost. The clock therefore keeps two readings: the wall clock, and the wall
clock at the start of the process plus the monotonic time since. Events are stamped with the later
of the two (`now_ms`), and ages are computed from the earlier (`judged_ms`). If at least one is
right, no computed age exceeds the true age. While they differ (`apart_ms`), data is kept longer by
the difference; once they agree again, or after a restart, nothing of that remains.

If the wall clock jumps ahead and back, an event in between has a stamp in the future; readers
detect it with `is_future`. A wall clock that is wrong when the process starts is not detected.
"""

from typing import Final, Self

from magnetar.core.clock import Clock

APART_MS_MAX: Final = 60_000
"""The clocks of machines, and the two of one machine, may differ by this much in normal use."""
FLOAT_ERROR_MS: Final = 0.001
"""More than the error of a time in ms as a float."""


class SteadyClock:
    """A `Clock` whose stamps are never too early and whose ages are never too great."""

    __slots__ = ("_clock", "_origin_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin_ms = clock.now_ms() - clock.monotonic() * 1000

    @classmethod
    def of(cls, clock: Clock) -> Self:
        """Returns `clock` itself if it is a SteadyClock already."""
        return clock if isinstance(clock, cls) else cls(clock)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_ms(self) -> int:
        """The time for stamps, in ms: never before the true time if one clock is right."""
        return max(self._clock.now_ms(), self._counted_ms())

    def judged_ms(self) -> int:
        """The time for ages, in ms: never after the true time if one clock is right."""
        return min(self._clock.now_ms(), self._counted_ms())

    @property
    def apart_ms(self) -> int:
        """How far the wall clock is ahead of the counted time, in ms; negative: behind."""
        return self._clock.now_ms() - self._counted_ms()

    @property
    def agrees(self) -> bool:
        """Whether the two readings differ by at most APART_MS_MAX."""
        return abs(self.apart_ms) <= APART_MS_MAX

    def is_future(self, noted_ms: int) -> bool:
        """Whether a stamp lies in the future by both clocks."""
        return noted_ms > self.now_ms() + APART_MS_MAX

    def _counted_ms(self) -> int:
        # Rounded down, as the wall clock is: a stamp in the future would deliver messages early.
        return int(self._origin_ms + self._clock.monotonic() * 1000 + FLOAT_ERROR_MS)
