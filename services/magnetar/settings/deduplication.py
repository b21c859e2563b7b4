"""The settings of deduplication, and the default of the policy that switches it on."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import UNLIMITED, setting

DEDUPLICATION: Final = "Deduplication"
INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class DeduplicationSettings:
    """The default of deduplication, and its bounds per topic."""

    deduplication: bool = setting(
        False,
        "Whether a message that its producer sends again is stored once, unless a policy says "
        "otherwise.",
        group=DEDUPLICATION,
        pulsar="brokerDeduplicationEnabled",
    )
    deduplication_producers_max: int = setting(
        10_000,
        "Producer names per topic whose sequence ids are kept, besides those of attached "
        "producers; the broker forgets the least recently used first.",
        group=DEDUPLICATION,
        unit="producers",
        within=(1, UNLIMITED),
        pulsar="brokerDeduplicationMaxNumberOfProducers",
    )
    deduplication_inactivity_minutes: int = setting(
        360,
        "Time after which the broker forgets the sequence ids of a producer that is not attached.",
        group=DEDUPLICATION,
        unit="min",
        within=(1, UNLIMITED),
        pulsar="brokerDeduplicationProducerInactivityTimeoutMinutes",
    )
    deduplication_snapshot_entries: int = setting(
        1_000,
        "Entries of a topic after which the sequence ids are stored; at most about as many are "
        "read when the topic is loaded.",
        group=DEDUPLICATION,
        unit="entries",
        within=(1, UNLIMITED),
        pulsar="brokerDeduplicationEntriesInterval",
    )
    deduplication_snapshot_interval_s: int = setting(
        120,
        "Time after which the sequence ids of a topic with new entries are stored; 0: only by the "
        "number of entries.",
        group=DEDUPLICATION,
        unit="s",
        within=(0, INT32_MAX),
        pulsar="brokerDeduplicationSnapshotIntervalSeconds",
    )
    deduplication_sweep_interval_s: float = setting(
        120.0,
        "Interval of the check for snapshots that are due by time and for inactive producers.",
        group=DEDUPLICATION,
        unit="s",
        within=(0.05, 86_400),
        pulsar="brokerDeduplicationSnapshotFrequencyInSeconds",
    )
