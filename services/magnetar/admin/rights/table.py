"""The right that each route of the admin REST needs: one entry per method and path.

A route without an entry, or an entry without a route, prevents the application from starting
(`check`). docs/run/authorization.md and the matrix of `tests/security` are generated from it.
"""

from collections.abc import Iterable
from typing import Final

from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.rights import policies
from magnetar.admin.rights.right import (
    AllOf,
    AnyRole,
    ByBody,
    OnAllSubscriptions,
    OnBroker,
    OnCluster,
    OnNamespace,
    OnNamespaceSubscriptions,
    OnPolicy,
    OnTenant,
    OnTenants,
    OnTopic,
    Public,
    Right,
    SuperUser,
    TenantAdmin,
)
from magnetar.broker.security.needs import (
    NamespaceOperation,
    PolicyName,
    PolicyOperation,
    TenantOperation,
    TopicOperation,
)
from magnetar.policies.policy import Level

Route = tuple[str, str]
"""A method and a path template."""

_A: Final = "/admin/v2"
_C: Final = _A + "/clusters"
_N: Final = _A + "/namespaces/{tenant:name}/{namespace:name}"
_B: Final = _N + "/{bundle:bundle}"
_T: Final = _A + TOPIC_PATH
_S: Final = _T + "/subscription/{subscription:name}"
_SCHEMAS: Final = _A + "/schemas/{tenant:name}/{namespace:name}/{topic:name}"
_BROKERS: Final = _A + "/brokers"
_OURS: Final = _A + "/magnetar"
_GROUPS: Final = _A + "/resourcegroups"
_QUOTAS: Final = _A + "/resource-quotas"
_QUOTA_BUNDLE: Final = "/{tenant:name}/{namespace:name}/{bundle:name}"

_TXN: Final = "/admin/v3/transactions"
_TXN_ID: Final = "/{most:number}/{least:number}"
_TXN_TOPIC: Final = "/{tenant:name}/{namespace:name}/{topic:name}"
_TXN_SUBSCRIPTION: Final = _TXN_TOPIC + "/{subscription:name}"

_PUBLIC: Final = Public()
_ANY: Final = AnyRole()
_SUPER: Final = SuperUser()
_ADMIN: Final = TenantAdmin()
_OWNER_OF_TXN: Final = ByBody("none for the role that began the transaction, else super user")
_ADMIN_OF_BODY: Final = ByBody("admin of the tenant that the body names")
_READ_ALL: Final = OnPolicy(PolicyName.ALL, PolicyOperation.READ)
_CREATE_TOPIC: Final = OnNamespace(NamespaceOperation.CREATE_TOPIC)
_DELETE_TOPIC: Final = OnNamespace(NamespaceOperation.DELETE_TOPIC)
_GET_TOPICS: Final = OnNamespace(NamespaceOperation.GET_TOPICS)
_GET_BUNDLE: Final = OnNamespace(NamespaceOperation.GET_BUNDLE)
_CLEAR_BACKLOG: Final = OnNamespaceSubscriptions(NamespaceOperation.CLEAR_BACKLOG)
_UNSUBSCRIBE_ALL: Final = OnNamespaceSubscriptions(NamespaceOperation.UNSUBSCRIBE)
_GRANT: Final = OnNamespace(NamespaceOperation.GRANT_PERMISSION)
_GET_GRANTS: Final = OnNamespace(NamespaceOperation.GET_PERMISSION)
_REVOKE: Final = OnNamespace(NamespaceOperation.REVOKE_PERMISSION)
_LOOKUP: Final = OnTopic(TopicOperation.LOOKUP)
_SUBSCRIBE: Final = OnTopic(TopicOperation.SUBSCRIBE)
_GET_STATS: Final = OnTopic(TopicOperation.GET_STATS)
_METADATA: Final = OnTopic(TopicOperation.GET_METADATA)
_PEEK: Final = OnTopic(TopicOperation.PEEK_MESSAGES)
_CONSUME: Final = OnTopic(TopicOperation.CONSUME)
_REDRIVE: Final = AllOf((_CONSUME, ByBody("PRODUCE of the topics that messages are moved to")))
_EXPIRE: Final = OnTopic(TopicOperation.EXPIRE_MESSAGES)
_RESET: Final = OnTopic(TopicOperation.RESET_CURSOR)
_SKIP: Final = OnTopic(TopicOperation.SKIP)
_TERMINATE: Final = OnTopic(TopicOperation.TERMINATE)
_COMPACT: Final = OnTopic(TopicOperation.COMPACT)
_OFFLOAD: Final = OnTopic(TopicOperation.OFFLOAD)
_SET_PARTITIONS: Final = OnPolicy(PolicyName.PARTITION, PolicyOperation.WRITE)
_READ_GROUP: Final = OnPolicy(PolicyName.RESOURCEGROUP, PolicyOperation.READ)
_WRITE_GROUP: Final = OnPolicy(PolicyName.RESOURCEGROUP, PolicyOperation.WRITE)
_OLD_STRATEGY: Final = PolicyName.SCHEMA_COMPATIBILITY_STRATEGY

_ISOLATION: Final = _C + "/{cluster:name}/namespaceIsolationPolicies"
_TENANT_OF_QUERY: Final = ByBody("tenant LIST_NAMESPACES of the tenant that the query names")
_DOMAINS: Final = _C + "/{cluster:name}/failureDomains"
_POLICY_OF_CLUSTER: Final = "validateBothSuperuserAndClusterPolicyOperation"
_READ_ISOLATION: Final = OnCluster("READ", check=_POLICY_OF_CLUSTER)
_WRITE_ISOLATION: Final = OnCluster("WRITE", check=_POLICY_OF_CLUSTER)

_CLUSTERS: Final[dict[Route, Right]] = {
    ("GET", _C): _ANY,
    ("GET", _C + "/{cluster:name}"): OnCluster("GET_CLUSTER"),
    ("PUT", _C + "/{cluster:name}"): OnCluster("CREATE_CLUSTER"),
    ("POST", _C + "/{cluster:name}"): OnCluster("UPDATE_CLUSTER"),
    ("DELETE", _C + "/{cluster:name}"): OnCluster("DELETE_CLUSTER"),
    ("GET", _DOMAINS): OnCluster("GET_FAILURE_DOMAIN"),
    ("GET", _DOMAINS + "/{failure_domain:name}"): OnCluster("GET_FAILURE_DOMAIN"),
    ("POST", _DOMAINS + "/{failure_domain:name}"): OnCluster("UPDATE_FAILURE_DOMAIN"),
    ("DELETE", _DOMAINS + "/{failure_domain:name}"): OnCluster("DELETE_FAILURE_DOMAIN"),
    ("GET", _A + "/namespaces/{cluster:name}/antiAffinity/{group:name}"): _TENANT_OF_QUERY,
    ("GET", "/admin/namespaces/{cluster:name}/antiAffinity/{group:name}"): _TENANT_OF_QUERY,
    ("GET", _ISOLATION): _READ_ISOLATION,
    ("GET", _ISOLATION + "/brokers"): _READ_ISOLATION,
    ("GET", _ISOLATION + "/brokers/{broker:name}"): _READ_ISOLATION,
    ("GET", _ISOLATION + "/{isolation_policy:name}"): _READ_ISOLATION,
    ("POST", _ISOLATION + "/{isolation_policy:name}"): _WRITE_ISOLATION,
    ("DELETE", _ISOLATION + "/{isolation_policy:name}"): _WRITE_ISOLATION,
    ("GET", _C + "/{cluster:name}/peers"): OnCluster("GET_PEER_CLUSTER"),
    ("POST", _C + "/{cluster:name}/peers"): OnCluster("UPDATE_PEER_CLUSTER"),
    ("GET", _C + "/{cluster:name}/migrate"): OnCluster("GET_CLUSTER_MIGRATION"),
    ("POST", _C + "/{cluster:name}/migrate"): OnCluster("UPDATE_CLUSTER_MIGRATION"),
}
_TENANTS: Final[dict[Route, Right]] = {
    ("GET", _A + "/tenants"): OnTenants("LIST_TENANTS"),
    ("GET", _A + "/tenants/{tenant:name}"): OnTenant(TenantOperation.GET_TENANT),
    ("PUT", _A + "/tenants/{tenant:name}"): OnTenants("CREATE_TENANT"),
    ("POST", _A + "/tenants/{tenant:name}"): OnTenant(TenantOperation.UPDATE_TENANT),
    ("DELETE", _A + "/tenants/{tenant:name}"): OnTenant(TenantOperation.DELETE_TENANT),
    ("GET", _A + "/namespaces/{tenant:name}"): OnTenant(TenantOperation.LIST_NAMESPACES),
}
_NAMESPACES: Final[dict[Route, Right]] = {
    ("GET", _N): _READ_ALL,
    ("PUT", _N): OnTenant(TenantOperation.CREATE_NAMESPACE),
    ("DELETE", _N): OnTenant(TenantOperation.DELETE_NAMESPACE),
    ("GET", _N + "/topics"): _GET_TOPICS,
    ("GET", _N + "/bundles"): _GET_BUNDLE,
    ("GET", _B + "/topicHashPositions"): _GET_BUNDLE,
    ("DELETE", _B): OnNamespace(NamespaceOperation.DELETE_BUNDLE),
    ("GET", _A + "/non-persistent/{tenant:name}/{namespace:name}/{bundle:bundle}"): _GET_BUNDLE,
    ("GET", _N + "/scanOffloadedLedgers"): _SUPER,
    ("POST", _N + "/migration"): _SUPER,
    ("GET", _N + "/allowedTopicPropertyKeysForMetrics"): OnPolicy(
        PolicyName.ALLOW_CUSTOM_METRIC_LABELS, PolicyOperation.READ
    ),
    ("POST", _N + "/allowedTopicPropertyKeysForMetrics"): OnPolicy(
        PolicyName.ALLOW_CUSTOM_METRIC_LABELS, PolicyOperation.WRITE
    ),
    ("DELETE", _N + "/allowedTopicPropertyKeysForMetrics"): OnPolicy(
        PolicyName.ALLOW_CUSTOM_METRIC_LABELS, PolicyOperation.WRITE
    ),
    ("POST", _N + "/allowedClusters"): OnPolicy(PolicyName.ALLOW_CLUSTERS, PolicyOperation.WRITE),
    ("PUT", _B + "/unload"): _SUPER,
    ("PUT", _N + "/unload"): _SUPER,
    ("PUT", _B + "/split"): _SUPER,
    ("PUT", _N + "/{choice:chosen_bundle}/split"): _SUPER,
    ("POST", _B + "/clearBacklog/{subscription:name}"): _CLEAR_BACKLOG,
    ("POST", _B + "/clearBacklog"): _CLEAR_BACKLOG,
    ("POST", _N + "/clearBacklog/{subscription:name}"): _CLEAR_BACKLOG,
    ("POST", _N + "/clearBacklog"): _CLEAR_BACKLOG,
    ("POST", _B + "/unsubscribe/{subscription:name}"): _UNSUBSCRIBE_ALL,
    ("POST", _N + "/unsubscribe/{subscription:name}"): _UNSUBSCRIBE_ALL,
    ("GET", _N + "/{policy:namespace_get_policy}"): policies.of_verb(Level.NAMESPACE, "GET"),
    ("GET", _N + "/persistence/{policy:namespace_get_persistence}"): _SUPER,
    ("POST", _N + "/{policy:namespace_post_policy}"): policies.of_verb(Level.NAMESPACE, "POST"),
    ("POST", _N + "/persistence/{policy:namespace_post_persistence}"): _SUPER,
    ("PUT", _N + "/{policy:namespace_put_policy}"): policies.of_verb(Level.NAMESPACE, "PUT"),
    ("DELETE", _N + "/{policy:namespace_delete_policy}"): policies.of_verb(
        Level.NAMESPACE, "DELETE"
    ),
    ("DELETE", _N + "/persistence/{policy:namespace_delete_persistence}"): _SUPER,
    ("GET", _N + "/{policy:fixed_of_namespaces}"): policies.OF_FIXED_NAMESPACE,
    ("GET", _N + "/resourcegroup"): _READ_GROUP,
    ("POST", _N + "/resourcegroup/{resource_group:name}"): _WRITE_GROUP,
    ("DELETE", _N + "/resourcegroup"): _WRITE_GROUP,
    ("GET", _N + "/schemaAutoUpdateCompatibilityStrategy"): OnPolicy(
        _OLD_STRATEGY, PolicyOperation.READ
    ),
    ("PUT", _N + "/schemaAutoUpdateCompatibilityStrategy"): OnPolicy(
        _OLD_STRATEGY, PolicyOperation.WRITE
    ),
    ("GET", _N + "/properties"): _ADMIN,
    ("PUT", _N + "/properties"): _ADMIN,
    ("DELETE", _N + "/properties"): _ADMIN,
    ("PUT", _N + "/property/{key:name}/{value:name}"): _ADMIN,
    ("GET", _N + "/property/{key:name}"): _ADMIN,
    ("DELETE", _N + "/property/{key:name}"): _ADMIN,
}
_PERMISSIONS: Final[dict[Route, Right]] = {
    ("GET", _N + "/permissions"): _GET_GRANTS,
    ("POST", _N + "/permissions/{role:name}"): _GRANT,
    ("DELETE", _N + "/permissions/{role:name}"): _REVOKE,
    ("GET", _N + "/permissions/subscription"): _GET_GRANTS,
    ("POST", _N + "/permissions/subscription/{subscription:name}"): _GRANT,
    ("DELETE", _N + "/permissions/{subscription:name}/{role:name}"): _REVOKE,
    ("DELETE", _N + "/permissions/subscription/{subscription:name}/{role:name}"): _REVOKE,
    ("POST", _A + "/namespaces/grantPermissionsOnTopics"): _ADMIN_OF_BODY,
    ("POST", _A + "/namespaces/revokePermissionsOnTopics"): _ADMIN_OF_BODY,
    ("GET", _T + "/permissions"): _ADMIN,
    ("POST", _T + "/permissions/{role:name}"): _ADMIN,
    ("DELETE", _T + "/permissions/{role:name}"): _ADMIN,
}
_TOPICS: Final[dict[Route, Right]] = {
    ("GET", _A + "/{domain:domain}/{tenant:name}/{namespace:name}"): _GET_TOPICS,
    ("GET", _A + "/{domain:domain}/{tenant:name}/{namespace:name}/partitioned"): _GET_TOPICS,
    ("GET", _T + "/partitions"): _LOOKUP,
    ("PUT", _T + "/partitions"): AllOf((_SET_PARTITIONS, _CREATE_TOPIC)),
    ("POST", _T + "/partitions"): _SET_PARTITIONS,
    ("DELETE", _T + "/partitions"): _DELETE_TOPIC,
    ("POST", _T + "/createMissedPartitions"): AllOf((_LOOKUP, _CREATE_TOPIC)),
    ("PUT", _T): _CREATE_TOPIC,
    ("DELETE", _T): _DELETE_TOPIC,
    ("PUT", _T + "/unload"): OnTopic(TopicOperation.UNLOAD),
    ("DELETE", _T + "/truncate"): AllOf((_LOOKUP, _ADMIN)),
    ("GET", _T + "/properties"): _METADATA,
    ("PUT", _T + "/properties"): OnTopic(TopicOperation.UPDATE_METADATA),
    ("DELETE", _T + "/properties"): OnTopic(TopicOperation.DELETE_METADATA),
    ("GET", _T + "/stats"): _GET_STATS,
    ("GET", _T + "/internalStats"): _GET_STATS,
    ("GET", _T + "/explain"): _GET_STATS,
    ("GET", _T + "/internal-info"): _GET_STATS,
    ("GET", _T + "/partitioned-stats"): _GET_STATS,
    ("GET", _T + "/partitioned-internalStats"): _GET_STATS,
    ("POST", _T + "/terminate"): _TERMINATE,
    ("POST", _T + "/terminate/partitions"): _TERMINATE,
    ("PUT", _T + "/compaction"): _COMPACT,
    ("GET", _T + "/compaction"): _COMPACT,
    ("PUT", _T + "/offload"): _OFFLOAD,
    ("GET", _T + "/offload"): _OFFLOAD,
    ("PUT", _T + "/backlogSize"): OnTopic(TopicOperation.GET_BACKLOG_SIZE),
    ("GET", _T + "/backlog"): OnTopic(TopicOperation.GET_BACKLOG_SIZE),
    ("POST", _T + "/trim"): OnTopic(TopicOperation.TRIM_TOPIC),
    ("POST", _T + "/closeLedger"): OnTopic(TopicOperation.OFFLOAD),
    ("DELETE", _T + "/policies"): _ADMIN,
    ("PUT", _T + "/shadowTopics"): OnPolicy(PolicyName.SHADOW_TOPIC, PolicyOperation.WRITE),
    ("DELETE", _T + "/shadowTopics"): OnPolicy(PolicyName.SHADOW_TOPIC, PolicyOperation.WRITE),
    ("GET", _T + "/{policy:fixed_of_topics}"): policies.OF_FIXED_TOPIC,
    ("GET", _T + "/{policy:topic_get_policy}"): policies.of_verb(Level.TOPIC, "GET"),
    ("POST", _T + "/{policy:topic_post_policy}"): policies.of_verb(Level.TOPIC, "POST"),
    ("PUT", _T + "/{policy:topic_put_policy}"): policies.of_verb(Level.TOPIC, "PUT"),
    ("DELETE", _T + "/{policy:topic_delete_policy}"): policies.of_verb(Level.TOPIC, "DELETE"),
}
_RATES: Final = _T + "/{subscription:name}/dispatchRate"
_SUBSCRIPTIONS: Final[dict[Route, Right]] = {
    ("GET", _RATES): OnPolicy(PolicyName.RATE, PolicyOperation.READ),
    ("POST", _RATES): OnPolicy(PolicyName.RATE, PolicyOperation.WRITE),
    ("DELETE", _RATES): OnPolicy(PolicyName.RATE, PolicyOperation.WRITE),
    ("GET", _T + "/subscriptions"): OnTopic(TopicOperation.GET_SUBSCRIPTIONS),
    ("PUT", _S): _SUBSCRIBE,
    ("DELETE", _S): OnTopic(TopicOperation.UNSUBSCRIBE),
    ("GET", _S + "/properties"): _CONSUME,
    ("PUT", _S + "/properties"): _SUBSCRIBE,
    ("POST", _S + "/analyzeBacklog"): _CONSUME,
    ("GET", _S + "/explain"): _GET_STATS,
    ("POST", _S + "/redrive"): _REDRIVE,
    ("GET", _S + "/redrive"): _CONSUME,
    ("DELETE", _S + "/redrive"): _CONSUME,
    ("GET", _S + "/replicatedSubscriptionStatus"): OnTopic(
        TopicOperation.GET_REPLICATED_SUBSCRIPTION_STATUS
    ),
    ("POST", _S + "/replicatedSubscriptionStatus"): OnTopic(
        TopicOperation.SET_REPLICATED_SUBSCRIPTION_STATUS
    ),
    ("POST", _S + "/resetcursor"): _RESET,
    ("POST", _S + "/resetcursor/{timestamp:number}"): _RESET,
    ("POST", _S + "/skip/{count:number}"): _SKIP,
    ("POST", _S + "/skip_all"): _SKIP,
    ("POST", _S + "/expireMessages/{seconds:number}"): _EXPIRE,
    ("POST", _S + "/expireMessages"): _EXPIRE,
    ("POST", _T + "/all_subscription/expireMessages/{seconds:number}"): OnAllSubscriptions(
        TopicOperation.EXPIRE_MESSAGES
    ),
}
_MESSAGES: Final[dict[Route, Right]] = {
    ("GET", _S + "/position/{position:number}"): _PEEK,
    ("GET", _T + "/ledger/{ledger:number}/entry/{entry:number}"): _PEEK,
    ("GET", _T + "/examinemessage"): _PEEK,
    ("GET", _T + "/messageid/{timestamp:number}"): _PEEK,
    ("GET", _T + "/lastMessageId"): _PEEK,
    ("GET", _T + "/getMessageIdByIndex"): _PEEK,
}
_OF_SCHEMAS: Final[dict[Route, Right]] = {
    ("GET", _SCHEMAS + "/schema"): _METADATA,
    ("GET", _SCHEMAS + "/schema/{version:number}"): _METADATA,
    ("GET", _SCHEMAS + "/schemas"): _METADATA,
    ("GET", _SCHEMAS + "/metadata"): _METADATA,
    ("POST", _SCHEMAS + "/version"): _METADATA,
    ("POST", _SCHEMAS + "/schema"): OnTopic(TopicOperation.PRODUCE),
    ("DELETE", _SCHEMAS + "/schema"): _ADMIN,
    ("POST", _SCHEMAS + "/compatibility"): _ADMIN,
}
_OF_BROKERS: Final[dict[Route, Right]] = {
    ("GET", _BROKERS): OnBroker("LIST_BROKERS"),
    ("GET", _BROKERS + "/health"): OnBroker("HEALTH_CHECK"),
    ("GET", _BROKERS + "/ready"): _ANY,
    ("POST", _BROKERS + "/shutdown"): OnBroker("SHUTDOWN"),
    ("GET", _BROKERS + "/version"): _ANY,
    ("GET", _BROKERS + "/leaderBroker"): OnBroker("GET_LEADER_BROKER"),
    ("GET", _BROKERS + "/balance"): _SUPER,
    ("GET", _BROKERS + "/balance/dry-run"): _SUPER,
    ("GET", _BROKERS + "/configuration"): OnBroker("LIST_DYNAMIC_CONFIGURATIONS"),
    ("GET", _BROKERS + "/configuration/values"): OnBroker("LIST_DYNAMIC_CONFIGURATIONS"),
    ("GET", _BROKERS + "/configuration/runtime"): OnBroker("LIST_RUNTIME_CONFIGURATIONS"),
    ("POST", _BROKERS + "/configuration/{setting:name}/{value:name}"): OnBroker(
        "UPDATE_DYNAMIC_CONFIGURATION"
    ),
    ("DELETE", _BROKERS + "/configuration/{setting:name}"): OnBroker(
        "DELETE_DYNAMIC_CONFIGURATION"
    ),
    ("GET", _BROKERS + "/internal-configuration"): OnBroker("GET_INTERNAL_CONFIGURATION_DATA"),
    ("GET", _BROKERS + "/backlog-quota-check"): OnBroker("CHECK_BACKLOG_QUOTA"),
    ("GET", _BROKERS + "/{cluster:name}"): OnBroker("LIST_BROKERS"),
    ("GET", _BROKERS + "/{cluster:name}/{broker:name}/ownedNamespaces"): OnBroker(
        "LIST_OWNED_NAMESPACES"
    ),
    ("GET", _A + "/broker-stats/topics"): _SUPER,
    ("GET", _A + "/broker-stats/load-report"): _SUPER,
    ("GET", _A + "/broker-stats/metrics"): _SUPER,
    ("GET", _A + "/broker-stats/mbeans"): _SUPER,
    ("GET", _A + "/broker-stats/allocator-stats/{allocator:name}"): _SUPER,
    ("GET", _A + "/broker-stats/bookieops"): _SUPER,
    (
        "GET",
        _A + "/broker-stats/broker-resource-availability/{tenant:name}/{namespace:name}",
    ): _SUPER,
    ("GET", _GROUPS): _SUPER,
    ("GET", _GROUPS + "/{resource_group:name}"): _SUPER,
    ("PUT", _GROUPS + "/{resource_group:name}"): _SUPER,
    ("DELETE", _GROUPS + "/{resource_group:name}"): _SUPER,
    ("GET", _QUOTAS): _SUPER,
    ("POST", _QUOTAS): _SUPER,
    ("GET", _QUOTAS + _QUOTA_BUNDLE): _SUPER,
    ("POST", _QUOTAS + _QUOTA_BUNDLE): _SUPER,
    ("DELETE", _QUOTAS + _QUOTA_BUNDLE): _SUPER,
    ("GET", _A + "/metadata/migration/status"): _SUPER,
    ("POST", _A + "/metadata/migration/start"): _SUPER,
    ("GET", _A + "/bookies/all"): _SUPER,
    ("GET", _A + "/bookies/racks-info"): _SUPER,
    ("GET", _A + "/bookies/racks-info/{bookie:name}"): _SUPER,
    ("POST", _A + "/bookies/racks-info/{bookie:name}"): _SUPER,
    ("DELETE", _A + "/bookies/racks-info/{bookie:name}"): _SUPER,
}
_OWN: Final[dict[Route, Right]] = {
    ("GET", _OURS + TOPIC_PATH + "/effect"): _READ_ALL,
    ("GET", _OURS + TOPIC_PATH + "/policies"): _READ_ALL,
    ("GET", _OURS + "/namespaces/{tenant:name}/{namespace:name}/effect"): _READ_ALL,
    ("GET", _OURS + "/ledgers/health"): _SUPER,
    ("GET", _OURS + "/bookies/drains"): _SUPER,
    ("POST", _OURS + "/bookies/{bookie:name}/drain"): _SUPER,
    ("GET", _OURS + "/bookies/{bookie:name}/drain"): _SUPER,
    ("DELETE", _OURS + "/bookies/{bookie:name}/drain"): _SUPER,
    ("GET", _OURS + "/drain"): _SUPER,
    ("GET", _OURS + "/jobs"): _SUPER,
    ("GET", _OURS + "/analytics/backlog/{tenant:name}/{namespace:name}"): _GET_TOPICS,
}
_TRANSACTIONS: Final[dict[Route, Right]] = {
    ("GET", _TXN + "/coordinators"): _SUPER,
    ("GET", _TXN + "/coordinatorStats"): _SUPER,
    ("GET", _TXN + "/transactionMetadata/{most:number}/{least:number}"): _OWNER_OF_TXN,
    ("GET", _TXN + "/slowTransactions/{timeout:number}"): _SUPER,
    ("POST", _TXN + "/abortTransaction/{most:number}/{least:number}"): _SUPER,
    ("POST", _TXN + "/transactionCoordinator/replicas"): _SUPER,
    ("GET", _TXN + "/coordinatorInternalStats/{coordinator:number}"): _SUPER,
    ("GET", _TXN + "/transactionBufferStats" + _TXN_TOPIC): _GET_STATS,
    ("GET", _TXN + "/transactionInBufferStats" + _TXN_TOPIC + _TXN_ID): _GET_STATS,
    ("GET", _TXN + "/transactionBufferInternalStats" + _TXN_TOPIC): _GET_STATS,
    ("GET", _TXN + "/pendingAckStats" + _TXN_SUBSCRIPTION): _GET_STATS,
    ("GET", _TXN + "/transactionInPendingAckStats" + _TXN_SUBSCRIPTION + _TXN_ID): _GET_STATS,
    ("GET", _TXN + "/pendingAckInternalStats" + _TXN_SUBSCRIPTION): _GET_STATS,
    (
        "GET",
        _TXN + "/positionStatsInPendingAck" + _TXN_SUBSCRIPTION + "/{ledger:number}/{entry:number}",
    ): _GET_STATS,
}
METRICS: Final[Route] = "GET", "/metrics"
"""Public, unless `authenticateMetricsEndpoint` is set: then any role."""
_OTHERS: Final[dict[Route, Right]] = {
    ("GET", "/lookup/v2/topic" + TOPIC_PATH): _LOOKUP,
    ("GET", "/lookup/v2/topic" + TOPIC_PATH + "/bundle"): _GET_BUNDLE,
    METRICS: _PUBLIC,
    ("GET", "/healthz"): _PUBLIC,
    ("GET", "/readyz"): _PUBLIC,
    ("GET", "/status.html"): _PUBLIC,
    ("GET", "/status"): _SUPER,
    ("GET", "/openapi.json"): _ANY,
    ("GET", "/docs"): _ANY,
}

RIGHTS: Final[dict[Route, Right]] = {
    **_CLUSTERS,
    **_TENANTS,
    **_NAMESPACES,
    **_PERMISSIONS,
    **_TOPICS,
    **_SUBSCRIPTIONS,
    **_MESSAGES,
    **_OF_SCHEMAS,
    **_OF_BROKERS,
    **_OWN,
    **_TRANSACTIONS,
    **_OTHERS,
}


def check(routes: Iterable[Route]) -> None:
    """Raises LookupError if the table and the application's routes differ."""
    served = set(routes)
    if lacking := sorted(served - RIGHTS.keys()):
        raise LookupError(f"Routes without an entry in admin/rights/table.py: {lacking}")
    if unserved := sorted(RIGHTS.keys() - served):
        raise LookupError(f"Entries of admin/rights/table.py without a route: {unserved}")
