"""What a broker does where neither topic nor namespace have a policy that says otherwise.

The policies themselves are in `magnetar.policies`; each names the setting here that is its default.
Caps of topics and subscriptions, retention and schemas are with the other settings (`settings.py`).
"""

from dataclasses import dataclass
from typing import Final, Literal

from magnetar.broker.setting import UNLIMITED, setting

QuotaAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]

POLICIES: Final = "Defaults of policies"
INT32_MAX: Final = 2**31 - 1
"""As much as the policy itself can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """A part of `BrokerSettings`."""

    message_ttl_s: int = setting(
        0,
        "How old messages may get before every subscription has them acknowledged; 0: any age.",
        group=POLICIES,
        unit="s",
        low=0,
        high=INT32_MAX,
        pulsar="ttlDurationDefaultInSeconds",
    )
    backlog_quota_bytes: int = setting(
        -1,
        "How much a topic's largest backlog may hold; -1 means any amount.",
        group=POLICIES,
        unit="bytes",
        low=-1,
        high=UNLIMITED,
        pulsar="backlogQuotaDefaultLimitBytes",
    )
    backlog_quota_s: int = setting(
        -1,
        "How old a topic's oldest unacknowledged message may be; -1 means any age.",
        group=POLICIES,
        unit="s",
        low=-1,
        high=INT32_MAX,
        pulsar="backlogQuotaDefaultLimitSecond",
    )
    backlog_quota_action: QuotaAction = setting(
        "producer_request_hold",
        "What happens above a backlog quota.",
        group=POLICIES,
        pulsar="backlogQuotaDefaultRetentionPolicy",
    )
    subscription_expiration_minutes: int = setting(
        0,
        "After how long subscriptions that nobody uses are deleted; 0 means never.",
        group=POLICIES,
        unit="min",
        low=0,
        high=INT32_MAX,
        pulsar="subscriptionExpirationTimeMinutes",
    )
    topics_per_namespace_max: int = setting(
        0,
        "Most topics of one namespace, each partition counted; 0 means no limit.",
        group=POLICIES,
        unit="topics",
        low=0,
        high=INT32_MAX,
        pulsar="maxTopicsPerNamespace",
    )
    delete_inactive_topics_after_s: int | None = setting(
        None,
        "How long a topic must have been unused; by default `delete_inactive_topics_interval_s`.",
        group=POLICIES,
        unit="s",
        low=1,
        high=INT32_MAX,
        pulsar="brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
    )
    publish_rate_messages: int = setting(
        0,
        "Messages per second that all producers of a topic together may send; 0 means any number.",
        group=POLICIES,
        unit="messages/s",
        low=-1,
        high=INT32_MAX,
        pulsar="maxPublishRatePerTopicInMessages",
    )
    publish_rate_bytes: int = setting(
        0,
        "Bytes per second that all producers of a topic together may send; 0 means any number.",
        group=POLICIES,
        unit="bytes/s",
        low=-1,
        high=UNLIMITED,
        pulsar="maxPublishRatePerTopicInBytes",
    )
    dispatch_rate_messages: int = setting(
        0,
        "Messages per second that a topic may hand out; 0 means any number.",
        group=POLICIES,
        unit="messages/s",
        low=-1,
        high=INT32_MAX,
        pulsar="dispatchThrottlingRatePerTopicInMsg",
    )
    dispatch_rate_bytes: int = setting(
        0,
        "Bytes per second that a topic may hand out; 0 means any number.",
        group=POLICIES,
        unit="bytes/s",
        low=-1,
        high=UNLIMITED,
        pulsar="dispatchThrottlingRatePerTopicInByte",
    )
    subscription_dispatch_rate_messages: int = setting(
        0,
        "Messages per second that a subscription may be handed; 0 means any number.",
        group=POLICIES,
        unit="messages/s",
        low=-1,
        high=INT32_MAX,
        pulsar="dispatchThrottlingRatePerSubscriptionInMsg",
    )
    subscription_dispatch_rate_bytes: int = setting(
        0,
        "Bytes per second that a subscription may be handed; 0 means any number.",
        group=POLICIES,
        unit="bytes/s",
        low=-1,
        high=UNLIMITED,
        pulsar="dispatchThrottlingRatePerSubscriptionInByte",
    )
    dispatch_rate_relative: bool = setting(
        False,
        "Whether the rate of publishing is added to these four.",
        group=POLICIES,
        pulsar="dispatchThrottlingRateRelativeToPublishRate",
    )
    dispatch_rate_for_tailing: bool = setting(
        True,
        "Whether dispatch rates also hold for subscriptions that keep up.",
        group=POLICIES,
        pulsar="dispatchThrottlingOnNonBacklogConsumerEnabled",
    )
    subscribe_rate: int = setting(
        0,
        "How often one consumer may subscribe in `subscribe_rate_period_s`; 0 means any number.",
        group=POLICIES,
        unit="times",
        low=-1,
        high=INT32_MAX,
        pulsar="subscribeThrottlingRatePerConsumer",
    )
    subscribe_rate_period_s: int = setting(
        30,
        "The period of `subscribe_rate`.",
        group=POLICIES,
        unit="s",
        low=1,
        high=INT32_MAX,
        pulsar="subscribeRatePeriodPerConsumerInSecond",
    )
