"""`/admin/v2/clusters`: the clusters that are known here. Pulsar answers changes with 200."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer, done, nothing
from magnetar.admin.context import checked_name, service_of, text_of
from magnetar.admin.described import described
from magnetar.admin.documents import CLUSTER_URLS, cluster_document
from magnetar.admin.routes import Routes
from magnetar.core.errors import MetadataError, NotAllowed, NotFound

router = Routes(prefix="/admin/v2/clusters", tags=("clusters",))

_BODY = described(
    body="ClusterData",
    example={"serviceUrl": "http://host:8080", "brokerServiceUrl": "pulsar://host:6650"},
)


@router.get("", summary="List the clusters")
async def list_clusters(request: Request) -> Response:
    return answer(await service_of(request).resources.clusters())


@router.get("/{cluster:name}", summary="A cluster's URLs")
async def get_cluster(request: Request) -> Response:
    data = await service_of(request).resources.cluster(text_of(request, "cluster"))
    return answer(cluster_document(data))


@router.put("/{cluster:name}", summary="Create a cluster", openapi_extra=_BODY)
async def create_cluster(request: Request) -> Response:
    cluster = checked_name(text_of(request, "cluster"), "Cluster")
    await service_of(request).resources.create_cluster(cluster, await _cluster_data(request))
    return nothing()


@router.post("/{cluster:name}", summary="Change a cluster's URLs", openapi_extra=_BODY)
async def update_cluster(request: Request) -> Response:
    data = await _cluster_data(request)
    await service_of(request).resources.update_cluster(text_of(request, "cluster"), data)
    return nothing()


@router.delete("/{cluster:name}", summary="Delete a cluster")
async def delete_cluster(request: Request) -> Response:
    await service_of(request).resources.delete_cluster(text_of(request, "cluster"))
    return done()


@router.get("/{cluster:name}/failureDomains", summary="Failure domains: none")
async def failure_domains(request: Request) -> Response:
    await _existing(request)
    return answer({})


@router.get("/{cluster:name}/namespaceIsolationPolicies", summary="Isolation policies: none")
async def isolation_policies(request: Request) -> Response:
    cluster = await _existing(request)
    raise NotFound(f"NamespaceIsolationPolicies for cluster {cluster} does not exist")


@router.get("/{cluster:name}/peers", summary="Peer clusters")
async def peers(request: Request) -> Response:
    data = await service_of(request).resources.cluster(text_of(request, "cluster"))
    names = data.get("peerClusterNames")
    return answer(names) if names else nothing()


async def _existing(request: Request) -> str:
    cluster = text_of(request, "cluster")
    if cluster not in await service_of(request).resources.clusters():
        raise NotFound(f"Cluster {cluster} does not exist.")
    return cluster


async def _cluster_data(request: Request) -> dict[str, Any]:
    body = await bodies.parse(request, dict[str, Any])
    if body is None:
        raise MetadataError("cluster data is required", http_status=400)
    if body.get("peerClusterNames"):
        raise NotAllowed(
            "peerClusterNames is not supported: brokers do not redirect to other clusters; leave "
            "it out"
        )
    data = cluster_document(body)
    for field, (schemes, text) in CLUSTER_URLS.items():
        url = data.get(field)
        if url and not (isinstance(url, str) and url.startswith(schemes)):
            raise MetadataError(text, http_status=400)
    return data
