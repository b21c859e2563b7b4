"""How often a broker looks for what is too old, too much, or not used any more.

`retention_check_interval_s` and `delete_inactive_topics_interval_s` are with the other settings
(`settings.py`); from when on something is too old is a policy (`settings_policies.py`).
"""

from dataclasses import dataclass
from typing import Final

from magnetar.broker.setting import setting
from magnetar.broker.settings_policies import PolicySettings

CHECKS: Final = "Checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings(PolicySettings):
    """A part of `BrokerSettings`."""

    ttl_check_interval_minutes: float = setting(
        5.0,
        "How often messages older than their TTL are looked for.",
        group=CHECKS,
        unit="min",
        low=0.001,
        high=1_440,
        pulsar="messageExpiryCheckIntervalInMinutes",
    )
    backlog_quota_checks: bool = setting(
        True,
        "Whether backlogs are held to their quotas.",
        group=CHECKS,
        pulsar="backlogQuotaCheckEnabled",
    )
    backlog_quota_check_interval_s: float = setting(
        60.0,
        "How often backlogs above their quota are looked for.",
        group=CHECKS,
        unit="s",
        low=0.05,
        high=86_400,
        pulsar="backlogQuotaCheckIntervalInSeconds",
    )
    subscription_check_interval_minutes: float = setting(
        5.0,
        "How often subscriptions that nobody uses are looked for.",
        group=CHECKS,
        unit="min",
        low=0.001,
        high=1_440,
        pulsar="subscriptionExpiryCheckIntervalInMinutes",
    )
