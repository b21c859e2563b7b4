"""`…/{topic}/offload`: requests that ledgers are offloaded, and shows the outcome.

The broker writes the request to the metadata store. The next offload job offloads the ledgers, even
below the thresholds; a standalone does it itself.
"""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import at_owner
from magnetar.admin.context import loaded_topic, service_of, topic_not_found, topic_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import AUTHORITATIVE, described
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.topic.persistent import PersistentTopic, require_persistent
from magnetar.core.errors import NotAllowed, NotFound
from magnetar.documents.resources import MessageId, message_id

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)

_PATH: Final = TOPIC_PATH + "/offload"
_NOT_PERSISTENT: Final = "Offload on a non-persistent topic is not allowed"


async def _offloadable(request: Request) -> PersistentTopic:
    """Loads and returns the topic; raises NotAllowed for a non-persistent one."""
    name = topic_of(request)
    if not name.persistent:
        raise NotAllowed(_NOT_PERSISTENT)
    try:
        topic = await loaded_topic(service_of(request), name)
    except NotFound:
        raise topic_not_found(name) from None
    return require_persistent(topic, _NOT_PERSISTENT)


@router.put(
    _PATH,
    summary="Request the offload of the ledgers before a message",
    openapi_extra=described(
        AUTHORITATIVE,
        body="The first message that is not offloaded",
        example={"ledgerId": 12, "entryId": 0, "partitionIndex": -1},
    ),
)
async def put_offload(request: Request) -> Response:
    first_kept = await bodies.parse(request, MessageId)
    if first_kept is None:
        raise HTTPException(400, "messageId is null")
    topic = await _offloadable(request)
    service = service_of(request)
    try:
        await service.offloading.request(topic.managed_ledger, first_kept.position)
    finally:
        # Also if it is requested already: the process may have been killed before it began.
        if service.offloader is not None:
            service.offloader.requested(topic.full_name)
    return done()


@router.get(
    _PATH,
    summary="The outcome of the last request to offload",
    openapi_extra=described(AUTHORITATIVE),
)
async def get_offload(request: Request) -> Response:
    topic = await _offloadable(request)
    status = await service_of(request).offloading.status(topic.managed_ledger)
    return answer(
        {
            "status": status.status,
            "lastError": status.last_error,
            "firstUnoffloadedMessage": message_id(status.first_unoffloaded),
        }
    )
