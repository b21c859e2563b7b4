"""Key_Shared: positions that were read and cannot be delivered yet, by key hash.

The positions of a hash form a line, ascending; no entry of that hash may overtake them. A hash is
*lined up* at the consumer that may get it now: the consumer's heap holds the heads of its hashes,
so that the oldest goes first, and a hash that must wait does not delay the others. Heap items whose
head has changed are stale, and are skipped when they reach the top.

`KeptEntries` keeps entries of waiting positions, so that they need not be read again. Bound:
`KEPT_BYTES_MAX`.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from magnetar.broker.dispatch.replay import PositionPair
from magnetar.broker.subscription.consumer import Consumer
from magnetar.managed_ledger.entry import Entry

KEPT_BYTES_MAX: Final = 1 << 20
KEPT_OVERHEAD_BYTES: Final = 300
"""The memory of a kept entry besides its bytes: the objects and their slots in two dicts."""


class WaitingLines:
    """The waiting positions of each hash, and the hashes lined up at each consumer."""

    def __init__(self) -> None:
        self.by_hash: dict[int, deque[PositionPair]] = {}
        self._heaps: dict[Consumer, list[tuple[PositionPair, int]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """The number of waiting positions."""
        return self._count

    def __contains__(self, sticky_hash: int) -> bool:
        return sticky_hash in self.by_hash

    def park(self, position: PositionPair, sticky_hash: int) -> bool:
        """Adds a position to its hash's line, once; returns whether it is the new head."""
        line = self.by_hash.get(sticky_hash)
        if line is None:
            self.by_hash[sticky_hash] = deque((position,))
        elif position > line[-1]:
            line.append(position)
        elif position < line[0]:
            line.appendleft(position)
        elif position not in line:
            self.by_hash[sticky_hash] = line = deque(sorted((*line, position)))
        else:
            return False
        self._count += 1
        return line is None or line[0] == position

    def line_up(self, sticky_hash: int, owner: Consumer | None) -> None:
        """Lines a hash up at its owner, which gets the head as soon as it has room."""
        line = self.by_hash.get(sticky_hash)
        if line is not None and owner is not None:
            heappush(self._heaps.setdefault(owner, []), (line[0], sticky_hash))

    def head(self, consumer: Consumer) -> tuple[PositionPair, int] | None:
        """Removes and returns the consumer's oldest lined-up position, with its hash."""
        heap = self._heaps.get(consumer)
        while heap:
            position, sticky_hash = heappop(heap)
            line = self.by_hash.get(sticky_hash)
            if line is not None and line[0] == position:
                return position, sticky_hash
        return None

    def drop_head(self, sticky_hash: int) -> bool:
        """Removes the head of a hash; returns whether positions of the hash are left."""
        line = self.by_hash[sticky_hash]
        line.popleft()
        self._count -= 1
        if line:
            return True
        del self.by_hash[sticky_hash]
        return False

    def behind_head(self, sticky_hash: int, count: int) -> Iterator[PositionPair]:
        """Yields up to `count` positions that follow the head of a hash."""
        for index, position in enumerate(self.by_hash[sticky_hash]):
            if index > count:
                return
            if index:
                yield position

    def drop_up_to(self, position: PositionPair) -> None:
        """Removes all positions up to `position`. Line up all hashes again afterwards."""
        for sticky_hash, line in list(self.by_hash.items()):
            while line and line[0] <= position:
                line.popleft()
                self._count -= 1
            if not line:
                del self.by_hash[sticky_hash]

    def unline_all(self) -> None:
        """Removes all hashes from their consumers: owners have changed."""
        self._heaps.clear()

    def clear(self) -> None:
        """Removes all positions."""
        self.by_hash.clear()
        self._heaps.clear()
        self._count = 0


class KeptEntries:
    """Entries of waiting positions with their message counts, within a bound of bytes."""

    def __init__(self) -> None:
        self._entries: dict[PositionPair, tuple[Entry, int]] = {}
        self._bytes = 0

    def __contains__(self, position: PositionPair) -> bool:
        return position in self._entries

    def keep(self, position: PositionPair, entry: Entry, messages: int) -> None:
        """Keeps the entry, if there is room."""
        if self._bytes < KEPT_BYTES_MAX:
            self._entries[position] = (entry, messages)
            self._bytes += len(entry.data) + KEPT_OVERHEAD_BYTES

    def take(self, position: PositionPair) -> tuple[Entry, int] | None:
        """Removes and returns an entry and its message count; None if it was not kept."""
        kept = self._entries.pop(position, None) if self._entries else None
        if kept is not None:
            self._bytes -= len(kept[0].data) + KEPT_OVERHEAD_BYTES
        return kept

    def drop_up_to(self, position: PositionPair) -> None:
        """Removes all entries up to and including `position`."""
        for settled in [kept for kept in self._entries if kept <= position]:
            self.take(settled)

    def clear(self) -> None:
        """Removes all entries."""
        self._entries.clear()
        self._bytes = 0
