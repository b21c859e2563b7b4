"""The newest entries of all topics of a process, by reference, within a bound of bytes.

An entry enters when it becomes durable and leaves in order of arrival, so the cached part of a
ledger is always a contiguous run up to its end: a list with direct indexing. Eviction removes
tokens; a token stands for neighbouring entries of one run that arrived together (TOKEN_BYTES_MAX),
so an append costs the same whatever its number of entries. Nothing is copied; `Entry` objects are
built on read. Tokens of forgotten runs remain until they are half of all tokens.
"""

from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import Final, cast

from magnetar.managed_ledger.entry import Entry

TOKEN_BYTES_MAX: Final = 64 << 10
ENTRY_OVERHEAD_BYTES: Final = 48
"""Memory of an entry besides its bytes: object head, rounding, reference."""

_COMPACT_ENTRIES_MIN: Final = 1024


class _Token:
    """Neighbouring entries that are evicted together."""

    __slots__ = ("count", "run", "size")

    def __init__(self, run: "CachedRun", count: int, size: int) -> None:
        self.run = run
        self.count = count
        self.size = size


class CachedRun:
    """The cached entries of one ledger: `first` and up, of which the first `gone` are evicted."""

    __slots__ = (
        "_data",
        "_first",
        "_gone",
        "forgotten",
        "ledger_id",
        "read_bytes",
        "size",
        "token",
        "tokens",
    )

    def __init__(self, ledger_id: int, first: int) -> None:
        self.ledger_id = ledger_id
        self.size = 0
        self.token: _Token | None = None
        self.tokens = 0
        self.forgotten = False
        self.read_bytes = 0
        """The size of the entries that the last `read` returned."""
        self._first = first
        self._gone = 0
        self._data: list[bytes | None] = []

    @property
    def next_entry(self) -> int:
        return self._first + len(self._data)

    def __len__(self) -> int:
        return len(self._data) - self._gone

    def append(self, entries: list[bytes]) -> None:
        self._data += entries

    def drop(self, count: int) -> None:
        """Evicts the oldest `count` entries."""
        gone = self._gone
        self._data[gone : gone + count] = [None] * count
        self._gone = gone = gone + count
        # The cost of moving the rest is amortized by as many evictions before.
        if gone >= _COMPACT_ENTRIES_MIN and gone * 2 >= len(self._data):
            del self._data[:gone]
            self._first += gone
            self._gone = 0

    def read(self, first: int, entries_max: int, bytes_max: int) -> list[Entry] | None:
        """Returns entries from `first` on, at least one; None if `first` is not cached."""
        start = first - self._first
        if start < self._gone or start >= len(self._data):
            return None
        # Only entries below `_gone` are None, so all of these are bytes.
        chunk = cast("list[bytes]", self._data[start : start + entries_max])
        size = sum(map(len, chunk))
        if size > bytes_max:
            fitting, size = 1, len(chunk[0])
            while fitting < len(chunk) and size + len(chunk[fitting]) <= bytes_max:
                size += len(chunk[fitting])
                fitting += 1
            del chunk[fitting:]
        self.read_bytes = size
        return list(map(Entry, repeat(self.ledger_id), range(first, first + len(chunk)), chunk))


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Size and counters of the cache. Hits and misses count reads, not entries."""

    size_bytes: int
    size_bytes_max: int
    hits: int
    hit_bytes: int
    misses: int
    missed_bytes: int
    """What was read elsewhere because it was not cached."""
    evictions: int
    evicted_entries: int
    evicted_bytes: int


class EntryCache:
    """The cache of a process, over all topics. Evicts the oldest entries of all runs."""

    __slots__ = (
        "_fifo",
        "_tokens_forgotten",
        "evicted_bytes",
        "evicted_entries",
        "evictions",
        "hit_bytes",
        "hits",
        "missed_bytes",
        "misses",
        "size_bytes",
        "size_bytes_max",
    )

    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes_max = size_bytes_max
        self.size_bytes = 0
        self.hits = self.hit_bytes = 0
        self.misses = self.missed_bytes = 0
        self.evictions = self.evicted_entries = self.evicted_bytes = 0
        self._fifo: deque[_Token] = deque()
        self._tokens_forgotten = 0

    def add(self, run: CachedRun, entries: list[bytes], size: int) -> None:
        """Appends entries of `size` bytes in total to the run; evicts the oldest of all runs."""
        run.append(entries)
        count = len(entries)
        size += count * ENTRY_OVERHEAD_BYTES
        run.size += size
        token = run.token
        if token is not None and token.size < TOKEN_BYTES_MAX:
            token.count += count
            token.size += size
        else:
            run.token = token = _Token(run, count, size)
            run.tokens += 1
            self._fifo.append(token)
        self.size_bytes += size
        while self.size_bytes > self.size_bytes_max:
            self._evict()

    def _evict(self) -> None:
        token = self._fifo.popleft()
        run = token.run
        if run.forgotten:
            self._tokens_forgotten -= 1
            return
        if run.token is token:
            run.token = None
        run.tokens -= 1
        run.drop(token.count)
        run.size -= token.size
        self.size_bytes -= token.size
        self.evictions += 1
        self.evicted_entries += token.count
        self.evicted_bytes += token.size

    def forget(self, run: CachedRun) -> None:
        """Drops a run for good: its ledger was deleted, or closed here."""
        if run.forgotten:
            return
        run.forgotten = True
        self.size_bytes -= run.size
        run.drop(len(run))
        self._tokens_forgotten += run.tokens
        # Sweeping at half keeps `forget` cheap, and bounds the number of dead tokens.
        if self._tokens_forgotten * 2 > len(self._fifo):
            self._fifo = deque(token for token in self._fifo if not token.run.forgotten)
            self._tokens_forgotten = 0

    def stats(self) -> CacheStats:
        return CacheStats(
            size_bytes=self.size_bytes,
            size_bytes_max=self.size_bytes_max,
            hits=self.hits,
            hit_bytes=self.hit_bytes,
            misses=self.misses,
            missed_bytes=self.missed_bytes,
            evictions=self.evictions,
            evicted_entries=self.evicted_entries,
            evicted_bytes=self.evicted_bytes,
        )
