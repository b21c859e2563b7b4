"""A clock for what is kept by its age: nothing seems older than it is while one clock is right.

The wall clock jumps: a faulty time server, an operator's hand, a machine that was suspended. What
was deleted because of that does not come back. So the time is taken twice: from the wall clock, and
as it was when the process began plus what the monotonic clock has counted since. What happens is
noted with the later of the two (`now_ms`), and how old things are is judged by the earlier
(`judged_ms`). If either is right, then nothing is noted too early and nothing judged too late, and
no age comes out greater than it is. While the two disagree things are kept longer, by as much; once
they agree again, or the process was started again, all is as ever. `apart_ms` tells.

What is noted too late by this (a jump ahead that is taken back) lies in the future then, which its
reader can see: `is_future`. A wall clock that is wrong when the process begins is not found out.
"""

from typing import Final, Self

from magnetar.core.clock import Clock

APART_MS_MAX: Final = 60_000
"""Machines' clocks, and the two clocks of one, may differ by so much without anything wrong."""


class SteadyClock:
    """See the module's text. A `Clock`."""

    __slots__ = ("_clock", "_origin_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin_ms = clock.now_ms() - clock.monotonic() * 1000

    @classmethod
    def of(cls, clock: Clock) -> Self:
        """The same clock where it is one already."""
        return clock if isinstance(clock, cls) else cls(clock)

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_ms(self) -> int:
        """Not before the time that it is: for notes."""
        return max(self._clock.now_ms(), self._counted_ms())

    def judged_ms(self) -> int:
        """Not after the time that it is: for how old things are."""
        return min(self._clock.now_ms(), self._counted_ms())

    @property
    def apart_ms(self) -> int:
        """How far the wall clock is ahead of what was counted; negative: behind."""
        return self._clock.now_ms() - self._counted_ms()

    @property
    def agrees(self) -> bool:
        """Whether the two are about the same."""
        return abs(self.apart_ms) <= APART_MS_MAX

    def is_future(self, noted_ms: int) -> bool:
        """Whether a note is of a time that has not come yet, by either clock."""
        return noted_ms > self.now_ms() + APART_MS_MAX

    def _counted_ms(self) -> int:
        return round(self._origin_ms + self._clock.monotonic() * 1000)
