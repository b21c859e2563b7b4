"""`/admin/v2/resource-quotas`: the load that is assigned to bundles (`balance.quotas`)."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import namespace_of, service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.routes import Routes
from magnetar.broker.balance.quotas import (
    NO_QUOTAS,
    QUOTA_DEFAULT,
    QUOTAS,
    Quotas,
    ResourceQuota,
    with_bundle,
    with_default,
    without_bundle,
)
from magnetar.broker.ownership.bundles import checked
from magnetar.core.errors import MetadataError, NotFound, PreconditionFailed

router = Routes(prefix="/admin/v2/resource-quotas", tags=("resource-quotas",))

_PATH: Final = "/{tenant:name}/{namespace:name}/{bundle:name}"
_RANGE: Final = re.compile(r"0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}")
_BODY: Final = described(
    body="ResourceQuota",
    example={
        "msgRateIn": 40,
        "msgRateOut": 120,
        "bandwidthIn": 100000,
        "bandwidthOut": 300000,
        "memory": 80,
        "dynamic": True,
    },
)


@router.get("", summary="The quota of bundles without one of their own")
async def get_default(request: Request) -> Response:
    quotas = await QUOTAS.read(service_of(request).store) or NO_QUOTAS
    return answer(quotas.default or QUOTA_DEFAULT)


@router.post("", summary="Set the quota of bundles without one of their own", openapi_extra=_BODY)
async def set_default(request: Request) -> Response:
    quota = await _quota(request)
    await QUOTAS.change(service_of(request).store, lambda quotas: with_default(quotas, quota))
    return done()


@router.get(_PATH, summary="A bundle's quota")
async def get_quota(request: Request) -> Response:
    bundle, _ = await _bundle(request)
    quotas = await QUOTAS.read(service_of(request).store) or NO_QUOTAS
    return answer(quotas.of(bundle))


@router.post(_PATH, summary="Set a bundle's quota", openapi_extra=_BODY)
async def set_quota(request: Request) -> Response:
    bundle, existing = await _bundle(request)
    quota = await _quota(request)

    def change(quotas: Quotas | None) -> Quotas:
        return with_bundle(quotas, bundle, quota, existing)

    await QUOTAS.change(service_of(request).store, change)
    return done()


@router.delete(_PATH, summary="Return a bundle to the default quota")
async def reset_quota(request: Request) -> Response:
    bundle, _ = await _bundle(request)

    def change(quotas: Quotas | None) -> Quotas:
        if quotas is None or bundle not in quotas.bundles:
            raise NotFound(f"path /loadbalance/resource-quota/{bundle} not found.")
        return without_bundle(quotas, bundle)

    await QUOTAS.change(service_of(request).store, change)
    return done()


async def _quota(request: Request) -> ResourceQuota:
    quota = await bodies.parse(request, ResourceQuota)
    if quota is None:
        raise MetadataError("A resource quota is required", http_status=400)
    quota.check()
    return quota


async def _bundle(request: Request) -> tuple[str, Mapping[str, object]]:
    """Returns the bundle in the path, and all bundles of its namespace."""
    namespace, given = namespace_of(request), text_of(request, "bundle")
    policies = await service_of(request).resources.policies(namespace)
    if not _RANGE.fullmatch(given):
        raise PreconditionFailed(f"Invalid bundle range: {given}")
    edges = policies["bundles"]["boundaries"]
    existing = {f"{namespace}/{low}_{high}": None for low, high in pairwise(edges)}
    return f"{namespace}/{checked(policies, namespace, given.lower())}", existing
