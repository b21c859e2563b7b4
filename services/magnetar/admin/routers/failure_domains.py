"""Failure domains of a cluster, and the namespaces of an anti-affinity group.

Only the local cluster can have domains: brokers of other clusters do not read this store.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import checked_name, service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done, empty
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.routes import Routes
from magnetar.admin.rights import caller
from magnetar.admin.routers.isolation_policies import existing_cluster, refuse_other_cluster
from magnetar.broker.balance.failure_domains import (
    DOMAINS,
    FailureDomain,
    FailureDomains,
    with_domain,
    without_domain,
)
from magnetar.broker.security.needs import TenantNeed, TenantOperation
from magnetar.core.errors import MetadataError, NotAllowed, NotFound
from magnetar.core.names import NamespaceName
from magnetar.policies.admission import ANTI_AFFINITY

router = Routes(prefix="/admin/v2")
old_router = Routes(prefix="/admin")

_PATH: Final = "/clusters/{cluster:name}/failureDomains"
_BODY: Final = described(body="FailureDomain", example={"brokers": ["broker-0:8080"]})


@router.get(_PATH, summary="The failure domains of a cluster", tags=("clusters",))
async def list_domains(request: Request) -> Response:
    return answer((await _stored(request, text_of(request, "cluster"))).domains)


@router.get(_PATH + "/{failure_domain:name}", summary="A failure domain", tags=("clusters",))
async def get_domain(request: Request) -> Response:
    cluster, name = await existing_cluster(request), text_of(request, "failure_domain")
    domain = (await _stored(request, cluster)).domains.get(name)
    if domain is None:
        raise NotFound(f"Domain {name} for cluster {cluster} does not exist")
    return answer(domain)


@router.post(
    _PATH + "/{failure_domain:name}",
    summary="Set a failure domain",
    tags=("clusters",),
    openapi_extra=_BODY,
)
async def set_domain(request: Request) -> Response:
    cluster, name = await existing_cluster(request), text_of(request, "failure_domain")
    domain = await bodies.parse(request, FailureDomain)
    if domain is None:
        raise MetadataError("A failure domain is required", http_status=400)
    refuse_other_cluster(request, cluster)
    service = service_of(request)
    if service.rules is not None and not service.rules.uses_domains:
        raise NotAllowed(
            "Failure domains are off: set failureDomainsEnabled to true, or remove the setting"
        )
    await DOMAINS.change(service.store, lambda stored: with_domain(stored, name, domain.brokers))
    return done()


@router.delete(
    _PATH + "/{failure_domain:name}", summary="Delete a failure domain", tags=("clusters",)
)
async def delete_domain(request: Request) -> Response:
    cluster, name = await existing_cluster(request), text_of(request, "failure_domain")
    absent = NotFound(f"Domain-name {name} or cluster {cluster} does not exist")

    def change(stored: FailureDomains | None) -> FailureDomains:
        if stored is None or name not in stored.domains:
            raise absent
        return without_domain(stored, name)

    service = service_of(request)
    if cluster != service.cluster:
        raise absent
    await DOMAINS.change(service.store, change)
    return empty()


@old_router.get(
    "/namespaces/{cluster:name}/antiAffinity/{group:name}",
    summary="The namespaces of a tenant in an anti-affinity group, as pulsar-admin requests them",
    tags=("namespaces",),
    openapi_extra=described(query("property", "string", "The tenant")),
)
async def namespaces_of_group_for_tools(request: Request) -> Response:
    """pulsar-admin 4 still uses the path and the parameter of the V1 API for this command."""
    return await _namespaces_of_group(request, request.query_params.get("property"))


@router.get(
    "/namespaces/{cluster:name}/antiAffinity/{group:name}",
    summary="The namespaces of a tenant in an anti-affinity group",
    tags=("namespaces",),
    openapi_extra=described(query("tenant", "string", "The tenant")),
)
async def namespaces_of_group(request: Request) -> Response:
    return await _namespaces_of_group(request, request.query_params.get("tenant"))


async def _namespaces_of_group(request: Request, tenant: str | None) -> Response:
    if tenant is None:
        raise MetadataError("Tenant should not be null", http_status=400)
    checked_name(tenant, "Tenant")
    await caller.require(request, TenantNeed(tenant, TenantOperation.LIST_NAMESPACES))
    await existing_cluster(request)
    resources, group = service_of(request).resources, text_of(request, "group")
    members = []
    for name in await resources.namespaces(tenant):
        policies = await resources.policies(NamespaceName.parse(name))
        if policies.get(ANTI_AFFINITY.document) == group:
            members.append(name)
    return answer(members)


async def _stored(request: Request, cluster: str) -> FailureDomains:
    service = service_of(request)
    stored = await DOMAINS.read(service.store) if cluster == service.cluster else None
    return stored or FailureDomains(1)
