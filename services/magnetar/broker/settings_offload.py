"""Where cold data goes, and how much of it is kept in memory: the defaults of offload policies.

A namespace's or a topic's offload policies come before these. Credentials are in the environment of
broker and jobs, as the store's own tools have them. Jobs learn these settings from metadata, where
brokers publish them (`offloading.publish_defaults`).
"""

from dataclasses import dataclass
from typing import Final, Literal

from magnetar.broker.setting import UNLIMITED, setting
from magnetar.broker.settings_lifecycle import LifecycleSettings

OffloadDriver = Literal["aws-s3", "S3", "google-cloud-storage", "azureblob", "filesystem"]
ReadPriority = Literal["tiered-storage-first", "bookkeeper-first"]

OFFLOAD: Final = "Offload"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSettings(LifecycleSettings):
    """A part of `BrokerSettings`."""

    offload_driver: OffloadDriver | None = setting(
        None,
        "Where closed ledgers are moved to; without it, only where policies say so.",
        group=OFFLOAD,
        pulsar="managedLedgerOffloadDriver",
    )
    offload_bucket: str | None = setting(
        None,
        "The bucket, or Azure's container.",
        group=OFFLOAD,
        pulsar="managedLedgerOffloadBucket",
        aliases=("s3ManagedLedgerOffloadBucket", "gcsManagedLedgerOffloadBucket"),
    )
    offload_region: str | None = setting(
        None,
        "The bucket's region.",
        group=OFFLOAD,
        pulsar="managedLedgerOffloadRegion",
        aliases=("s3ManagedLedgerOffloadRegion", "gcsManagedLedgerOffloadRegion"),
    )
    offload_endpoint: str | None = setting(
        None,
        "The store's address, where it is not the provider's own.",
        group=OFFLOAD,
        pulsar="managedLedgerOffloadServiceEndpoint",
        aliases=("s3ManagedLedgerOffloadServiceEndpoint",),
    )
    offload_folder: str | None = setting(
        None,
        "The folder of the driver `filesystem`, as a path or a `file:` address; all brokers and "
        "jobs must see it.",
        group=OFFLOAD,
        pulsar="fileSystemURI",
    )
    offload_threshold_bytes: int = setting(
        -1,
        "The size of a topic above which its oldest ledgers are moved; -1: only when asked.",
        group=OFFLOAD,
        unit="bytes",
        low=-1,
        high=UNLIMITED,
        pulsar="managedLedgerOffloadAutoTriggerSizeThresholdBytes",
    )
    offload_threshold_s: int = setting(
        -1,
        "The age at which a ledger is moved; -1: only when asked.",
        group=OFFLOAD,
        unit="s",
        low=-1,
        high=UNLIMITED,
        pulsar="managedLedgerOffloadThresholdInSeconds",
    )
    offload_deletion_lag_ms: int = setting(
        14_400_000,
        "How long bookies keep what was moved; -1: for ever.",
        group=OFFLOAD,
        unit="ms",
        low=-1,
        high=UNLIMITED,
        pulsar="managedLedgerOffloadDeletionLagMs",
    )
    offload_read_priority: ReadPriority = setting(
        "tiered-storage-first",
        "Which copy of a moved ledger is read while bookies have it still.",
        group=OFFLOAD,
        pulsar="managedLedgerDataReadPriority",
    )
    cold_cache_size_mb: int = setting(
        64,
        "Memory for what was read of moved ledgers, over all topics.",
        group=OFFLOAD,
        unit="MiB",
        low=0,
        high=1 << 20,
    )
