"""`…/{topic}/offload`: ask for ledgers to be moved to object storage, and see what came of it.

A request is written to metadata; the next offload job sees to it, whatever the thresholds say.
"""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer, done
from magnetar.admin.cluster.route import at_owner
from magnetar.admin.context import loaded_topic, service_of, topic_not_found, topic_of
from magnetar.admin.described import AUTHORITATIVE, described
from magnetar.admin.documents import MessageId, message_id
from magnetar.admin.routes import Routes
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import NotAllowed, NotFound

router = Routes(prefix="/admin/v2", tags=("topics",), placing=at_owner)

_PATH: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}/offload"


async def _persistent(request: Request) -> PersistentTopic:
    name = topic_of(request)
    if not name.persistent:
        raise NotAllowed("Offload on a non-persistent topic is not allowed")
    try:
        topic = await loaded_topic(service_of(request), name)
    except NotFound:
        raise topic_not_found(name) from None
    assert isinstance(topic, PersistentTopic)  # noqa: S101 - by its name
    return topic


@router.put(
    _PATH,
    summary="Have the ledgers before a message moved to object storage",
    openapi_extra=described(
        AUTHORITATIVE,
        body="The first message that may stay",
        example={"ledgerId": 12, "entryId": 0, "partitionIndex": -1},
    ),
)
async def put_offload(request: Request) -> Response:
    given = await bodies.parse(request, MessageId)
    if given is None:
        raise HTTPException(400, "messageId is null")
    topic = await _persistent(request)
    await service_of(request).offloading.request(topic.managed_ledger, given.position)
    return done()


@router.get(
    _PATH,
    summary="What came of the last request to offload",
    openapi_extra=described(AUTHORITATIVE),
)
async def get_offload(request: Request) -> Response:
    topic = await _persistent(request)
    status = await service_of(request).offloading.status(topic.managed_ledger)
    return answer(
        {
            "status": status.status,
            "lastError": status.last_error,
            "firstUnoffloadedMessage": message_id(status.first_unoffloaded),
        }
    )
