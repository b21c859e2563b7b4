"""The policies that cannot act on a non-persistent topic, which stores and holds back no messages.

A namespace may have them, for its persistent topics. A non-persistent topic's own are refused.
"""

from typing import Final

from magnetar.policies import admission, caps, lifecycle, rates
from magnetar.policies.policy import Policy

_STORES_NOTHING: Final = "a non-persistent topic stores neither messages nor acknowledgments"
_DROPS: Final = "a non-persistent topic drops what its consumers cannot take"

_WITHOUT_EFFECT: Final = {
    policy.name: reason
    for reason, policies in {
        _STORES_NOTHING: (
            admission.DEDUPLICATION,
            admission.DEDUPLICATION_SNAPSHOT_INTERVAL,
            admission.DELAYED_DELIVERY,
            lifecycle.BACKLOG_QUOTA,
            lifecycle.COMPACTION_THRESHOLD,
            lifecycle.MESSAGE_TTL,
            lifecycle.OFFLOAD,
            lifecycle.PERSISTENCE,
            lifecycle.RETENTION,
            lifecycle.SUBSCRIPTION_EXPIRATION,
        ),
        _DROPS: (
            caps.MAX_UNACKED_PER_CONSUMER,
            caps.MAX_UNACKED_PER_SUBSCRIPTION,
            rates.DISPATCH_RATE,
            rates.SUBSCRIPTION_DISPATCH_RATE,
        ),
    }.items()
    for policy in policies
}


def without_effect(policy: Policy) -> str | None:
    """Returns the reason why the policy cannot act on a non-persistent topic, or None if it can."""
    return _WITHOUT_EFFECT.get(policy.name)
