"""The bookie's bounds and thresholds, each with its unit.

Memory is bounded by `journal_queue_bytes_max` (adds not yet on disk), two halves of
`write_cache_bytes`, and `read_cache_bytes`; all are upper bounds, and no memory is reserved.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.core.units import KIB, MIB

GROUP_BYTES_MAX: Final = 256 * MIB
"""The largest group of one `add_entries`: its record's length must stay far below 2**32."""

ENTRIES_PER_GROUP_MAX: Final = 1 << 20
JOURNAL_QUEUE_BYTES_MAX: Final = 192 * MIB


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Settings of a bookie's storage; the defaults suit a standalone process and a small bookie."""

    # Journal: files of `journal_file_bytes`, preallocated in steps. The last
    # `journal_reserve_bytes` of a step are only for fences and deletes on a full disk.
    journal_file_bytes: int = 64 * MIB
    journal_preallocate_bytes: int = 8 * MIB
    journal_reserve_bytes: int = 1 * MIB
    journal_queue_bytes_max: int = JOURNAL_QUEUE_BYTES_MAX
    journal_queue_bytes_low: int = 16 * MIB
    journal_commit_bytes_max: int = 8 * MIB
    journal_recycled_files_max: int = 3
    journal_mark_idle_s: float = 0.02

    # Write cache: a half is flushed when it is full or old, or when adds have paused.
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

    # Garbage: a log is rewritten if its live share is below the ratio: nearly dead logs often,
    # others rarely. On a full disk, major collections run every `gc_full_interval_s`.
    gc_interval_s: float = 900.0
    gc_minor_live_ratio: float = 0.2
    gc_minor_interval_s: float = 3600.0
    gc_major_live_ratio: float = 0.8
    gc_major_interval_s: float = 86_400.0
    gc_full_interval_s: float = 30.0
    tombstone_kept_s: float = 3600.0

    # Disk: read-only from `high` on, writable again below `low`.
    disk_usage_high: float = 0.95
    disk_usage_low: float = 0.90
    disk_free_bytes_min: int = 64 * MIB
    disk_reserve_bytes: int = 8 * MIB
    disk_check_interval_s: float = 5.0
    disk_stall_s: float = 30.0
    """A journal commit or a flush that takes longer makes the bookie unhealthy."""
    tick_s: float = 1.0
