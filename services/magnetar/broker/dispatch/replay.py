"""Positions to redeliver, in order, and their redelivery counts.

`ReplaySet` is a set with a heap, which is cleaned lazily: acknowledged positions stay in the heap
until they reach its top, or until they outnumber the live ones.

`RedeliveryCounts` is in memory only: a restart resets the counts, as in Pulsar. Bound: beyond
`COUNTED_POSITIONS_MAX` positions that were redelivered and never acknowledged, the oldest counts
are dropped.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

COUNTED_POSITIONS_MAX: Final = 200_000
_STALE_MIN: Final = 1_024

PositionPair = tuple[int, int]


class ReplaySet:
    """A set of (ledger id, entry id) that returns the smallest first."""

    def __init__(self) -> None:
        self._live: set[PositionPair] = set()
        self._heap: list[PositionPair] = []

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, position: PositionPair) -> bool:
        return position in self._live

    def __iter__(self) -> Iterator[PositionPair]:
        return iter(sorted(self._live))

    def add(self, position: PositionPair) -> None:
        """Adds a position. Idempotent."""
        if position not in self._live:
            self._live.add(position)
            heappush(self._heap, position)

    def discard(self, position: PositionPair) -> None:
        """Removes a position, if present."""
        if position in self._live:
            self._live.remove(position)
            if len(self._heap) > 2 * len(self._live) + _STALE_MIN:
                self._heap = list(self._live)
                heapify(self._heap)

    def discard_up_to(self, position: PositionPair) -> None:
        """Removes all positions up to and including `position`."""
        heap, live = self._heap, self._live
        while heap and heap[0] <= position:
            live.discard(heappop(heap))

    def pop(self, count: int) -> list[PositionPair]:
        """Removes and returns the smallest `count` positions."""
        heap, live = self._heap, self._live
        taken: list[PositionPair] = []
        while heap and len(taken) < count:
            position = heappop(heap)
            if position in live:
                live.remove(position)
                taken.append(position)
        return taken

    def first(self) -> PositionPair | None:
        """Returns the smallest position, which stays in the set."""
        heap, live = self._heap, self._live
        while heap and heap[0] not in live:
            heappop(heap)
        return heap[0] if heap else None

    def clear(self) -> None:
        """Removes all positions."""
        self._live.clear()
        self._heap.clear()


class RedeliveryCounts:
    """The number of redeliveries of each unacknowledged position."""

    def __init__(self) -> None:
        self._counts: dict[PositionPair, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def increment(self, position: PositionPair) -> None:
        """Counts one redelivery."""
        counts = self._counts
        counts[position] = counts.get(position, 0) + 1
        if len(counts) > COUNTED_POSITIONS_MAX:
            del counts[next(iter(counts))]

    def of(self, position: PositionPair) -> int:
        """The number of redeliveries of a position."""
        return self._counts.get(position, 0)

    def discard(self, position: PositionPair) -> None:
        """Forgets an acknowledged position."""
        self._counts.pop(position, None)

    def discard_up_to(self, position: PositionPair) -> None:
        """Forgets all positions up to and including `position`."""
        for counted in [counted for counted in self._counts if counted <= position]:
            del self._counts[counted]

    def clear(self) -> None:
        """Forgets all counts."""
        self._counts.clear()
