"""`/admin/v2/tenants`: tenants, their roles and their clusters."""

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.deletion import remover_of
from magnetar.admin.context import checked_name, service_of, text_of
from magnetar.admin.deletion import delete_namespace
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import FORCE, described
from magnetar.admin.http.routes import Routes
from magnetar.broker.catalog.resources import Document
from magnetar.core.errors import NotAllowed, NotFound, PreconditionFailed
from magnetar.core.names import NamespaceName
from magnetar.documents.resources import TenantInfo

router = Routes(prefix="/admin/v2/tenants", tags=("tenants",))

_BODY = described(body="TenantInfo", example={"adminRoles": [], "allowedClusters": ["standalone"]})


@router.get("", summary="List the tenants")
async def list_tenants(request: Request) -> Response:
    return answer(await service_of(request).resources.tenants())


@router.get("/{tenant:name}", summary="A tenant's roles and clusters")
async def get_tenant(request: Request) -> Response:
    return answer(await service_of(request).resources.tenant(text_of(request, "tenant")))


@router.put("/{tenant:name}", summary="Create a tenant", openapi_extra=_BODY)
async def create_tenant(request: Request) -> Response:
    tenant = checked_name(text_of(request, "tenant"), "Tenant")
    await service_of(request).resources.create_tenant(tenant, await _tenant_info(request))
    return done()


@router.post("/{tenant:name}", summary="Change a tenant", openapi_extra=_BODY)
async def update_tenant(request: Request) -> Response:
    tenant = text_of(request, "tenant")
    info = await _tenant_info(request)
    try:
        await service_of(request).resources.update_tenant(tenant, info)
    except NotFound:
        raise NotFound(f"Tenant {tenant} not found") from None
    return done()


@router.delete("/{tenant:name}", summary="Delete a tenant", openapi_extra=described(FORCE))
async def delete_tenant(request: Request) -> Response:
    service, tenant = service_of(request), text_of(request, "tenant")
    if bodies.flag(request, "force"):
        if not service.settings.operation.force_delete_tenant:
            raise NotAllowed("Broker doesn't allow forced deletion of tenants")
        await _delete_namespaces(request, tenant)
    await service.resources.delete_tenant(tenant)
    return done()


async def _delete_namespaces(request: Request, tenant: str) -> None:
    """Deletes every namespace of the tenant with its topics, if the broker's settings allow it."""
    service, remover = service_of(request), remover_of(request)
    for name in await service.resources.namespaces(tenant):
        await delete_namespace(service, remover, NamespaceName.parse(name), force=True)


async def _tenant_info(request: Request) -> Document:
    info = await bodies.parse(request, TenantInfo)
    if info is None:
        raise PreconditionFailed("TenantInfo is null")
    if info.allowed_clusters is None:
        raise PreconditionFailed("Clusters cannot be null")
    clusters = sorted({cluster.strip() for cluster in info.allowed_clusters})
    if not clusters or not all(clusters):
        raise PreconditionFailed("Clusters cannot be empty or blank")
    if not set(clusters) <= set(await service_of(request).resources.clusters()):
        raise PreconditionFailed("Clusters do not exist")
    if any(role != role.strip() for role in info.admin_roles or ()):
        raise PreconditionFailed("AdminRoles contains whitespace in the beginning or end.")
    return {"adminRoles": sorted(set(info.admin_roles or ())), "allowedClusters": clusters}
