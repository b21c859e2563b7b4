"""The settings of a broker, in a cluster or alone.

A setting has Pulsar's key if it means the same; defaults are Pulsar 4.2's unless the sentence says
otherwise. Numbers keep the unit of Pulsar's key, and the name ends with it. Values come from flags,
the environment, a file and the defaults, in that order of precedence (`load`). To add a setting,
add the field here, use it, and run `make docs`.

The defaults of policies hold for topics for which neither the topic nor its namespace has a policy.
The policies are in `magnetar.policies`; each names the setting that is its default. Offload
policies work alike; the credentials of a store are in the environment of brokers and jobs, as the
store's own tools expect them, and jobs read the other offload settings from metadata, where brokers
publish them.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.settings import choices
from magnetar.settings.field import UNLIMITED, SettingsError, checked, setting
from magnetar.settings.transactions import TransactionSettings

POLICIES: Final = "Defaults of policies"
CHECKS: Final = "Checks"
OFFLOAD: Final = "Offload"
INT32_MAX: Final = 2**31 - 1
"""The largest value of the policies themselves."""
_INTERCEPTORS: Final = "org.apache.pulsar.common.intercept."


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(TransactionSettings):
    """The settings of every broker, in a cluster or alone."""

    message_ttl_s: int = setting(
        0,
        "Age after which messages count as acknowledged by all subscriptions; 0 means no limit.",
        group=POLICIES,
        unit="s",
        within=(0, INT32_MAX),
        pulsar="ttlDurationDefaultInSeconds",
    )
    backlog_quota_bytes: int = setting(
        -1,
        "Maximum size of a topic's largest backlog; -1 means no limit.",
        group=POLICIES,
        unit="bytes",
        within=(-1, UNLIMITED),
        pulsar="backlogQuotaDefaultLimitBytes",
    )
    backlog_quota_s: int = setting(
        -1,
        "Maximum age of a topic's oldest unacknowledged message; -1 means no limit.",
        group=POLICIES,
        unit="s",
        within=(-1, INT32_MAX),
        pulsar="backlogQuotaDefaultLimitSecond",
    )
    backlog_quota_action: choices.QuotaAction = setting(
        "producer_request_hold",
        "The action when a backlog exceeds its quota.",
        group=POLICIES,
        pulsar="backlogQuotaDefaultRetentionPolicy",
    )
    subscription_expiration_minutes: int = setting(
        0,
        "Time after which an unused subscription is deleted; 0 means never.",
        group=POLICIES,
        unit="min",
        within=(0, INT32_MAX),
        pulsar="subscriptionExpirationTimeMinutes",
    )
    topics_per_namespace_max: int = setting(
        0,
        "Maximum number of topics of a namespace, counting partitions; 0 means no limit.",
        group=POLICIES,
        unit="topics",
        within=(0, INT32_MAX),
        pulsar="maxTopicsPerNamespace",
    )
    delete_inactive_topics_after_s: int | None = setting(
        None,
        "Time after which an unused topic is deleted; else `delete_inactive_topics_interval_s`.",
        group=POLICIES,
        unit="s",
        within=(1, INT32_MAX),
        pulsar="brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
    )
    publish_rate_messages: int = setting(
        0,
        "Messages per second that all producers of a topic may send in total; 0 means no limit.",
        group=POLICIES,
        unit="messages/s",
        within=(-1, INT32_MAX),
        pulsar="maxPublishRatePerTopicInMessages",
    )
    publish_rate_bytes: int = setting(
        0,
        "Bytes per second that all producers of a topic may send in total; 0 means no limit.",
        group=POLICIES,
        unit="bytes/s",
        within=(-1, UNLIMITED),
        pulsar="maxPublishRatePerTopicInBytes",
    )
    dispatch_rate_messages: int = setting(
        0,
        "Messages per second dispatched from a topic; 0 means no limit.",
        group=POLICIES,
        unit="messages/s",
        within=(-1, INT32_MAX),
        pulsar="dispatchThrottlingRatePerTopicInMsg",
    )
    dispatch_rate_bytes: int = setting(
        0,
        "Bytes per second dispatched from a topic; 0 means no limit.",
        group=POLICIES,
        unit="bytes/s",
        within=(-1, UNLIMITED),
        pulsar="dispatchThrottlingRatePerTopicInByte",
    )
    subscription_dispatch_rate_messages: int = setting(
        0,
        "Messages per second dispatched to a subscription; 0 means no limit.",
        group=POLICIES,
        unit="messages/s",
        within=(-1, INT32_MAX),
        pulsar="dispatchThrottlingRatePerSubscriptionInMsg",
    )
    subscription_dispatch_rate_bytes: int = setting(
        0,
        "Bytes per second dispatched to a subscription; 0 means no limit.",
        group=POLICIES,
        unit="bytes/s",
        within=(-1, UNLIMITED),
        pulsar="dispatchThrottlingRatePerSubscriptionInByte",
    )
    dispatch_rate_relative: bool = setting(
        False,
        "Whether the publish rate is added to the dispatch rates.",
        group=POLICIES,
        pulsar="dispatchThrottlingRateRelativeToPublishRate",
    )
    dispatch_rate_for_tailing: bool = setting(
        True,
        "Whether dispatch rates also apply to subscriptions without a backlog.",
        group=POLICIES,
        pulsar="dispatchThrottlingOnNonBacklogConsumerEnabled",
    )
    subscribe_rate: int = setting(
        0,
        "How often a consumer may subscribe in `subscribe_rate_period_s`; 0 means no limit.",
        group=POLICIES,
        unit="times",
        within=(-1, INT32_MAX),
        pulsar="subscribeThrottlingRatePerConsumer",
    )
    subscribe_rate_period_s: int = setting(
        30,
        "The period of `subscribe_rate`.",
        group=POLICIES,
        unit="s",
        within=(1, INT32_MAX),
        pulsar="subscribeRatePeriodPerConsumerInSecond",
    )
    ttl_check_interval_minutes: float = setting(
        5.0,
        "Interval of the expiry of messages older than their TTL.",
        group=CHECKS,
        unit="min",
        within=(0.001, 1_440),
        pulsar="messageExpiryCheckIntervalInMinutes",
    )
    backlog_quota_checks: bool = setting(
        True,
        "Whether backlog quotas are enforced.",
        group=CHECKS,
        pulsar="backlogQuotaCheckEnabled",
    )
    backlog_quota_check_interval_s: float = setting(
        60.0,
        "Interval of the check of backlogs against their quotas.",
        group=CHECKS,
        unit="s",
        within=(0.05, 86_400),
        pulsar="backlogQuotaCheckIntervalInSeconds",
    )
    subscription_check_interval_minutes: float = setting(
        5.0,
        "Interval of the check for unused subscriptions.",
        group=CHECKS,
        unit="min",
        within=(0.001, 1_440),
        pulsar="subscriptionExpiryCheckIntervalInMinutes",
    )
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
    auto_topic_creation: bool = setting(
        True,
        "Whether a topic that does not exist is created when a client uses it.",
        group="Topics",
        pulsar="allowAutoTopicCreation",
    )
    auto_topic_creation_type: choices.TopicType = setting(
        "non-partitioned",
        "The kind of topic that automatic creation creates.",
        group="Topics",
        pulsar="allowAutoTopicCreationType",
    )
    default_partitions: int = setting(
        1,
        "Number of partitions of a topic that is created automatically.",
        group="Topics",
        unit="partitions",
        within=(1, 10_000),
        pulsar="defaultNumPartitions",
    )
    partitions_max: int = setting(
        0,
        "Maximum number of partitions of a topic; 0 means no limit.",
        group="Topics",
        unit="partitions",
        within=(0, UNLIMITED),
        pulsar="maxNumPartitionsPerPartitionedTopic",
    )
    delete_inactive_topics: bool = setting(
        True,
        "Whether unused topics are deleted.",
        group="Topics",
        pulsar="brokerDeleteInactiveTopicsEnabled",
    )
    delete_inactive_topics_mode: choices.InactiveTopicMode = setting(
        "delete_when_no_subscriptions",
        "When a topic without producers and consumers counts as unused.",
        group="Topics",
        pulsar="brokerDeleteInactiveTopicsMode",
    )
    delete_inactive_topics_interval_s: int = setting(
        60,
        "Interval of the check for unused topics, and the default of how long they are kept.",
        group="Topics",
        unit="s",
        within=(1, 86_400),
        pulsar="brokerDeleteInactiveTopicsFrequencySeconds",
    )
    message_bytes_max: int = setting(
        5_242_880,
        "Maximum size of a message; clients learn it when they connect.",
        group="Producers",
        unit="bytes",
        within=(1_024, 256 << 20),
        pulsar="maxMessageSize",
    )
    producers_per_topic_max: int = setting(
        0,
        "Maximum number of producers of a topic; 0 means no limit.",
        group="Producers",
        unit="producers",
        within=(0, UNLIMITED),
        pulsar="maxProducersPerTopic",
    )
    entry_metadata: tuple[choices.EntryMetadataField, ...] = setting(
        (),
        "Metadata that the broker adds to each entry: its time, its index in the topic, or both.",
        group="Producers",
        pulsar="brokerEntryMetadataInterceptors",
        values={
            _INTERCEPTORS + "AppendBrokerTimestampMetadataInterceptor": "timestamp",
            _INTERCEPTORS + "AppendIndexMetadataInterceptor": "index",
        },
    )
    expose_entry_metadata: bool = setting(
        True,
        "Whether the metadata of `entry_metadata` is sent to clients that can read it.",
        group="Producers",
        pulsar="exposingBrokerEntryMetadataToClientEnabled",
    )
    auto_subscription_creation: bool = setting(
        True,
        "Whether a subscription that does not exist is created when a consumer attaches.",
        group="Subscriptions",
        pulsar="allowAutoSubscriptionCreation",
    )
    consumers_per_topic_max: int = setting(
        0,
        "Maximum number of consumers of a topic; 0 means no limit.",
        group="Subscriptions",
        unit="consumers",
        within=(0, UNLIMITED),
        pulsar="maxConsumersPerTopic",
    )
    consumers_per_subscription_max: int = setting(
        0,
        "Maximum number of consumers of a subscription; 0 means no limit.",
        group="Subscriptions",
        unit="consumers",
        within=(0, UNLIMITED),
        pulsar="maxConsumersPerSubscription",
    )
    subscriptions_per_topic_max: int = setting(
        0,
        "Maximum number of subscriptions of a topic; 0 means no limit.",
        group="Subscriptions",
        unit="subscriptions",
        within=(0, UNLIMITED),
        pulsar="maxSubscriptionsPerTopic",
    )
    unacked_per_consumer_max: int = setting(
        50_000,
        "Number of unacked messages at which a shared consumer gets no more; 0 means no limit.",
        group="Subscriptions",
        unit="messages",
        within=(0, UNLIMITED),
        pulsar="maxUnackedMessagesPerConsumer",
    )
    unacked_per_subscription_max: int = setting(
        200_000,
        "Number of unacked messages at which a shared subscription pauses; 0 means no limit.",
        group="Subscriptions",
        unit="messages",
        within=(0, UNLIMITED),
        pulsar="maxUnackedMessagesPerSubscription",
    )
    failover_delay_ms: int = setting(
        1_000,
        "How long a Failover subscription waits after a join before it selects a consumer.",
        group="Subscriptions",
        unit="ms",
        within=(0, 600_000),
        pulsar="activeConsumerFailoverDelayTimeMillis",
    )
    key_shared_points: int = setting(
        100,
        "Number of points of each Key_Shared consumer on the hash ring.",
        group="Subscriptions",
        unit="points",
        within=(1, 10_000),
        pulsar="subscriptionKeySharedConsistentHashingReplicaPoints",
    )
    batch_index_acks: bool = setting(
        True,
        "Whether single messages of a batch can be acked.",
        group="Subscriptions",
        pulsar="acknowledgmentAtBatchIndexLevelEnabled",
    )
    dispatch_entries_max: int = setting(
        1_000,
        "Maximum number of entries of a subscription's read (Pulsar: 100).",
        group="Subscriptions",
        unit="entries",
        within=(1, 100_000),
        pulsar="dispatcherMaxReadBatchSize",
    )
    dispatch_turn_entries_max: int = setting(
        20,
        "Maximum number of entries that a consumer of a shared subscription gets in a turn.",
        group="Subscriptions",
        unit="entries",
        within=(1, 100_000),
        pulsar="dispatcherMaxRoundRobinBatchSize",
    )
    ledger_entries_max: int = setting(
        50_000,
        "Number of entries after which a topic's ledger is closed and the next one opened.",
        group="Storage",
        unit="entries",
        within=(1, UNLIMITED),
        pulsar="managedLedgerMaxEntriesPerLedger",
    )
    ledger_size_max_mb: int = setting(
        2_048,
        "Size after which a topic's ledger is closed and the next one opened.",
        group="Storage",
        unit="MiB",
        within=(1, UNLIMITED >> 20),
        pulsar="managedLedgerMaxSizePerLedgerMbytes",
    )
    ledger_rollover_min_minutes: int = setting(
        10,
        "Minimum age of a ledger that is closed for its entries or size.",
        group="Storage",
        unit="min",
        within=(0, 525_600),
        pulsar="managedLedgerMinLedgerRolloverTimeMinutes",
    )
    ledger_rollover_max_minutes: int = setting(
        240,
        "Age at which a ledger that is not empty is closed.",
        group="Storage",
        unit="min",
        within=(1, 525_600),
        pulsar="managedLedgerMaxLedgerRolloverTimeMinutes",
    )
    cache_size_mb: int = setting(
        64,
        "Memory for the cache of recent entries (Pulsar: a fifth of its direct memory).",
        group="Storage",
        unit="MiB",
        within=(0, 1 << 20),
        pulsar="managedLedgerCacheSizeMB",
    )
    retention_minutes: int = setting(
        0,
        "How long acked messages are kept without a policy; -1 means for ever.",
        group="Storage",
        unit="min",
        within=(-1, UNLIMITED),
        pulsar="defaultRetentionTimeInMinutes",
    )
    retention_size_mb: int = setting(
        0,
        "Amount of acked data that is kept per topic without a policy; -1 means all.",
        group="Storage",
        unit="MiB",
        within=(-1, UNLIMITED),
        pulsar="defaultRetentionSizeInMB",
    )
    retention_check_interval_s: int = setting(
        120,
        "Interval of the trimming of ledgers beyond their retention.",
        group="Storage",
        unit="s",
        within=(1, 86_400),
        pulsar="retentionCheckIntervalInSeconds",
    )
    schema_compatibility: choices.SchemaCompatibility = setting(
        "FULL",
        "The compatibility of a new schema with the former ones, without a policy.",
        group="Schemas",
        pulsar="schemaCompatibilityStrategy",
    )
    schema_auto_update: bool = setting(
        True,
        "Whether producers and consumers may register new schema versions.",
        group="Schemas",
        pulsar="isAllowAutoUpdateSchemaEnabled",
    )
    cluster_name: str = setting(
        "standalone",
        "The cluster's name: in metadata, stats and the `cluster` label of metrics.",
        group="Operation",
        pulsar="clusterName",
    )
    topic_metrics: bool = setting(
        True,
        "Whether /metrics has series per topic; otherwise per namespace.",
        group="Operation",
        pulsar="exposeTopicLevelMetricsInPrometheus",
    )
    consumer_metrics: bool = setting(
        False,
        "Whether /metrics also has series per consumer.",
        group="Operation",
        pulsar="exposeConsumerLevelMetricsInPrometheus",
    )
    force_delete_namespace: bool = setting(
        False,
        "Whether a namespace may be deleted together with its topics.",
        group="Operation",
        pulsar="forceDeleteNamespaceAllowed",
    )
    force_delete_tenant: bool = setting(
        False,
        "Whether a tenant may be deleted together with its namespaces.",
        group="Operation",
        pulsar="forceDeleteTenantAllowed",
    )
    log_format: choices.LogFormat = setting(
        "auto",
        "The format of log lines: `auto` is console on a terminal and JSON elsewhere.",
        group="Operation",
    )
    log_level: choices.LogLevel = setting(
        "info", "The lowest level of log lines that are printed.", group="Operation"
    )

    def __post_init__(self) -> None:
        checked(self)
        if self.ledger_rollover_min_minutes > self.ledger_rollover_max_minutes:
            raise SettingsError(
                f"ledger_rollover_min_minutes is {self.ledger_rollover_min_minutes}, more than "
                f"ledger_rollover_max_minutes, {self.ledger_rollover_max_minutes}"
            )
        if (self.retention_minutes == 0) != (self.retention_size_mb == 0):
            raise SettingsError(
                "retention_minutes and retention_size_mb must both be 0, or neither: "
                f"they are {self.retention_minutes} and {self.retention_size_mb}"
            )

    def managed_ledger(self) -> ManagedLedgerSettings:
        """Returns the settings of this broker's managed ledgers, in their units."""
        return ManagedLedgerSettings(
            rollover_entries_max=self.ledger_entries_max,
            rollover_bytes_max=self.ledger_size_max_mb << 20,
            rollover_ms_min=self.ledger_rollover_min_minutes * 60_000,
            rollover_ms_max=self.ledger_rollover_max_minutes * 60_000,
            cache_bytes_max=self.cache_size_mb << 20,
            cold_cache_bytes_max=self.cold_cache_size_mb << 20,
        )
