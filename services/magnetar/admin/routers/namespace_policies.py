"""`/admin/v2/namespaces/{tenant}/{namespace}/{policy}`: single policies.

What this broker acts on can be set: schema compatibility, automatic schema updates, properties.
Every other policy answers what holds, in Pulsar's form (mostly: not set), and cannot be set yet.
"""

from collections.abc import Callable
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer, bare, done, nothing, optional
from magnetar.admin.context import (
    existing_namespace,
    namespace_of,
    require_namespace,
    service_of,
    text_of,
)
from magnetar.admin.described import described
from magnetar.admin.paths import register_choice
from magnetar.admin.routes import Routes
from magnetar.broker.schema.registry import CompatibilityStrategy
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import NamespaceName

router = Routes(prefix="/admin/v2/namespaces", tags=("namespaces",))

_PATH: Final = "/{tenant:name}/{namespace:name}"

FROM_DOCUMENT: Final[dict[str, Callable[[dict[str, Any]], object]]] = {
    "allowedClusters": lambda policies: policies["allowed_clusters"],
    "backlogQuotaMap": lambda policies: policies["backlog_quota_map"],
    "dispatcherPauseOnAckStatePersistent": lambda _: False,
    "encryptionRequired": lambda policies: policies["encryption_required"],
    "isAllowAutoUpdateSchema": lambda policies: policies["is_allow_auto_update_schema"],
    "maxTopicsPerNamespace": lambda _: 0,
    "offloadThreshold": lambda policies: policies["offload_threshold"],
    "offloadThresholdInSeconds": lambda policies: policies["offload_threshold_in_seconds"],
    "permissions": lambda policies: policies["auth_policies"]["namespace_auth"],
    "replication": lambda policies: policies["replication_clusters"],
    "schemaCompatibilityStrategy": lambda policies: policies["schema_compatibility_strategy"],
    "schemaValidationEnforced": lambda policies: policies["schema_validation_enforced"],
    "subscriptionAuthMode": lambda policies: policies["subscription_auth_mode"],
    "subscriptionTypesEnabled": lambda policies: policies["subscription_types_enabled"],
}
WHERE_SET: Final[dict[str, str]] = {
    "antiAffinity": "antiAffinityGroup",
    "autoSubscriptionCreation": "autoSubscriptionCreationOverride",
    "autoTopicCreation": "autoTopicCreationOverride",
    "compactionThreshold": "compaction_threshold",
    "deduplication": "deduplicationEnabled",
    "deduplicationSnapshotInterval": "deduplicationSnapshotIntervalSeconds",
    "delayedDelivery": "delayed_delivery_policies",
    "dispatchRate": "dispatchRate",
    "entryFilters": "entryFilters",
    "inactiveTopicPolicies": "inactive_topic_policies",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxUnackedMessagesPerConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesPerSubscription": "max_unacked_messages_per_subscription",
    "messageTTL": "message_ttl_in_seconds",
    "offloadDeletionLagMs": "offload_deletion_lag_ms",
    "offloadPolicies": "offload_policies",
    "persistence": "persistence",
    "publishRate": "publishRate",
    "replicatorDispatchRate": "replicatorDispatchRates",
    "resourcegroup": "resource_group_name",
    "retention": "retention_policies",
    "subscribeRate": "subscribeRate",
    "subscriptionDispatchRate": "subscriptionDispatchRates",
    "subscriptionExpirationTime": "subscription_expiration_time_minutes",
}
"""Policies that are in the document only where they were set: else 200 without a body."""

_DEPRECATED: Final = "schemaAutoUpdateCompatibilityStrategy"
register_choice("namespace_policy", {*FROM_DOCUMENT, *WHERE_SET, _DEPRECATED})


@router.get(_PATH + "/properties", summary="A namespace's properties")
async def get_properties(request: Request) -> Response:
    return answer((await _policies(request)).get("properties") or {})


@router.put(
    _PATH + "/properties",
    summary="Add or replace properties",
    openapi_extra=described(body="Properties", example={"team": "payments"}),
)
async def put_properties(request: Request) -> Response:
    given = await bodies.parse(request, dict[str, str])
    await _change_properties(request, lambda properties: properties | (given or {}))
    return done()


@router.delete(_PATH + "/properties", summary="Remove all properties")
async def clear_properties(request: Request) -> Response:
    await _change_properties(request, lambda _: {})
    return done()


@router.put(_PATH + "/property/{key:name}/{value:name}", summary="Set a property")
async def put_property(request: Request) -> Response:
    key, value = text_of(request, "key"), text_of(request, "value")
    await _change_properties(request, lambda properties: properties | {key: value})
    return done()


@router.get(_PATH + "/property/{key:name}", summary="A property")
async def get_property(request: Request) -> Response:
    value = ((await _policies(request)).get("properties") or {}).get(text_of(request, "key"))
    return nothing() if value is None else bare(value)


@router.delete(_PATH + "/property/{key:name}", summary="Remove a property")
async def delete_property(request: Request) -> Response:
    response, key = await get_property(request), text_of(request, "key")
    await _change_properties(
        request, lambda properties: {k: v for k, v in properties.items() if k != key}
    )
    return response


@router.put(
    _PATH + "/schemaCompatibilityStrategy",
    summary="Set how new schemas must fit",
    openapi_extra=described(body="A strategy", example="BACKWARD"),
)
async def put_compatibility(request: Request) -> Response:
    given = await bodies.parse(request, str) or CompatibilityStrategy.UNDEFINED.value
    if given not in CompatibilityStrategy.__members__:
        raise PreconditionFailed(
            f"Schema compatibility strategy {given} is none of "
            f"{', '.join(CompatibilityStrategy.__members__)}"
        )
    await _change(request, "schema_compatibility_strategy", given)
    return done()


@router.delete(_PATH + "/schemaCompatibilityStrategy", summary="Go by the broker's setting again")
async def delete_compatibility(request: Request) -> Response:
    await _change(request, "schema_compatibility_strategy", CompatibilityStrategy.UNDEFINED.value)
    return done()


@router.post(
    _PATH + "/isAllowAutoUpdateSchema",
    summary="Whether clients may register schemas",
    openapi_extra=described(body="true or false", example=True),
)
async def post_auto_update(request: Request) -> Response:
    given = await bodies.parse(request, bool)
    if given is None:
        raise HTTPException(400, "The body must be true or false")
    await _change(request, "is_allow_auto_update_schema", given)
    return done()


@router.get(_PATH + "/permissions/subscription", summary="Permissions on subscriptions")
async def subscription_permissions(request: Request) -> Response:
    return answer((await _policies(request))["auth_policies"]["subscription_auth_roles"])


@router.get(_PATH + "/persistence/bookieAffinity", summary="Bookie affinity: none")
async def bookie_affinity(request: Request) -> Response:
    await existing_namespace(request)
    return nothing()


@router.get(_PATH + "/{policy:namespace_policy}", summary="A policy, as it holds")
async def get_policy(request: Request) -> Response:
    policy = text_of(request, "policy")
    if policy in FROM_DOCUMENT:
        return answer(FROM_DOCUMENT[policy](await _policies(request)))
    if policy == _DEPRECATED:
        await _existing(request)
        return done()
    return optional((await _policies(request)).get(WHERE_SET[policy]))


async def _policies(request: Request) -> dict[str, Any]:
    return await service_of(request).resources.policies(namespace_of(request))


async def _existing(request: Request) -> NamespaceName:
    namespace = namespace_of(request)
    await require_namespace(service_of(request), namespace, "Namespace does not exist")
    return namespace


async def _change(request: Request, policy: str, value: object) -> None:
    await service_of(request).resources.update_policies(
        await _existing(request), lambda policies: {**policies, policy: value}
    )


async def _change_properties(
    request: Request, change: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    await service_of(request).resources.update_policies(
        await _existing(request),
        lambda policies: {**policies, "properties": change(policies.get("properties") or {})},
    )
