"""`…/explain`: why messages are not delivered to a subscription, or not published to a topic.

A partitioned topic's answer has those of its partitions. The documents are those of
`documents.explain`, described in docs/run/explain.md.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import NOT_FOUND, refusal_of
from magnetar.admin.cluster.partitions import existing_partition_names
from magnetar.admin.cluster.peers import Peers
from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import (
    existing_partitions,
    has_subscription,
    loaded_topic,
    service_of,
    subscription_not_found,
    text_of,
    topic_of,
)
from magnetar.admin.http.answers import answer
from magnetar.admin.http.descriptions import AUTHORITATIVE, described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Handler, Routes
from magnetar.broker.explain.gather.message import MessageId
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import require_persistent
from magnetar.core.errors import (
    NotAllowed,
    NotFound,
    PersistenceError,
    PreconditionFailed,
    ServiceNotReady,
    TopicNotFound,
)
from magnetar.core.names import TopicName
from magnetar.documents.explain import Explanation, of_partitions

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)

_KEEPS_NOTHING: Final = (
    "Explain on a non-persistent topic is not allowed: it keeps no message that could wait"
)
_ONE_PARTITION: Final = (
    "A message is in one partition: ask about the topic of that partition (…-partition-0)"
)


async def _of_parts(peers: Peers, request: Request, handler: Handler) -> Response:
    """Asks the owner of each partition; the cluster's plan."""
    service, name = service_of(request), topic_of(request)
    partitions = await service.resources.partitions(name)
    if not partitions:
        try:
            return await peers.at_topic_owner(name, request, handler)
        except (TopicNotFound, ServiceNotReady):
            return await handler(request)  # answers with the reason
    _refuse_message(request)
    parts = await existing_partition_names(service, name, partitions)
    answers = await peers.repeat_for_topics(request, parts)
    if (refusal := refusal_of(answers, NOT_FOUND)) is not None:
        return refusal
    explained = [
        msgspec.json.decode(part.body, type=Explanation) for part in answers if part.succeeded
    ]
    return answer(_merged(request, explained))


@router.get(
    TOPIC_PATH + "/subscription/{subscription:name}/explain",
    summary="Why messages, or one message, are not delivered",
    tags=("subscriptions",),
    openapi_extra=described(
        query("messageId", "string", "ledger:entry or ledger:entry:batch; default: all messages"),
        AUTHORITATIVE,
    ),
)
@planned(_of_parts)
async def explain_subscription(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    _require_persistent(name)
    asked = _message_id(request)
    partitions = await service.resources.partitions(name)
    if partitions:
        _refuse_message(request)
        explained = [
            await _subscription(service, part, request, None)
            async for part in existing_partitions(service, name, partitions)
            if has_subscription(part, text_of(request, "subscription"))
        ]
        if not explained:
            raise subscription_not_found(text_of(request, "subscription"), name)
        return answer(_merged(request, explained))
    try:
        topic = await loaded_topic(service, name)
    except (ServiceNotReady, PersistenceError) as error:
        kind = "subscription" if asked is None else "message"
        subscription = text_of(request, "subscription")
        return answer(service.diagnosis.explainer.not_served(kind, name, error, subscription))
    return answer(await _subscription(service, topic, request, asked))


async def _subscription(
    service: BrokerService, topic: Topic, request: Request, asked: MessageId | None
) -> Explanation:
    log = require_persistent(topic, _KEEPS_NOTHING)
    subscription = text_of(request, "subscription")
    if not has_subscription(log, subscription):
        raise subscription_not_found(subscription, log.name)
    if asked is None:
        return await service.diagnosis.explainer.subscription(log, subscription)
    return await service.diagnosis.explainer.message(log, subscription, asked)


@router.get(
    TOPIC_PATH + "/explain",
    summary="Why producers are refused or slow, and what takes the topic's disk space",
    openapi_extra=described(AUTHORITATIVE),
)
@planned(_of_parts)
async def explain_topic(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    _require_persistent(name)
    partitions = await service.resources.partitions(name)
    if partitions:
        explained = [
            await _topic(service, part)
            async for part in existing_partitions(service, name, partitions)
        ]
        return answer(_merged(request, explained))
    try:
        topic = await loaded_topic(service, name)
    except NotFound:
        if (deleted := service.diagnosis.explainer.deleted(name)) is None:
            raise
        return answer(deleted)
    except (ServiceNotReady, PersistenceError) as error:
        return answer(service.diagnosis.explainer.not_served("topic", name, error))
    return answer(await _topic(service, topic))


async def _topic(service: BrokerService, topic: Topic) -> Explanation:
    return await service.diagnosis.explainer.topic(require_persistent(topic, _KEEPS_NOTHING))


def _merged(request: Request, explained: Sequence[Explanation]) -> Explanation:
    service, name = service_of(request), topic_of(request)
    subscription = request.path_params.get("subscription", "")
    kind = "subscription" if subscription else "topic"
    return of_partitions(service.diagnosis.explainer.whole(kind, name, subscription), explained)


def _message_id(request: Request) -> MessageId | None:
    text = request.query_params.get("messageId")
    return None if text is None else MessageId.parse(text)


def _refuse_message(request: Request) -> None:
    if request.query_params.get("messageId") is not None:
        raise PreconditionFailed(_ONE_PARTITION)


def _require_persistent(name: TopicName) -> None:
    if not name.persistent:
        raise NotAllowed(_KEEPS_NOTHING)
