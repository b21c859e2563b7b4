"""`…/subscription/{subscription}/redrive`: moves dead letters back to their origins.

The owner of the topic moves them. A partitioned topic is moved partition by partition, as
`magnetar redrive` does.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import at_owner
from magnetar.admin.context import (
    persistent_topic,
    refuse_broken,
    refuse_partitioned,
    service_of,
    subscription_not_found,
    text_of,
    topic_not_found,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer
from magnetar.admin.http.descriptions import AUTHORITATIVE, described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.admin.rights.caller import rights_of_caller
from magnetar.broker.redrive.progress import Order, Progress
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import InvalidTopicName, PreconditionFailed
from magnetar.core.names import TopicName, parse_topic
from magnetar.documents.redrive import RedriveOrder, RedriveProgress
from magnetar.policies.selector import SelectorInvalid, parse

router = Routes(prefix="/admin/v2", tags=("subscriptions",), placement=at_owner)

_PATH: Final = TOPIC_PATH + "/subscription/{subscription:name}/redrive"
_PARTITIONED: Final = "Redrive of a partitioned topic is not allowed: redrive its partitions"
_RATE_MIN: Final = 0.01
"""Messages per second."""
_ID: Final = query("id", "string", "That of the redrive; 404 if another one was started since")


@router.post(
    _PATH,
    summary="Move dead letters back to their origins, or to another topic",
    openapi_extra=described(
        AUTHORITATIVE,
        body="What is moved, and how fast; an empty body moves everything",
        example={
            "to": None,
            "filter": "region = 'eu'",
            "rate": 100,
            "limit": 1000,
            "dryRun": False,
        },
    ),
)
async def start_redrive(request: Request) -> Response:
    service, subscription = service_of(request), text_of(request, "subscription")
    topic = await _topic(request)
    refuse_broken(topic, subscription)
    if subscription not in topic.subscriptions:
        raise subscription_not_found(subscription, topic.name)
    order = _order(await bodies.parse(request, RedriveOrder) or RedriveOrder())
    rights = rights_of_caller(request, topic.name, subscription)
    if order.to is not None:
        if rights is not None:  # first: a refusal tells nothing about the topic
            await rights.check_target(order.to)
        await _check_target(service, order.to, topic)
    progress = await service.redrives.start(topic, subscription, order, rights)
    return answer(_document(progress))


@router.get(_PATH, summary="The progress of a redrive", openapi_extra=described(AUTHORITATIVE, _ID))
async def get_redrive(request: Request) -> Response:
    return answer(_document(await _progress(request)))


@router.delete(
    _PATH,
    summary="Stop a redrive after the group of messages that it is moving",
    openapi_extra=described(AUTHORITATIVE, _ID),
)
async def stop_redrive(request: Request) -> Response:
    progress = await _progress(request)
    progress.stop()
    return answer(_document(progress))


async def _progress(request: Request) -> Progress:
    topic, subscription = await _topic(request), text_of(request, "subscription")
    id_ = request.query_params.get("id", "")
    return service_of(request).redrives.progress(topic.full_name, subscription, id_)


async def _topic(request: Request) -> PersistentTopic:
    service, name = service_of(request), topic_of(request)
    await refuse_partitioned(service, name, _PARTITIONED)
    return await persistent_topic(service, name, "Redrive")


def _order(body: RedriveOrder) -> Order:
    """Returns the order of a body; raises PreconditionFailed with the field and the fix."""
    accepts = None
    if body.filter is not None:
        try:
            accepts = parse(body.filter)
        except SelectorInvalid as error:
            raise PreconditionFailed(f"filter cannot be parsed: {error}") from error
    if body.rate is not None and not _RATE_MIN <= body.rate < float("inf"):
        raise PreconditionFailed(
            f"rate is {body.rate}: it is messages per second, {_RATE_MIN} or more"
        )
    if body.limit is not None and body.limit < 1:
        raise PreconditionFailed(f"limit is {body.limit}: it is a number of messages, 1 or more")
    to = None
    if body.to is not None:
        try:
            to = parse_topic(body.to)
        except InvalidTopicName as error:
            raise PreconditionFailed(f"to is not a topic's name: {error.message}") from error
    return Order(to, accepts, body.rate, body.limit, body.dry_run)


async def _check_target(service: BrokerService, to: TopicName, topic: PersistentTopic) -> None:
    if not to.persistent:
        raise PreconditionFailed(f"to is {to}: a redrive needs transactions, a persistent topic")
    if to.base == topic.name.base:
        raise PreconditionFailed(f"to is {to}, the topic that is redriven: name another")
    if not await service.redrives.targets.exist(to):
        raise topic_not_found(to)


def _document(progress: Progress) -> RedriveProgress:
    return RedriveProgress(
        id=progress.id,
        state=progress.state.value,
        dry_run=progress.dry_run,
        examined=progress.examined,
        matched=progress.matched,
        moved=progress.moved,
        skipped={reason.value: count for reason, count in progress.skipped.items() if count},
        last_position=progress.last_position,
        error=progress.error,
        resumable=progress.resumable,
    )
