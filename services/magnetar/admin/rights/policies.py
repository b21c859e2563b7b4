"""The rights of the policies' routes: Pulsar's PolicyName of each policy, or super user.

The table is complete: the guard cannot be built if a policy of the registry has no entry.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from magnetar.admin.rights.right import ByPolicy, OnPolicy, Right, SuperUser, TenantAdmin
from magnetar.admin.routers.policies import fixed
from magnetar.broker.security.needs import PolicyName, PolicyOperation
from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import at, rest_of

NAMES: Final[Mapping[str, PolicyName]] = MappingProxyType(
    {
        "retention": PolicyName.RETENTION,
        "message_ttl": PolicyName.TTL,
        "backlog_quota": PolicyName.BACKLOG,
        "subscription_expiration": PolicyName.SUBSCRIPTION_EXPIRATION_TIME,
        "inactive_topics": PolicyName.INACTIVE_TOPIC,
        "persistence": PolicyName.PERSISTENCE,
        "compaction_threshold": PolicyName.COMPACTION,
        "offload": PolicyName.OFFLOAD,
        "offload_threshold": PolicyName.OFFLOAD,
        "offload_threshold_age": PolicyName.OFFLOAD,
        "offload_deletion_lag": PolicyName.OFFLOAD,
        "dispatch_rate": PolicyName.RATE,
        "subscription_dispatch_rate": PolicyName.RATE,
        "replicator_dispatch_rate": PolicyName.REPLICATION_RATE,
        "publish_rate": PolicyName.RATE,
        "subscribe_rate": PolicyName.RATE,
        "max_producers": PolicyName.MAX_PRODUCERS,
        "max_consumers": PolicyName.MAX_CONSUMERS,
        "max_consumers_per_subscription": PolicyName.MAX_CONSUMERS,
        "max_subscriptions": PolicyName.MAX_SUBSCRIPTIONS,
        "max_topics": PolicyName.MAX_TOPICS,
        "entry_filters": PolicyName.ENTRY_FILTERS,
        "dispatcher_pause": PolicyName.DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT,
        "max_unacked_per_consumer": PolicyName.MAX_UNACKED,
        "max_unacked_per_subscription": PolicyName.MAX_UNACKED,
        "auto_topic_creation": PolicyName.AUTO_TOPIC_CREATION,
        "auto_subscription_creation": PolicyName.AUTO_SUBSCRIPTION_CREATION,
        "schema_compatibility": PolicyName.SCHEMA_COMPATIBILITY_STRATEGY,
        "schema_auto_update": PolicyName.SCHEMA_COMPATIBILITY_STRATEGY,
        "schema_validation": PolicyName.SCHEMA_COMPATIBILITY_STRATEGY,
        "encryption_required": PolicyName.ENCRYPTION,
        "subscription_auth_mode": PolicyName.SUBSCRIPTION_AUTH_MODE,
        "subscription_types": PolicyName.SUBSCRIPTION_AUTH_MODE,
        "deduplication": PolicyName.DEDUPLICATION,
        "deduplication_snapshot_interval": PolicyName.DEDUPLICATION_SNAPSHOT,
        "delayed_delivery": PolicyName.DELAYED_DELIVERY,
        "replication": PolicyName.REPLICATION,
        "anti_affinity": PolicyName.ANTI_AFFINITY,
    }
)
_SUPER_USER_POLICIES: Final = frozenset({"bookie_affinity"})
_ADMIN_POLICIES: Final = frozenset({"max_message_size"})
_SUPER_USER_WRITES: Final = frozenset({"delayed_delivery"})
"""Policies of namespaces that only super users may set, as in Pulsar."""
FIXED: Final[Mapping[str, PolicyName]] = MappingProxyType(
    {
        "allowedClusters": PolicyName.ALLOW_CLUSTERS,
        "shadowTopics": PolicyName.SHADOW_TOPIC,
    }
)


def of_fixed(words: Iterable[str]) -> ByPolicy:
    """Returns the rights of the policies that never change (`routers.policies.fixed`)."""
    return ByPolicy({word: OnPolicy(FIXED[word], PolicyOperation.READ) for word in words})


def of_verb(level: Level, verb: str) -> ByPolicy:
    """Returns the rights of the registry's policies at that level, by the path's last segment."""
    rights: dict[str, Right] = {}
    for policy in at(level):
        rest = rest_of(policy, level)
        assert rest is not None  # noqa: S101 - `at` returns those that have one
        paths = {
            "GET": [rest.path],
            rest.set_verb: [rest.setting_path],
        }
        paths.setdefault(rest.remove_verb, []).append(rest.removing_path)
        for path in paths.get(verb, ()):
            rights[path.rpartition("/")[2]] = _right(policy, level, verb)
    return ByPolicy(rights)


def _right(policy: Policy, level: Level, verb: str) -> Right:
    read = verb == "GET"
    if policy.name in _SUPER_USER_POLICIES:
        return SuperUser()
    if policy.name in _ADMIN_POLICIES:
        return TenantAdmin()
    if level is Level.NAMESPACE and not read and policy.name in _SUPER_USER_WRITES:
        return SuperUser()
    operation = PolicyOperation.READ if read else PolicyOperation.WRITE
    return OnPolicy(NAMES[policy.name], operation)


OF_FIXED_NAMESPACE: Final = of_fixed(fixed.OF_NAMESPACES)
OF_FIXED_TOPIC: Final = of_fixed(fixed.OF_TOPICS)
