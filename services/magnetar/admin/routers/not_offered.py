"""Routes of features that Magnetar does not offer: they say so, and what to use instead.

The answer to a read is Pulsar's for a feature that is not in use, so that tools which list
everything continue to work. A request that removes the feature, or switches it off, succeeds. Any
other request is refused with the reason: nothing is stored without an effect.
"""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import at_owner
from magnetar.admin.context import (
    has_subscription,
    loaded_topic,
    namespace_of,
    require_namespace,
    service_of,
    subscription_not_found,
    text_of,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done, empty
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.core.errors import Conflict, MetadataError, NotAllowed, NotFound, PreconditionFailed

router = Routes(prefix="/admin/v2", placement=at_owner)

_NAMESPACE: Final = "/namespaces/{tenant:name}/{namespace:name}"
_REPLICATED: Final = TOPIC_PATH + "/subscription/{subscription:name}/replicatedSubscriptionStatus"
_NO_SOURCE: Final = "Metadata store is not configured for migration"
_ALLOCATORS: Final = ("default", "ml-cache")


@router.get(_REPLICATED, summary="Whether a subscription is replicated: no", tags=("topics",))
async def get_replicated_subscription(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    subscription = text_of(request, "subscription")
    topic = await loaded_topic(service, name)
    if not has_subscription(topic, subscription):
        raise subscription_not_found(subscription, name)
    return answer({str(name): False})


@router.post(
    _REPLICATED,
    summary="Replicate a subscription: only false is accepted",
    tags=("topics",),
    openapi_extra=described(body="Whether to replicate it", example=False),
)
async def set_replicated_subscription(request: Request) -> Response:
    wanted = await bodies.parse(request, bool)
    await get_replicated_subscription(request)  # raises if the subscription does not exist
    if wanted:
        raise NotAllowed(
            "Replicated subscriptions are not supported: there is no geo-replication yet"
        )
    return done()


@router.put(
    TOPIC_PATH + "/shadowTopics",
    summary="Set shadow topics: refused",
    tags=("topics",),
    openapi_extra=described(body="Names of topics", example=["persistent://t/n/shadow"]),
)
async def set_shadow_topics(request: Request) -> Response:
    names = await bodies.parse(request, list[str])
    if not names:
        raise PreconditionFailed(
            "Cannot specify empty shadow topics, please use remove command instead."
        )
    raise NotAllowed(
        "Shadow topics are not supported: a topic's ledgers belong to one topic. For more readers, "
        "use more subscriptions or readers on the topic itself"
    )


@router.delete(
    TOPIC_PATH + "/shadowTopics", summary="Remove shadow topics: there are none", tags=("topics",)
)
async def remove_shadow_topics(request: Request) -> Response:
    await require_namespace(service_of(request), topic_of(request).namespace)
    return done()


@router.get(
    _NAMESPACE + "/allowedTopicPropertyKeysForMetrics",
    summary="Properties of topics that are labels of metrics: none",
    tags=("namespaces",),
)
async def get_metric_labels(request: Request) -> Response:
    await service_of(request).resources.policies(namespace_of(request))
    return empty()


@router.post(
    _NAMESPACE + "/allowedTopicPropertyKeysForMetrics",
    summary="Make properties of topics labels of metrics: refused",
    tags=("namespaces",),
    openapi_extra=described(body="Keys of properties", example=["team"]),
)
async def set_metric_labels(request: Request) -> Response:
    await service_of(request).resources.policies(namespace_of(request))
    if await bodies.parse(request, list[str]):
        raise NotAllowed(
            "Labels of metrics from properties of topics are not supported: join the metrics with "
            "the properties in Prometheus, by the label topic"
        )
    return done()


@router.delete(
    _NAMESPACE + "/allowedTopicPropertyKeysForMetrics",
    summary="Remove such labels: there are none",
    tags=("namespaces",),
)
async def remove_metric_labels(request: Request) -> Response:
    await service_of(request).resources.policies(namespace_of(request))
    return done()


@router.post(
    _NAMESPACE + "/migration",
    summary="Mark a namespace as migrated to another cluster: only false is accepted",
    tags=("namespaces",),
    openapi_extra=described(body="Whether it is migrated", example=False),
)
async def set_migration(request: Request) -> Response:
    await service_of(request).resources.policies(namespace_of(request))
    wanted = await bodies.parse(request, bool)
    if wanted is None:
        raise HTTPException(400, "The request entity cannot be empty.")
    if wanted:
        raise NotAllowed(no_migration("namespace"))
    return done()


@router.get(
    _NAMESPACE + "/scanOffloadedLedgers",
    summary="List the objects of offloaded ledgers: refused",
    tags=("namespaces",),
)
async def scan_offloaded(request: Request) -> Response:
    await service_of(request).resources.policies(namespace_of(request))
    raise NotAllowed(
        "The objects of a store are not listed over REST: internalStats shows a topic's offloaded "
        "ledgers"
    )


@router.get(
    "/clusters/{cluster:name}/migrate", summary="Whether a cluster is migrated", tags=("clusters",)
)
async def get_cluster_migration(_: Request) -> Response:
    # Pulsar answers so for every cluster that was never migrated.
    raise NotFound("Cluster does not exist")


@router.post(
    "/clusters/{cluster:name}/migrate",
    summary="Mark a cluster as migrated to another one: only false is accepted",
    tags=("clusters",),
    openapi_extra=described(
        query("migrated", "boolean", "Whether it is migrated"), body="URLs of the other cluster"
    ),
)
async def set_cluster_migration(request: Request) -> Response:
    await service_of(request).resources.cluster(text_of(request, "cluster"))
    if bodies.flag(request, "migrated"):
        raise NotAllowed(no_migration("cluster"))
    return empty()


def no_migration(thing: str) -> str:
    """The refusal of a namespace or cluster that is marked as migrated."""
    return (
        f"Migration of a {thing} to another cluster is not supported: there is no geo-replication "
        "yet"
    )


@router.get("/broker-stats/mbeans", summary="MBeans of the JVM: refused", tags=("brokers",))
async def mbeans(_: Request) -> Response:
    raise NotAllowed("A broker has no JVM, so no MBeans: /metrics has the figures of its process")


@router.get(
    "/broker-stats/allocator-stats/{allocator:name}",
    summary="Netty's allocators: refused",
    tags=("brokers",),
)
async def allocator_stats(request: Request) -> Response:
    allocator = text_of(request, "allocator")
    if allocator not in _ALLOCATORS:
        raise MetadataError(f"Invalid allocator name : {allocator}", http_status=406)
    raise NotAllowed(
        "A broker does not use Netty, so it has no allocator: /metrics has the memory of its "
        "process (process_resident_memory_bytes) and of its cache (pulsar_ml_cache_used_size)"
    )


@router.get(
    "/broker-stats/bookieops", summary="Pending operations on ledgers: refused", tags=("brokers",)
)
async def pending_operations(_: Request) -> Response:
    raise NotAllowed(
        "Pending operations are not counted by ledger: stats show a topic's pending publishes, "
        "/metrics the latencies of its writes"
    )


@router.get(
    "/broker-stats/broker-resource-availability/{tenant:name}/{namespace:name}",
    summary="Resources for a namespace, by broker: refused, as by Pulsar's load managers",
    tags=("brokers",),
)
async def resource_availability(_: Request) -> Response:
    raise Conflict("Magnetar's load balancer does not support this operation")


@router.get(
    "/metadata/migration/status",
    summary="Migration to another metadata store: none",
    tags=("brokers",),
)
async def metadata_migration(_: Request) -> Response:
    return answer({"phase": "NOT_STARTED"})


@router.post(
    "/metadata/migration/start",
    summary="Migrate to another metadata store: refused",
    tags=("brokers",),
    openapi_extra=described(query("target", "string", "URL of the other store")),
)
async def start_metadata_migration(request: Request) -> Response:
    if not request.query_params.get("target"):
        raise MetadataError("Target URL is required", http_status=400)
    raise MetadataError(
        f"{_NO_SOURCE}: the stores are RocksDB and etcd, and etcd's own tools move a cluster's "
        "data",
        http_status=400,
    )
