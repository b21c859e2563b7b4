"""A topic's counters, and the rates that are computed from them once per period.

The bucket bounds are Pulsar's (`pulsar_storage_write_latency_le_*`, `pulsar_entry_size_le_*`), so
that existing dashboards keep working.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

RATE_PERIOD_S: Final = 10.0
"""How often rates are recomputed; a rate is the mean over one period."""

ERROR_QUIET_MS: Final = 60_000
"""After this time without it, the same reason of failed appends counts as another one."""

WRITE_LATENCY_BOUNDS_MS: Final = (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0)
ENTRY_SIZE_BOUNDS_BYTES: Final = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576)


class TopicCounters:
    """Counters of a topic, which only grow. Rates are per second, over the last full period."""

    __slots__ = (
        "_bytes_before",
        "_messages_before",
        "bytes_in",
        "bytes_rate_in",
        "entries_in",
        "entry_size_counts",
        "evictions_by_age",
        "evictions_by_size",
        "last_error",
        "last_error_ms",
        "last_published_ms",
        "message_rate_in",
        "messages_in",
        "publish_errors",
        "publish_limited_times",
        "write_latency_counts",
        "write_latency_total_ms",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.entries_in = 0
        self.publish_errors = 0
        self.last_error = ""
        self.last_error_ms = 0
        self.publish_limited_times = 0
        self.evictions_by_age = 0
        self.evictions_by_size = 0
        self.last_published_ms = 0
        self.message_rate_in = 0.0
        self.bytes_rate_in = 0.0
        self._messages_before = 0
        self._bytes_before = 0
        # Created with the first message, so that 10,000 idle topics do not hold 20,000 lists.
        self.write_latency_counts: list[int] = []
        self.entry_size_counts: list[int] = []
        self.write_latency_total_ms = 0.0

    def published(
        self, entries: Sequence[bytes], messages: int, size_bytes: int, latency_s: float
    ) -> None:
        """Counts one run of entries that became durable together."""
        if not self.entry_size_counts:
            self.write_latency_counts = [0] * (len(WRITE_LATENCY_BOUNDS_MS) + 1)
            self.entry_size_counts = [0] * (len(ENTRY_SIZE_BOUNDS_BYTES) + 1)
        count = len(entries)
        self.messages_in += messages
        self.entries_in += count
        self.bytes_in += size_bytes
        latency_ms = latency_s * 1000.0
        self.write_latency_counts[bisect_left(WRITE_LATENCY_BOUNDS_MS, latency_ms)] += count
        self.write_latency_total_ms += latency_ms * count
        sizes = self.entry_size_counts
        if count == 1:
            sizes[bisect_left(ENTRY_SIZE_BOUNDS_BYTES, len(entries[0]))] += 1
            return
        smallest = bisect_left(ENTRY_SIZE_BOUNDS_BYTES, min(map(len, entries)))
        if smallest == bisect_left(ENTRY_SIZE_BOUNDS_BYTES, max(map(len, entries))):
            sizes[smallest] += count
        else:
            for entry in entries:
                sizes[bisect_left(ENTRY_SIZE_BOUNDS_BYTES, len(entry))] += 1

    def failed(self, error: str, now_ms: int) -> bool:
        """Counts a failed append; returns whether its reason was not seen for ERROR_QUIET_MS.

        Clients may try again many times a second, as long as it lasts.
        """
        is_new = error != self.last_error or now_ms - self.last_error_ms >= ERROR_QUIET_MS
        self.publish_errors += 1
        self.last_error, self.last_error_ms = error, now_ms
        return is_new

    def renew_rates(self, period_s: float) -> None:
        """Recomputes the rates; call once per period."""
        self.message_rate_in = (self.messages_in - self._messages_before) / period_s
        self.bytes_rate_in = (self.bytes_in - self._bytes_before) / period_s
        self._messages_before = self.messages_in
        self._bytes_before = self.bytes_in
