"""`/lookup/v2/topic`: the broker that serves a topic.

If the topic has an owner, every broker answers with it. If it has none yet, the answer redirects to
the broker that must claim it.
"""

from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import require_namespace, service_of, topic_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, bare
from magnetar.admin.http.descriptions import AUTHORITATIVE, described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.ownership import bundles

router = Routes(prefix="/lookup/v2/topic", tags=("lookup",))

LISTENER_HEADER: Final = "X-Pulsar-ListenerName"


@router.get(
    TOPIC_PATH,
    summary="The broker of a topic",
    openapi_extra=described(
        AUTHORITATIVE, query("listenerName", "string", "The listener of the broker to use")
    ),
)
async def lookup(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    listener = request.query_params.get("listenerName") or request.headers.get(LISTENER_HEADER, "")
    await require_namespace(service, name.namespace)
    authoritative = bodies.flag(request, "authoritative")
    located = await service.ownership.locate(name, authoritative=authoritative)
    urls = (located.broker or service.record).reached_by(listener)
    if urls is None:
        # C++ clients match this text.
        raise HTTPException(500, f"the broker do not have {listener} listener")
    if located.redirect:
        # The topic has no owner yet: that broker claims it because of these parameters.
        more = {"authoritative": "true"} | ({"listenerName": listener} if listener else {})
        secure = request.url.scheme == "https" and urls.http_url_tls
        address = urls.http_url_tls if secure or not urls.http_url else urls.http_url
        location = f"{address}{request.scope['raw_path'].decode()}?{urlencode(more)}"
        return Response(status_code=307, headers={"location": location})
    addresses = {
        "brokerUrl": urls.service_url,
        "httpUrl": urls.http_url,
        "nativeUrl": urls.service_url,
        "brokerUrlSsl": urls.service_url_tls,
    }
    # As Pulsar, which leaves out what the broker does not have.
    if urls.service_url_tls:
        addresses["brokerUrlTls"] = urls.service_url_tls
    if urls.http_url_tls:
        addresses["httpUrlTls"] = urls.http_url_tls
    return answer(addresses)


@router.get(TOPIC_PATH + "/bundle", summary="The bundle of a topic")
async def bundle(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    policies = await service.resources.policies(name.namespace)
    return bare(bundles.bundle_of(policies, name))
