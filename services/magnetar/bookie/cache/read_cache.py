"""An LRU cache of decoded blocks of entry logs, bounded in bytes.

Lookups are by ledger and entry, without the index, so a sequential reader needs no seek while its
blocks are cached. A change of a ledger's entries (a delete, a block that replaces another) drops
the ledger from the cache; moving a block to another log does not. For the event loop's thread.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Final

import msgspec

from magnetar.bookie.entry_log.codec_v1 import Block

ENTRY_OVERHEAD_BYTES: Final = 48


class CachedBlock(msgspec.Struct, gc=False):
    """A block with the range of entries `first` to `last` of its view."""

    ledger_id: int
    first: int
    last: int
    block: Block

    @property
    def charge(self) -> int:
        """Its approximate bytes of memory."""
        return self.block.body_bytes + len(self.block.entries) * ENTRY_OVERHEAD_BYTES


class ReadCache:
    """Decoded blocks by ledger and entry, evicted least recently used first."""

    __slots__ = ("_firsts", "_recent", "bytes", "bytes_max", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._recent: OrderedDict[tuple[int, int], CachedBlock] = OrderedDict()
        self._firsts: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._recent)

    def find(self, ledger_id: int, entry_id: int) -> CachedBlock | None:
        """Returns the cached block whose range contains the entry."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        index = bisect_right(firsts, entry_id) - 1
        if index < 0:
            return None
        key = (ledger_id, firsts[index])
        cached = self._recent[key]
        if entry_id > cached.last:
            return None
        self._recent.move_to_end(key)
        return cached

    def add(self, cached: CachedBlock) -> None:
        """Caches a block, unless it is larger than the whole cache."""
        key = (cached.ledger_id, cached.first)
        if key in self._recent:
            self._remove(key)
        charge = cached.charge
        if charge > self.bytes_max:
            return
        while self.bytes + charge > self.bytes_max:
            self._remove(next(iter(self._recent)))
        self._recent[key] = cached
        insort(self._firsts.setdefault(cached.ledger_id, []), cached.first)
        self.bytes += charge

    def drop_ledger(self, ledger_id: int) -> None:
        """Drops a ledger's blocks."""
        for first in list(self._firsts.get(ledger_id, ())):
            self._remove((ledger_id, first))

    def clear(self) -> None:
        """Drops all blocks."""
        self._recent.clear()
        self._firsts.clear()
        self.bytes = 0

    def _remove(self, key: tuple[int, int]) -> None:
        cached = self._recent.pop(key)
        self.bytes -= cached.charge
        firsts = self._firsts[key[0]]
        firsts.remove(key[1])
        if not firsts:
            del self._firsts[key[0]]
