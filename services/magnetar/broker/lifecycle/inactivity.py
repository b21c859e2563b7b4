"""Which topics and subscriptions nobody uses any more. Pure.

As Pulsar's `checkGC` and `checkInactiveSubscriptions`: a topic is in use while anybody is attached,
and by its mode while it has a subscription or a backlog; it goes when it has not been in use for so
long, and not before its own retention time either, for the messages that are kept would go with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.managed_ledger.settings import Retention

CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Inactive:
    """When a topic that is not in use is deleted."""

    deletes: bool
    caught_up: bool
    """Whether subscriptions without a backlog do not keep it."""
    after_ms: int


@dataclass(frozen=True, slots=True)
class Use:
    """How a topic is used now."""

    attached: bool
    subscriptions: int
    backlog: bool
    last_active_ms: int


def inactive_of(value: Mapping[str, Any]) -> Inactive:
    """From the policy's value."""
    return Inactive(
        bool(value["deleteWhileInactive"]),
        value["inactiveTopicDeleteMode"] == CAUGHT_UP,
        int(value["maxInactiveDurationSeconds"]) * 1000,
    )


def in_use(use: Use, policy: Inactive) -> bool:
    """Whether the time without use does not run."""
    kept = use.backlog if policy.caught_up else use.subscriptions > 0
    return use.attached or kept


def is_to_go(use: Use, policy: Inactive, retention: Retention, now_ms: int) -> bool:
    """Whether the topic is to be deleted now."""
    if not policy.deletes or in_use(use, policy):
        return False
    idle_ms = now_ms - use.last_active_ms
    return idle_ms >= policy.after_ms and 0 <= retention.time_ms <= idle_ms


def subscription_is_to_go(
    expiration_minutes: int, *, attached: bool, last_active_ms: int, now_ms: int
) -> bool:
    """Whether a subscription that nobody used for so long is to be deleted; 0: never."""
    if expiration_minutes <= 0 or attached:
        return False
    return now_ms - last_active_ms > expiration_minutes * MINUTE_MS
