"""Counts refused operations, and logs each cause once in a while."""

from collections import Counter
from typing import Final

from magnetar.broker.security.needs import (
    AnyRoleNeed,
    NamespaceNeed,
    Need,
    PolicyNeed,
    PublicNeed,
    SuperUserNeed,
    TenantAdminNeed,
    TenantNeed,
    TopicNeed,
)
from magnetar.broker.security.principal import Principal
from magnetar.core.clock import Clock
from magnetar.core.log import get_logger

REPEAT_INTERVAL_MS: Final = 3_600_000
"""A cause that goes on is logged once an hour."""
CAUSES_MAX: Final = 1_024
"""The causes that are remembered. If there are more, the oldest are forgotten."""

log = get_logger("magnetar.authorization")


class Denials:
    """The operations that a broker refused."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.by_kind: Counter[str] = Counter()
        """How many were refused, by the kind of the right: topic, namespace, tenant, …"""
        self._logged_ms: dict[tuple[str, str], int] = {}

    def record(self, principal: Principal, need: Need, address: str) -> None:
        """Counts a refusal, and logs it unless its cause was logged within the last hour."""
        self.by_kind[kind_of(need)] += 1
        cause = str(principal), described(need)
        now_ms = self._clock.now_ms()
        logged_ms = self._logged_ms.get(cause)
        if logged_ms is not None and now_ms - logged_ms < REPEAT_INTERVAL_MS:
            return
        self._logged_ms.pop(cause, None)
        while len(self._logged_ms) >= CAUSES_MAX:
            del self._logged_ms[next(iter(self._logged_ms))]
        self._logged_ms[cause] = now_ms
        log.warning("not authorized", role=cause[0], needs=cause[1], peer=address)


def kind_of(need: Need) -> str:
    """Returns the kind of a right, for a label of metrics."""
    match need:
        case TopicNeed():
            return "topic"
        case NamespaceNeed():
            return "namespace"
        case TenantNeed() | TenantAdminNeed():
            return "tenant"
        case PolicyNeed():
            return "policy"
        case SuperUserNeed():
            return "super_user"
        case AnyRoleNeed() | PublicNeed():
            return "any"


def described(need: Need) -> str:
    """Returns what a right is for, in words for the log: `PRODUCE on persistent://…`."""
    match need:
        case TopicNeed(topic=topic, operation=operation, subscription=subscription):
            suffix = f", subscription {subscription}" if subscription else ""
            return f"{operation.value} on {topic}{suffix}"
        case NamespaceNeed(namespace=namespace, operation=operation):
            return f"{operation.value} on namespace {namespace}"
        case TenantNeed(tenant=tenant, operation=operation):
            return f"{operation.value} on tenant {tenant}"
        case TenantAdminNeed(tenant=tenant):
            return f"admin of tenant {tenant}"
        case PolicyNeed(owner=owner, policy=policy, operation=operation):
            return f"{operation.value} of policy {policy.value} on {owner}"
        case SuperUserNeed():
            return "super user"
        case AnyRoleNeed() | PublicNeed():
            return "any role"
