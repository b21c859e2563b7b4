"""The settings of topics, and of the producers and schemas that belong to them."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings import choices
from magnetar.settings.field import UNLIMITED, SettingsError, setting

TOPICS: Final = "Topics"
PRODUCERS: Final = "Producers"
SCHEMAS: Final = "Schemas"
_INTERCEPTORS: Final = "org.apache.pulsar.common.intercept."


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """The creation of namespaces and topics, and the deletion of unused topics."""

    auto_topic_creation: bool = setting(
        True,
        "Whether a topic that does not exist is created when a client uses it.",
        group=TOPICS,
        pulsar="allowAutoTopicCreation",
    )
    auto_topic_creation_type: choices.TopicType = setting(
        "non-partitioned",
        "The kind of topic that automatic creation creates.",
        group=TOPICS,
        pulsar="allowAutoTopicCreationType",
    )
    default_partitions: int = setting(
        1,
        "Number of partitions of a topic that is created automatically.",
        group=TOPICS,
        unit="partitions",
        within=(1, 10_000),
        pulsar="defaultNumPartitions",
    )
    default_namespace_bundles: int = setting(
        4,
        "Number of bundles of a namespace that is created without one, public/default of a new "
        "cluster among them.",
        group=TOPICS,
        unit="bundles",
        within=(1, 65_536),
        pulsar="defaultNumberOfNamespaceBundles",
    )
    partitions_max: int = setting(
        0,
        "Maximum number of partitions of a topic, also of one that is created automatically; 0 "
        "means no limit.",
        group=TOPICS,
        unit="partitions",
        within=(0, UNLIMITED),
        pulsar="maxNumPartitionsPerPartitionedTopic",
    )
    delete_inactive_topics: bool = setting(
        True,
        "Whether unused topics are deleted.",
        group=TOPICS,
        pulsar="brokerDeleteInactiveTopicsEnabled",
    )
    delete_inactive_topics_mode: choices.InactiveTopicMode = setting(
        "delete_when_no_subscriptions",
        "When a topic without producers and consumers counts as unused.",
        group=TOPICS,
        pulsar="brokerDeleteInactiveTopicsMode",
    )
    delete_inactive_topics_interval_s: int = setting(
        60,
        "Interval of the check for unused topics, and the default of how long they are kept.",
        group=TOPICS,
        unit="s",
        within=(1, 86_400),
        pulsar="brokerDeleteInactiveTopicsFrequencySeconds",
    )

    def __post_init__(self) -> None:
        partitioned = self.auto_topic_creation_type == "partitioned"
        if partitioned and 0 < self.partitions_max < self.default_partitions:
            raise SettingsError(
                f"default_partitions is {self.default_partitions}, more than partitions_max, "
                f"{self.partitions_max}: no topic could be created automatically"
            )


@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """What producers may send, and what the broker adds to it."""

    message_bytes_max: int = setting(
        5_242_880,
        "Maximum size of a message; clients learn it when they connect.",
        group=PRODUCERS,
        unit="bytes",
        within=(1_024, 32 << 20),
        pulsar="maxMessageSize",
    )
    producers_per_topic_max: int = setting(
        0,
        "Maximum number of producers of a topic; 0 means no limit.",
        group=PRODUCERS,
        unit="producers",
        within=(0, UNLIMITED),
        pulsar="maxProducersPerTopic",
    )
    entry_metadata: tuple[choices.EntryMetadataField, ...] = setting(
        (),
        "Metadata that the broker adds to each entry: its time, its index in the topic, or both.",
        group=PRODUCERS,
        pulsar="brokerEntryMetadataInterceptors",
        values={
            _INTERCEPTORS + "AppendBrokerTimestampMetadataInterceptor": "timestamp",
            _INTERCEPTORS + "AppendIndexMetadataInterceptor": "index",
        },
    )
    expose_entry_metadata: bool = setting(
        True,
        "Whether the metadata of `entry_metadata` is sent to clients that can read it (Pulsar: "
        "false).",
        group=PRODUCERS,
        pulsar="exposingBrokerEntryMetadataToClientEnabled",
    )


@dataclass(frozen=True, kw_only=True)
class SchemaSettings:
    """Which schemas producers and consumers may register."""

    schema_compatibility: choices.SchemaCompatibility = setting(
        "FULL",
        "The compatibility of a new schema with the former ones, without a policy.",
        group=SCHEMAS,
        pulsar="schemaCompatibilityStrategy",
    )
    schema_auto_update: bool = setting(
        True,
        "Whether producers and consumers may register new schema versions.",
        group=SCHEMAS,
        pulsar="isAllowAutoUpdateSchemaEnabled",
    )
