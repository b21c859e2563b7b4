"""A namespace's policies document, with Pulsar's field names and defaults.

`GET /admin/v2/namespaces/{tenant}/{namespace}` returns the document. Fields without a value are
absent, as in Pulsar.
"""

from collections.abc import Collection
from typing import Any, Final

BUNDLES_DEFAULT: Final = 4
BUNDLES_MAX: Final = 65_536
AUTH: Final = "auth_policies"
TOPIC_AUTH: Final = "destination_auth"
_RING: Final = 0xFFFFFFFF


def bundle_boundaries(bundles: int) -> list[str]:
    """Returns the `bundles` + 1 edges of as many equal parts of the hash ring."""
    step = (_RING + 1) // bundles
    edges = [index * step for index in range(bundles)]
    return [f"0x{edge:08x}" for edge in [*edges, _RING]]


def default_policies(cluster: str, bundles: int = BUNDLES_DEFAULT) -> dict[str, Any]:
    """Returns the policies of a new namespace."""
    return {
        AUTH: {
            "namespace_auth": {},
            TOPIC_AUTH: {},
            "subscription_auth_roles": {},
        },
        "replication_clusters": [cluster],
        "allowed_clusters": [],
        "bundles": {"boundaries": bundle_boundaries(bundles), "numBundles": bundles},
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }


def granted_on_topics(policies: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Returns, by topic, the permissions of roles beyond those on the whole namespace."""
    granted: dict[str, dict[str, list[str]]] = (policies.get(AUTH) or {}).get(TOPIC_AUTH) or {}
    return granted


def without_topics(policies: dict[str, Any], topics: Collection[str]) -> dict[str, Any]:
    """Returns the policies without the permissions on these topics."""
    left = {
        name: roles for name, roles in granted_on_topics(policies).items() if name not in topics
    }
    if left == granted_on_topics(policies):
        return policies
    return {**policies, AUTH: {**policies[AUTH], TOPIC_AUTH: left}}
