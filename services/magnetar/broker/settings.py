"""The settings of a broker, and of the standalone that runs one with a bookie in one process.

Each has Pulsar's key where it means the same; defaults are Pulsar 4.2's unless the sentence says
otherwise. Numbers keep the unit of Pulsar's key, which the name ends with. Values come from flags,
the environment, a file and the defaults, in that order of precedence: `settings_load.py`. To add
one: add the field here, use it, and run `make docs`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from magnetar.broker.setting import UNLIMITED, SettingsError, checked, setting
from magnetar.broker.settings_offload import OffloadSettings

TopicType = Literal["non-partitioned", "partitioned"]
InactiveTopicMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
EntryMetadataField = Literal["timestamp", "index"]
SchemaCompatibility = Literal[
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
LogFormat = Literal["auto", "console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_INTERCEPTORS = "org.apache.pulsar.common.intercept."


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings(OffloadSettings):
    """What every broker has, in a cluster or alone."""

    # Topics
    auto_topic_creation: bool = setting(
        True,
        "Whether a topic that does not exist is created when a client asks for it.",
        group="Topics",
        pulsar="allowAutoTopicCreation",
    )
    auto_topic_creation_type: TopicType = setting(
        "non-partitioned",
        "What kind of topic automatic creation makes.",
        group="Topics",
        pulsar="allowAutoTopicCreationType",
    )
    default_partitions: int = setting(
        1,
        "Partitions of a partitioned topic that is created automatically.",
        group="Topics",
        unit="partitions",
        low=1,
        high=10_000,
        pulsar="defaultNumPartitions",
    )
    partitions_max: int = setting(
        0,
        "Most partitions that one topic may be given; 0 means no limit.",
        group="Topics",
        unit="partitions",
        low=0,
        high=UNLIMITED,
        pulsar="maxNumPartitionsPerPartitionedTopic",
    )
    delete_inactive_topics: bool = setting(
        True,
        "Whether topics that nobody uses are deleted.",
        group="Topics",
        pulsar="brokerDeleteInactiveTopicsEnabled",
    )
    delete_inactive_topics_mode: InactiveTopicMode = setting(
        "delete_when_no_subscriptions",
        "When a topic without producers and consumers counts as unused.",
        group="Topics",
        pulsar="brokerDeleteInactiveTopicsMode",
    )
    delete_inactive_topics_interval_s: int = setting(
        60,
        "How often unused topics are looked for, and how long a topic must have been unused.",
        group="Topics",
        unit="s",
        low=1,
        high=86_400,
        pulsar="brokerDeleteInactiveTopicsFrequencySeconds",
    )
    # Producers
    message_bytes_max: int = setting(
        5_242_880,
        "Largest message that is taken, told to clients when they connect.",
        group="Producers",
        unit="bytes",
        low=1_024,
        high=256 << 20,
        pulsar="maxMessageSize",
    )
    producers_per_topic_max: int = setting(
        0,
        "Most producers of one topic; 0 means no limit.",
        group="Producers",
        unit="producers",
        low=0,
        high=UNLIMITED,
        pulsar="maxProducersPerTopic",
    )
    entry_metadata: tuple[EntryMetadataField, ...] = setting(
        (),
        "What the broker adds in front of each entry: its time, its index in the topic, or both.",
        group="Producers",
        pulsar="brokerEntryMetadataInterceptors",
        values={
            _INTERCEPTORS + "AppendBrokerTimestampMetadataInterceptor": "timestamp",
            _INTERCEPTORS + "AppendIndexMetadataInterceptor": "index",
        },
    )
    expose_entry_metadata: bool = setting(
        True,
        "Whether clients that can read it get what `entry_metadata` added.",
        group="Producers",
        pulsar="exposingBrokerEntryMetadataToClientEnabled",
    )
    # Subscriptions
    auto_subscription_creation: bool = setting(
        True,
        "Whether a subscription that does not exist is created when a consumer asks for it.",
        group="Subscriptions",
        pulsar="allowAutoSubscriptionCreation",
    )
    consumers_per_topic_max: int = setting(
        0,
        "Most consumers of one topic; 0 means no limit.",
        group="Subscriptions",
        unit="consumers",
        low=0,
        high=UNLIMITED,
        pulsar="maxConsumersPerTopic",
    )
    consumers_per_subscription_max: int = setting(
        0,
        "Most consumers of one subscription; 0 means no limit.",
        group="Subscriptions",
        unit="consumers",
        low=0,
        high=UNLIMITED,
        pulsar="maxConsumersPerSubscription",
    )
    subscriptions_per_topic_max: int = setting(
        0,
        "Most subscriptions of one topic; 0 means no limit.",
        group="Subscriptions",
        unit="subscriptions",
        low=0,
        high=UNLIMITED,
        pulsar="maxSubscriptionsPerTopic",
    )
    unacked_per_consumer_max: int = setting(
        50_000,
        "Unacked messages after which a shared consumer gets no more; 0 means no limit.",
        group="Subscriptions",
        unit="messages",
        low=0,
        high=UNLIMITED,
        pulsar="maxUnackedMessagesPerConsumer",
    )
    unacked_per_subscription_max: int = setting(
        200_000,
        "Unacked messages after which a shared subscription pauses; 0 means no limit.",
        group="Subscriptions",
        unit="messages",
        low=0,
        high=UNLIMITED,
        pulsar="maxUnackedMessagesPerSubscription",
    )
    failover_delay_ms: int = setting(
        1_000,
        "How long a Failover subscription waits, when a consumer joins, before it starts or moves.",
        group="Subscriptions",
        unit="ms",
        low=0,
        high=600_000,
        pulsar="activeConsumerFailoverDelayTimeMillis",
    )
    key_shared_points: int = setting(
        100,
        "Points on the hash ring that each Key_Shared consumer gets.",
        group="Subscriptions",
        unit="points",
        low=1,
        high=10_000,
        pulsar="subscriptionKeySharedConsistentHashingReplicaPoints",
    )
    batch_index_acks: bool = setting(
        True,
        "Whether single messages of a batch can be acked, and stay acked.",
        group="Subscriptions",
        pulsar="acknowledgmentAtBatchIndexLevelEnabled",
    )
    dispatch_entries_max: int = setting(
        1_000,
        "Most entries that a subscription reads at once (Pulsar: 100).",
        group="Subscriptions",
        unit="entries",
        low=1,
        high=100_000,
        pulsar="dispatcherMaxReadBatchSize",
    )
    dispatch_turn_entries_max: int = setting(
        20,
        "Most entries that one consumer of a shared subscription gets in its turn.",
        group="Subscriptions",
        unit="entries",
        low=1,
        high=100_000,
        pulsar="dispatcherMaxRoundRobinBatchSize",
    )
    # Connections
    keep_alive_interval_s: int = setting(
        30,
        "How often a silent connection is pinged; two silent intervals end it.",
        group="Connections",
        unit="s",
        low=1,
        high=3_600,
        pulsar="keepAliveIntervalSeconds",
    )
    liveness_check_timeout_ms: int = setting(
        5_000,
        "How long an old connection has to answer before its producer or consumer is replaced.",
        group="Connections",
        unit="ms",
        low=100,
        high=600_000,
        pulsar="connectionLivenessCheckTimeoutMillis",
    )
    connections_max: int = setting(
        0,
        "Most client connections of this broker; 0 means no limit.",
        group="Connections",
        unit="connections",
        low=0,
        high=UNLIMITED,
        pulsar="brokerMaxConnections",
    )
    shutdown_timeout_ms: int = setting(
        10_000,
        "How long a stopping broker may take to finish what it was given (Pulsar: 60000).",
        group="Connections",
        unit="ms",
        low=100,
        high=600_000,
        pulsar="brokerShutdownTimeoutMs",
    )
    # Storage
    ledger_entries_max: int = setting(
        50_000,
        "Entries after which a topic's ledger is closed and the next one opened.",
        group="Storage",
        unit="entries",
        low=1,
        high=UNLIMITED,
        pulsar="managedLedgerMaxEntriesPerLedger",
    )
    ledger_size_max_mb: int = setting(
        2_048,
        "Size after which a topic's ledger is closed and the next one opened.",
        group="Storage",
        unit="MiB",
        low=1,
        high=UNLIMITED >> 20,
        pulsar="managedLedgerMaxSizePerLedgerMbytes",
    )
    ledger_rollover_min_minutes: int = setting(
        10,
        "No ledger is closed for its entries or size before this age.",
        group="Storage",
        unit="min",
        low=0,
        high=525_600,
        pulsar="managedLedgerMinLedgerRolloverTimeMinutes",
    )
    ledger_rollover_max_minutes: int = setting(
        240,
        "Age at which a ledger with entries is closed whatever it holds.",
        group="Storage",
        unit="min",
        low=1,
        high=525_600,
        pulsar="managedLedgerMaxLedgerRolloverTimeMinutes",
    )
    cache_size_mb: int = setting(
        64,
        "Memory for entries that tailing readers share (Pulsar: a fifth of its direct memory).",
        group="Storage",
        unit="MiB",
        low=0,
        high=1 << 20,
        pulsar="managedLedgerCacheSizeMB",
    )
    retention_minutes: int = setting(
        0,
        "How long acked messages are kept where no policy says otherwise; -1 means for ever.",
        group="Storage",
        unit="min",
        low=-1,
        high=UNLIMITED,
        pulsar="defaultRetentionTimeInMinutes",
    )
    retention_size_mb: int = setting(
        0,
        "How much acked data is kept per topic where no policy says otherwise; -1 means all.",
        group="Storage",
        unit="MiB",
        low=-1,
        high=UNLIMITED,
        pulsar="defaultRetentionSizeInMB",
    )
    retention_check_interval_s: int = setting(
        120,
        "How often ledgers that nobody needs any more are looked for.",
        group="Storage",
        unit="s",
        low=1,
        high=86_400,
        pulsar="retentionCheckIntervalInSeconds",
    )
    # Schemas
    schema_compatibility: SchemaCompatibility = setting(
        "FULL",
        "How a new schema must fit those before it where no policy says otherwise.",
        group="Schemas",
        pulsar="schemaCompatibilityStrategy",
    )
    schema_auto_update: bool = setting(
        True,
        "Whether producers and consumers may register new schema versions.",
        group="Schemas",
        pulsar="isAllowAutoUpdateSchemaEnabled",
    )
    # Operation
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
    log_format: LogFormat = setting(
        "auto",
        "How log lines look: `auto` is console on a terminal and JSON elsewhere.",
        group="Operation",
    )
    log_level: LogLevel = setting("info", "The least important log lines shown.", group="Operation")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneSettings(BrokerSettings):
    """A broker, a bookie and the metadata store in one process."""

    data_dir: Path = setting(
        Path("data"),
        "The directory of everything that is kept; locked while in use.",
        group="Standalone",
    )
    host: str = setting(
        "127.0.0.1",
        "The address that both ports listen on (Pulsar: 0.0.0.0).",
        group="Standalone",
        pulsar="bindAddress",
    )
    port: int = setting(
        6650,
        "Port of the binary protocol; 0 takes a free one.",
        group="Standalone",
        low=0,
        high=65_535,
        pulsar="brokerServicePort",
    )
    http_port: int = setting(
        8080,
        "Port of the admin REST, lookups and metrics; 0 takes a free one.",
        group="Standalone",
        low=0,
        high=65_535,
        pulsar="webServicePort",
    )
    advertised_host: str | None = setting(
        None,
        "The host name that clients are told to connect to; by default the one listened on.",
        group="Standalone",
        pulsar="advertisedAddress",
    )
    wipe: bool = setting(
        False,
        "Whether the data directory is emptied first; refused where it is not Magnetar's.",
        group="Standalone",
    )
