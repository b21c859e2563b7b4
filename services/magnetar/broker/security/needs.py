"""The needs of operations: the objects and operations that authorization decides about.

The names of operations and policies are Pulsar's; they appear in error texts that tools show.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from magnetar.core.names import NamespaceName, TopicName


class _Named(Enum):
    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name


class TopicOperation(_Named):
    """An operation on a topic."""

    LOOKUP = auto()
    PRODUCE = auto()
    CONSUME = auto()
    COMPACT = auto()
    EXPIRE_MESSAGES = auto()
    OFFLOAD = auto()
    PEEK_MESSAGES = auto()
    RESET_CURSOR = auto()
    SKIP = auto()
    TERMINATE = auto()
    UNLOAD = auto()
    SUBSCRIBE = auto()
    GET_SUBSCRIPTIONS = auto()
    UNSUBSCRIBE = auto()
    GET_STATS = auto()
    GET_METADATA = auto()
    GET_BACKLOG_SIZE = auto()
    SET_REPLICATED_SUBSCRIPTION_STATUS = auto()
    GET_REPLICATED_SUBSCRIPTION_STATUS = auto()
    TRIM_TOPIC = auto()
    UPDATE_METADATA = auto()
    DELETE_METADATA = auto()


class NamespaceOperation(_Named):
    """An operation on a namespace."""

    CREATE_TOPIC = auto()
    DELETE_TOPIC = auto()
    GET_TOPIC = auto()
    GET_TOPICS = auto()
    ADD_BUNDLE = auto()
    DELETE_BUNDLE = auto()
    GET_BUNDLE = auto()
    GRANT_PERMISSION = auto()
    GET_PERMISSION = auto()
    REVOKE_PERMISSION = auto()
    CLEAR_BACKLOG = auto()
    UNSUBSCRIBE = auto()
    TRIM_TOPIC = auto()
    PACKAGES = auto()
    FUNCTIONS = auto()
    SOURCES = auto()
    SINKS = auto()


class TenantOperation(_Named):
    """An operation on a tenant."""

    GET_TENANT = auto()
    UPDATE_TENANT = auto()
    DELETE_TENANT = auto()
    LIST_NAMESPACES = auto()
    CREATE_NAMESPACE = auto()
    DELETE_NAMESPACE = auto()


class PolicyOperation(_Named):
    """Whether a policy is read or written."""

    READ = auto()
    WRITE = auto()


class PolicyName(_Named):
    """A policy or a group of policies of a namespace or a topic."""

    ALL = auto()
    ANTI_AFFINITY = auto()
    AUTO_SUBSCRIPTION_CREATION = auto()
    AUTO_TOPIC_CREATION = auto()
    BACKLOG = auto()
    COMPACTION = auto()
    DELAYED_DELIVERY = auto()
    INACTIVE_TOPIC = auto()
    DEDUPLICATION = auto()
    MAX_CONSUMERS = auto()
    MAX_PRODUCERS = auto()
    DEDUPLICATION_SNAPSHOT = auto()
    MAX_UNACKED = auto()
    MAX_SUBSCRIPTIONS = auto()
    OFFLOAD = auto()
    PARTITION = auto()
    PERSISTENCE = auto()
    RATE = auto()
    RETENTION = auto()
    REPLICATION = auto()
    REPLICATION_RATE = auto()
    SCHEMA_COMPATIBILITY_STRATEGY = auto()
    SUBSCRIPTION_AUTH_MODE = auto()
    SUBSCRIPTION_EXPIRATION_TIME = auto()
    ENCRYPTION = auto()
    TTL = auto()
    MAX_TOPICS = auto()
    RESOURCEGROUP = auto()
    ENTRY_FILTERS = auto()
    SHADOW_TOPIC = auto()
    DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT = auto()
    ALLOW_CLUSTERS = auto()
    ALLOW_CUSTOM_METRIC_LABELS = auto()


class AllSubscriptions(Enum):
    """Stands for every subscription, in place of a name."""

    ALL = auto()


ALL_SUBSCRIPTIONS: Final = AllSubscriptions.ALL
Subscription = str | AllSubscriptions | None
"""The subscription that an operation uses, if it uses any; its own roles and Prefix apply."""


@dataclass(frozen=True, slots=True)
class TopicNeed:
    """A right to an operation on a topic or a partition."""

    topic: TopicName
    operation: TopicOperation
    subscription: Subscription = None


@dataclass(frozen=True, slots=True)
class NamespaceNeed:
    """A right to an operation on a namespace."""

    namespace: NamespaceName
    operation: NamespaceOperation
    subscription: Subscription = None


@dataclass(frozen=True, slots=True)
class TenantNeed:
    """A right to an operation on a tenant."""

    tenant: str
    operation: TenantOperation


@dataclass(frozen=True, slots=True)
class PolicyNeed:
    """A right to read or write a policy of a namespace or a topic."""

    owner: NamespaceName | TopicName
    policy: PolicyName
    operation: PolicyOperation


@dataclass(frozen=True, slots=True)
class TenantAdminNeed:
    """The right of a tenant's admins, or of super users."""

    tenant: str


@dataclass(frozen=True, slots=True)
class SuperUserNeed:
    """The right of super users only."""

    check: str = ""
    """Pulsar's name of the check, which its error names; empty for the general one."""
    operation: str = ""
    subject: str = ""
    """The object of the operation, `cluster [c]`; empty for all objects."""


@dataclass(frozen=True, slots=True)
class AnyRoleNeed:
    """No right: every authenticated role is permitted."""


@dataclass(frozen=True, slots=True)
class PublicNeed:
    """No right and no credentials."""


Need = (
    TopicNeed
    | NamespaceNeed
    | TenantNeed
    | PolicyNeed
    | TenantAdminNeed
    | SuperUserNeed
    | AnyRoleNeed
    | PublicNeed
)


def tenant_of(need: Need) -> str | None:
    """Returns the tenant whose admins have the right; None if no tenant has such admins."""
    match need:
        case TopicNeed(topic=topic):
            return topic.tenant
        case NamespaceNeed(namespace=namespace):
            return namespace.tenant
        case TenantNeed(tenant=tenant) | TenantAdminNeed(tenant=tenant):
            return tenant
        case PolicyNeed(owner=owner):
            return owner.tenant
        case _:
            return None


def namespace_of(need: Need) -> NamespaceName | None:
    """Returns the namespace whose grants may give the right; None if no grant does."""
    match need:
        case TopicNeed(topic=topic):
            return topic.namespace
        case NamespaceNeed(namespace=namespace):
            return namespace
        case _:
            return None
