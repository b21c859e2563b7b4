"""Single messages: peek, read by position, find by time, find the last; terminate a topic."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.bulk import for_each
from magnetar.admin.cluster.answers import raise_refusal
from magnetar.admin.cluster.peers import Peers, gather_answers
from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import (
    number_of,
    persistent_topic,
    refuse_broken,
    refuse_partitioned,
    require_namespace,
    service_of,
    text_of,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Handler, Routes
from magnetar.admin.message_view import batch_size, message_response
from magnetar.broker.service import BrokerService
from magnetar.broker.subscription.cursor_moves import position_of_time
from magnetar.broker.topic.last_message import last_readable
from magnetar.broker.topic.persistent import PersistentTopic, require_persistent
from magnetar.core.errors import (
    MetadataError,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    TopicNotFound,
)
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName
from magnetar.documents.resources import message_id

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)


@router.get(
    TOPIC_PATH + "/subscription/{subscription:name}/position/{position:number}",
    summary="Peek at an unacknowledged message",
    tags=("subscriptions",),
)
async def peek(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    position = number_of(request, "position")
    await refuse_partitioned(service, name, "Peek messages on a partitioned topic is not allowed")
    topic = await persistent_topic(service, name, "Peek messages")
    if position < 1:
        raise MetadataError("The position to peek at counts from 1", http_status=400)
    subscription = topic.subscriptions.get(text_of(request, "subscription"))
    refuse_broken(topic, text_of(request, "subscription"))
    if subscription is None:
        # Pulsar creates the subscription, which then retains all data. This only answers as it.
        return await _response(topic, _nth(topic, position))
    entry = await subscription.peek(position)
    if entry is None:
        raise NotFound("Message not found")
    return message_response(entry, ledger=topic.managed_ledger)


@router.get(
    TOPIC_PATH + "/ledger/{ledger:number}/entry/{entry:number}", summary="A message by its id"
)
async def read_by_id(request: Request) -> Response:
    topic = await _persistent(
        request, "Get message by id", "GetMessageById is not allowed on partitioned-topic"
    )
    ledger, entry = number_of(request, "ledger"), number_of(request, "entry")
    try:
        stored = await topic.managed_ledger.read_entry(Position(ledger, entry))
    except NotFound:
        raise NotFound("Message id not found") from None
    return message_response(stored, ledger=topic.managed_ledger)


@router.get(
    TOPIC_PATH + "/examinemessage",
    summary="The nth message from the start or the end; if there are fewer, the farthest",
    openapi_extra=described(
        query("initialPosition", "string", "earliest or latest (default)"),
        query("messagePosition", "integer", "The number of the message, from 1"),
    ),
)
async def examine(request: Request) -> Response:
    topic = await _persistent(
        request,
        "Examine messages",
        "Examine messages on a partitioned topic is not allowed, please try examine message on "
        "specific topic partition",
    )
    ledger = topic.managed_ledger
    total = ledger.entries_total
    if not total:
        raise PreconditionFailed("Could not examine messages due to the total message is zero")
    nth = min(max(bodies.number(request, "messagePosition", 1), 1), total)
    earliest = request.query_params.get("initialPosition") == "earliest"
    number = nth if earliest else total - nth + 1
    return await _response(topic, _nth(topic, number))


async def _response(topic: PersistentTopic, position: Position) -> Response:
    entry = await topic.managed_ledger.read_entry(position)
    return message_response(entry, ledger=topic.managed_ledger)


def _nth(topic: PersistentTopic, number: int) -> Position:
    """Returns the position of the nth stored entry, counted from 1."""
    for info in topic.managed_ledger.ledgers:
        if number <= info.entries:
            return Position(info.ledger_id, number - 1)
        number -= info.entries
    raise NotFound("Message not found")


@router.get(TOPIC_PATH + "/messageid/{timestamp:number}", summary="The first message since a time")
async def id_by_time(request: Request) -> Response:
    topic = await _persistent(
        request,
        "Get message id by timestamp",
        "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on "
        "specific topic partition",
    )
    timestamp = number_of(request, "timestamp")
    if timestamp <= 0:
        return answer(message_id(EARLIEST))
    position = await position_of_time(topic.managed_ledger, timestamp)
    return answer(message_id(position, topic.name.partition_index))


@router.get(TOPIC_PATH + "/lastMessageId", summary="The id of the last message")
async def last_message_id(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if not name.persistent:
        raise NotAllowed("GetLastMessageId on a non-persistent topic is not allowed")
    try:
        await require_namespace(service, name.namespace)
    except NotFound:
        raise TopicNotFound(f"Topic {name} not found") from None
    topic = await persistent_topic(service, name, "GetLastMessageId")
    ledger = topic.managed_ledger
    last, batch = ledger.last_confirmed, None
    if ledger.entries_total:
        last = last_readable(ledger) or ledger.first_position
    if last.entry_id >= 0 and ledger.entries_total:
        batch = batch_size((await ledger.read_entry(last)).data)
    return answer(
        message_id(last, name.partition_index, batch_index=-1 if batch is None else batch - 1)
    )


@router.post(
    TOPIC_PATH + "/terminate", summary="Terminate a topic: it never accepts messages again"
)
async def terminate(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await refuse_partitioned(service, name, "Termination of a partitioned topic is not allowed")
    topic = await persistent_topic(service, name, "Termination")
    return answer(message_id(await topic.terminate()))


async def _terminate_in_cluster(peers: Peers, request: Request, _: Handler) -> Response:
    """Terminates partitions at their owners; the plan of `terminate_partitions`."""
    name = topic_of(request)
    partitions = await _partitions_to_terminate(request)
    ends = await gather_answers(
        [
            peers.request_topic(name.partition(index), "POST", "/terminate")
            for index in range(partitions)
        ]
    )
    raise_refusal(ends, ())
    return answer({str(index): msgspec.Raw(end.body) for index, end in enumerate(ends)})


@router.post(TOPIC_PATH + "/terminate/partitions", summary="Terminate a partitioned topic")
@planned(_terminate_in_cluster)
async def terminate_partitions(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    partitions = await _partitions_to_terminate(request)
    ends = {}

    async def end(index: int) -> None:
        topic = await _partition(service, name, index)
        ends[str(index)] = message_id(await topic.terminate())

    await for_each(range(partitions), end)
    return answer(ends)


async def _partitions_to_terminate(request: Request) -> int:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    partitions = await service.resources.partitions(name)
    if not partitions:
        raise NotAllowed(
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, "
            "please use terminate commands"
        )
    return partitions


async def _partition(service: BrokerService, name: TopicName, index: int) -> PersistentTopic:
    topic = await service.topics.get_or_open(name.partition(index), create=True)
    return require_persistent(topic, "Termination of a non-persistent topic is not allowed")


async def _persistent(request: Request, operation: str, partitioned: str) -> PersistentTopic:
    """Loads and returns the topic; `partitioned` is Pulsar's refusal of a partitioned topic."""
    service, name = service_of(request), topic_of(request)
    await refuse_partitioned(service, name, partitioned)
    return await persistent_topic(service, name, operation)
