"""Counters of a bookie, for metrics and `stats()`."""

from bisect import bisect_left
from typing import Final

import msgspec

LATENCY_BUCKETS_MS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0)


class Histogram:
    """Counts durations by bucket; the last bucket is for durations above all bounds."""

    __slots__ = ("count", "counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self.count = 0
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(LATENCY_BUCKETS_MS, seconds * 1000.0)] += 1
        self.count += 1
        self.sum_s += seconds


class BookieStats(msgspec.Struct, frozen=True):
    """A snapshot of a bookie. Counts begin when it is opened."""

    writable: bool
    read_only_reason: str
    fault: str
    """The parts that failed unexpectedly or finally; empty if there are none."""
    entries_added: int
    bytes_added: int
    entries_read: int
    bytes_read: int
    journal_commits: int
    journal_bytes: int
    journal_pending_bytes: int
    journal_sync_seconds: float
    journal_sync_buckets: tuple[int, ...]
    """Counts per bucket of `LATENCY_BUCKETS_MS`, and above."""
    write_cache_bytes: int
    write_cache_entries: int
    flushes: int
    flush_bytes: int
    read_cache_bytes: int
    read_cache_hits: int
    read_cache_misses: int
    index_memory_bytes: int
    """Memory of the index's own caches and buffers, which have fixed bounds."""
    entry_logs: int
    logs_removed: int
    logs_compacted: int
    gc_bytes_freed: int
    disk_bytes_total: int
    disk_bytes_free: int
    ledgers_in_limbo_through: int
    damaged_ranges: int


class Counters:
    """Counts that only increase."""

    __slots__ = (
        "bytes_added",
        "entries_added",
        "flush_bytes",
        "flushes",
        "gc_bytes_freed",
        "journal_bytes",
        "journal_sync",
        "logs_compacted",
        "logs_removed",
    )

    def __init__(self) -> None:
        self.entries_added = self.bytes_added = 0
        self.journal_bytes = 0
        self.journal_sync = Histogram()
        self.flushes = self.flush_bytes = 0
        self.logs_removed = self.logs_compacted = self.gc_bytes_freed = 0
