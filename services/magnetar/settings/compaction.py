"""The settings of compactions that brokers run themselves."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import UNLIMITED, setting

COMPACTION: Final = "Compaction"


@dataclass(frozen=True, kw_only=True)
class CompactionSettings:
    """When a broker compacts topics, how large they may be, and the memory for it."""

    compaction_check_interval_s: float = setting(
        60.0,
        "Interval of the check for topics above their compaction threshold; 0: only "
        "`topics compact` starts a compaction.",
        group=COMPACTION,
        unit="s",
        within=(0, 86_400),
        pulsar="brokerServiceCompactionMonitorIntervalInSeconds",
    )
    compaction_topic_size_mb_max: int = setting(
        1_024,
        "Input up to which a broker of a cluster compacts a topic; more is left to a job; -1: no "
        "limit. A standalone has none.",
        group=COMPACTION,
        unit="MiB",
        within=(-1, UNLIMITED),
    )
    compaction_index_mb: int = setting(
        32,
        "Memory for the index of keys in a compaction's worker process, and again for sorting; "
        "the rest is on disk (`TMPDIR`).",
        group=COMPACTION,
        unit="MiB",
        within=(1, 1 << 20),
    )
    compaction_index_disk_mb: int = setting(
        512,
        "Space on disk for that index, and less than that again for sorting; a topic with more "
        "keys is not compacted.",
        group=COMPACTION,
        unit="MiB",
        within=(1, 1 << 20),
    )
