"""Who and what is let in: automatic creation, schemas, encryption, subscription types.

Also what a topic does for its clients beside keeping messages: deduplication, delays, replication.
"""

from typing import Final

from magnetar.policies.policy import Policy, Rest, Unset
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

AUTO_TOPIC_CREATION: Final = Policy(
    name="auto_topic_creation",
    manifest="autoTopicCreation",
    type=Record(
        (
            Field("allowAutoTopicCreation", Boolean(), "Whether clients create topics by use.",
                  manifest="allow"),
            Field("topicType", Choice({"partitioned": "several", "non-partitioned": "one"}),
                  "What is created.", default=None),
            Field("defaultNumPartitions", Integer(), "Partitions of a partitioned one.",
                  default=None),
        ),
        rules=(
            Rule(
                "!has(self.topicType) || self.topicType != 'partitioned' || "
                "(has(self.defaultNumPartitions) && self.defaultNumPartitions > 0)",
                "[defaultNumPartitions] cannot be less than 1 for partition type.",
                lambda value: value.get("topicType") != "partitioned"
                or value.get("defaultNumPartitions", 0) > 0,
            ),
        ),
    ),
    default=None,
    text="Whether and how topics come to be when a client first uses them.",
    enforced_by="magnetar.broker.topic_creation",
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
    text="Whether subscriptions come to be when a consumer first uses them.",
    enforced_by="magnetar.broker.topic.governed",
    broker_setting="auto_subscription_creation",
    document="autoSubscriptionCreationOverride",
    namespace=Rest("autoSubscriptionCreation"),
    topic=Rest("autoSubscriptionCreation"),
)  # fmt: skip

COMPATIBILITY: Final = Choice(
    {
        "UNDEFINED": "what the level above says",
        "ALWAYS_INCOMPATIBLE": "no new schema",
        "ALWAYS_COMPATIBLE": "any new schema",
        "BACKWARD": "new readers read the last version",
        "FORWARD": "readers of the last version read the new one",
        "FULL": "both",
        "BACKWARD_TRANSITIVE": "new readers read all versions",
        "FORWARD_TRANSITIVE": "readers of all versions read the new one",
        "FULL_TRANSITIVE": "both, for all versions",
    }
)

SCHEMA_COMPATIBILITY: Final = Policy(
    name="schema_compatibility",
    manifest="schemaCompatibilityStrategy",
    type=COMPATIBILITY,
    default="UNDEFINED",
    text="How a new schema of a topic must fit those before it.",
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
    text="Whether a producer without a schema is refused where the topic has one.",
    enforced_by="magnetar.broker.schema.registry",
    document="schema_validation_enforced",
    undefined=False,
    namespace=Rest("schemaValidationEnforced", unset=Unset.VALUE),
    topic=Rest("schemaValidationEnforced", unset=Unset.VALUE),
)

ENCRYPTION_REQUIRED: Final = Policy(
    name="encryption_required",
    manifest="encryptionRequired",
    type=Boolean(),
    default=False,
    text="Whether messages that their producer did not encrypt are refused.",
    enforced_by="magnetar.broker.rates.publishing",
    document="encryption_required",
    undefined=False,
    namespace=Rest("encryptionRequired", unset=Unset.VALUE),
)

SUBSCRIPTION_AUTH_MODE: Final = Policy(
    name="subscription_auth_mode",
    manifest="subscriptionAuthMode",
    type=Choice({"None": "any name", "Prefix": "a subscription's name begins with the role's"}),
    default="None",
    text="Which names of subscriptions a role may use.",
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
                "Shared": "many, in turn",
                "Failover": "one of many",
                "Key_Shared": "many, by key",
            }
        )
    ),
    default=None,
    text="Which types of subscriptions may be used; none named: all.",
    enforced_by="magnetar.broker.topic.governed",
    document="subscription_types_enabled",
    undefined=[],
    namespace=Rest("subscriptionTypesEnabled", unset=Unset.VALUE),
    topic=Rest("subscriptionTypesEnabled", unset=Unset.NO_CONTENT),
)

DEDUPLICATION: Final = Policy(
    name="deduplication",
    manifest="deduplication",
    type=Boolean(),
    default=False,
    text="Whether a message that a producer sends again is stored once.",
    document="deduplicationEnabled",
    namespace=Rest("deduplication"),
    topic=Rest("deduplicationEnabled", empty_removes=True),
)

DEDUPLICATION_SNAPSHOT_INTERVAL: Final = Policy(
    name="deduplication_snapshot_interval",
    manifest="deduplicationSnapshotInterval",
    type=Integer(Unit.SECONDS),
    default=None,
    text="How often what deduplication knows is stored.",
    document="deduplicationSnapshotIntervalSeconds",
    namespace=Rest("deduplicationSnapshotInterval", empty_removes=True),
    topic=Rest("deduplicationSnapshotInterval", empty_removes=True),
)

DELAYED_DELIVERY: Final = Policy(
    name="delayed_delivery",
    manifest="delayedDelivery",
    type=Record(
        (
            Field("active", Boolean(), "Whether messages can be delayed."),
            Field("tickTime", Integer(Unit.MILLISECONDS, high=INT64_MAX),
                  "How exact a delay is; 0: as exact as can be.", default=1_000),
            Field("maxDeliveryDelayInMillis", Integer(Unit.MILLISECONDS, high=INT64_MAX),
                  "The longest delay; 0: any.", default=0, manifest="maxDelay"),
        )
    ),
    default=None,
    text="Whether and how exactly messages can be delayed.",
    document="delayed_delivery_policies",
    namespace=Rest("delayedDelivery"),
    topic=Rest("delayedDelivery"),
)  # fmt: skip

REPLICATION: Final = Policy(
    name="replication",
    manifest="replicationClusters",
    type=ListOf(Text(r"[-\w.]+")),
    default=None,
    text="The clusters that messages are sent on to.",
    document="replication_clusters",
    namespace=Rest("replication", unset=Unset.VALUE, done=200),
    topic=Rest("replication"),
)

ANTI_AFFINITY: Final = Policy(
    name="anti_affinity",
    manifest="antiAffinityGroup",
    type=Text(r"[-\w.]+"),
    default=None,
    text="Namespaces of one group are kept apart on different brokers.",
    document="antiAffinityGroup",
    namespace=Rest("antiAffinity"),
)

BOOKIE_AFFINITY: Final = Policy(
    name="bookie_affinity",
    manifest="bookieAffinity",
    type=Record(
        (
            Field("bookkeeperAffinityGroupPrimary", Text(), "The group of bookies that is used.",
                  manifest="primary"),
            Field("bookkeeperAffinityGroupSecondary", Text(), "The group that helps out.",
                  default=None, manifest="secondary"),
        )
    ),
    default=None,
    text="Which bookies take a namespace's ledgers.",
    document="bookieAffinityGroup",
    namespace=Rest("persistence/bookieAffinity"),
)  # fmt: skip

ADMISSION: Final = (
    AUTO_TOPIC_CREATION, AUTO_SUBSCRIPTION_CREATION, SCHEMA_COMPATIBILITY, SCHEMA_AUTO_UPDATE,
    SCHEMA_VALIDATION, ENCRYPTION_REQUIRED, SUBSCRIPTION_AUTH_MODE, SUBSCRIPTION_TYPES,
    DEDUPLICATION, DEDUPLICATION_SNAPSHOT_INTERVAL, DELAYED_DELIVERY, REPLICATION, ANTI_AFFINITY,
    BOOKIE_AFFINITY,
)  # fmt: skip
