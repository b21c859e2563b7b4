"""Parses documents of the admin REST into the fields of `desired` and the facts of a status. Pure.

Parts that the operator does not know have no field, so it never changes them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.policies.policy import Level
from magnetar.policies.registry import BY_NAME, at
from magnetar_operator.admin.target import Target
from magnetar_operator.catalog.desired import (
    ACTIONS,
    ADMIN_ROLES,
    ALLOWED_CLUSTERS,
    PARTITIONS,
    PROPERTIES,
    policy_fields,
)

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of a target that exists."""

    fields: Mapping[str, Any]
    """The values of its fields; an unset field is absent or None."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the status that describe the target."""
    schema_version: int | None = None


def tenant(document: Document, namespaces: int) -> Observed:
    """Parses a tenant; `namespaces` is their number."""
    return Observed(
        {
            ADMIN_ROLES: sorted(document.get("adminRoles") or ()),
            ALLOWED_CLUSTERS: sorted(document.get("allowedClusters") or ()),
        },
        {"namespaces": namespaces},
    )


def namespace(document: Document, topics: int, cluster: str) -> Observed:
    """Parses a namespace; `cluster` is the cluster's name, empty if unknown."""
    fields = properties(document.get("properties"))
    for policy in at(Level.NAMESPACE):
        value = document.get(policy.document)
        if policy.by_cluster and isinstance(value, dict):
            # If the cluster's name is unknown, a single entry is its own.
            only = next(iter(value.values())) if len(value) == 1 else None
            value = value.get(cluster, only)
        if value is not None:
            fields |= policy_fields(policy, value)
    bundles = (document.get("bundles") or {}).get("numBundles", 0)
    return Observed(fields, {"topics": topics, "bundles": bundles})


def permission(document: Document, target: Target) -> Observed | None:
    """Parses a role's permission from its namespace's document; None if it has none."""
    auth = document.get("auth_policies") or {}
    if target.subscription:
        roles = (auth.get("subscription_auth_roles") or {}).get(target.subscription) or ()
        return Observed({}) if target.role in roles else None
    grants = auth.get("namespace_auth") or {}
    if "://" in target.name:
        grants = (auth.get("destination_auth") or {}).get(target.name) or {}
    actions = grants.get(target.role)
    return None if actions is None else Observed({ACTIONS: sorted(actions)})


def topic_fields(
    partitions: int, given_properties: Document | None, policies: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a topic; `policies` by `Policy.name`."""
    fields: dict[str, Any] = {PARTITIONS: partitions, **properties(given_properties)}
    for name, value in policies.items():
        if (policy := BY_NAME.get(name)) is not None and value is not None:
            fields |= policy_fields(policy, value)
    return fields


def properties(given: Document | None) -> dict[str, Any]:
    """The fields of key-value properties."""
    return {f"{PROPERTIES}{key}": value for key, value in (given or {}).items()}


def topic_facts(partitions: int, stats: Document) -> dict[str, Any]:
    """The facts of a topic, from `stats` or from `partitioned-stats` with its partitions."""
    subscriptions: Mapping[str, Any] = stats.get("subscriptions") or {}
    parts: Iterable[Any] = (stats.get("partitions") or {}).values()
    owners = {part.get("ownerBroker") for part in (*parts, stats)}
    return {
        "partitions": partitions,
        "brokers": sorted(filter(None, owners)),
        "subscriptions": len(subscriptions),
        "producers": len(stats.get("publishers") or ()),
        "storageBytes": int(stats.get("storageSize") or 0),
        "backlog": _backlog(
            max(
                (
                    int(subscription.get("msgBacklog") or 0)
                    for subscription in subscriptions.values()
                ),
                default=0,
            ),
            int(stats.get("backlogSize") or 0),
            stats.get("oldestBacklogMessageAgeSeconds"),
        ),
    }


def subscription_facts(stats: Document) -> dict[str, Any]:
    """The facts of a subscription, from its part of the topic's stats."""
    type_ = stats.get("type") or ""
    return {
        "type": "" if type_ == "None" else type_,
        "consumers": len(stats.get("consumers") or ()),
        "backlog": _backlog(
            int(stats.get("msgBacklog") or 0), int(stats.get("backlogSize") or 0), None
        ),
    }


def _backlog(messages: int, size_bytes: int, age_s: object) -> dict[str, int]:
    # An empty backlog has no bytes, even if the estimate says otherwise.
    built = {"messages": messages, "bytes": size_bytes if messages else 0, "oldestAgeSeconds": 0}
    if messages and isinstance(age_s, int) and age_s > 0:
        built["oldestAgeSeconds"] = age_s
    return built
