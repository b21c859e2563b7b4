"""Policies of rates: publishing, dispatch to consumers and other clusters, subscribing.

A rate of 0 or less means no limit (broker.conf). Subscribe rates have a period of their own.
"""

from typing import Final

from magnetar.policies.policy import Policy, Rest, Unset, Unsupported
from magnetar.policies.types import INT64_MAX, Boolean, Field, Integer, Record, Unit

_MESSAGES: Final = Integer(Unit.MESSAGES_PER_SECOND, low=-1)
_BYTES: Final = Integer(Unit.BYTES_PER_SECOND, low=-1, high=INT64_MAX)

DISPATCH_RATE_TYPE: Final = Record(
    (
        Field("dispatchThrottlingRateInMsg", _MESSAGES, "Messages per period; -1: no limit.",
              default=-1, manifest="messages"),
        Field("dispatchThrottlingRateInByte", _BYTES, "Bytes per period; -1: no limit.",
              default=-1, manifest="bytes"),
        Field("relativeToPublishRate", Boolean(),
              "Whether the topic's publish rate is added to both.", default=False),
        Field("ratePeriodInSecond", Integer(Unit.SECONDS, low=1), "The period.", default=1,
              manifest="period"),
    )
)  # fmt: skip

DISPATCH_RATE: Final = Policy(
    name="dispatch_rate",
    manifest="dispatchRate",
    type=DISPATCH_RATE_TYPE,
    default=None,
    text="Limits what a topic dispatches to all its subscriptions together.",
    enforced_by="magnetar.broker.rates.dispatch_rate",
    broker_setting="dispatch_rate_messages, dispatch_rate_bytes, dispatch_rate_relative",
    document="topicDispatchRate",
    by_cluster=True,
    namespace=Rest("dispatchRate"),
    topic=Rest("dispatchRate"),
)

SUBSCRIPTION_DISPATCH_RATE: Final = Policy(
    name="subscription_dispatch_rate",
    manifest="subscriptionDispatchRate",
    type=DISPATCH_RATE_TYPE,
    default=None,
    text="Limits what is dispatched to each subscription.",
    enforced_by="magnetar.broker.rates.dispatch_rate",
    broker_setting="subscription_dispatch_rate_messages, subscription_dispatch_rate_bytes, "
    "dispatch_rate_relative",
    document="subscriptionDispatchRate",
    by_cluster=True,
    namespace=Rest("subscriptionDispatchRate"),
    topic=Rest("subscriptionDispatchRate"),
)

REPLICATOR_DISPATCH_RATE: Final = Policy(
    name="replicator_dispatch_rate",
    manifest="replicatorDispatchRate",
    type=DISPATCH_RATE_TYPE,
    default=None,
    text="Limits what is sent to another cluster.",
    limitation=Unsupported(
        lambda value, _cluster: (
            value["dispatchThrottlingRateInMsg"] > 0 or value["dispatchThrottlingRateInByte"] > 0
        ),
        "replicatorDispatchRate is not supported: there is no geo-replication yet; leave it "
        "out or set both rates to -1",
        "self.?messages.orValue(-1) <= 0 && "
        "(!has(self.bytes) || string(self.bytes).matches('^(-1|0[a-zA-Z]*)$'))",
    ),
    document="replicatorDispatchRate",
    by_cluster=True,
    namespace=Rest("replicatorDispatchRate"),
    topic=Rest("replicatorDispatchRate"),
)

PUBLISH_RATE: Final = Policy(
    name="publish_rate",
    manifest="publishRate",
    type=Record(
        (
            Field("publishThrottlingRateInMsg", _MESSAGES, "Messages per second; -1: no limit.",
                  default=-1, manifest="messages"),
            Field("publishThrottlingRateInByte", _BYTES, "Bytes per second; -1: no limit.",
                  default=-1, manifest="bytes"),
        )
    ),
    default=None,
    text="Limits what all producers of a topic send together; messages beyond the limit wait.",
    enforced_by="magnetar.broker.rates.publish_rate",
    broker_setting="publish_rate_messages, publish_rate_bytes",
    document="publishMaxMessageRate",
    by_cluster=True,
    namespace=Rest("publishRate"),
    topic=Rest("publishRate", unset=Unset.NO_CONTENT),
)  # fmt: skip

SUBSCRIBE_RATE: Final = Policy(
    name="subscribe_rate",
    manifest="subscribeRate",
    type=Record(
        (
            Field("subscribeThrottlingRatePerConsumer", Integer(low=-1),
                  "How often a consumer may subscribe in a period; 0 or -1: no limit.",
                  default=-1, manifest="perConsumer"),
            Field("ratePeriodInSecond", Integer(Unit.SECONDS, low=1), "The period.", default=30,
                  manifest="period"),
        )
    ),
    default=None,
    text="Limits how often a consumer (a host, name and id) may subscribe to a topic.",
    enforced_by="magnetar.broker.rates.subscribe_rate",
    broker_setting="subscribe_rate, subscribe_rate_period_s",
    document="clusterSubscribeRate",
    by_cluster=True,
    namespace=Rest("subscribeRate"),
    topic=Rest("subscribeRate"),
)  # fmt: skip

RATES: Final = (
    DISPATCH_RATE, SUBSCRIPTION_DISPATCH_RATE, REPLICATOR_DISPATCH_RATE, PUBLISH_RATE,
    SUBSCRIBE_RATE,
)  # fmt: skip
