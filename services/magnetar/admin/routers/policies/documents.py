"""A namespace's document: where each policy stands in it, and how it is shown and taken.

What is stored is what `GET /admin/v2/namespaces/{tenant}/{namespace}` answers, with three
exceptions (`shown_document`). All of it is pure.
"""

import copy
from typing import Any, Final

from magnetar.admin.routers.policies import offload_form
from magnetar.admin.routers.policies.forms import checked, coerced, shown
from magnetar.broker.namespace_policies import default_policies
from magnetar.broker.resources import Document
from magnetar.policies.admission import ANTI_AFFINITY, BOOKIE_AFFINITY, SCHEMA_AUTO_UPDATE
from magnetar.policies.lifecycle import BACKLOG_QUOTA, OFFLOAD
from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import at
from magnetar.policies.types import MapOf

LOCAL: Final = (ANTI_AFFINITY.document, BOOKIE_AFFINITY.document)
"""Pulsar keeps these in another document, which it does not show."""


def value_in(document: Document, policy: Policy, cluster: str) -> Any:
    """What the document says of the policy, its default entries included; None: nothing."""
    value = document.get(policy.document)
    if policy.by_cluster:
        return (value or {}).get(cluster)
    return value


def with_value(document: Document, policy: Policy, value: Any, cluster: str, key: str) -> Document:
    """The document with the policy set; None removes it. `key` is that of an entry."""
    field = policy.document
    part = cluster if policy.by_cluster else key
    if part:
        entries = {**(document.get(field) or {}), part: value}
        if value is None:
            del entries[part]
        return {**document, field: entries}
    if value is not None:
        return {**document, field: value}
    fresh = default_policies(cluster)
    changed = {**document, field: copy.deepcopy(fresh.get(field))}
    if field not in fresh:
        del changed[field]
    return changed


def shown_document(document: Document, *, auto_update: bool) -> Document:
    """As Pulsar shows it; `auto_update` is the broker's, which shows where nobody said anything."""
    found = {key: value for key, value in document.items() if key not in LOCAL}
    found.setdefault(SCHEMA_AUTO_UPDATE.document, auto_update)
    for policy in (BACKLOG_QUOTA, OFFLOAD):
        if found.get(policy.document):
            found[policy.document] = shown(policy, found[policy.document])
    return found


def checked_document(given: Document) -> Document:
    """What a new namespace is given, each policy checked; what is no policy is left as it is."""
    taken = dict(given)
    for policy in at(Level.NAMESPACE):
        value = given.get(policy.document) if policy.document else None
        if value is None or value in ({}, []):
            continue
        if policy.by_cluster and isinstance(value, dict):
            taken[policy.document] = {
                name: checked(policy, policy.type, coerced(policy.type, one), policy.document)
                for name, one in value.items()
                if one is not None
            }
            continue
        kind = policy.type
        if policy is OFFLOAD:
            value = offload_form.taken(value)
        if isinstance(kind, MapOf) and isinstance(value, dict):
            value = {name: one for name, one in value.items() if one is not None}
        taken[policy.document] = checked(policy, kind, coerced(kind, value), policy.document)
    return taken


def document_fields() -> frozenset[str]:
    """The fields of policies in the document."""
    return frozenset(policy.document for policy in at(Level.NAMESPACE) if policy.document)
