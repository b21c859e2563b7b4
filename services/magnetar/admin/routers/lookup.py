"""`/lookup/v2/topic`: which broker serves a topic. One broker serves them all: this one."""

from typing import Final

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer, bare
from magnetar.admin.context import require_namespace, service_of, topic_of
from magnetar.admin.described import AUTHORITATIVE, described, query
from magnetar.broker.ownership import bundles

router = APIRouter(prefix="/lookup/v2/topic", tags=["lookup"])

_TOPIC: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"


@router.get(
    _TOPIC,
    summary="The broker of a topic",
    openapi_extra=described(AUTHORITATIVE, query("listenerName", "string", "None is configured")),
)
async def lookup(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if listener := request.query_params.get("listenerName"):
        # C++ clients go by this very text.
        raise HTTPException(500, f"the broker do not have {listener} listener")
    await require_namespace(service, name.namespace)
    return answer(
        {
            "brokerUrl": service.service_url,
            "httpUrl": service.http_url,
            "nativeUrl": service.service_url,
            "brokerUrlSsl": "",
        }
    )


@router.get(_TOPIC + "/bundle", summary="The bundle of a topic")
async def bundle(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    policies = await service.resources.policies(name.namespace)
    return bare(bundles.bundle_of(policies, name))
