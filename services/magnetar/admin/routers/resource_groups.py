"""`/admin/v2/resourcegroups`, and the resource group of a namespace."""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import namespace_of, service_of, text_of
from magnetar.admin.http import bodies, unknown_fields
from magnetar.admin.http.answers import answer, bare, done, empty
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.routes import Routes
from magnetar.broker.catalog.resources import Document
from magnetar.broker.policies.applied_policies import RESOURCE_GROUP
from magnetar.broker.rates.resource_groups import (
    LIMITS,
    NAME_CHARACTERS_MAX,
    NOT_FOUND,
    ResourceGroups,
    with_group,
    without_group,
)
from magnetar.broker.service import BrokerService
from magnetar.core.errors import MetadataError, NotAllowed, NotFound, PreconditionFailed
from magnetar.core.names import NamespaceName

router = Routes(prefix="/admin/v2")

_GROUPS: Final = "/resourcegroups"
_NAMESPACE: Final = "/namespaces/{tenant:name}/{namespace:name}/resourcegroup"
_BYTES_MAX: Final = (1 << 63) - 1
_MESSAGES_MAX: Final = (1 << 31) - 1
_RATES: Final = {
    "publishRateInMsgs": ("publish_rate_in_msgs", _MESSAGES_MAX),
    "publishRateInBytes": ("publish_rate_in_bytes", _BYTES_MAX),
    "dispatchRateInMsgs": ("dispatch_rate_in_msgs", _MESSAGES_MAX),
    "dispatchRateInBytes": ("dispatch_rate_in_bytes", _BYTES_MAX),
}
"""The field and the highest value of each rate: Java's int or long."""
_NOT_OFFERED: Final = "replication"
"""The beginning of the names of rates between clusters."""


@router.get(_GROUPS, summary="List the resource groups", tags=("resourcegroups",))
async def list_groups(request: Request) -> Response:
    return answer(sorted((await _stored(service_of(request))).groups))


@router.get(
    _GROUPS + "/{resource_group:name}",
    summary="A resource group's rates",
    tags=("resourcegroups",),
)
async def get_group(request: Request) -> Response:
    group = (await _stored(service_of(request))).groups.get(text_of(request, "resource_group"))
    if group is None:
        raise NotFound(NOT_FOUND)
    return answer(group)


@router.put(
    _GROUPS + "/{resource_group:name}",
    summary="Create a resource group, or change the given rates",
    tags=("resourcegroups",),
    openapi_extra=described(
        body="ResourceGroup", example={"publishRateInMsgs": 1000, "dispatchRateInBytes": 1000000}
    ),
)
async def put_group(request: Request) -> Response:
    name = text_of(request, "resource_group")
    if len(name) > NAME_CHARACTERS_MAX:
        raise PreconditionFailed(f"A group's name has at most {NAME_CHARACTERS_MAX} characters")
    body = await bodies.parse(request, dict[str, Any])
    if body is None:
        raise MetadataError("A resource group is required", http_status=400)
    changes = _rates(body)
    await LIMITS.change(service_of(request).store, lambda stored: with_group(stored, name, changes))
    return done()


@router.delete(
    _GROUPS + "/{resource_group:name}", summary="Delete a resource group", tags=("resourcegroups",)
)
async def delete_group(request: Request) -> Response:
    service, name = service_of(request), text_of(request, "resource_group")
    without_group(await _stored(service), name)  # raises if it does not exist
    for tenant in await service.resources.tenants():
        for namespace in await service.resources.namespaces(tenant):
            policies = await service.resources.policies(NamespaceName.parse(namespace))
            if policies.get(RESOURCE_GROUP) == name:
                raise PreconditionFailed("ResourceGroup is in use")
    await LIMITS.change(service.store, lambda stored: without_group(stored, name))
    return done()


@router.get(_NAMESPACE, summary="A namespace's resource group", tags=("namespaces",))
async def get_of_namespace(request: Request) -> Response:
    policies = await service_of(request).resources.policies(namespace_of(request))
    group = policies.get(RESOURCE_GROUP)
    return bare(group) if group else empty()


@router.post(
    _NAMESPACE + "/{resource_group:name}",
    summary="Put a namespace into a resource group",
    tags=("namespaces",),
)
async def set_of_namespace(request: Request) -> Response:
    service, namespace = service_of(request), namespace_of(request)
    group = text_of(request, "resource_group")
    await service.resources.policies(namespace)  # raises if it does not exist
    await require_group(service, group)

    def change(policies: Document) -> Document:
        return {**policies, RESOURCE_GROUP: group}

    await service.resources.update_policies(namespace, change)
    return done()


@router.delete(
    _NAMESPACE, summary="Take a namespace out of its resource group", tags=("namespaces",)
)
async def remove_of_namespace(request: Request) -> Response:
    def change(policies: Document) -> Document:
        return {key: value for key, value in policies.items() if key != RESOURCE_GROUP}

    await service_of(request).resources.update_policies(namespace_of(request), change)
    return done()


async def require_group(service: BrokerService, group: str) -> None:
    """Raises PreconditionFailed if there is no such resource group."""
    if group not in (await _stored(service)).groups:
        raise PreconditionFailed(NOT_FOUND)


async def _stored(service: BrokerService) -> ResourceGroups:
    return await LIMITS.read(service.store) or ResourceGroups(1)


def _rates(body: dict[str, Any]) -> dict[str, int]:
    """Returns the given rates by field; raises an error that names the key."""
    changes: dict[str, int] = {}
    for key, value in body.items():
        if key.startswith(_NOT_OFFERED) and value is not None:
            raise NotAllowed(f"{key} is not supported: there is no geo-replication yet")
        if value is None:
            continue
        if key not in _RATES:
            unknown_fields.refuse(key, _RATES)
        field, most = _RATES[key]
        try:
            rate = msgspec.convert(value, int, strict=False)
        except msgspec.ValidationError as error:
            raise MetadataError(f"{key}: {error}", http_status=400) from error
        if not -most - 1 <= rate <= most:
            raise MetadataError(f"{key}: {rate} is out of range", http_status=400)
        changes[field] = rate
    return changes
