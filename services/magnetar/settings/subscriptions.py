"""The settings of subscriptions and their consumers."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import UNLIMITED, SettingsError, setting

SUBSCRIPTIONS: Final = "Subscriptions"
_RESERVED: Final = "__"


@dataclass(frozen=True, kw_only=True)
class SubscriptionSettings:
    """The caps of subscriptions, and how a broker dispatches to their consumers."""

    auto_subscription_creation: bool = setting(
        True,
        "Whether a subscription that does not exist is created when a consumer attaches.",
        group=SUBSCRIPTIONS,
        pulsar="allowAutoSubscriptionCreation",
    )
    dead_letter_subscription: str = setting(
        "dlq",
        "The subscription that a dead letter topic (…-DLQ) gets with its first producer, if "
        "there is none; empty: it gets none.",
        group=SUBSCRIPTIONS,
    )
    consumers_per_topic_max: int = setting(
        0,
        "Maximum number of consumers of a topic; 0 means no limit.",
        group=SUBSCRIPTIONS,
        unit="consumers",
        within=(0, UNLIMITED),
        pulsar="maxConsumersPerTopic",
    )
    consumers_per_subscription_max: int = setting(
        0,
        "Maximum number of consumers of a subscription; 0 means no limit.",
        group=SUBSCRIPTIONS,
        unit="consumers",
        within=(0, UNLIMITED),
        pulsar="maxConsumersPerSubscription",
    )
    subscriptions_per_topic_max: int = setting(
        0,
        "Maximum number of subscriptions of a topic; 0 means no limit.",
        group=SUBSCRIPTIONS,
        unit="subscriptions",
        within=(0, UNLIMITED),
        pulsar="maxSubscriptionsPerTopic",
    )
    unacked_per_consumer_max: int = setting(
        50_000,
        "Number of unacked messages at which a shared consumer gets no more; 0 means no limit.",
        group=SUBSCRIPTIONS,
        unit="messages",
        within=(0, UNLIMITED),
        pulsar="maxUnackedMessagesPerConsumer",
    )
    unacked_per_subscription_max: int = setting(
        200_000,
        "Number of unacked messages at which a shared subscription pauses; 0 means no limit.",
        group=SUBSCRIPTIONS,
        unit="messages",
        within=(0, UNLIMITED),
        pulsar="maxUnackedMessagesPerSubscription",
    )
    failover_delay_ms: int = setting(
        1_000,
        "How long a Failover subscription waits after a join before it selects a consumer.",
        group=SUBSCRIPTIONS,
        unit="ms",
        within=(0, 600_000),
        pulsar="activeConsumerFailoverDelayTimeMillis",
    )
    key_shared_points: int = setting(
        100,
        "Number of points of each Key_Shared consumer on the hash ring.",
        group=SUBSCRIPTIONS,
        unit="points",
        within=(1, 10_000),
        pulsar="subscriptionKeySharedConsistentHashingReplicaPoints",
    )
    batch_index_acks: bool = setting(
        True,
        "Whether single messages of a batch can be acked.",
        group=SUBSCRIPTIONS,
        pulsar="acknowledgmentAtBatchIndexLevelEnabled",
    )
    dispatch_entries_max: int = setting(
        1_000,
        "Maximum number of entries of a subscription's read (Pulsar: 100).",
        group=SUBSCRIPTIONS,
        unit="entries",
        within=(1, 100_000),
        pulsar="dispatcherMaxReadBatchSize",
    )
    dispatch_turn_entries_max: int = setting(
        20,
        "Maximum number of entries that a consumer of a shared subscription gets in a turn.",
        group=SUBSCRIPTIONS,
        unit="entries",
        within=(1, 100_000),
        pulsar="dispatcherMaxRoundRobinBatchSize",
    )

    def __post_init__(self) -> None:
        if self.dead_letter_subscription.startswith(_RESERVED):
            raise SettingsError(
                f"dead_letter_subscription is {self.dead_letter_subscription!r}: names that begin "
                f"with {_RESERVED} are those of the broker's own subscriptions. Choose another"
            )
