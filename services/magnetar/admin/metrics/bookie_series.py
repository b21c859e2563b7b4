"""Series of bookies, under BookKeeper's names if it has one for the value.

The quantiles of the journal's syncs come from its histogram. A quantile is shown as the upper bound
of its bucket.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final, Protocol

from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.stats import LATENCY_BUCKETS_MS, BookieStats
from magnetar.observe.metrics import family, label_text, single

QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999)


class BookieWithStats(Protocol):
    """A bookie in this process."""

    @property
    def identity(self) -> BookieIdentity: ...

    def stats(self) -> BookieStats: ...


_GAUGES: Final = (
    ("bookie_SERVER_STATUS", "writable"),
    ("bookie_write_cache_size", "write_cache_bytes"),
    ("bookie_write_cache_entries", "write_cache_entries"),
    ("bookie_read_cache_size", "read_cache_bytes"),
    ("bookie_index_memory_bytes", "index_memory_bytes"),
    ("bookie_journal_pending_bytes", "journal_pending_bytes"),
    ("bookie_entry_logs", "entry_logs"),
    ("bookie_disk_bytes", "disk_bytes_total"),
    ("bookie_disk_free_bytes", "disk_bytes_free"),
    ("bookie_damaged_ranges", "damaged_ranges"),
)
_COUNTERS: Final = (
    ("bookie_WRITE_BYTES", "bytes_added"),
    ("bookie_READ_BYTES", "bytes_read"),
    ("bookie_journal_JOURNAL_WRITE_BYTES", "journal_bytes"),
    ("bookie_read_cache_hits", "read_cache_hits"),
    ("bookie_read_cache_misses", "read_cache_misses"),
    ("bookie_flush_count", "flushes"),
    ("bookie_flush_bytes", "flush_bytes"),
    ("bookie_entry_logs_removed", "logs_removed"),
    ("bookie_entry_logs_compacted", "logs_compacted"),
    ("bookie_gc_freed_bytes", "gc_bytes_freed"),
)
_SUCCEEDED: Final = label_text([("success", "true")])


def bookie_families(bookies: Iterable[BookieWithStats]) -> Iterator[str]:
    """Yields the text of each family. A process has at most one bookie, so there are no labels."""
    for bookie in bookies:
        stats = bookie.stats()
        for name, field in _GAUGES:
            yield single(name, "", int(getattr(stats, field)))
        for name, field in _COUNTERS:
            yield single(name, "", getattr(stats, field), "counter")
        for name, count in (
            ("bookkeeper_server_ADD_ENTRY_count", stats.entries_added),
            ("bookkeeper_server_READ_ENTRY_count", stats.entries_read),
        ):
            yield single(name, _SUCCEEDED, count, "counter")
        yield from _journal_syncs(stats)


def _journal_syncs(stats: BookieStats) -> Iterator[str]:
    name = "bookie_journal_JOURNAL_SYNC"
    counts = stats.journal_sync_buckets
    labels = [label_text([("success", "true"), ("quantile", str(q))]) for q in QUANTILES]
    yield family(name, labels, [quantile_ms(counts, q) for q in QUANTILES], "summary")
    yield single(name + "_count", _SUCCEEDED, sum(counts), "counter")
    yield single(name + "_sum", _SUCCEEDED, round(stats.journal_sync_seconds * 1000, 3), "counter")


def quantile_ms(counts: tuple[int, ...], quantile: float) -> float:
    """Returns the upper bound of the bucket that contains the quantile; 0 if nothing was
    counted."""
    total = sum(counts)
    if not total:
        return 0.0
    for bound, reached in zip(LATENCY_BUCKETS_MS, accumulate(counts), strict=False):
        if reached >= quantile * total:
            return bound
    return LATENCY_BUCKETS_MS[-1]
