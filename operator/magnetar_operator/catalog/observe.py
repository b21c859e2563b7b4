"""Observes a target in a cluster: its existence, its settings and its figures.

Few requests are needed: the namespace's list (`admin.view`) shows whether a topic exists. A topic
costs a request for its stats, a request for all its policies if the manifest has or had any, and
one each for properties and schema if the manifest names them. If the cluster cannot return all
policies at once, each relevant policy is read alone.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from magnetar.policies.policy import Level
from magnetar.policies.registry import at
from magnetar_operator.admin.client import NotFound, Refused
from magnetar_operator.admin.target import (
    ADMIN,
    NAMESPACE,
    PERMISSION,
    TENANT,
    TOPIC,
    Target,
    target_token,
)
from magnetar_operator.admin.view import ClusterView
from magnetar_operator.catalog import state
from magnetar_operator.catalog.plan import remembered
from magnetar_operator.catalog.references import NotYet
from magnetar_operator.catalog.state import PROPERTIES, SCHEMA, Desired, Observed, policy_of

_STATS_QUERY: Final = {
    "excludePublishers": "false",
    "excludeConsumers": "true",
    "getPreciseBacklog": "true",
    "subscriptionBacklogSize": "true",
}
_METHOD_NOT_ALLOWED: Final = 405


async def observe(
    view: ClusterView, target: Target, desired: Desired, applied: Mapping[str, Any] | None
) -> Observed | None:
    """Reads the target; None if it does not exist. Raises NotYet if its parent does not."""
    if target.kind == TENANT:
        return await _tenant(view, target)
    await require_above(view, target)
    if target.kind == PERMISSION:
        return await _permission(view, target)
    fields = {*desired.fields, *desired.implied, *remembered(applied)}
    if target.kind == NAMESPACE:
        return await _namespace(view, target)
    if target.kind == TOPIC:
        return await _topic(view, target, desired, fields)
    return await _subscription(view, target, fields)


async def require_above(view: ClusterView, target: Target) -> None:
    """Raises NotYet, whose text says what to do, if the target's parent does not exist."""
    above = target.above
    if above is None or await view.exists(above):
        return
    if above.kind == TOPIC:
        await require_above(view, above)
    raise NotYet(
        f"WaitingFor{above.kind}",
        f"there is no {above} in the cluster: create it, or apply a {above.kind} resource for it",
        target_token(view.client.url, above),
    )


async def _tenant(view: ClusterView, target: Target) -> Observed | None:
    if not await view.exists(target):
        return None
    document = await view.client.find(target.path)
    if document is None:
        view.deleted(target)
        return None
    return state.tenant(document, len(await view.namespaces(target.name) or ()))


async def _namespace(view: ClusterView, target: Target) -> Observed | None:
    if not await view.exists(target):
        return None
    document = await view.client.find(target.path)
    if document is None:
        view.deleted(target)
        return None
    topics = sum(
        [
            len(await view.topics(target.name, domain) or ())
            for domain in ("persistent", "non-persistent")
        ]
    )
    clusters = await view.clusters()
    own = next(iter(clusters)) if len(clusters) == 1 else ""
    return state.namespace(document, topics, own)


async def _permission(view: ClusterView, target: Target) -> Observed | None:
    """Reads the grants of one role, each on its own level: a topic's list has its namespace's."""
    document = await view.client.find(f"{ADMIN}/namespaces/{target.namespace}")
    if document is None:
        view.forget(Target(NAMESPACE, target.namespace))
        return None
    return state.permission(document, target)


async def subscription_roles(view: ClusterView, target: Target) -> Mapping[str, list[str]]:
    """The roles of the subscriptions of a namespace, by subscription."""
    return dict(await view.client.get(target.permissions_path.rpartition("/")[0]) or {})


async def _topic(
    view: ClusterView, target: Target, desired: Desired, fields: set[str]
) -> Observed | None:
    if not await view.exists(target):
        return None
    try:
        stats, partitions, metadata = await topic_stats(view, target)
        policies, properties = await asyncio.gather(
            topic_policies(view, target, fields),
            _topic_properties(view, target, fields, metadata if partitions else None),
        )
    except NotFound:
        # The list was outdated: the topic has just been deleted.
        view.forget(target)
        if not await view.exists(target):
            return None
        raise
    values = state.topic_fields(partitions, properties, policies)
    version = None
    if SCHEMA in desired.fields:
        version = await _schema_version(view, target, desired)
        if version is not None:
            values[SCHEMA] = desired.fields[SCHEMA]
    return Observed(values, state.topic_facts(partitions, stats), version)


async def topic_stats(
    view: ClusterView, target: Target
) -> tuple[Mapping[str, Any], int, Mapping[str, Any]]:
    """The stats of a topic, its number of partitions, and its record if it is partitioned."""
    if not await view.is_partitioned(target.topic):
        return await view.client.get(f"{target.path}/stats", **_STATS_QUERY), 0, {}
    stats = await view.client.get(f"{target.path}/partitioned-stats", **_STATS_QUERY)
    metadata = stats.get("metadata") or {}
    return stats, int(metadata.get("partitions") or 0), metadata


async def topic_policies(
    view: ClusterView, target: Target, fields: Iterable[str]
) -> Mapping[str, Any]:
    """The policies of a topic by `Policy.name`, at least those of `fields`."""
    wanted = {entry[0].name for name in fields if (entry := policy_of(name)) is not None}
    if not wanted:
        return {}
    if view.has_all_policies is not False:
        try:
            document = await view.client.get(all_policies_path(target))
        except Refused as error:
            if view.has_all_policies or error.status not in (404, _METHOD_NOT_ALLOWED):
                raise
            view.has_all_policies = False
        else:
            view.has_all_policies = True
            return dict(document or {})
    policies = [policy for policy in at(Level.TOPIC) if policy.name in wanted and policy.topic]
    values = await asyncio.gather(
        *(
            view.client.get(f"{target.path}/{policy.topic.path}")
            for policy in policies
            if policy.topic
        )
    )
    return {policy.name: value for policy, value in zip(policies, values, strict=True)}


def all_policies_path(target: Target) -> str:
    """The path of our own route to all policies of the topic itself, by `Policy.name`."""
    name = target.topic
    return f"{ADMIN}/magnetar/{name.domain}/{name.namespace}/{name.encoded_local}/policies"


async def _topic_properties(
    view: ClusterView, target: Target, fields: set[str], metadata: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    if not any(name.startswith(PROPERTIES) for name in fields):
        return {}
    if metadata is not None and "properties" in metadata:
        return dict(metadata["properties"] or {})
    return dict(await view.client.get(f"{target.path}/properties") or {})


async def _schema_version(view: ClusterView, target: Target, desired: Desired) -> int | None:
    """The version of the schema in the cluster; None if it is not registered."""
    assert desired.schema is not None  # noqa: S101  the fields have SCHEMA
    try:
        answer = await view.client.call(
            "POST", f"{schema_path(target)}/version", schema_body(desired)
        )
    except NotFound:
        return None
    version = int((answer or {}).get("version", -1))
    return None if version < 0 else version


def schema_path(target: Target) -> str:
    """The path of a topic's schemas."""
    name = target.topic
    return f"{ADMIN}/schemas/{name.namespace}/{name.encoded_local}"


def schema_body(desired: Desired) -> dict[str, Any]:
    """The desired schema as a request's body."""
    schema = desired.schema
    assert schema is not None  # noqa: S101  the fields have SCHEMA
    return {
        "type": schema.type,
        "schema": schema.schema,
        "properties": dict(schema.properties),
    }


async def _subscription(view: ClusterView, target: Target, fields: set[str]) -> Observed | None:
    topic = Target(TOPIC, target.name)
    try:
        stats, _, _ = await topic_stats(view, topic)
    except NotFound:
        view.forget(topic)
        await require_above(view, target)
        raise
    subscription = (stats.get("subscriptions") or {}).get(target.subscription)
    if subscription is None:
        return None
    properties: Mapping[str, Any] = {}
    if any(name.startswith(PROPERTIES) for name in fields):
        properties = subscription.get("subscriptionProperties")
        if properties is None:
            path = f"{target.path}/properties"
            properties = dict(await view.client.find(path) or {})
    return Observed(state.properties(properties), state.subscription_facts(subscription))
