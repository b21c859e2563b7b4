"""Decides whether one role has a right. Pure: no IO.

A super user may do everything. An admin of a tenant may do everything in it, except what only super
users may do. An observer may read the statistics of all topics and the settings of brokers. Other
roles need a grant.

| Operation | Grant |
|---|---|
| LOOKUP, GET_STATS, GET_METADATA of a topic | produce or consume |
| PRODUCE | produce |
| CONSUME, SUBSCRIBE and all others of `_BY_CONSUME` | consume, and the subscription's rules |
| GET_TOPICS, GET_TOPIC, GET_BUNDLE of a namespace | produce or consume on the namespace |
| CLEAR_BACKLOG, UNSUBSCRIBE, TRIM_TOPIC of a namespace | consume on the namespace |
| PACKAGES, FUNCTIONS, SOURCES, SINKS | the action of that name on the namespace |
| all others | none: tenant admins and super users only |

An operation on a subscription also needs to be open to the role: by the subscription's own roles,
and in the Prefix mode by its name. One on all subscriptions of a topic or namespace needs all of
them to be open, which no role's are in the Prefix mode. Pulsar checks neither for namespaces.

Source: Pulsar's PulsarAuthorizationProvider.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.broker.security.grants import Action, Grants
from magnetar.broker.security.needs import (
    ALL_SUBSCRIPTIONS,
    AnyRoleNeed,
    NamespaceNeed,
    NamespaceOperation,
    Need,
    PublicNeed,
    Subscription,
    SuperUserNeed,
    TenantNeed,
    TenantOperation,
    TopicNeed,
    TopicOperation,
)
from magnetar.core.errors import AuthorizationError

_BY_PRODUCE_OR_CONSUME: Final = frozenset(
    {TopicOperation.LOOKUP, TopicOperation.GET_STATS, TopicOperation.GET_METADATA}
)
_BY_CONSUME: Final = frozenset(
    {
        TopicOperation.CONSUME,
        TopicOperation.SUBSCRIBE,
        TopicOperation.UNSUBSCRIBE,
        TopicOperation.GET_SUBSCRIPTIONS,
        TopicOperation.SKIP,
        TopicOperation.EXPIRE_MESSAGES,
        TopicOperation.PEEK_MESSAGES,
        TopicOperation.RESET_CURSOR,
        TopicOperation.GET_BACKLOG_SIZE,
        TopicOperation.SET_REPLICATED_SUBSCRIPTION_STATUS,
        TopicOperation.GET_REPLICATED_SUBSCRIPTION_STATUS,
    }
)
_ANY_OF_NAMESPACE: Final = {
    NamespaceOperation.GET_TOPIC: (Action.CONSUME, Action.PRODUCE),
    NamespaceOperation.GET_TOPICS: (Action.CONSUME, Action.PRODUCE),
    NamespaceOperation.GET_BUNDLE: (Action.CONSUME, Action.PRODUCE),
    NamespaceOperation.UNSUBSCRIBE: (Action.CONSUME,),
    NamespaceOperation.CLEAR_BACKLOG: (Action.CONSUME,),
    NamespaceOperation.TRIM_TOPIC: (Action.CONSUME,),
    NamespaceOperation.PACKAGES: (Action.PACKAGES,),
    NamespaceOperation.FUNCTIONS: (Action.FUNCTIONS,),
    NamespaceOperation.SOURCES: (Action.SOURCES,),
    NamespaceOperation.SINKS: (Action.SINKS,),
}
"""One of these grants is sufficient."""
_READ_SETTINGS: Final = "LIST_RUNTIME_CONFIGURATIONS"
_OF_SUPER_USERS: Final = frozenset({TenantOperation.UPDATE_TENANT, TenantOperation.DELETE_TENANT})


class SubscriptionPrefixRequired(AuthorizationError):
    """The namespace's Prefix mode requires another name of the subscription."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rights of roles that a broker's settings give, and the decision."""

    super_users: frozenset[str]
    wildcards: bool = False
    """Whether `*` as first or last character of a granted role is a wildcard."""
    tenant_admins_update_tenants: bool = False
    """Whether tenant admins may change and delete their own tenant, as in Pulsar."""
    observers: frozenset[str] = frozenset()

    def allowed(self, role: str, need: Need, tenant_admins: frozenset[str], grants: Grants) -> bool:
        """Whether the role may do it, given the admins and grants of the need's tenant, namespace.

        Raises SubscriptionPrefixRequired.
        """
        if isinstance(need, AnyRoleNeed | PublicNeed) or role in self.super_users:
            return True
        if role in self.observers and _is_observation(need):
            return True
        if isinstance(need, SuperUserNeed):
            return False
        if role in tenant_admins:
            return self._of_admins(need)
        match need:
            case TopicNeed():
                return self._on_topic(role, need, grants)
            case NamespaceNeed():
                return self._on_namespace(role, need, grants)
            case _:
                return False

    def _of_admins(self, need: Need) -> bool:
        if self.tenant_admins_update_tenants or not isinstance(need, TenantNeed):
            return True
        return need.operation not in _OF_SUPER_USERS

    def _on_namespace(self, role: str, need: NamespaceNeed, grants: Grants) -> bool:
        actions = _ANY_OF_NAMESPACE.get(need.operation, ())
        if any(grants.on_namespace(role, action, wildcards=self.wildcards) for action in actions):
            return _may_use(role, need.subscription, grants, f"namespace: {need.namespace}")
        return False

    def _on_topic(self, role: str, need: TopicNeed, grants: Grants) -> bool:
        topic = need.topic

        def granted(action: Action) -> bool:
            return grants.on_topic(topic, role, action, wildcards=self.wildcards)

        if need.operation is TopicOperation.PRODUCE:
            return granted(Action.PRODUCE)
        if need.operation in _BY_PRODUCE_OR_CONSUME:
            return granted(Action.PRODUCE) or granted(Action.CONSUME)
        if need.operation not in _BY_CONSUME or not granted(Action.CONSUME):
            return False
        return _may_use(role, need.subscription, grants, f"topic: {topic}")


def _may_use(role: str, subscription: Subscription, grants: Grants, place: str) -> bool:
    """Whether the subscription is open to the role. Raises SubscriptionPrefixRequired."""
    if subscription is ALL_SUBSCRIPTIONS:
        return not grants.prefix_mode and grants.may_use_all(role)
    if not subscription:
        return True
    if not grants.may_use(subscription, role):
        return False
    if grants.prefix_mode and not subscription.startswith(role):
        raise SubscriptionPrefixRequired(
            "Failed to create consumer - The subscription name needs to be prefixed by the "
            f"authentication role, like {role}-xxxx for {place}"
        )
    return True


def _is_observation(need: Need) -> bool:
    """Whether it reads the statistics of a topic or the settings of a broker."""
    match need:
        case TopicNeed(operation=TopicOperation.GET_STATS):
            return True
        case SuperUserNeed(operation=operation):
            return operation == _READ_SETTINGS
        case _:
            return False
