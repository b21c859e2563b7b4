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

    def add(self, seconds: float, count: int = 1) -> None:
        """Counts a duration `count` times."""
        self.counts[bisect_left(LATENCY_BUCKETS_MS, seconds * 1000.0)] += count
        self.count += count
        self.sum_s += seconds * count

    def latencies(self) -> "Latencies":
        """Returns a snapshot."""
        return Latencies(tuple(self.counts), self.sum_s)


class Latencies(msgspec.Struct, frozen=True):
    """A snapshot of a histogram."""

    counts: tuple[int, ...]
    """Counts per bucket of `LATENCY_BUCKETS_MS`, and above."""
    sum_s: float


class BookieStats(msgspec.Struct, frozen=True):
    """A snapshot of a bookie. Counts begin when it is opened."""

    writable: bool
    read_only_reason: str
    fault: str
    """The parts that failed unexpectedly or finally; empty if there are none."""
    entries_added: int
    adds_failed: int
    """Entries that were refused, or that the journal could not write."""
    add_latencies: Latencies
    """Of each entry, from its add until it was durable."""
    bytes_added: int
    read_latencies: Latencies
    """Of each entry that was read, the time of its request."""
    reads_failed: int
    """Requests to read that ended with an error."""
    entries_read: int
    bytes_read: int
    journal_commits: int
    journal_bytes: int
    journal_pending_bytes: int
    journal_pending_records: int
    journal_sync_latencies: Latencies
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
    """By removing entry logs, those included that were rewritten."""
    gc_bytes_compacted: int
    """Of these, what rewriting entry logs has freed: their size without that of the copies."""
    gc_minor: int
    gc_major: int
    """Collections that may rewrite entry logs, by the two live shares."""
    ledgers_deleted: int
    disk_bytes_total: int
    disk_bytes_free: int
    ledgers_in_limbo_through: int
    damaged_ranges: int


class Counters:
    """Counts that only increase."""

    __slots__ = (
        "adds",
        "adds_failed",
        "bytes_added",
        "entries_added",
        "flush_bytes",
        "flushes",
        "gc_bytes_compacted",
        "gc_bytes_freed",
        "gc_major",
        "gc_minor",
        "journal_bytes",
        "journal_sync",
        "ledgers_deleted",
        "logs_compacted",
        "logs_removed",
        "reads",
        "reads_failed",
    )

    def __init__(self) -> None:
        self.entries_added = self.bytes_added = 0
        self.adds_failed = self.reads_failed = 0
        self.adds = Histogram()
        self.reads = Histogram()
        self.journal_bytes = 0
        self.journal_sync = Histogram()
        self.flushes = self.flush_bytes = 0
        self.logs_removed = self.logs_compacted = 0
        self.gc_bytes_freed = self.gc_bytes_compacted = 0
        self.gc_minor = self.gc_major = self.ledgers_deleted = 0
