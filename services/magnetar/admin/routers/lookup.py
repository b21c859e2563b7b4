"""`/lookup/v2/topic`: which broker serves a topic.

Where it is served, the answer names its broker, whoever is asked. Where nobody serves it yet, and
another broker is to, the answer is a redirect there.
"""

from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import answer, bare
from magnetar.admin.context import require_namespace, service_of, topic_of
from magnetar.admin.described import AUTHORITATIVE, described, query
from magnetar.admin.routes import Routes
from magnetar.broker.ownership import bundles

router = Routes(prefix="/lookup/v2/topic", tags=("lookup",))

LISTENER_HEADER: Final = "X-Pulsar-ListenerName"
_TOPIC: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"


@router.get(
    _TOPIC,
    summary="The broker of a topic",
    openapi_extra=described(
        AUTHORITATIVE, query("listenerName", "string", "By which of its listeners it is reached")
    ),
)
async def lookup(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    listener = request.query_params.get("listenerName") or request.headers.get(LISTENER_HEADER, "")
    await require_namespace(service, name.namespace)
    authoritative = request.query_params.get("authoritative", "").lower() == "true"
    located = await service.ownership.locate(name, authoritative=authoritative)
    urls = (located.broker or service.record).reached_by(listener)
    if urls is None:
        # C++ clients go by this very text.
        raise HTTPException(500, f"the broker do not have {listener} listener")
    if located.redirect:
        # Nobody has the topic yet: that broker will take it when it is asked with this.
        more = {"authoritative": "true"} | ({"listenerName": listener} if listener else {})
        location = f"{urls.http_url}{request.scope['raw_path'].decode()}?{urlencode(more)}"
        return Response(status_code=307, headers={"location": location})
    return answer(
        {
            "brokerUrl": urls.service_url,
            "httpUrl": urls.http_url,
            "nativeUrl": urls.service_url,
            "brokerUrlSsl": urls.service_url_tls,
        }
    )


@router.get(_TOPIC + "/bundle", summary="The bundle of a topic")
async def bundle(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    policies = await service.resources.policies(name.namespace)
    return bare(bundles.bundle_of(policies, name))
