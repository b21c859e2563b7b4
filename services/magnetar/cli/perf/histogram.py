"""A histogram of latencies in bounded memory, with a fixed relative error.

Values up to 2,047 are exact. Greater ones share buckets of at most 1/1,024 of their value, as in an
HdrHistogram of three digits. A histogram has 28,672 buckets of 8 bytes, however many values it has.
"""

from array import array
from collections.abc import Iterator
from math import ceil
from typing import Final

_HALF: Final = 1024
VALUE_MAX: Final = (1 << 37) - 1
"""About 38 hours in microseconds; greater values count as this one."""
_BUCKETS: Final = (VALUE_MAX.bit_length() - 11 + 1) * _HALF + _HALF


class Histogram:
    """Counts whole numbers from 0 on."""

    __slots__ = ("_buckets", "count", "maximum", "total")

    def __init__(self) -> None:
        self._buckets = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.total = 0
        self.maximum = 0

    def record(self, value: int) -> None:
        """Counts a value; a negative one, of clocks that differ, counts as 0."""
        value = 0 if value < 0 else min(value, VALUE_MAX)
        shift = value.bit_length() - 11
        self._buckets[value if shift <= 0 else shift * _HALF + (value >> shift)] += 1
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value

    def add(self, other: "Histogram") -> None:
        """Adds the counts of another histogram."""
        for index, count in other._filled():
            self._buckets[index] += count
        self.count += other.count
        self.total += other.total
        self.maximum = max(self.maximum, other.maximum)

    def _filled(self) -> Iterator[tuple[int, int]]:
        return ((index, count) for index, count in enumerate(self._buckets) if count)

    @property
    def mean(self) -> float:
        """The exact mean; 0 without values."""
        return self.total / self.count if self.count else 0.0

    def percentiles(self, *percents: float) -> list[int]:
        """Returns the value at each percentile, in ascending order of `percents`.

        It is the greatest value of its bucket, so that at least this share is not greater.
        """
        if not self.count:
            return [0] * len(percents)
        values: list[int] = []
        seen = 0
        filled = self._filled()
        index = 0
        for percent in percents:
            rank = min(max(1, ceil(percent / 100 * self.count)), self.count)
            while seen < rank:
                index, count = next(filled)
                seen += count
            values.append(min(_greatest(index), self.maximum))
        return values


def _greatest(index: int) -> int:
    """Returns the greatest value of a bucket."""
    if index < 2 * _HALF:
        return index
    shift = index // _HALF - 1
    return ((index - shift * _HALF + 1) << shift) - 1
