"""The defaults of policies.

They hold for topics for which neither the topic nor its namespace has a policy. The policies are in
`magnetar.policies`; each names the setting that is its default.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.core.units import GIB
from magnetar.settings import choices
from magnetar.settings.field import UNLIMITED, setting

POLICIES: Final = "Defaults of policies"
INT32_MAX: Final = 2**31 - 1
"""The largest value of the policies themselves."""


@dataclass(frozen=True, kw_only=True)
class PolicyDefaults:
    """What applies to a topic without policies: times, quotas, rates."""

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
        "Maximum size of a topic's largest backlog; -1 means no limit. "
        "`backlogQuotaDefaultLimitGB` is in GiB.",
        group=POLICIES,
        unit="bytes",
        within=(-1, UNLIMITED),
        pulsar="backlogQuotaDefaultLimitBytes",
        multiples={"backlogQuotaDefaultLimitGB": GIB},
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
    entry_filters: tuple[choices.EntryFilterName, ...] = setting(
        (),
        "Entry filters of all topics, by name: properties, expression.",
        group=POLICIES,
        pulsar="entryFilterNames",
    )
    entry_filters_overridable: bool = setting(
        False,
        "Whether policies replace `entry_filters`; otherwise they are refused while it names any.",
        group=POLICIES,
        pulsar="allowOverrideEntryFilters",
    )
    pause_without_ack_state: bool = setting(
        False,
        "Whether a subscription pauses while its acks cannot be stored; brokers store all of them.",
        group=POLICIES,
        pulsar="dispatcherPauseOnAckStatePersistentEnabled",
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
