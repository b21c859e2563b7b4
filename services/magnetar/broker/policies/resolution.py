"""Resolves the value of a policy: topic over namespace over broker over the registry's default.

Pure. Values are REST's. If the namespace's document keeps a value per cluster, this cluster's
counts. A policy that is set entry by entry (backlog quotas, by type) is resolved per entry. A
topic's own value for this cluster precedes its value for all clusters.
"""

from typing import Any

from magnetar.broker.catalog.resources import Document
from magnetar.broker.policies.store import TopicPolicies
from magnetar.policies.policy import Level, Policy


def of_namespace(policy: Policy, document: Document, cluster: str) -> Any:
    """Returns the namespace's own value, None if it has none."""
    if not policy.document:
        return None
    value = document.get(policy.document)
    if policy.by_cluster and value is not None:
        value = value.get(cluster) if isinstance(value, dict) else value
    return None if value == policy.undefined_at(Level.NAMESPACE) else value


def of_topic(policy: Policy, own: TopicPolicies) -> Any:
    """Returns the topic's own value, None if it has none."""
    local = own.get(policy.name)
    replicated = own.get(policy.name, is_global=True)
    if policy.keyed:
        return {**(replicated or {}), **(local or {})} or None
    value = replicated if local is None else local
    return None if value == policy.undefined_at(Level.TOPIC) else value


def applied(policy: Policy, above: Any, own: Any) -> Any:
    """Returns the value at a level that sets `own`, if `above` applies at the next level up."""
    if own is None:
        return above
    return {**(above or {}), **own} if policy.keyed else own
