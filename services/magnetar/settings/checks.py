"""The intervals of the checks that a broker runs over its topics."""

from dataclasses import dataclass
from typing import Final

from magnetar.settings.field import setting

CHECKS: Final = "Checks"


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """How often a broker enforces times to live, backlog quotas and the expiry of subscriptions."""

    ttl_check_interval_minutes: float = setting(
        5.0,
        "Interval of the expiry of messages older than their TTL.",
        group=CHECKS,
        unit="min",
        within=(0.001, 1_440),
        pulsar="messageExpiryCheckIntervalInMinutes",
    )
    backlog_quota_checks: bool = setting(
        True,
        "Whether backlog quotas are enforced.",
        group=CHECKS,
        pulsar="backlogQuotaCheckEnabled",
    )
    backlog_quota_check_interval_s: float = setting(
        60.0,
        "Interval of the check of backlogs against their quotas.",
        group=CHECKS,
        unit="s",
        within=(0.05, 86_400),
        pulsar="backlogQuotaCheckIntervalInSeconds",
    )
    subscription_check_interval_minutes: float = setting(
        5.0,
        "Interval of the check for unused subscriptions.",
        group=CHECKS,
        unit="min",
        within=(0.001, 1_440),
        pulsar="subscriptionExpiryCheckIntervalInMinutes",
    )
