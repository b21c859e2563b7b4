"""Which value of a policy holds: topic over namespace over broker over the registry's default.

Pure. Values are those of REST; what the namespace's document keeps by cluster is this cluster's.
Of a policy that is set entry by entry (backlog quotas, by their type) each entry goes its own way
up. A topic's own value for this cluster is before the one for all clusters.
"""

from typing import Any

from magnetar.broker.policies.store import TopicPolicies
from magnetar.broker.resources import Document
from magnetar.policies.policy import Policy


def of_namespace(policy: Policy, document: Document, cluster: str) -> Any:
    """What the namespace itself says; None where it does not."""
    if not policy.document:
        return None
    value = document.get(policy.document)
    if policy.by_cluster and value is not None:
        value = value.get(cluster) if isinstance(value, dict) else value
    return None if value == policy.undefined else value


def of_topic(policy: Policy, own: TopicPolicies) -> Any:
    """What the topic itself says; None where it does not."""
    local = own.get(policy.name)
    replicated = own.get(policy.name, is_global=True)
    if policy.keyed:
        return {**(replicated or {}), **(local or {})} or None
    value = replicated if local is None else local
    return None if value == policy.undefined else value


def applied(policy: Policy, above: Any, own: Any) -> Any:
    """The value that holds where `own` is set at a level, and `above` holds above it."""
    if own is None:
        return above
    return {**(above or {}), **own} if policy.keyed else own
