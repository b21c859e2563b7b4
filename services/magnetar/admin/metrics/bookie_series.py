"""Series of bookies, under BookKeeper's names if it has one for the value.

Latencies are summaries in milliseconds, from histograms: a quantile is the upper bound of its
bucket, over the last one to two minutes. `ADD_ENTRY`, `ADD_ENTRY_REQUEST` and `JOURNAL_ADD_ENTRY`
have the same values: a bookie queues an add for its journal in the turn of the event loop in which
it reads it, and answers in the turn in which it is durable.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, Protocol

from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.stats import LATENCY_BUCKETS_MS, BookieStats, Latencies
from magnetar.observe.metrics import Number, family, label_text, single

QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 1.0)
WINDOW_S: Final = 60.0
"""Quantiles are those of the last whole window and of the current one."""


class BookieWithStats(Protocol):
    """A bookie in this process."""

    @property
    def identity(self) -> BookieIdentity: ...

    def stats(self) -> BookieStats: ...


_GAUGES: Final = (
    ("bookie_SERVER_STATUS", "writable"),
    ("bookie_ledger_writable_dirs", "writable"),  # a bookie has one directory
    ("bookie_write_cache_size", "write_cache_bytes"),
    ("bookie_write_cache_entries", "write_cache_entries"),
    ("bookie_read_cache_size", "read_cache_bytes"),
    ("bookie_index_memory_bytes", "index_memory_bytes"),
    ("bookie_journal_pending_bytes", "journal_pending_bytes"),
    ("bookie_journal_JOURNAL_QUEUE_SIZE", "journal_pending_records"),
    ("bookie_entry_logs", "entry_logs"),
    ("bookie_ACTIVE_ENTRY_LOG_TOTAL", "entry_logs"),
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
    ("bookie_RECLAIMED_COMPACTION_SPACE_BYTES", "gc_bytes_compacted"),
    ("bookie_MINOR_COMPACTION_TOTAL", "gc_minor"),
    ("bookie_MAJOR_COMPACTION_TOTAL", "gc_major"),
    ("bookie_DELETED_LEDGER_TOTAL", "ledgers_deleted"),
)
_SUCCEEDED: Final = label_text([("success", "true")])
_FAILED: Final = label_text([("success", "false")])
_QUANTILE_LABELS: Final = [
    label_text([("success", "true"), ("quantile", str(quantile))]) for quantile in QUANTILES
]


class BookieSeries:
    """Writes the families of the bookies of a process, of which there is at most one at a time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._adds = RecentCounts(monotonic)
        self._reads = RecentCounts(monotonic)
        self._syncs = RecentCounts(monotonic)

    def families(self, bookies: Iterable[BookieWithStats]) -> Iterator[str]:
        """Yields the text of each family. There are no labels of the bookie."""
        for bookie in bookies:
            stats = bookie.stats()
            for name, field in _GAUGES:
                yield single(name, "", int(getattr(stats, field)))
            for name, field in _COUNTERS:
                yield single(name, "", getattr(stats, field), "counter")
            deleted = stats.gc_bytes_freed - stats.gc_bytes_compacted
            yield single("bookie_RECLAIMED_DELETION_SPACE_BYTES", "", deleted, "counter")
            yield from self._latencies(stats)

    def _latencies(self, stats: BookieStats) -> Iterator[str]:
        adds = self._adds.quantiles(stats.add_latencies.counts)
        reads = self._reads.quantiles(stats.read_latencies.counts)
        for part in ("bookkeeper_server_ADD_ENTRY", "bookkeeper_server_ADD_ENTRY_REQUEST"):
            yield from _summary(part, stats.add_latencies, adds, stats.adds_failed)
        for part in ("bookkeeper_server_READ_ENTRY", "bookkeeper_server_READ_ENTRY_REQUEST"):
            yield from _summary(part, stats.read_latencies, reads, stats.reads_failed)
        yield from _summary("bookie_journal_JOURNAL_ADD_ENTRY", stats.add_latencies, adds)
        syncs = stats.journal_sync_latencies
        recent = self._syncs.quantiles(syncs.counts)
        yield from _summary("bookie_journal_JOURNAL_SYNC", syncs, recent)


class RecentCounts:
    """Quantiles of a histogram over the last whole window and the current one.

    A window ends with the first call after WINDOW_S: a histogram that is not read costs nothing.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began_s = monotonic()
        self._at_begin: tuple[int, ...] = ()
        self._before: tuple[int, ...] = ()

    def quantiles(self, counts: tuple[int, ...]) -> list[float]:
        """Returns the QUANTILES, in milliseconds."""
        if sum(counts) < sum(self._at_begin):
            self._at_begin = self._before = ()  # the bookie was opened again
        now_s = self._monotonic()
        if now_s - self._began_s >= WINDOW_S:
            self._before, self._at_begin, self._began_s = self._at_begin, counts, now_s
        before = self._before or (0,) * len(counts)
        recent = tuple(now - then for now, then in zip(counts, before, strict=True))
        return [quantile_ms(recent, quantile) for quantile in QUANTILES]


def _summary(
    name: str, latencies: Latencies, quantiles: list[float], failed: int | None = None
) -> Iterator[str]:
    """Yields a summary of what succeeded, and the number of failures if they are counted."""
    yield family(name, _QUANTILE_LABELS, quantiles, "summary")
    labels, counts = [_SUCCEEDED], [sum(latencies.counts)]
    if failed is not None:
        labels, counts = [*labels, _FAILED], [*counts, failed]
    yield family(name + "_count", labels, counts, "counter")
    sum_ms: Number = round(latencies.sum_s * 1000, 3)
    yield single(name + "_sum", _SUCCEEDED, sum_ms, "counter")


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
