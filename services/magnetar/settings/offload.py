"""The settings of offloading closed ledgers to an object store.

The credentials of a store are in the environment of brokers and jobs, as the store's own tools
expect them. Jobs read the other settings from metadata, where brokers publish them.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.settings import choices
from magnetar.settings.field import UNLIMITED, setting

OFFLOAD: Final = "Offload"


@dataclass(frozen=True, kw_only=True)
class OffloadSettings:
    """Where and when ledgers are offloaded if no policy says otherwise, and the cache of reads."""

    offload_driver: choices.OffloadDriver | None = setting(
        None,
        "The store that closed ledgers are offloaded to; unset: only topics with a policy offload.",
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
        "The store's address, if it is not the provider's.",
        group=OFFLOAD,
        pulsar="managedLedgerOffloadServiceEndpoint",
        aliases=("s3ManagedLedgerOffloadServiceEndpoint",),
    )
    offload_folder: str | None = setting(
        None,
        "The folder of the driver `filesystem`, as a path or a `file:` URL, shared by all brokers "
        "and jobs.",
        group=OFFLOAD,
        pulsar="fileSystemURI",
    )
    offload_threshold_bytes: int = setting(
        -1,
        "Size of a topic above which its oldest ledgers are offloaded; -1: only on request.",
        group=OFFLOAD,
        unit="bytes",
        within=(-1, UNLIMITED),
        pulsar="managedLedgerOffloadAutoTriggerSizeThresholdBytes",
    )
    offload_threshold_s: int = setting(
        -1,
        "Age at which a ledger is offloaded; -1: only on request.",
        group=OFFLOAD,
        unit="s",
        within=(-1, UNLIMITED),
        pulsar="managedLedgerOffloadThresholdInSeconds",
    )
    offload_deletion_lag_ms: int = setting(
        14_400_000,
        "How long bookies keep an offloaded ledger; -1: for ever.",
        group=OFFLOAD,
        unit="ms",
        within=(-1, UNLIMITED),
        pulsar="managedLedgerOffloadDeletionLagMs",
    )
    offload_read_priority: choices.ReadPriority = setting(
        "tiered-storage-first",
        "Which copy of an offloaded ledger is read while bookies still have it.",
        group=OFFLOAD,
        pulsar="managedLedgerDataReadPriority",
    )
    cold_cache_size_mb: int = setting(
        64,
        "Memory for cached row groups of offloaded ledgers, over all topics.",
        group=OFFLOAD,
        unit="MiB",
        within=(0, 1 << 20),
    )
