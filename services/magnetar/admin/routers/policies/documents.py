"""A namespace's document: how policies are read from it, written to it, shown and checked.

The stored document is the answer to `GET /admin/v2/namespaces/{tenant}/{namespace}`, with three
exceptions (`shown_document`). Pure: no IO.
"""

import copy
from typing import Any, Final

from magnetar.admin.routers.policies import offload_form
from magnetar.admin.routers.policies.forms import checked, coerced, shown
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.resources import Document
from magnetar.policies.admission import ANTI_AFFINITY, BOOKIE_AFFINITY, SCHEMA_AUTO_UPDATE
from magnetar.policies.lifecycle import BACKLOG_QUOTA, OFFLOAD
from magnetar.policies.policy import Level, Policy
from magnetar.policies.registry import at

LOCAL: Final = (ANTI_AFFINITY.document, BOOKIE_AFFINITY.document)
"""Policies that Pulsar stores in another document, which it does not show."""


def value_in(document: Document, policy: Policy, cluster: str) -> Any:
    """Returns the policy's value in the document, with default entries; None if it is not set."""
    value = document.get(policy.document)
    if policy.by_cluster:
        return (value or {}).get(cluster)
    return value


def with_value(
    document: Document, policy: Policy, value: object, cluster: str, key: str
) -> Document:
    """Returns the document with the policy, or its entry `key`, set; a value of None removes it."""
    field = policy.document
    part = cluster if policy.by_cluster else key
    if part:
        entries = {**(document.get(field) or {}), part: value}
        if value is None:
            del entries[part]
        return {**document, field: entries}
    if value is not None:
        return {**document, field: value}
    defaults = default_policies(cluster)
    changed = {**document, field: copy.deepcopy(defaults.get(field))}
    if field not in defaults:
        del changed[field]
    return changed


def shown_document(document: Document, *, auto_update: bool) -> Document:
    """Returns the document as Pulsar shows it.

    `auto_update` is the broker's default, which is shown if the namespace does not set it.
    """
    shown_fields = {key: value for key, value in document.items() if key not in LOCAL}
    shown_fields.setdefault(SCHEMA_AUTO_UPDATE.document, auto_update)
    for policy in (BACKLOG_QUOTA, OFFLOAD):
        if shown_fields.get(policy.document):
            shown_fields[policy.document] = shown(policy, shown_fields[policy.document])
    return shown_fields


def checked_document(given: Document) -> Document:
    """Returns the document of a new namespace with checked policies; other fields are unchanged."""
    document = dict(given)
    for policy in at(Level.NAMESPACE):
        value = given.get(policy.document) if policy.document else None
        if value is None or value in ({}, []):
            continue
        if policy.by_cluster and isinstance(value, dict):
            document[policy.document] = {
                name: checked(policy, policy.type, coerced(policy.type, entry), policy.document)
                for name, entry in value.items()
                if entry is not None
            }
            continue
        if policy is OFFLOAD:
            value = offload_form.stored(value)
        value = coerced(policy.type, value)
        document[policy.document] = checked(policy, policy.type, value, policy.document)
    return document


def document_fields() -> frozenset[str]:
    """Returns the names of the document's fields that are policies."""
    return frozenset(policy.document for policy in at(Level.NAMESPACE) if policy.document)
