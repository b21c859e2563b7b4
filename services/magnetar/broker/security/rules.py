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

Source: Pulsar's PulsarAuthorizationProvider.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.broker.security.grants import Action, Grants
from magnetar.broker.security.needs import (
    AnyRoleNeed,
    NamespaceNeed,
    NamespaceOperation,
    Need,
    PublicNeed,
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
            case NamespaceNeed(operation=operation):
                actions = _ANY_OF_NAMESPACE.get(operation, ())
                return any(
                    grants.on_namespace(role, action, wildcards=self.wildcards)
                    for action in actions
                )
            case _:
                return False

    def _of_admins(self, need: Need) -> bool:
        if self.tenant_admins_update_tenants or not isinstance(need, TenantNeed):
            return True
        return need.operation not in _OF_SUPER_USERS

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
        if not need.subscription:
            return True
        if not grants.may_use(need.subscription, role):
            return False
        if grants.prefix_mode and not need.subscription.startswith(role):
            raise SubscriptionPrefixRequired(
                "Failed to create consumer - The subscription name needs to be prefixed by the "
                f"authentication role, like {role}-xxxx for topic: {topic}"
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
