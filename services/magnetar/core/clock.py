"""Time, passed in rather than looked up, so that a simulation can own it.

`now_ms` is wall-clock time for what people and clients see (publish times, expiry); it may jump.
`monotonic` is for durations and deadlines; it never goes back.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The two clocks a process has."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump in either direction."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin. Never goes back."""


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
