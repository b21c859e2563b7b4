"""Policies of caps: producers, consumers, subscriptions, topics, unacknowledged messages, sizes.

0 means no limit (broker.conf). A lowered cap does not affect what already exists.
"""

from typing import Final

from magnetar.policies.policy import Policy, Rest, Unset
from magnetar.policies.types import Boolean, Integer, Unit

_COUNT: Final = Integer()
_MESSAGES: Final = Integer(Unit.MESSAGES)


def _below(name: str) -> str:
    """Returns Pulsar's text for a value below 0."""
    return f"{name} must be 0 or more"


MESSAGE_SIZE_INVALID: Final = (
    "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than that "
    "in the broker-level"
)

MAX_PRODUCERS: Final = Policy(
    name="max_producers",
    manifest="maxProducersPerTopic",
    type=_COUNT,
    default=0,
    text="Producers of a topic; further ones are refused with ProducerBusy. 0: no limit.",
    enforced_by="magnetar.broker.topic.governed",
    broker_setting="producers_per_topic_max",
    document="max_producers_per_topic",
    namespace=Rest("maxProducersPerTopic", invalid=_below("maxProducersPerTopic")),
    topic=Rest("maxProducers", invalid=_below("maxProducers")),
)

MAX_CONSUMERS: Final = Policy(
    name="max_consumers",
    manifest="maxConsumersPerTopic",
    type=_COUNT,
    default=0,
    text="Consumers of a topic; further ones are refused with ConsumerBusy. 0: no limit.",
    enforced_by="magnetar.broker.topic.governed",
    broker_setting="consumers_per_topic_max",
    document="max_consumers_per_topic",
    namespace=Rest("maxConsumersPerTopic", invalid=_below("maxConsumersPerTopic")),
    topic=Rest("maxConsumers", invalid=_below("maxConsumers")),
)

MAX_CONSUMERS_PER_SUBSCRIPTION: Final = Policy(
    name="max_consumers_per_subscription",
    manifest="maxConsumersPerSubscription",
    type=_COUNT,
    default=0,
    text="Consumers of a subscription; further ones are refused with ConsumerBusy. 0: no limit.",
    enforced_by="magnetar.broker.subscription.admission",
    broker_setting="consumers_per_subscription_max",
    document="max_consumers_per_subscription",
    namespace=Rest(
        "maxConsumersPerSubscription", invalid="maxConsumersPerSubscription must be 0 or more"
    ),
    topic=Rest(
        "maxConsumersPerSubscription",
        invalid="Invalid value for maxConsumersPerSubscription",
        unset=Unset.NO_CONTENT,
    ),
)

MAX_SUBSCRIPTIONS: Final = Policy(
    name="max_subscriptions",
    manifest="maxSubscriptionsPerTopic",
    type=_COUNT,
    default=0,
    text="Subscriptions of a topic. 0: no limit.",
    enforced_by="magnetar.broker.topic.governed",
    broker_setting="subscriptions_per_topic_max",
    document="max_subscriptions_per_topic",
    namespace=Rest(
        "maxSubscriptionsPerTopic", invalid="maxSubscriptionsPerTopic must be 0 or more"
    ),
    topic=Rest(
        "maxSubscriptionsPerTopic",
        invalid="maxSubscriptionsPerTopic must be 0 or more",
        unset=Unset.NO_CONTENT,
    ),
)

MAX_TOPICS: Final = Policy(
    name="max_topics",
    manifest="maxTopicsPerNamespace",
    type=_COUNT,
    default=0,
    text="Topics of a namespace; each partition counts. 0: no limit.",
    enforced_by="magnetar.broker.topic.creation",
    broker_setting="topics_per_namespace_max",
    document="max_topics_per_namespace",
    namespace=Rest(
        "maxTopicsPerNamespace",
        invalid="maxTopicsPerNamespace must be 0 or more",
        unset=Unset.VALUE,
    ),
)

MAX_UNACKED_PER_CONSUMER: Final = Policy(
    name="max_unacked_per_consumer",
    manifest="maxUnackedMessagesPerConsumer",
    type=_MESSAGES,
    default=50_000,
    text="Unacknowledged messages of a consumer of a Shared or Key_Shared subscription; above "
    "this, it gets no more until it acknowledges some. 0: no limit.",
    enforced_by="magnetar.broker.dispatch.multiple",
    broker_setting="unacked_per_consumer_max",
    document="max_unacked_messages_per_consumer",
    namespace=Rest(
        "maxUnackedMessagesPerConsumer", invalid="maxUnackedMessagesPerConsumer must be 0 or more"
    ),
    topic=Rest(
        "maxUnackedMessagesOnConsumer",
        invalid=_below("maxUnackedNum"),
        empty_removes=True,
    ),
)

MAX_UNACKED_PER_SUBSCRIPTION: Final = Policy(
    name="max_unacked_per_subscription",
    manifest="maxUnackedMessagesPerSubscription",
    type=_MESSAGES,
    default=200_000,
    text="Unacknowledged messages of all consumers of a subscription together; above this, "
    "dispatch pauses until less than half remain. 0: no limit.",
    enforced_by="magnetar.broker.dispatch.multiple",
    broker_setting="unacked_per_subscription_max",
    document="max_unacked_messages_per_subscription",
    namespace=Rest(
        "maxUnackedMessagesPerSubscription",
        invalid="maxUnackedMessagesPerSubscription must be 0 or more",
    ),
    topic=Rest(
        "maxUnackedMessagesOnSubscription",
        invalid=_below("maxUnackedNum"),
        empty_removes=True,
    ),
)

MAX_MESSAGE_SIZE: Final = Policy(
    name="max_message_size",
    manifest="maxMessageSize",
    type=Integer(Unit.BYTES),
    default=0,
    text="The largest message of a topic, below the broker's own limit. 0: the broker's limit.",
    enforced_by="magnetar.broker.rates.publish_rate",
    broker_setting="message_bytes_max",
    topic=Rest("maxMessageSize", unset=Unset.NO_CONTENT, invalid=MESSAGE_SIZE_INVALID),
)

DISPATCHER_PAUSE: Final = Policy(
    name="dispatcher_pause",
    manifest="dispatcherPauseOnAckStatePersistent",
    type=Boolean(),
    default=False,
    text="Whether a subscription pauses while its acks cannot be stored. Brokers store all acks, "
    "however many holes they leave, so no subscription ever has to pause.",
    enforced_by="magnetar.managed_ledger.cursor",
    broker_setting="pause_without_ack_state",
    document="dispatcherPauseOnAckStatePersistentEnabled",
    namespace=Rest("dispatcherPauseOnAckStatePersistent", implied=True, unset=Unset.VALUE),
    topic=Rest("dispatcherPauseOnAckStatePersistent", implied=True, unset=Unset.VALUE),
)

CAPS: Final = (
    MAX_PRODUCERS, MAX_CONSUMERS, MAX_CONSUMERS_PER_SUBSCRIPTION, MAX_SUBSCRIPTIONS, MAX_TOPICS,
    MAX_UNACKED_PER_CONSUMER, MAX_UNACKED_PER_SUBSCRIPTION, MAX_MESSAGE_SIZE, DISPATCHER_PAUSE,
)  # fmt: skip
