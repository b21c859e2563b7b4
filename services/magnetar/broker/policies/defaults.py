"""The broker's settings as values of policies: the level below topics and namespaces."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from magnetar.policies.filters import ENTRY_FILTERS
from magnetar.policies.policy import Policy
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import values_of

Values = dict[str, Any]


def broker_value(settings: BrokerSettings, policy: Policy) -> Any:
    """Returns the broker's value of a policy, None if no setting defines it."""
    special = _SPECIAL.get(policy.name)
    if special is not None:
        return special(settings)
    return values_of(settings)[policy.broker_setting] if policy.broker_setting else None


def fixed(settings: BrokerSettings) -> frozenset[str]:
    """Returns the names of the policies whose broker's value counts, whatever is set below it."""
    own = settings.policies
    overridden = not own.entry_filters or own.entry_filters_overridable
    return frozenset() if overridden else frozenset((ENTRY_FILTERS.name,))


def _retention(settings: BrokerSettings) -> Values:
    return {
        "retentionTimeInMinutes": settings.storage.retention_minutes,
        "retentionSizeInMB": settings.storage.retention_size_mb,
    }


def _backlog_quota(settings: BrokerSettings) -> Values:
    """Returns both kinds of quota, as Pulsar's REST does without a setting."""
    return {
        "destination_storage": {
            "limitSize": settings.policies.backlog_quota_bytes,
            "limitTime": -1,
            "policy": settings.policies.backlog_quota_action,
        },
        "message_age": {
            "limitSize": -1,
            "limitTime": settings.policies.backlog_quota_s,
            "policy": settings.policies.backlog_quota_action,
        },
    }


def _inactive_topics(settings: BrokerSettings) -> Values:
    after_s = settings.policies.delete_inactive_topics_after_s
    return {
        "inactiveTopicDeleteMode": settings.topics.delete_inactive_topics_mode,
        "maxInactiveDurationSeconds": settings.topics.delete_inactive_topics_interval_s
        if after_s is None
        else after_s,
        "deleteWhileInactive": settings.topics.delete_inactive_topics,
    }


def _persistence(settings: BrokerSettings) -> Values | None:
    """Returns the sizes of ledgers' ensembles; only a broker of a cluster has them."""
    ensemble = getattr(settings, "ensemble_size", None)
    if ensemble is None:
        return None
    return {
        "bookkeeperEnsemble": ensemble,
        "bookkeeperWriteQuorum": getattr(settings, "write_quorum", ensemble),
        "bookkeeperAckQuorum": getattr(settings, "ack_quorum", ensemble),
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }


def _dispatch_rate(messages: int, size_bytes: int, *, relative: bool) -> Values:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size_bytes,
        "relativeToPublishRate": relative,
        "ratePeriodInSecond": 1,
    }


def _topic_dispatch_rate(settings: BrokerSettings) -> Values:
    return _dispatch_rate(
        settings.policies.dispatch_rate_messages,
        settings.policies.dispatch_rate_bytes,
        relative=settings.policies.dispatch_rate_relative,
    )


def _subscription_dispatch_rate(settings: BrokerSettings) -> Values:
    return _dispatch_rate(
        settings.policies.subscription_dispatch_rate_messages,
        settings.policies.subscription_dispatch_rate_bytes,
        relative=settings.policies.dispatch_rate_relative,
    )


def _replicator_dispatch_rate(_: BrokerSettings) -> Values:
    """Returns no limit: there is no setting, because nothing is replicated to other clusters."""
    return _dispatch_rate(0, 0, relative=False)


def _delayed_delivery(settings: BrokerSettings) -> Values:
    return {
        "tickTime": settings.delayed.delayed_delivery_tick_ms,
        "active": settings.delayed.delayed_delivery,
        "maxDeliveryDelayInMillis": settings.delayed.delayed_delivery_delay_ms_max,
    }


def _publish_rate(settings: BrokerSettings) -> Values:
    return {
        "publishThrottlingRateInMsg": settings.policies.publish_rate_messages,
        "publishThrottlingRateInByte": settings.policies.publish_rate_bytes,
    }


def _subscribe_rate(settings: BrokerSettings) -> Values:
    return {
        "subscribeThrottlingRatePerConsumer": settings.policies.subscribe_rate,
        "ratePeriodInSecond": settings.policies.subscribe_rate_period_s,
    }


def _entry_filters(settings: BrokerSettings) -> Values:
    return {"entryFilterNames": ",".join(settings.policies.entry_filters)}


def _auto_topic_creation(settings: BrokerSettings) -> Values:
    value: Values = {
        "allowAutoTopicCreation": settings.topics.auto_topic_creation,
        "topicType": settings.topics.auto_topic_creation_type,
    }
    if settings.topics.auto_topic_creation_type == "partitioned":
        value["defaultNumPartitions"] = settings.topics.default_partitions
    return value


def _auto_subscription_creation(settings: BrokerSettings) -> Values:
    return {"allowAutoSubscriptionCreation": settings.subscriptions.auto_subscription_creation}


_SPECIAL: Final[Mapping[str, Callable[[BrokerSettings], Any]]] = {
    "retention": _retention,
    "backlog_quota": _backlog_quota,
    "inactive_topics": _inactive_topics,
    "persistence": _persistence,
    "dispatch_rate": _topic_dispatch_rate,
    "subscription_dispatch_rate": _subscription_dispatch_rate,
    "replicator_dispatch_rate": _replicator_dispatch_rate,
    "delayed_delivery": _delayed_delivery,
    "publish_rate": _publish_rate,
    "subscribe_rate": _subscribe_rate,
    "auto_topic_creation": _auto_topic_creation,
    "auto_subscription_creation": _auto_subscription_creation,
    "entry_filters": _entry_filters,
}
"""Values that several settings define together. All other policies name their one setting."""
