"""A set of positions of one managed ledger: a Roaring bitmap of entry ids per ledger. Pure.

A position takes two bytes at most, and a bit where positions are dense, so sets of many millions
of entries fit in memory. No bitmap is empty between calls.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from pyroaring import BitMap

from magnetar.managed_ledger.ack_state import AckState

BITMAP_BYTES: Final = 160
"""What a bitmap takes besides its contents, about."""
BLOCK_BYTES_MAX: Final = 8_192


class PositionSet:
    """A set of (ledger id, entry id)."""

    __slots__ = ("_ledgers",)

    def __init__(self) -> None:
        self._ledgers: dict[int, BitMap] = {}

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __len__(self) -> int:
        return sum(map(len, self._ledgers.values()))

    def __contains__(self, position: tuple[int, int]) -> bool:
        entries = self._ledgers.get(position[0])
        return entries is not None and position[1] in entries

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for ledger_id in sorted(self._ledgers):
            for entry_id in self._ledgers[ledger_id]:
                yield ledger_id, entry_id

    @property
    def ledgers(self) -> dict[int, BitMap]:
        """The entry ids by ledger. Read-only."""
        return self._ledgers

    @property
    def memory_bytes(self) -> int:
        """About the memory that the set takes: at most two bytes or 8 KiB per 65,536 entries."""
        size_bytes = 0
        for entries in self._ledgers.values():
            blocks = (entries.max() >> 16) - (entries.min() >> 16) + 1
            size_bytes += BITMAP_BYTES + min(2 * len(entries), BLOCK_BYTES_MAX * blocks)
        return size_bytes

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Adds a position. Idempotent."""
        entries = self._ledgers.get(ledger_id)
        if entries is None:
            self._ledgers[ledger_id] = BitMap((entry_id,))
        else:
            entries.add(entry_id)

    def add_entries(self, ledger_id: int, entries: BitMap) -> None:
        """Adds entries of one ledger."""
        if not entries:
            return
        present = self._ledgers.get(ledger_id)
        if present is None:
            self._ledgers[ledger_id] = entries.copy()
        else:
            present |= entries

    def discard(self, ledger_id: int, entry_id: int) -> None:
        """Removes a position, if present."""
        entries = self._ledgers.get(ledger_id)
        if entries is not None:
            entries.discard(entry_id)
            if not entries:
                del self._ledgers[ledger_id]

    def discard_entries(self, ledger_id: int, entries: BitMap) -> None:
        """Removes entries of one ledger, as far as they are present."""
        present = self._ledgers.get(ledger_id)
        if present is not None:
            present -= entries
            if not present:
                del self._ledgers[ledger_id]

    def discard_up_to(self, position: tuple[int, int]) -> None:
        """Removes all positions up to and including `position`."""
        ledger_id, entry_id = position
        self.discard_ledgers_before(ledger_id)
        entries = self._ledgers.get(ledger_id)
        if entries is not None and entry_id >= 0:
            entries.remove_range(0, entry_id + 1)
            if not entries:
                del self._ledgers[ledger_id]

    def discard_ledgers_before(self, ledger_id: int) -> None:
        """Removes the positions of all ledgers with a lower id."""
        for other in [other for other in self._ledgers if other < ledger_id]:
            del self._ledgers[other]

    def clear(self) -> None:
        """Removes all positions."""
        self._ledgers.clear()

    def first(self) -> tuple[int, int] | None:
        """Returns the smallest position, None if the set is empty."""
        if not self._ledgers:
            return None
        ledger_id = min(self._ledgers)
        return ledger_id, self._ledgers[ledger_id].min()

    def pop(self, count: int) -> list[tuple[int, int]]:
        """Removes and returns the smallest `count` positions."""
        taken: list[tuple[int, int]] = []
        while self._ledgers and len(taken) < count:
            ledger_id = min(self._ledgers)
            entries = self._ledgers[ledger_id]
            chosen = entries[: count - len(taken)]
            taken.extend((ledger_id, entry_id) for entry_id in chosen)
            entries -= chosen
            if not entries:
                del self._ledgers[ledger_id]
        return taken

    def before(self, position: tuple[int, int]) -> Iterator[tuple[int, BitMap]]:
        """Yields the entries before `position`, by ledger."""
        ledger_id, entry_id = position
        for other, entries in self._ledgers.items():
            if other < ledger_id:
                yield other, entries
            elif other == ledger_id and entry_id > 0:
                head = entries & BitMap(range(entry_id))
                if head:
                    yield other, head

    def unacked_in(self, acks: AckState) -> int:
        """Returns how many members are not acked."""
        mark, holes = acks.mark_delete, acks.holes
        count = 0
        for ledger_id, entries in self._ledgers.items():
            if ledger_id < mark.ledger_id:
                continue
            count += len(entries)
            if ledger_id == mark.ledger_id and mark.entry_id >= 0:
                count -= entries.range_cardinality(0, mark.entry_id + 1)
            acked = holes.get(ledger_id)
            if acked is not None:
                count -= entries.intersection_cardinality(acked)
        return count

    def update(self, positions: Iterable[tuple[int, int]]) -> None:
        """Adds positions."""
        for ledger_id, entry_id in positions:
            self.add(ledger_id, entry_id)
