"""The grants of a namespace: the actions of each role, in the form of its document.

    namespace_auth            {role: [action]}
    destination_auth          {topic: {role: [action]}}
    subscription_auth_roles   {subscription: [role]}

Pure: no IO. Source of the order of checks: Pulsar's PulsarAuthorizationProvider.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from magnetar.broker.catalog.namespace_policies import AUTH, TOPIC_AUTH
from magnetar.core.names import TopicName

NAMESPACE_AUTH: Final = "namespace_auth"
SUBSCRIPTION_ROLES: Final = "subscription_auth_roles"
_MODE: Final = "subscription_auth_mode"
_PREFIX_MODE: Final = "Prefix"
_WILDCARD: Final = "*"


class Action(StrEnum):
    """An action that can be granted to a role."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


Roles = Mapping[str, frozenset[str]]
"""The actions of each role."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The grants of one namespace."""

    namespace: Roles = field(default_factory=dict)
    topics: Mapping[str, Roles] = field(default_factory=dict)
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    prefix_mode: bool = False
    """Whether a subscription's name must begin with the role that uses it."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Grants":
        """Returns the grants in a namespace's document.

        Raises AttributeError, TypeError or ValueError if they do not have Pulsar's form.
        """
        auth = document.get(AUTH) or {}
        topics = auth.get(TOPIC_AUTH) or {}
        subscriptions = auth.get(SUBSCRIPTION_ROLES) or {}
        return cls(
            namespace=_roles(auth.get(NAMESPACE_AUTH)),
            topics={topic: _roles(roles) for topic, roles in topics.items()},
            subscriptions={name: frozenset(roles or ()) for name, roles in subscriptions.items()},
            prefix_mode=document.get(_MODE) == _PREFIX_MODE,
        )

    def on_namespace(self, role: str, action: Action, *, wildcards: bool) -> bool:
        """Whether the role has the action on the whole namespace."""
        return _has(self.namespace, role, action, wildcards=wildcards)

    def on_topic(self, topic: TopicName, role: str, action: Action, *, wildcards: bool) -> bool:
        """Whether the role has the action on the topic, by its namespace, itself or its parent.

        Grants of a partitioned topic apply to all of its partitions, also to those added later.
        """
        if self.on_namespace(role, action, wildcards=wildcards):
            return True
        roles = self.topics.get(str(topic))
        if roles is not None and _has(roles, role, action, wildcards=wildcards):
            return True
        if topic.partition_index < 0:
            return False
        # No wildcards on the parent's grants, as in Pulsar.
        roles = self.topics.get(str(topic.base))
        return roles is not None and _has(roles, role, action, wildcards=False)

    def may_use(self, subscription: str, role: str) -> bool:
        """Whether the subscription is open to the role; without named roles, it is to all."""
        roles = self.subscriptions.get(subscription)
        return not roles or role in roles

    def may_use_all(self, role: str) -> bool:
        """Whether every subscription is open to the role."""
        return all(not roles or role in roles for roles in self.subscriptions.values())


NONE: Final = Grants()
"""The grants of a namespace that does not exist."""


def _roles(stored: Mapping[str, Any] | None) -> Roles:
    return {role: frozenset(actions or ()) for role, actions in (stored or {}).items()}


def _has(roles: Roles, role: str, action: Action, *, wildcards: bool) -> bool:
    if action in roles.get(role, ()):
        return True
    return wildcards and any(
        action in actions and _matches(pattern, role) for pattern, actions in roles.items()
    )


def _matches(pattern: str, role: str) -> bool:
    """Whether a granted role with `*` as its first or last character covers the role."""
    if pattern.endswith(_WILDCARD) and role.startswith(pattern[:-1]):
        return True
    return pattern.startswith(_WILDCARD) and role.endswith(pattern[1:])
