"""Exponential back-off with jitter, the one that all retries use.

The bound of a pause doubles with each failure, from `first_s` up to `max_s`. A pause is 50 to 100 %
of its bound, so that clients that failed together do not retry together.
"""

from typing import Final, Protocol

DOUBLINGS_MAX: Final = 32
"""Keeps the bound a finite number after any number of failures."""


class Random(Protocol):
    """A source of uniform numbers: `random.Random`, or the module `random`."""

    def uniform(self, a: float, b: float, /) -> float:
        """Returns a number from `a` to `b`."""


def backoff_s(failures: int, first_s: float, max_s: float, random: Random) -> float:
    """Returns the pause after this many consecutive failures (1 or more), in seconds."""
    bound_s = min(first_s * 2.0 ** min(failures - 1, DOUBLINGS_MAX), max_s)
    return bound_s * random.uniform(0.5, 1.0)


class Backoff:
    """Counts consecutive failures of one operation, and returns the pause after each."""

    __slots__ = ("_first_s", "_max_s", "_random", "failures")

    def __init__(self, first_s: float, max_s: float, random: Random) -> None:
        self._first_s, self._max_s, self._random = first_s, max_s, random
        self.failures = 0

    def failed_s(self) -> float:
        """Records a failure; returns the pause before the next attempt, in seconds."""
        self.failures += 1
        return backoff_s(self.failures, self._first_s, self._max_s, self._random)

    def reset(self) -> None:
        """Records a success: the next pause is the first again."""
        self.failures = 0
