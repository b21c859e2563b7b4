"""The settings of the limits that all topics of a broker share."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import UNLIMITED, setting

LIMITS: Final = "Limits of a broker"
INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class BrokerLimitSettings:
    """What all clients of a broker may send, get and hold together."""

    broker_publish_rate_messages: int = setting(
        0,
        "Messages per second that all producers of this broker may send; 0 means no limit.",
        group=LIMITS,
        unit="messages/s",
        within=(0, INT32_MAX),
        pulsar="brokerPublisherThrottlingMaxMessageRate",
    )
    broker_publish_rate_bytes: int = setting(
        0,
        "Bytes per second that all producers of this broker may send; 0 means no limit.",
        group=LIMITS,
        unit="bytes/s",
        within=(0, UNLIMITED),
        pulsar="brokerPublisherThrottlingMaxByteRate",
    )
    broker_dispatch_rate_messages: int = setting(
        0,
        "Messages per second that this broker dispatches to consumers; 0 means no limit.",
        group=LIMITS,
        unit="messages/s",
        within=(0, INT32_MAX),
        pulsar="dispatchThrottlingRateInMsg",
    )
    broker_dispatch_rate_bytes: int = setting(
        0,
        "Bytes per second that this broker dispatches to consumers; 0 means no limit.",
        group=LIMITS,
        unit="bytes/s",
        within=(0, UNLIMITED),
        pulsar="dispatchThrottlingRateInByte",
    )
    unacked_per_broker_max: int = setting(
        0,
        "Number of unacked messages of all shared subscriptions of this broker at which those with "
        "a large share of them pause; 0 means no limit.",
        group=LIMITS,
        unit="messages",
        within=(0, INT32_MAX),
        pulsar="maxUnackedMessagesPerBroker",
    )
    unacked_share_when_blocked: float = setting(
        0.16,
        "The share of `unacked_per_broker_max` that a subscription may hold while there are more "
        "than these.",
        group=LIMITS,
        within=(0.0, 1.0),
        pulsar="maxUnackedMessagesPerSubscriptionOnBrokerBlocked",
    )
