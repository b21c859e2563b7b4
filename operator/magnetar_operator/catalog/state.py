"""The desired and the observed state of a target, as fields in the form of the admin REST. Pure.

Fields have paths: `policies.retention`, `policies.backlogQuota.message_age` (for policies that are
set entry by entry), `properties.team`, `partitions`, `schema`, `adminRoles`, `actions`. Settings
that the manifest does not name are not managed and have no desired field. The value None unsets a
policy.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.policies.admission import replicates
from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import BY_MANIFEST, BY_NAME, at
from magnetar.policies.types import PolicyInvalid
from magnetar_operator.admin.target import Target
from magnetar_operator.catalog.references import BadSpec
from magnetar_operator.models.resources import (
    ONE_CLUSTER,
    NamespaceSpec,
    PermissionSpec,
    Placed,
    SubscriptionSpec,
    TenantSpec,
    TopicSchema,
    TopicSpec,
)
from magnetar_operator.models.values import all_to_rest

POLICIES: Final = "policies."
PROPERTIES: Final = "properties."
PARTITIONS: Final = "partitions"
SCHEMA: Final = "schema"
ADMIN_ROLES: Final = "adminRoles"
ALLOWED_CLUSTERS: Final = "allowedClusters"
ACTIONS: Final = "actions"
INACTIVE: Final = f"{POLICIES}inactiveTopicPolicies"
KEPT_WHILE_INACTIVE: Final = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}
"""Brokers delete unused topics, by default after a minute. The topics of resources must stay: the
operator would create them again, the broker would delete them again, and so on."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state of a target."""

    fields: Mapping[str, Any]
    at_birth: Mapping[str, Any]
    """Values that only the creation of the target sets: `bundles`, `initialPosition`."""
    schema: TopicSchema | None = None
    """The whole schema; the field `schema` has only its digest."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Fields that every such resource sets unless its manifest or someone else does."""


def desired_of(spec: Placed) -> Desired:
    """The desired state that a spec describes. Raises BadSpec, which names the field."""
    try:
        match spec:
            case TenantSpec():
                return _tenant(spec)
            case NamespaceSpec():
                fields = _policies(Level.NAMESPACE, spec.policies) | _properties(spec.properties)
                return Desired(fields, {"bundles": spec.bundles})
            case TopicSpec():
                return _topic(spec)
            case SubscriptionSpec():
                at_birth = {"initialPosition": spec.initial_position}
                return Desired(_properties(spec.properties), at_birth)
            case PermissionSpec():
                # To use a subscription is all that a permission on it permits.
                actions = {} if spec.subscription else {ACTIONS: sorted(set(spec.actions))}
                return Desired(actions, {})
    except PolicyInvalid as error:
        raise BadSpec(str(error)) from error
    raise BadSpec(f"{type(spec).__name__} is not a spec of the catalog")


def _tenant(spec: TenantSpec) -> Desired:
    fields: dict[str, Any] = {}
    if spec.admin_roles:
        fields[ADMIN_ROLES] = sorted(set(spec.admin_roles))
    if spec.allowed_clusters:
        fields[ALLOWED_CLUSTERS] = sorted(set(spec.allowed_clusters))
    return Desired(fields, {})


def _topic(spec: TopicSpec) -> Desired:
    fields: dict[str, Any] = {PARTITIONS: spec.partitions}
    fields |= _properties(spec.properties) | _policies(Level.TOPIC, spec.policies)
    if spec.schema is not None:
        fields[SCHEMA] = schema_digest(spec.schema.type, spec.schema.schema, spec.schema.properties)
    implied = {}
    stored = spec.persistent is not False and not (spec.name or "").startswith("non-persistent:")
    if stored and INACTIVE not in fields:
        implied[INACTIVE] = KEPT_WHILE_INACTIVE
    return Desired(fields, {}, spec.schema, implied)


def _properties(given: Mapping[str, str]) -> dict[str, Any]:
    return {f"{PROPERTIES}{key}": given[key] for key in sorted(given)}


def _policies(level: Level, given: Mapping[str, object]) -> dict[str, Any]:
    asked = all_to_rest(level, given)
    fields: dict[str, Any] = {}
    for name in given:
        policy = BY_MANIFEST[name]
        fields |= policy_fields(policy, asked[policy.name], level)
    return fields


def policy_fields(policy: Policy, value: Any, level: Level) -> dict[str, Any]:
    """The fields of a policy: a single field, or a field per entry."""
    if policy.keyed:
        entries = normal(policy, value, level) or {}
        return {f"{POLICIES}{policy.manifest}.{key}": entries[key] for key in sorted(entries)}
    return {f"{POLICIES}{policy.manifest}": normal(policy, value, level)}


def normal(policy: Policy, value: Any, level: Level) -> Any:
    """The value for comparisons: the undefined value is None, and lists are sorted."""
    if value is None or value == policy.undefined_at(level):
        return None
    try:
        checked: Any = policy.type.check(value)
    except PolicyInvalid:
        return value  # of another version: it differs from every valid value
    return sorted(checked) if isinstance(checked, list) else checked


def unsupported(desired: Desired, cluster: str = "") -> list[str]:
    """The texts of unsupported requests. `cluster`: the local cluster's name, if known."""
    texts = []
    for name, value in desired.fields.items():
        if name == ALLOWED_CLUSTERS and replicates(value, cluster):
            texts.append(f"spec.{name}: {ONE_CLUSTER}")
        elif (entry := policy_of(name)) is not None and (
            reason := entry[0].unsupported(value, cluster)
        ):
            texts.append(f"spec.{name}: {reason}")
    return texts


def policy_of(field: str) -> tuple[Policy, str] | None:
    """The policy of a field, and its entry if it has entries; None for other fields."""
    if not field.startswith(POLICIES):
        return None
    name, _, key = field.removeprefix(POLICIES).partition(".")
    policy = BY_MANIFEST.get(name)
    return None if policy is None else (policy, key)


def schema_digest(type_: str, definition: str, properties: Mapping[str, str]) -> str:
    """A digest that is equal for equal schemas. A definition may be too large for a status."""
    content = "\0".join((type_, definition, *(f"{k}={properties[k]}" for k in sorted(properties))))
    return hashlib.sha256(content.encode()).hexdigest()


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
            fields |= policy_fields(policy, value, Level.NAMESPACE)
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
            fields |= policy_fields(policy, value, Level.TOPIC)
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
