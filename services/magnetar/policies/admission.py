"""Policies of admission: automatic creation, schemas, encryption, subscription types.

They also include features beyond storing messages: deduplication, delays, replication.
"""

from typing import Any, Final

from magnetar.policies.policy import Policy, Rest, Unset, Unsupported
from magnetar.policies.types import (
    INT64_MAX,
    Boolean,
    Choice,
    Field,
    Integer,
    ListOf,
    Record,
    Rule,
    Text,
    Unit,
)

_NOT_CREATED: Final = "Invalid configuration for autoTopicCreationOverride. the detail is"

AUTO_TOPIC_CREATION: Final = Policy(
    name="auto_topic_creation",
    manifest="autoTopicCreation",
    type=Record(
        (
            Field("allowAutoTopicCreation", Boolean(), "Whether clients create topics by use.",
                  manifest="allow"),
            Field("topicType",
                  Choice({"partitioned": "with partitions", "non-partitioned": "without"},
                         unoffered=("",),
                         refusal=f"{_NOT_CREATED} Unknown topic type [{{}}]"),
                  "The kind of topic that is created.", default=None),
            Field("defaultNumPartitions", Integer(), "The number of partitions, if it has any.",
                  default=None),
        ),
        rules=(
            Rule(
                "!self.allow || !has(self.topicType) || self.topicType in "
                "['partitioned', 'non-partitioned']",
                "[topicType] must be partitioned or non-partitioned where clients create topics",
                lambda value: not value["allowAutoTopicCreation"] or value.get("topicType") != "",
                f"{_NOT_CREATED} Unknown topic type []",
            ),
            Rule(
                "!has(self.topicType) || self.topicType != 'partitioned' || "
                "has(self.defaultNumPartitions)",
                "[defaultNumPartitions] cannot be null when the type is partitioned.",
                lambda value: value.get("topicType") != "partitioned"
                or "defaultNumPartitions" in value,
                f"{_NOT_CREATED} [defaultNumPartitions] cannot be null when the type is "
                "partitioned.",
            ),
            Rule(
                "!has(self.topicType) || self.topicType != 'partitioned' || "
                "!has(self.defaultNumPartitions) || self.defaultNumPartitions > 0",
                "[defaultNumPartitions] cannot be less than 1 for partition type.",
                lambda value: value.get("topicType") != "partitioned"
                or value.get("defaultNumPartitions", 1) > 0,
                f"{_NOT_CREATED} [defaultNumPartitions] cannot be less than 1 for partition type.",
            ),
            Rule(
                "!has(self.topicType) || self.topicType != 'non-partitioned' || "
                "!has(self.defaultNumPartitions)",
                "[defaultNumPartitions] is not allowed to be set when the type is non-partition.",
                lambda value: value.get("topicType") != "non-partitioned"
                or "defaultNumPartitions" not in value,
                f"{_NOT_CREATED} [defaultNumPartitions] is not allowed to be set when the type is "
                "non-partition.",
            ),
        ),
    ),
    default=None,
    text="Whether topics are created when a client first uses them, and of which kind.",
    enforced_by="magnetar.broker.topic.creation",
    broker_setting="auto_topic_creation, auto_topic_creation_type, default_partitions",
    document="autoTopicCreationOverride",
    invalid="Invalid configuration for autoTopicCreationOverride",
    namespace=Rest("autoTopicCreation"),
)  # fmt: skip

AUTO_SUBSCRIPTION_CREATION: Final = Policy(
    name="auto_subscription_creation",
    manifest="autoSubscriptionCreation",
    type=Record(
        (
            Field("allowAutoSubscriptionCreation", Boolean(),
                  "Whether consumers create subscriptions by use.", manifest="allow"),
        )
    ),
    default=None,
    text="Whether a subscription is created when a consumer first uses it.",
    enforced_by="magnetar.broker.topic.governed",
    broker_setting="auto_subscription_creation",
    document="autoSubscriptionCreationOverride",
    namespace=Rest("autoSubscriptionCreation"),
    topic=Rest("autoSubscriptionCreation"),
)  # fmt: skip

COMPATIBILITY: Final = Choice(
    {
        "UNDEFINED": "the strategy of the next level up",
        "ALWAYS_INCOMPATIBLE": "no new schema",
        "ALWAYS_COMPATIBLE": "any new schema",
        "BACKWARD": "the new schema reads data of the latest version",
        "FORWARD": "the latest version reads data of the new schema",
        "FULL": "both",
        "BACKWARD_TRANSITIVE": "the new schema reads data of all versions",
        "FORWARD_TRANSITIVE": "all versions read data of the new schema",
        "FULL_TRANSITIVE": "both, for all versions",
    }
)

SCHEMA_COMPATIBILITY: Final = Policy(
    name="schema_compatibility",
    manifest="schemaCompatibilityStrategy",
    type=COMPATIBILITY,
    default="UNDEFINED",
    text="How a new schema of a topic must relate to earlier ones.",
    enforced_by="magnetar.broker.schema.registry",
    broker_setting="schema_compatibility",
    document="schema_compatibility_strategy",
    undefined="UNDEFINED",
    namespace=Rest("schemaCompatibilityStrategy", set_verb="PUT", unset=Unset.VALUE),
    topic=Rest("schemaCompatibilityStrategy", set_verb="PUT"),
)

SCHEMA_AUTO_UPDATE: Final = Policy(
    name="schema_auto_update",
    manifest="isAllowAutoUpdateSchema",
    type=Boolean(),
    default=True,
    text="Whether clients may register new schemas.",
    enforced_by="magnetar.broker.schema.registry",
    broker_setting="schema_auto_update",
    document="is_allow_auto_update_schema",
    namespace=Rest("isAllowAutoUpdateSchema", unset=Unset.VALUE),
)

SCHEMA_VALIDATION: Final = Policy(
    name="schema_validation",
    manifest="schemaValidationEnforced",
    type=Boolean(),
    default=False,
    text="Whether producers without a schema are refused if the topic has one.",
    enforced_by="magnetar.broker.schema.registry",
    document="schema_validation_enforced",
    undefined=False,
    undefined_on_topic=False,
    namespace=Rest("schemaValidationEnforced", unset=Unset.VALUE),
    topic=Rest("schemaValidationEnforced", unset=Unset.VALUE),
)

ENCRYPTION_REQUIRED: Final = Policy(
    name="encryption_required",
    manifest="encryptionRequired",
    type=Boolean(),
    default=False,
    text="Whether messages without encryption by their producer are refused.",
    enforced_by="magnetar.broker.rates.publish_rate",
    document="encryption_required",
    undefined=False,
    namespace=Rest("encryptionRequired", unset=Unset.VALUE),
)

SUBSCRIPTION_AUTH_MODE: Final = Policy(
    name="subscription_auth_mode",
    manifest="subscriptionAuthMode",
    type=Choice({"None": "any name", "Prefix": "the subscription's name starts with the role's"}),
    default="None",
    text="Which subscription names a role may use. Prefix needs authorization.",
    enforced_by="magnetar.broker.security.rules",
    document="subscription_auth_mode",
    namespace=Rest("subscriptionAuthMode", unset=Unset.VALUE),
)

SUBSCRIPTION_TYPES: Final = Policy(
    name="subscription_types",
    manifest="subscriptionTypesEnabled",
    type=ListOf(
        Choice(
            {
                "Exclusive": "one consumer",
                "Shared": "several consumers, in turn",
                "Failover": "several consumers, one active",
                "Key_Shared": "several consumers, by key",
            }
        )
    ),
    default=None,
    text="Which subscription types are allowed; an empty list allows all.",
    enforced_by="magnetar.broker.topic.governed",
    document="subscription_types_enabled",
    undefined=[],
    namespace=Rest("subscriptionTypesEnabled", unset=Unset.VALUE),
    topic=Rest("subscriptionTypesEnabled", unset=Unset.VALUE),
)

DEDUPLICATION: Final = Policy(
    name="deduplication",
    manifest="deduplication",
    type=Boolean(),
    default=False,
    text="Whether a message that a producer sends twice is stored only once.",
    enforced_by="magnetar.broker.topic.deduplication.switch",
    broker_setting="deduplication",
    document="deduplicationEnabled",
    namespace=Rest("deduplication"),
    topic=Rest("deduplicationEnabled", empty_removes=True),
)

DEDUPLICATION_SNAPSHOT_INTERVAL: Final = Policy(
    name="deduplication_snapshot_interval",
    manifest="deduplicationSnapshotInterval",
    type=Integer(Unit.SECONDS),
    default=None,
    text="How often the ids of deduplication are stored; 0: only by the number of entries.",
    enforced_by="magnetar.broker.lifecycle.upkeep",
    broker_setting="deduplication_snapshot_interval_s",
    document="deduplicationSnapshotIntervalSeconds",
    namespace=Rest("deduplicationSnapshotInterval", empty_removes=True),
    topic=Rest(
        "deduplicationSnapshotInterval", empty_removes=True, invalid="interval must be 0 or more"
    ),
)

DELAYED_DELIVERY: Final = Policy(
    name="delayed_delivery",
    manifest="delayedDelivery",
    type=Record(
        (
            Field("active", Boolean(), "Whether messages can be delayed."),
            Field("tickTime", Integer(Unit.MILLISECONDS, high=INT64_MAX),
                  "The precision of a delay; 0: as precise as possible.", default=1_000),
            Field("maxDeliveryDelayInMillis", Integer(Unit.MILLISECONDS, high=INT64_MAX),
                  "The longest delay; 0: no limit.", default=0, manifest="maxDelay"),
        )
    ),
    default=None,
    text="Whether Shared and Key_Shared subscriptions deliver messages at their delivery time, how "
    "precisely, and the longest delay.",
    enforced_by="magnetar.broker.topic.delayed.delayed_delivery",
    broker_setting="delayed_delivery",
    document="delayed_delivery_policies",
    namespace=Rest("delayedDelivery"),
    topic=Rest("delayedDelivery"),
)  # fmt: skip


def replicates(clusters: list[Any], cluster: str) -> bool:
    """Whether the list names a cluster other than the local `cluster`.

    If the local name is unknown (empty), a single name counts as the local cluster's.
    """
    if not cluster:
        return len(clusters) > 1
    return any(name != cluster for name in clusters)


REPLICATION: Final = Policy(
    name="replication",
    manifest="replicationClusters",
    type=ListOf(Text(r"[-\w.]+")),
    default=None,
    text="The clusters to which messages are replicated.",
    limitation=Unsupported(
        replicates,
        "replicationClusters is not supported beyond the local cluster: there is no "
        "geo-replication yet; leave it out or name the local cluster only",
        "self.size() <= 1",
    ),
    document="replication_clusters",
    namespace=Rest("replication", unset=Unset.VALUE, done=200),
    topic=Rest("replication"),
)

ANTI_AFFINITY: Final = Policy(
    name="anti_affinity",
    manifest="antiAffinityGroup",
    type=Text(r"[-\w.]+"),
    default=None,
    text="Namespaces of the same group are spread over failure domains, then over brokers, when "
    "their bundles are placed or moved.",
    enforced_by="magnetar.broker.balance.spread",
    document="antiAffinityGroup",
    namespace=Rest("antiAffinity"),
)

BOOKIE_AFFINITY: Final = Policy(
    name="bookie_affinity",
    manifest="bookieAffinity",
    type=Record(
        (
            Field("bookkeeperAffinityGroupPrimary", Text(r".*[^, ].*"),
                  "The preferred groups of bookies, separated by commas.", manifest="primary"),
            Field("bookkeeperAffinityGroupSecondary", Text(), "The groups to fall back to.",
                  default=None, manifest="secondary"),
        )
    ),
    default=None,
    text="Which groups of bookies store a namespace's new ledgers: the secondary ones help if the "
    "primary ones have too few bookies for an ensemble.",
    enforced_by="magnetar.ledger.affinity",
    document="bookieAffinityGroup",
    namespace=Rest("persistence/bookieAffinity"),
)  # fmt: skip

ADMISSION: Final = (
    AUTO_TOPIC_CREATION, AUTO_SUBSCRIPTION_CREATION, SCHEMA_COMPATIBILITY, SCHEMA_AUTO_UPDATE,
    SCHEMA_VALIDATION, ENCRYPTION_REQUIRED, SUBSCRIPTION_AUTH_MODE, SUBSCRIPTION_TYPES,
    DEDUPLICATION, DEDUPLICATION_SNAPSHOT_INTERVAL, DELAYED_DELIVERY, REPLICATION, ANTI_AFFINITY,
    BOOKIE_AFFINITY,
)  # fmt: skip
