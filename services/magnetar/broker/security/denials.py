"""Counts refused operations, and logs each cause at most once an hour.

A role may ask for as many objects as it likes, so a principal has LINES_PER_PRINCIPAL_MAX lines an
hour, and names are truncated.
"""

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
from magnetar.core.causes import Causes, Shares
from magnetar.core.log import get_logger
from magnetar.observe.audit import AuditLog, AuditRecord

LINES_PER_PRINCIPAL_MAX: Final = 100
NAME_CHARS_MAX: Final = 512
"""Of a right in a log line; the names in it are the client's choice."""

log = get_logger("magnetar.authorization")


class Denials:
    """The operations that a broker refused."""

    def __init__(self, audit: AuditLog | None = None) -> None:
        """`audit` gets a record of each refusal."""
        self._audit = audit
        self.by_kind: Counter[str] = Counter()
        """The number of refusals, by the kind of the right: topic, namespace, tenant, …"""
        self._causes = Causes()
        self._shares = Shares(LINES_PER_PRINCIPAL_MAX)

    def record(
        self, principal: Principal, need: Need, address: str, action: str = "", status: int = 0
    ) -> None:
        """Counts a refusal, and logs it unless its cause was logged lately.

        `action` is the request or the command, for the audit log, and `status` that of an HTTP
        answer.
        """
        self.by_kind[kind_of(need)] += 1
        needs = described(need)
        if self._audit is not None:
            self._audit.record(
                AuditRecord(
                    action=action,
                    target=object_of(need),
                    role=principal.role,
                    original=principal.original or "",
                    address=address,
                    allowed=False,
                    reason=f"needs {needs}",
                    status=status,
                )
            )
        sender = str(principal)
        if self._causes.is_new(sender, needs) and self._shares.has_room(sender):
            log.warning(
                "not authorized",
                role=principal.role,
                original=principal.original,
                needs=needs[:NAME_CHARS_MAX],
                peer=address,
            )


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


def object_of(need: Need) -> str:
    """Returns the name of the object of a right; empty if the right has no object."""
    match need:
        case TopicNeed(topic=topic):
            return str(topic)
        case NamespaceNeed(namespace=namespace):
            return str(namespace)
        case TenantNeed(tenant=tenant) | TenantAdminNeed(tenant=tenant):
            return tenant
        case PolicyNeed(owner=owner):
            return str(owner)
        case _:
            return ""


def described(need: Need) -> str:
    """Describes a right for the log: `PRODUCE on persistent://…`."""
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
