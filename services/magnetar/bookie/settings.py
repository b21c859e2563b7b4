"""The bookie's bounds and thresholds, each with its unit.

Memory is bounded by `journal_queue_bytes_max` (adds not yet on disk), two halves of
`write_cache_bytes`, and `read_cache_bytes`; all are ceilings, nothing is taken in advance.
"""

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

GROUP_BYTES_MAX: Final = 256 * MIB
"""No group of one `add_entries` may be larger: its record's length must stay far below 2**32."""

ENTRIES_PER_GROUP_MAX: Final = 1 << 20
JOURNAL_QUEUE_BYTES_MAX: Final = 192 * MIB


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """See the fields; the defaults suit a standalone process and a small bookie alike."""

    # Journal: files of `journal_file_bytes`, preallocated in steps; the tail of what is
    # preallocated (`journal_reserve_bytes`) is for fences and deletes on a full disk only.
    journal_file_bytes: int = 64 * MIB
    journal_preallocate_bytes: int = 8 * MIB
    journal_reserve_bytes: int = 1 * MIB
    journal_queue_bytes_max: int = JOURNAL_QUEUE_BYTES_MAX
    journal_queue_bytes_low: int = 16 * MIB
    journal_commit_bytes_max: int = 8 * MIB
    journal_recycled_files_max: int = 3
    journal_mark_idle_s: float = 0.02

    # Write cache and its flush: a half is flushed when it is full, old, or adds have paused.
    write_cache_bytes: int = 64 * MIB
    flush_age_s: float = 60.0
    flush_idle_s: float = 5.0
    flush_idle_bytes_min: int = 4 * MIB
    flush_retry_s: float = 1.0

    # Entry logs and reads.
    block_bytes: int = 128 * KIB
    block_bytes_max: int = 256 * KIB
    entry_log_bytes: int = 256 * MIB
    entry_logs_open_max: int = 256
    read_cache_bytes: int = 32 * MIB
    read_threads: int = 2
    read_ahead_bytes: int = 1 * MIB

    # Garbage: a log is rewritten when less of it is live than the ratio; small shares often,
    # large ones rarely. On a full disk all of it happens every `gc_full_interval_s`.
    gc_interval_s: float = 900.0
    gc_minor_live_ratio: float = 0.2
    gc_minor_interval_s: float = 3600.0
    gc_major_live_ratio: float = 0.8
    gc_major_interval_s: float = 86_400.0
    gc_full_interval_s: float = 30.0
    tombstone_kept_s: float = 3600.0

    # Disk: read-only at or above `high`, writable again below `low`.
    disk_usage_high: float = 0.95
    disk_usage_low: float = 0.90
    disk_free_bytes_min: int = 64 * MIB
    disk_reserve_bytes: int = 8 * MIB
    disk_check_interval_s: float = 5.0
    disk_stall_s: float = 30.0
    """A commit of the journal or a flush that takes longer makes the bookie unhealthy."""
    tick_s: float = 1.0
