"""A namespace's policies document, with Pulsar's field names and defaults.

The document is what `GET /admin/v2/namespaces/{tenant}/{namespace}` returns. Fields without a
value are absent, as in Pulsar.
"""

from typing import Any, Final

BUNDLES_DEFAULT: Final = 4
BUNDLES_MAX: Final = 65_536
_RING: Final = 0xFFFFFFFF


def bundle_boundaries(bundles: int) -> list[str]:
    """The edges of `bundles` equal parts of the hash ring; `bundles` + 1 of them."""
    step = (_RING + 1) // bundles
    edges = [index * step for index in range(bundles)]
    return [f"0x{edge:08x}" for edge in [*edges, _RING]]


def default_policies(cluster: str, bundles: int = BUNDLES_DEFAULT) -> dict[str, Any]:
    """A new namespace's policies."""
    return {
        "auth_policies": {
            "namespace_auth": {},
            "destination_auth": {},
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
