"""The settings of managed ledgers: their rollover, cache and retention."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import UNLIMITED, SettingsError, setting

STORAGE: Final = "Storage"


@dataclass(frozen=True, kw_only=True)
class StorageSettings:
    """The ledgers of a topic, the cache of their entries, and how long they are kept."""

    ledger_entries_max: int = setting(
        50_000,
        "Number of entries after which a topic's ledger is closed and the next one opened.",
        group=STORAGE,
        unit="entries",
        within=(1, UNLIMITED),
        pulsar="managedLedgerMaxEntriesPerLedger",
    )
    ledger_size_max_mb: int = setting(
        2_048,
        "Size after which a topic's ledger is closed and the next one opened.",
        group=STORAGE,
        unit="MiB",
        within=(1, UNLIMITED >> 20),
        pulsar="managedLedgerMaxSizePerLedgerMbytes",
    )
    ledger_rollover_min_minutes: int = setting(
        10,
        "Minimum age of a ledger that is closed for its entries or size.",
        group=STORAGE,
        unit="min",
        within=(0, 525_600),
        pulsar="managedLedgerMinLedgerRolloverTimeMinutes",
    )
    ledger_rollover_max_minutes: int = setting(
        240,
        "Age at which a ledger that is not empty is closed.",
        group=STORAGE,
        unit="min",
        within=(1, 525_600),
        pulsar="managedLedgerMaxLedgerRolloverTimeMinutes",
    )
    cache_size_mb: int = setting(
        64,
        "Memory for the cache of recent entries (Pulsar: a fifth of its direct memory).",
        group=STORAGE,
        unit="MiB",
        within=(0, 1 << 20),
        pulsar="managedLedgerCacheSizeMB",
    )
    retention_minutes: int = setting(
        0,
        "How long acked messages are kept without a policy; -1 means for ever.",
        group=STORAGE,
        unit="min",
        within=(-1, UNLIMITED),
        pulsar="defaultRetentionTimeInMinutes",
    )
    retention_size_mb: int = setting(
        0,
        "Amount of acked data that is kept per topic without a policy; -1 means all.",
        group=STORAGE,
        unit="MiB",
        within=(-1, UNLIMITED),
        pulsar="defaultRetentionSizeInMB",
    )
    retention_check_interval_s: int = setting(
        120,
        "Interval of the trimming of ledgers beyond their retention.",
        group=STORAGE,
        unit="s",
        within=(1, 86_400),
        pulsar="retentionCheckIntervalInSeconds",
    )

    def __post_init__(self) -> None:
        if self.ledger_rollover_min_minutes > self.ledger_rollover_max_minutes:
            raise SettingsError(
                f"ledger_rollover_min_minutes is {self.ledger_rollover_min_minutes}, more than "
                f"ledger_rollover_max_minutes, {self.ledger_rollover_max_minutes}"
            )
        if (self.retention_minutes == 0) != (self.retention_size_mb == 0):
            raise SettingsError(
                "retention_minutes and retention_size_mb must both be 0, or neither: "
                f"they are {self.retention_minutes} and {self.retention_size_mb}. Set both in the "
                "brokers' files (-1: no limit), or the retention policy of namespaces"
            )
