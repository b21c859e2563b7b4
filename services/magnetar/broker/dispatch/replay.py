"""Positions that are to be sent again, in order, and how often each was.

`ReplaySet` is a set of positions whose smallest come out first. A heap beside it is cleaned lazily:
positions that left the set by an acknowledgement stay in the heap until they surface, or until they
outnumber the live ones.
`RedeliveryCounts` lives in memory only (a restart forgets it, as Pulsar's tracker does), and is
bounded: where more than `COUNTED_POSITIONS_MAX` positions were redelivered and never acknowledged,
the oldest counts go.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

COUNTED_POSITIONS_MAX: Final = 200_000
_STALE_MIN: Final = 1_024

PositionPair = tuple[int, int]


class ReplaySet:
    """An ordered set of (ledger id, entry id)."""

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
        if position not in self._live:
            self._live.add(position)
            heappush(self._heap, position)

    def discard(self, position: PositionPair) -> None:
        """Takes a position out, if it is in."""
        if position in self._live:
            self._live.remove(position)
            if len(self._heap) > 2 * len(self._live) + _STALE_MIN:
                self._heap = list(self._live)
                heapify(self._heap)

    def discard_up_to(self, position: PositionPair) -> None:
        """Takes out all up to and including `position`."""
        heap, live = self._heap, self._live
        while heap and heap[0] <= position:
            live.discard(heappop(heap))

    def pop(self, count: int) -> list[PositionPair]:
        """Takes the smallest `count` positions out."""
        heap, live = self._heap, self._live
        taken: list[PositionPair] = []
        while heap and len(taken) < count:
            position = heappop(heap)
            if position in live:
                live.remove(position)
                taken.append(position)
        return taken

    def first(self) -> PositionPair | None:
        """The smallest position, which stays in."""
        heap, live = self._heap, self._live
        while heap and heap[0] not in live:
            heappop(heap)
        return heap[0] if heap else None

    def clear(self) -> None:
        self._live.clear()
        self._heap.clear()


class RedeliveryCounts:
    """How often each unacknowledged position was sent again."""

    def __init__(self) -> None:
        self._counts: dict[PositionPair, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def increment(self, position: PositionPair) -> None:
        counts = self._counts
        counts[position] = counts.get(position, 0) + 1
        if len(counts) > COUNTED_POSITIONS_MAX:
            del counts[next(iter(counts))]

    def of(self, position: PositionPair) -> int:
        return self._counts.get(position, 0)

    def discard(self, position: PositionPair) -> None:
        self._counts.pop(position, None)

    def discard_up_to(self, position: PositionPair) -> None:
        for counted in [each for each in self._counts if each <= position]:
            del self._counts[counted]

    def clear(self) -> None:
        self._counts.clear()
