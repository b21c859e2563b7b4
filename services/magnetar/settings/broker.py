"""The settings of a broker, in a cluster or alone.

A setting has Pulsar's key if it means the same; defaults are Pulsar 4.2's unless the sentence says
otherwise. Numbers keep the unit of Pulsar's key, and the name ends with it. Values come from flags,
the environment, a file and the defaults, in that order of precedence (`load`). To add a setting,
add a field to its group, use it, and run `make docs`.
"""

from dataclasses import dataclass

from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.settings.audit import AuditSettings
from magnetar.settings.broker_limits import BrokerLimitSettings
from magnetar.settings.broker_tls import BrokerTlsSettings
from magnetar.settings.checks import CheckSettings
from magnetar.settings.compaction import CompactionSettings
from magnetar.settings.connections import ConnectionSettings
from magnetar.settings.deduplication import DeduplicationSettings
from magnetar.settings.delayed import DelayedDeliverySettings
from magnetar.settings.field import checked, group, setting
from magnetar.settings.offload import OffloadSettings
from magnetar.settings.operation import OPERATION, LogSettings, OperationSettings
from magnetar.settings.policy_defaults import PolicyDefaults
from magnetar.settings.security import SecuritySettings
from magnetar.settings.storage import StorageSettings
from magnetar.settings.subscriptions import SubscriptionSettings
from magnetar.settings.tls import TlsSettings
from magnetar.settings.topics import ProducerSettings, SchemaSettings, TopicSettings
from magnetar.settings.transactions import TransactionSettings


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """The settings of every broker, in a cluster or alone."""

    connections: ConnectionSettings = group(ConnectionSettings)
    limits: BrokerLimitSettings = group(BrokerLimitSettings)
    deduplication: DeduplicationSettings = group(DeduplicationSettings)
    delayed: DelayedDeliverySettings = group(DelayedDeliverySettings)
    transactions: TransactionSettings = group(TransactionSettings)
    policies: PolicyDefaults = group(PolicyDefaults)
    checks: CheckSettings = group(CheckSettings)
    offload: OffloadSettings = group(OffloadSettings)
    compaction: CompactionSettings = group(CompactionSettings)
    topics: TopicSettings = group(TopicSettings)
    producers: ProducerSettings = group(ProducerSettings)
    subscriptions: SubscriptionSettings = group(SubscriptionSettings)
    storage: StorageSettings = group(StorageSettings)
    schemas: SchemaSettings = group(SchemaSettings)
    cluster_name: str = setting(
        "standalone",
        "The cluster's name: in metadata, stats and the `cluster` label of metrics.",
        group=OPERATION,
        pulsar="clusterName",
    )
    operation: OperationSettings = group(OperationSettings)
    log: LogSettings = group(LogSettings)
    tls: TlsSettings = group(TlsSettings)
    broker_tls: BrokerTlsSettings = group(BrokerTlsSettings)
    audit: AuditSettings = group(AuditSettings)
    security: SecuritySettings = group(SecuritySettings)

    def __post_init__(self) -> None:
        checked(self)

    def managed_ledger(self) -> ManagedLedgerSettings:
        """Returns the settings of this broker's managed ledgers, in their units."""
        storage = self.storage
        return ManagedLedgerSettings(
            rollover_entries_max=storage.ledger_entries_max,
            rollover_bytes_max=storage.ledger_size_max_mb << 20,
            rollover_ms_min=storage.ledger_rollover_min_minutes * 60_000,
            rollover_ms_max=storage.ledger_rollover_max_minutes * 60_000,
            cache_bytes_max=storage.cache_size_mb << 20,
            cold_cache_bytes_max=self.offload.cold_cache_size_mb << 20,
        )
