"""Decoded blocks that were read from entry logs, least recently used first out, bounded in bytes.

Found by ledger and entry, without the index: a sequential reader costs no seek while its blocks
are here. Whoever changes what a ledger's entries are (a delete, a block written over another)
drops the ledger; moving a block to another log changes nothing here. For the event loop's thread.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Final

import msgspec

from magnetar.bookie.entry_log_codec_v1 import Block

ENTRY_OVERHEAD_BYTES: Final = 48


class CachedBlock(msgspec.Struct, gc=False):
    """The part `first` to `last` of a block, as its view says."""

    ledger_id: int
    first: int
    last: int
    block: Block

    @property
    def charge(self) -> int:
        """Bytes of memory it takes, about."""
        return self.block.body_bytes + len(self.block.entries) * ENTRY_OVERHEAD_BYTES


class ReadCache:
    """See the module."""

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
        """The cached block whose range holds the entry."""
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
        """Keeps a block; a block larger than the whole cache is not kept."""
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
        """Forgets a ledger."""
        for first in list(self._firsts.get(ledger_id, ())):
            self._remove((ledger_id, first))

    def clear(self) -> None:
        """Forgets everything."""
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
