"""The kinds of rights that a route may need. Each finds the objects in the request's path.

`needs` raises PreconditionFailed for a name that is not valid, before anything is looked up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request

from magnetar.admin.context import checked_name, namespace_of, service_of, text_of, topic_of
from magnetar.broker.security.needs import (
    ALL_SUBSCRIPTIONS,
    AnyRoleNeed,
    NamespaceNeed,
    NamespaceOperation,
    Need,
    PolicyName,
    PolicyNeed,
    PolicyOperation,
    PublicNeed,
    SuperUserNeed,
    TenantAdminNeed,
    TenantNeed,
    TenantOperation,
    TopicNeed,
    TopicOperation,
)
from magnetar.core.errors import InvalidTopicName, PreconditionFailed
from magnetar.core.names import TopicName, parse_topic


class Right(Protocol):
    """The right that a route needs."""

    def needs(self, request: Request) -> tuple[Need, ...]:
        """Returns the needs of a request, all of which must be permitted."""

    @property
    def text(self) -> str:
        """The right in words, for the documentation."""


@dataclass(frozen=True, slots=True)
class Public:
    """Nothing, not even credentials."""

    text: str = "no credentials"

    def needs(self, request: Request) -> tuple[Need, ...]:  # noqa: ARG002
        return (PublicNeed(),)


@dataclass(frozen=True, slots=True)
class AnyRole:
    """Credentials of any role."""

    text: str = "any role"

    def needs(self, request: Request) -> tuple[Need, ...]:  # noqa: ARG002
        return (AnyRoleNeed(),)


@dataclass(frozen=True, slots=True)
class ByBody:
    """A right on objects that only the body names: the handler demands it (`caller.require`)."""

    text: str

    def needs(self, request: Request) -> tuple[Need, ...]:  # noqa: ARG002
        return (AnyRoleNeed(),)


@dataclass(frozen=True, slots=True)
class SuperUser:
    """A super user."""

    text: str = "super user"

    def needs(self, request: Request) -> tuple[Need, ...]:  # noqa: ARG002
        return (SuperUserNeed(),)


@dataclass(frozen=True, slots=True)
class OnCluster:
    """An operation on the cluster in the path, by a super user."""

    operation: str
    check: str = "validateBothSuperuserAndClusterOperation"

    @property
    def text(self) -> str:
        return f"super user: {self.operation}"

    def needs(self, request: Request) -> tuple[Need, ...]:
        subject = f"on cluster [{text_of(request, 'cluster')}]"
        return (SuperUserNeed(self.check, self.operation, subject),)


@dataclass(frozen=True, slots=True)
class OnBroker:
    """An operation on this broker, by a super user."""

    operation: str

    @property
    def text(self) -> str:
        return f"super user: {self.operation}"

    def needs(self, request: Request) -> tuple[Need, ...]:
        subject = f"on broker [{service_of(request).broker_id}]"
        return (SuperUserNeed("validateBothSuperuserAndBrokerOperation", self.operation, subject),)


@dataclass(frozen=True, slots=True)
class OnTenants:
    """An operation on the list of tenants, by a super user."""

    operation: str

    @property
    def text(self) -> str:
        return f"super user: {self.operation}"

    def needs(self, request: Request) -> tuple[Need, ...]:  # noqa: ARG002
        return (SuperUserNeed("validateBothTenantOperationAndSuperUser", self.operation),)


@dataclass(frozen=True, slots=True)
class TenantAdmin:
    """An admin of the tenant in the path."""

    text: str = "tenant admin"

    def needs(self, request: Request) -> tuple[Need, ...]:
        return (TenantAdminNeed(checked_name(text_of(request, "tenant"), "Tenant")),)


@dataclass(frozen=True, slots=True)
class OnTenant:
    """An operation on the tenant in the path."""

    operation: TenantOperation

    @property
    def text(self) -> str:
        return f"tenant: {self.operation.value}"

    def needs(self, request: Request) -> tuple[Need, ...]:
        tenant = checked_name(text_of(request, "tenant"), "Tenant")
        return (TenantNeed(tenant, self.operation),)


@dataclass(frozen=True, slots=True)
class OnNamespace:
    """An operation on the namespace in the path."""

    operation: NamespaceOperation

    @property
    def text(self) -> str:
        return f"namespace: {self.operation.value}"

    def needs(self, request: Request) -> tuple[Need, ...]:
        return (NamespaceNeed(namespace_of(request), self.operation),)


@dataclass(frozen=True, slots=True)
class OnNamespaceSubscriptions:
    """An operation on a subscription of all topics of the namespace, or on all subscriptions."""

    operation: NamespaceOperation

    @property
    def text(self) -> str:
        return f"namespace: {self.operation.value}, with the subscription or with all of them"

    def needs(self, request: Request) -> tuple[Need, ...]:
        used = request.path_params.get("subscription", ALL_SUBSCRIPTIONS)
        return (NamespaceNeed(namespace_of(request), self.operation, used),)


@dataclass(frozen=True, slots=True)
class OnAllSubscriptions:
    """An operation on all subscriptions of the topic in the path."""

    operation: TopicOperation

    @property
    def text(self) -> str:
        return f"topic: {self.operation.value}, with all subscriptions"

    def needs(self, request: Request) -> tuple[Need, ...]:
        return (TopicNeed(_topic(request), self.operation, ALL_SUBSCRIPTIONS),)


@dataclass(frozen=True, slots=True)
class OnTopic:
    """An operation on the topic in the path, and on the subscription if the path names one."""

    operation: TopicOperation

    @property
    def text(self) -> str:
        return f"topic: {self.operation.value}"

    def needs(self, request: Request) -> tuple[Need, ...]:
        subscription = request.path_params.get("subscription")
        return (TopicNeed(_topic(request), self.operation, subscription),)


@dataclass(frozen=True, slots=True)
class OnPolicy:
    """A policy of the namespace or the topic in the path."""

    policy: PolicyName
    operation: PolicyOperation

    @property
    def text(self) -> str:
        return f"policy {self.policy.value}: {self.operation.value}"

    def needs(self, request: Request) -> tuple[Need, ...]:
        has_topic = "topic" in request.path_params
        owner = _topic(request) if has_topic else namespace_of(request)
        return (PolicyNeed(owner, self.policy, self.operation),)


@dataclass(frozen=True, slots=True)
class ByPolicy:
    """The right that belongs to the policy in the path, for routes that serve many policies."""

    rights: Mapping[str, Right]
    """The right by the last segment of the path. A policy that it lacks raises KeyError."""

    @property
    def text(self) -> str:
        return "; ".join(f"`{word}`: {right.text}" for word, right in sorted(self.rights.items()))

    def needs(self, request: Request) -> tuple[Need, ...]:
        return self.rights[text_of(request, "policy")].needs(request)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Several rights at once."""

    rights: tuple[Right, ...]

    @property
    def text(self) -> str:
        return " and ".join(right.text for right in self.rights)

    def needs(self, request: Request) -> tuple[Need, ...]:
        return tuple(need for right in self.rights for need in right.needs(request))


def _topic(request: Request) -> TopicName:
    """Returns the topic in the path; the paths of schemas name a persistent topic's."""
    if "domain" in request.path_params:
        return topic_of(request)
    namespace, local = namespace_of(request), text_of(request, "topic")
    try:
        return parse_topic(f"persistent://{namespace}/{local}")
    except InvalidTopicName as error:
        raise PreconditionFailed(f"Topic name is not valid: {error.message}") from None
