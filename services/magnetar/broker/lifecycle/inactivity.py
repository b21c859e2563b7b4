"""Decides which topics and subscriptions are unused. Pure.

Like Pulsar's `checkGC` and `checkInactiveSubscriptions`: a topic is in use while a client is
attached, and, depending on its mode, while it has a subscription or a backlog. A topic is deleted
after it was unused for the configured time, but not before its retention time has passed, because
the deletion also deletes retained messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from magnetar.managed_ledger.settings import Retention

CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Inactive:
    """The policy: when an unused topic is deleted."""

    deletes: bool
    caught_up: bool
    """Whether a subscription without a backlog counts as no use."""
    after_ms: int


@dataclass(frozen=True, slots=True)
class Use:
    """How a topic is used at the moment."""

    attached: bool
    subscriptions: int
    backlog: bool
    last_active_ms: int


def inactive_of(value: Mapping[str, Any]) -> Inactive:
    """Converts the policy's value."""
    return Inactive(
        bool(value["deleteWhileInactive"]),
        value["inactiveTopicDeleteMode"] == CAUGHT_UP,
        int(value["maxInactiveDurationSeconds"]) * 1000,
    )


def in_use(use: Use, policy: Inactive) -> bool:
    """Whether the topic is in use, so that its idle time does not advance."""
    kept = use.backlog if policy.caught_up else use.subscriptions > 0
    return use.attached or kept


def should_delete(use: Use, policy: Inactive, retention: Retention, now_ms: int) -> bool:
    """Whether the topic is to be deleted now."""
    if not policy.deletes or in_use(use, policy):
        return False
    idle_ms = now_ms - use.last_active_ms
    return idle_ms >= policy.after_ms and 0 <= retention.time_ms <= idle_ms


def should_delete_subscription(
    expiration_minutes: int, *, attached: bool, last_active_ms: int, now_ms: int
) -> bool:
    """Whether a subscription without use for the expiration time is to be deleted; 0: never."""
    if expiration_minutes <= 0 or attached:
        return False
    return now_ms - last_active_ms > expiration_minutes * MINUTE_MS
