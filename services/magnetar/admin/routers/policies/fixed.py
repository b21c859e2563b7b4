"""Routes beside the policies of the registry: properties, and answers that never change.

Magnetar lacks shadow topics. Their routes answer as if nothing was set.
"""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import (
    namespace_of,
    require_namespace,
    service_of,
    text_of,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, bare, done, empty, optional
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.paths import TOPIC_PATH, register_choice
from magnetar.admin.http.routes import Routes
from magnetar.broker.catalog.resources import Document
from magnetar.core.errors import (
    AuthorizationError,
    MetadataError,
    NotAllowed,
    PreconditionFailed,
)
from magnetar.core.names import NamespaceName

router = Routes(prefix="/admin/v2")

_PATH: Final = "/namespaces/{tenant:name}/{namespace:name}"
OLD_STRATEGY: Final = "schema_auto_update_compatibility_strategy"
_OLD_STRATEGIES: Final = (
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
)

OF_NAMESPACES: Final[dict[str, Callable[[Document], object]]] = {
    "allowedClusters": lambda document: document["allowed_clusters"],
}
OF_TOPICS: Final[dict[str, object]] = {
    "shadowTopics": None,
}
register_choice("fixed_of_namespaces", OF_NAMESPACES)
register_choice("fixed_of_topics", OF_TOPICS)


@router.get(
    _PATH + "/{policy:fixed_of_namespaces}",
    summary="Policies without effect: never set",
    tags=("namespaces",),
)
async def get_of_namespace(request: Request) -> Response:
    document = await service_of(request).resources.policies(namespace_of(request))
    return optional(OF_NAMESPACES[text_of(request, "policy")](document))


@router.get(
    TOPIC_PATH + "/{policy:fixed_of_topics}",
    summary="Policies without effect: never set",
    tags=("topics",),
)
async def get_of_topic(request: Request) -> Response:
    await require_namespace(service_of(request), topic_of(request).namespace)
    return optional(OF_TOPICS[text_of(request, "policy")])


@router.post(
    _PATH + "/allowedClusters",
    summary="Set the clusters that may have the namespace's topics",
    tags=("namespaces",),
    openapi_extra=described(body="Names of clusters", example=["standalone"]),
)
async def set_allowed_clusters(request: Request) -> Response:
    """The local cluster must be among them: a namespace that no broker serves is of no use."""
    service, namespace = service_of(request), namespace_of(request)
    document = await service.resources.policies(namespace)
    clusters = await bodies.parse(request, list[str]) or []
    tenant = await service.resources.tenant(namespace.tenant)
    check_allowed(clusters, document["replication_clusters"], namespace, tenant, service.cluster)

    def change(policies: Document) -> Document:
        return {**policies, "allowed_clusters": clusters}

    await service.resources.update_policies(namespace, change)
    return empty()


def check_allowed(
    clusters: list[str],
    replicating: list[str],
    namespace: NamespaceName,
    tenant: Document,
    local: str,
) -> None:
    """Raises if the namespace may not have these clusters: only the local one can be allowed."""
    for cluster in clusters:
        if cluster not in (tenant.get("allowedClusters") or []):
            raise AuthorizationError(
                f"Cluster [{cluster}] is not in the list of allowed clusters list for "
                f"tenant [{namespace.tenant}]"
            )
    for cluster in replicating:
        if cluster not in clusters:
            raise MetadataError(
                f"Allowed clusters do not contain the replication cluster [{cluster}]. Please "
                "remove the replication cluster if the cluster is not allowed for this namespace",
                http_status=400,
            )
    if any(cluster != local for cluster in clusters):
        raise NotAllowed(
            "allowedClusters is not supported beyond the local cluster: there is no "
            "geo-replication yet; name the local cluster only"
        )


@router.get(
    _PATH + "/schemaAutoUpdateCompatibilityStrategy",
    summary="Superseded by schemaCompatibilityStrategy",
    tags=("namespaces",),
)
async def get_old_strategy(request: Request) -> Response:
    document = await service_of(request).resources.policies(namespace_of(request))
    value = document.get(OLD_STRATEGY)
    return done() if value is None else answer(value)


@router.put(
    _PATH + "/schemaAutoUpdateCompatibilityStrategy",
    summary="Superseded by schemaCompatibilityStrategy: only null is accepted",
    tags=("namespaces",),
    openapi_extra=described(body="A strategy", example="Backward"),
)
async def put_old_strategy(request: Request) -> Response:
    check_old_strategy(await bodies.parse(request, str))

    def change(document: Document) -> Document:
        return {key: value for key, value in document.items() if key != OLD_STRATEGY}

    await service_of(request).resources.update_policies(namespace_of(request), change)
    return done()


def check_old_strategy(strategy: object) -> None:
    """Raises if there is one: brokers do not apply it."""
    if strategy is not None and strategy not in _OLD_STRATEGIES:
        raise PreconditionFailed(
            f"schemaAutoUpdateCompatibilityStrategy must be one of {', '.join(_OLD_STRATEGIES)}: "
            f"{strategy!r}"
        )
    if strategy is not None:
        raise NotAllowed(
            "schemaAutoUpdateCompatibilityStrategy is not supported: brokers check schemas by "
            "schemaCompatibilityStrategy; set that instead"
        )


@router.get(_PATH + "/properties", summary="A namespace's properties", tags=("namespaces",))
async def get_properties(request: Request) -> Response:
    return answer(await _properties(request))


@router.put(
    _PATH + "/properties",
    summary="Add or replace properties",
    tags=("namespaces",),
    openapi_extra=described(body="Properties", example={"team": "payments"}),
)
async def put_properties(request: Request) -> Response:
    added = await bodies.parse(request, dict[str, str]) or {}
    return await _change(request, lambda properties: properties | added)


@router.delete(_PATH + "/properties", summary="Remove all properties", tags=("namespaces",))
async def clear_properties(request: Request) -> Response:
    return await _change(request, lambda _: {})


@router.put(
    _PATH + "/property/{key:name}/{value:name}", summary="Set a property", tags=("namespaces",)
)
async def put_property(request: Request) -> Response:
    key, value = text_of(request, "key"), text_of(request, "value")
    return await _change(request, lambda properties: properties | {key: value})


@router.get(_PATH + "/property/{key:name}", summary="A property", tags=("namespaces",))
async def get_property(request: Request) -> Response:
    value = (await _properties(request)).get(text_of(request, "key"))
    return empty() if value is None else bare(value)


@router.delete(_PATH + "/property/{key:name}", summary="Remove a property", tags=("namespaces",))
async def delete_property(request: Request) -> Response:
    response, key = await get_property(request), text_of(request, "key")
    await _change(request, lambda properties: {k: v for k, v in properties.items() if k != key})
    return response


async def _properties(request: Request) -> dict[str, str]:
    document: Document = await service_of(request).resources.policies(namespace_of(request))
    return document.get("properties") or {}


async def _change(request: Request, change: Callable[[dict[str, str]], dict[str, str]]) -> Response:
    await service_of(request).resources.update_policies(
        namespace_of(request),
        lambda policies: {**policies, "properties": change(policies.get("properties") or {})},
    )
    return done()
