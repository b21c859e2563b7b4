"""`/admin/v2/clusters`: the registered clusters. As in Pulsar, changes are answered with 200."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import checked_name, service_of, text_of
from magnetar.admin.http import bodies, unknown_fields
from magnetar.admin.http.answers import answer, done, empty
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.routes import Routes
from magnetar.admin.routers.not_offered import no_migration
from magnetar.core.errors import MetadataError, NotAllowed, PreconditionFailed
from magnetar.security.secret import MASK

router = Routes(prefix="/admin/v2/clusters", tags=("clusters",))

_BODY = described(
    body="ClusterData",
    example={"serviceUrl": "http://host:8080", "brokerServiceUrl": "pulsar://host:6650"},
)


_DEFAULTS: Final[dict[str, object]] = {
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}
"""The fields that Pulsar's answer for a cluster has beside those that were set."""

_FIELDS: Final = frozenset(
    {
        "serviceUrl",
        "serviceUrlTls",
        "brokerServiceUrl",
        "brokerServiceUrlTls",
        "proxyServiceUrl",
        "proxyProtocol",
        "peerClusterNames",
        "authenticationPlugin",
        "authenticationParameters",
        "listenerName",
        "brokerClientTrustCertsFilePath",
        "brokerClientKeyFilePath",
        "brokerClientCertificateFilePath",
        "brokerClientTlsKeyStoreType",
        "brokerClientTlsTrustStoreType",
        "brokerClientSslFactoryPlugin",
        "brokerClientSslFactoryPluginParams",
        "brokerClientTlsKeyStore",
        "brokerClientTlsKeyStorePassword",
        "brokerClientTlsTrustStore",
        "brokerClientTlsTrustStorePassword",
        *_DEFAULTS,
    }
)

_URLS: Final = {
    "serviceUrl": (
        ("http://",),
        "Illegal service url, example: http://pulsar.example.com:8080",
    ),
    "serviceUrlTls": (
        ("https://",),
        "Illegal service tls url, example: https://pulsar.example.com:8443",
    ),
    "brokerServiceUrl": (
        ("pulsar://",),
        "Illegal broker service url, example: pulsar://pulsar.example.com:6650",
    ),
    "brokerServiceUrlTls": (
        ("pulsar+ssl://",),
        "Illegal broker service tls url, example: pulsar+ssl://pulsar.example.com:6651",
    ),
    "proxyServiceUrl": (
        ("pulsar://", "pulsar+ssl://"),
        (
            "Illegal proxy service url, example: pulsar+ssl://ats-proxy.example.com:4443 or "
            "pulsar://ats-proxy.example.com:4080"
        ),
    ),
}
"""The valid schemes of each address of a cluster, and Pulsar's text for any other."""


_NO_PEERS: Final = (
    "peerClusterNames is not supported: there is no geo-replication yet; leave it out"
)

SECRET_FIELDS: Final = (
    "authenticationParameters",
    "brokerClientSslFactoryPluginParams",
    "brokerClientTlsKeyStorePassword",
    "brokerClientTlsTrustStorePassword",
)
"""Fields that no answer shows. An update that sends the mask back keeps the stored value."""


@router.get("", summary="List the clusters")
async def list_clusters(request: Request) -> Response:
    return answer(await service_of(request).resources.clusters())


@router.get("/{cluster:name}", summary="A cluster's URLs")
async def get_cluster(request: Request) -> Response:
    data = await service_of(request).resources.cluster(text_of(request, "cluster"))
    return answer(masked(_cluster_document(data)))


@router.put("/{cluster:name}", summary="Create a cluster", openapi_extra=_BODY)
async def create_cluster(request: Request) -> Response:
    cluster = checked_name(text_of(request, "cluster"), "Cluster")
    data = await _cluster_data(request)
    for field in SECRET_FIELDS:
        if data.get(field) == MASK:
            raise MetadataError(f"{field} is masked: send its value", http_status=400)
    await service_of(request).resources.create_cluster(cluster, data)
    return empty()


@router.post("/{cluster:name}", summary="Change a cluster's URLs", openapi_extra=_BODY)
async def update_cluster(request: Request) -> Response:
    data = await _cluster_data(request)
    await service_of(request).resources.update_cluster(
        text_of(request, "cluster"), lambda stored: unmasked(data, stored)
    )
    return empty()


@router.delete("/{cluster:name}", summary="Delete a cluster")
async def delete_cluster(request: Request) -> Response:
    await service_of(request).resources.delete_cluster(text_of(request, "cluster"))
    return done()


@router.get("/{cluster:name}/peers", summary="Peer clusters")
async def peers(request: Request) -> Response:
    data = await service_of(request).resources.cluster(text_of(request, "cluster"))
    return answer(data.get("peerClusterNames") or [])


@router.post(
    "/{cluster:name}/peers",
    summary="Set peer clusters: only an empty list is accepted",
    openapi_extra=described(body="Names of clusters", example=[]),
)
async def set_peers(request: Request) -> Response:
    cluster = text_of(request, "cluster")
    clusters = await service_of(request).resources.clusters()
    for name in await bodies.parse(request, list[str]) or ():
        if name == cluster:
            raise PreconditionFailed(f"{name} itself can't be part of peer-list")
        if name not in clusters:
            raise PreconditionFailed(f"Peer cluster {name} does not exist")
        raise NotAllowed(_NO_PEERS)
    await service_of(request).resources.cluster(cluster)
    return done()


def masked(data: dict[str, object]) -> dict[str, object]:
    """Returns a cluster's data with its secrets masked."""
    return {
        field: MASK if field in SECRET_FIELDS and value else value for field, value in data.items()
    }


def unmasked(data: dict[str, object], stored: dict[str, object]) -> dict[str, object]:
    """Returns a cluster's new data, with the stored secret in place of each mask."""
    kept = {
        field: stored[field]
        for field in SECRET_FIELDS
        if data.get(field) == MASK and field in stored
    }
    return {
        field: value for field, value in data.items() if field not in SECRET_FIELDS or value != MASK
    } | kept


def _cluster_document(body: dict[str, object]) -> dict[str, object]:
    """Returns the document to store for a cluster: the known fields that have a value."""
    given = {key: body[key] for key in body if key in _FIELDS and body[key] is not None}
    return _DEFAULTS | given


async def _cluster_data(request: Request) -> dict[str, object]:
    body = await bodies.parse(request, dict[str, object])
    if body is None:
        raise MetadataError("cluster data is required", http_status=400)
    if body.get("peerClusterNames"):
        raise NotAllowed(_NO_PEERS)
    if body.get("migrated"):
        raise NotAllowed(no_migration("cluster"))
    for field in body.keys() - _FIELDS - {"migrated"}:
        if body[field] is not None:
            unknown_fields.refuse(field, _FIELDS)
    data = _cluster_document(body)
    for field, (schemes, text) in _URLS.items():
        url = data.get(field)
        if not url:
            continue
        if not (isinstance(url, str) and url.startswith(schemes)):
            raise MetadataError(text, http_status=400)
        if "@" in url:
            # Every answer would show them, and logs of clients.
            raise MetadataError(
                f"{field} has a user or password in it: set authenticationPlugin and "
                "authenticationParameters instead",
                http_status=400,
            )
    return data
