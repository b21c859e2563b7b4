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
from magnetar.core.causes import Causes
from magnetar.core.log import get_logger

KINDS: Final = ("topic", "namespace", "tenant", "policy", "super_user")
"""The kinds of rights that a role may lack, as `kind_of` returns them."""

log = get_logger("magnetar.authorization")


class Denials:
    """The operations that a broker refused."""

    def __init__(self) -> None:
        self.by_kind: Counter[str] = Counter()
        """How many were refused, by the kind of the right: topic, namespace, tenant, …"""
        self._causes = Causes()

    def record(self, principal: Principal, need: Need, address: str) -> None:
        """Counts a refusal, and logs it unless its cause was logged lately."""
        self.by_kind[kind_of(need)] += 1
        role, needs = str(principal), described(need)
        if self._causes.is_new(role, needs):
            log.warning("not authorized", role=role, needs=needs, peer=address)


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
