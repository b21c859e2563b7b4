"""Key_Shared: what was read but cannot be handed over yet, by key.

For each hash that has any, its positions stand in a line, ascending; nothing of that hash may
overtake them. A hash is *lined up* at the consumer that may have it now: each consumer's heap holds
the heads of its hashes, so that the oldest goes first and a hash that must wait costs the others
nothing. Heap items whose head has changed are stale, and are passed over when they surface.

`KeptEntries` spares reading again what waits: entries of at most `KEPT_BYTES_MAX` bytes.
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
"""What a kept entry takes besides its bytes: the objects and their places in two dicts."""


class WaitingLines:
    """See the module."""

    def __init__(self) -> None:
        self.by_hash: dict[int, deque[PositionPair]] = {}
        self._heaps: dict[Consumer, list[tuple[PositionPair, int]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many positions wait."""
        return self._count

    def __contains__(self, sticky_hash: int) -> bool:
        return sticky_hash in self.by_hash

    def park(self, position: PositionPair, sticky_hash: int) -> bool:
        """Puts a position in its hash's line; whether it is the new head."""
        self._count += 1
        line = self.by_hash.get(sticky_hash)
        if line is None:
            self.by_hash[sticky_hash] = deque((position,))
            return True
        if position > line[-1]:
            line.append(position)
            return False
        if position < line[0]:
            line.appendleft(position)
            return True
        self.by_hash[sticky_hash] = deque(sorted((*line, position)))
        return False

    def line_up(self, sticky_hash: int, owner: Consumer | None) -> None:
        """The head of this hash may go to `owner` as soon as he has room."""
        line = self.by_hash.get(sticky_hash)
        if line is not None and owner is not None:
            heappush(self._heaps.setdefault(owner, []), (line[0], sticky_hash))

    def head(self, consumer: Consumer) -> tuple[PositionPair, int] | None:
        """The oldest position lined up for the consumer, and its hash; taken off the heap."""
        heap = self._heaps.get(consumer)
        while heap:
            position, sticky_hash = heappop(heap)
            line = self.by_hash.get(sticky_hash)
            if line is not None and line[0] == position:
                return position, sticky_hash
        return None

    def drop_head(self, sticky_hash: int) -> bool:
        """The head of a hash is dealt with; whether others of it still wait."""
        line = self.by_hash[sticky_hash]
        line.popleft()
        self._count -= 1
        if line:
            return True
        del self.by_hash[sticky_hash]
        return False

    def behind_head(self, sticky_hash: int, count: int) -> Iterator[PositionPair]:
        """Up to `count` positions that follow the head of a hash."""
        for index, position in enumerate(self.by_hash[sticky_hash]):
            if index > count:
                return
            if index:
                yield position

    def drop_up_to(self, position: PositionPair) -> None:
        """Nothing up to `position` waits any more. Line up all hashes again afterwards."""
        for sticky_hash, line in list(self.by_hash.items()):
            while line and line[0] <= position:
                line.popleft()
                self._count -= 1
            if not line:
                del self.by_hash[sticky_hash]

    def unline_all(self) -> None:
        """Nothing is lined up any more: owners have changed."""
        self._heaps.clear()

    def clear(self) -> None:
        self.by_hash.clear()
        self._heaps.clear()
        self._count = 0


class KeptEntries:
    """Entries of waiting positions, each with its number of messages; a bounded number of bytes."""

    def __init__(self) -> None:
        self._entries: dict[PositionPair, tuple[Entry, int]] = {}
        self._bytes = 0

    def __contains__(self, position: PositionPair) -> bool:
        return position in self._entries

    def keep(self, position: PositionPair, entry: Entry, messages: int) -> None:
        """Keeps the entry, where there is room."""
        if self._bytes < KEPT_BYTES_MAX:
            self._entries[position] = (entry, messages)
            self._bytes += len(entry.data) + KEPT_OVERHEAD_BYTES

    def take(self, position: PositionPair) -> tuple[Entry, int] | None:
        """The entry and its messages, if it was kept; it is kept no longer."""
        kept = self._entries.pop(position, None) if self._entries else None
        if kept is not None:
            self._bytes -= len(kept[0].data) + KEPT_OVERHEAD_BYTES
        return kept

    def drop_up_to(self, position: PositionPair) -> None:
        for known in [each for each in self._entries if each <= position]:
            self.take(known)

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0
