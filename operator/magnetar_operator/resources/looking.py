"""Reads a target from a cluster: does it exist, what is set, how is it.

Few requests: whether it exists is in its namespace's list (`cluster_view`); a topic costs one for
its stats, one for all of its policies where the manifest has some (or had), and one each for
properties and schema where these are asked for. On a cluster that cannot give all policies at once
each that matters is asked for alone.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from magnetar.policies.policy import Level
from magnetar.policies.registry import at
from magnetar_operator.resources import observed as seen
from magnetar_operator.resources.admin_client import NotFound, Refused
from magnetar_operator.resources.cluster_view import ClusterView
from magnetar_operator.resources.desired import PROPERTIES, SCHEMA, Desired, policy_of
from magnetar_operator.resources.observed import Observed
from magnetar_operator.resources.plan import remembered
from magnetar_operator.resources.targets import (
    ADMIN,
    NAMESPACE,
    TENANT,
    TOPIC,
    NotYet,
    Target,
    target_token,
)

_STATS_QUERY: Final = {
    "excludePublishers": "false",
    "excludeConsumers": "true",
    "getPreciseBacklog": "true",
    "subscriptionBacklogSize": "true",
}
_METHOD_NOT_ALLOWED: Final = 405


async def look(
    view: ClusterView, target: Target, desired: Desired, applied: Mapping[str, Any] | None
) -> Observed | None:
    """None where it does not exist; raises NotYet where what it belongs in does not."""
    if target.kind == TENANT:
        return await _tenant(view, target)
    await require_above(view, target)
    fields = {*desired.fields, *desired.implied, *remembered(applied)}
    if target.kind == NAMESPACE:
        return await _namespace(view, target)
    if target.kind == TOPIC:
        return await _topic(view, target, desired, fields)
    return await _subscription(view, target, fields)


async def require_above(view: ClusterView, target: Target) -> None:
    """Raises NotYet, saying what to do."""
    above = target.above
    if above is None or await view.exists(above):
        return
    if above.kind == TOPIC:
        await require_above(view, above)
    raise NotYet(
        f"WaitingFor{above.kind}",
        f"there is no {above} in the cluster: make it, or apply a {above.kind} resource for it",
        target_token(view.client.url, above),
    )


async def _tenant(view: ClusterView, target: Target) -> Observed | None:
    if not await view.exists(target):
        return None
    document = await view.client.find(target.path)
    if document is None:
        view.gone(target)
        return None
    return seen.tenant(document, len(await view.namespaces(target.name) or ()))


async def _namespace(view: ClusterView, target: Target) -> Observed | None:
    if not await view.exists(target):
        return None
    document = await view.client.find(target.path)
    if document is None:
        view.gone(target)
        return None
    topics = sum(
        [
            len(await view.topics(target.name, domain) or ())
            for domain in ("persistent", "non-persistent")
        ]
    )
    clusters = await view.clusters()
    own = next(iter(clusters)) if len(clusters) == 1 else ""
    return seen.namespace(document, topics, own)


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
        # Its list was behind: it was deleted a moment ago.
        view.forget(target)
        if not await view.exists(target):
            return None
        raise
    found = seen.topic_fields(partitions, properties, policies)
    version = None
    if SCHEMA in desired.fields:
        version = await _schema_version(view, target, desired)
        if version is not None:
            found[SCHEMA] = desired.fields[SCHEMA]
    return Observed(found, seen.topic_facts(partitions, stats), version)


async def topic_stats(
    view: ClusterView, target: Target
) -> tuple[Mapping[str, Any], int, Mapping[str, Any]]:
    """Its stats, how many partitions it has, and its record where it has any."""
    if not await view.is_partitioned(target.topic):
        return await view.client.get(f"{target.path}/stats", **_STATS_QUERY), 0, {}
    stats = await view.client.get(f"{target.path}/partitioned-stats", **_STATS_QUERY)
    metadata = stats.get("metadata") or {}
    return stats, int(metadata.get("partitions") or 0), metadata


async def topic_policies(
    view: ClusterView, target: Target, fields: Iterable[str]
) -> Mapping[str, Any]:
    """By `Policy.name`, at least those of the fields; one request where the cluster can."""
    asked = {known[0].name for one in fields if (known := policy_of(one)) is not None}
    if not asked:
        return {}
    if view.has_all_policies is not False:
        try:
            found = await view.client.get(all_policies_path(target))
        except Refused as error:
            if view.has_all_policies or error.status not in (404, _METHOD_NOT_ALLOWED):
                raise
            view.has_all_policies = False
        else:
            view.has_all_policies = True
            return dict(found or {})
    each = [policy for policy in at(Level.TOPIC) if policy.name in asked and policy.topic]
    values = await asyncio.gather(
        *(view.client.get(f"{target.path}/{policy.topic.path}") for policy in each if policy.topic)
    )
    return {policy.name: value for policy, value in zip(each, values, strict=True)}


def all_policies_path(target: Target) -> str:
    """Of ours: all that is set for a topic itself, by `Policy.name`."""
    name = target.topic
    return f"{ADMIN}/magnetar/{name.domain}/{name.namespace}/{name.encoded_local}/policies"


async def _topic_properties(
    view: ClusterView, target: Target, fields: set[str], metadata: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    if not any(one.startswith(PROPERTIES) for one in fields):
        return {}
    if metadata is not None and "properties" in metadata:
        return dict(metadata["properties"] or {})
    return dict(await view.client.get(f"{target.path}/properties") or {})


async def _schema_version(view: ClusterView, target: Target, desired: Desired) -> int | None:
    """Under which version the cluster knows it; None where it does not."""
    assert desired.schema is not None  # noqa: S101  the field is there
    try:
        found = await view.client.call(
            "POST", f"{schema_path(target)}/version", schema_body(desired)
        )
    except NotFound:
        return None
    version = int((found or {}).get("version", -1))
    return None if version < 0 else version


def schema_path(target: Target) -> str:
    name = target.topic
    return f"{ADMIN}/schemas/{name.namespace}/{name.encoded_local}"


def schema_body(desired: Desired) -> dict[str, Any]:
    schema = desired.schema
    assert schema is not None  # noqa: S101  callers have a schema's field
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
    found = (stats.get("subscriptions") or {}).get(target.subscription)
    if found is None:
        return None
    properties: Mapping[str, Any] = {}
    if any(one.startswith(PROPERTIES) for one in fields):
        properties = found.get("subscriptionProperties")
        if properties is None:
            path = f"{target.path}/properties"
            properties = dict(await view.client.find(path) or {})
    return Observed(seen.properties(properties), seen.subscription_facts(found))
