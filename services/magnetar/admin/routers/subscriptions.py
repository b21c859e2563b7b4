"""`…/subscription/{subscription}`: create, list and delete subscriptions; their properties.

A request about a partitioned topic applies to all its partitions.
"""

import contextlib
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.bulk import for_each
from magnetar.admin.cluster.answers import (
    NOT_FOUND_OR_CONFLICT,
    all_succeeded,
    merged_lists,
    merged_objects,
)
from magnetar.admin.cluster.deletion import delete_subscriptions
from magnetar.admin.cluster.partitions import each_partition
from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import (
    has_subscription,
    loaded_parts,
    refuse_broken,
    require_namespace,
    service_of,
    subscription_not_found,
    text_of,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import AUTHORITATIVE, FORCE, described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.session.refusal import NO_REPLICATED_SUBSCRIPTIONS
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import require_persistent
from magnetar.broker.topic.subscribe import SubscriptionExists
from magnetar.core.errors import Conflict, NotAllowed, PreconditionFailed, TopicNotFound
from magnetar.core.ids import LATEST
from magnetar.documents.resources import MessageId

router = Routes(prefix="/admin/v2", tags=("subscriptions",), placement=at_owner)

_SUBSCRIPTION: Final = TOPIC_PATH + "/subscription/{subscription:name}"
_NOT_PERSISTENT: Final = "Create subscription on a non-persistent topic is not allowed"


@router.get(TOPIC_PATH + "/subscriptions", summary="List a topic's subscriptions")
@planned(each_partition(merged_lists))
async def list_subscriptions(request: Request) -> Response:
    names: set[str] = set()
    for topic in await loaded_parts(service_of(request), topic_of(request)):
        names.update(topic.subscriptions, topic.broken_subscriptions)
    return answer(sorted(names))


@router.put(
    _SUBSCRIPTION,
    summary="Create a subscription",
    openapi_extra=described(
        query("replicated", "boolean", "Only false: subscriptions are not replicated"),
        AUTHORITATIVE,
        body="Message id to start at (with properties), or nothing for the latest",
        example={"ledgerId": -1, "entryId": -1},
    ),
)
@planned(each_partition(all_succeeded(NOT_FOUND_OR_CONFLICT)))
async def create_subscription(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if bodies.flag(request, "replicated"):
        raise NotAllowed(NO_REPLICATED_SUBSCRIPTIONS)
    message_id = await bodies.parse(request, MessageId)
    start = LATEST if message_id is None else message_id.position
    properties = {} if message_id is None else message_id.properties or {}
    await require_namespace(service, name.namespace)
    if not name.persistent:
        raise NotAllowed(_NOT_PERSISTENT)
    partitions = await service.resources.partitions(name)
    if partitions:
        topics = await loaded_parts(service, name)
    else:
        # As in Pulsar, a topic that may be created automatically is created here too.
        by_use = service.topics.creation.by_use(name)
        try:
            topics = [await service.topics.get_or_open(name, create=by_use)]
        except TopicNotFound:
            raise PreconditionFailed("Topic does not exist and cannot be auto-created") from None
    created = 0

    async def create(topic: Topic) -> None:
        nonlocal created
        log = require_persistent(topic, _NOT_PERSISTENT)
        with contextlib.suppress(SubscriptionExists):
            await log.create_subscription(text_of(request, "subscription"), start, properties)
            created += 1

    await for_each(topics, create)
    if not created:
        raise Conflict("Subscription already exists for topic")
    return done()


@router.delete(
    _SUBSCRIPTION,
    summary="Delete a subscription",
    openapi_extra=described(FORCE, AUTHORITATIVE),
)
@planned(delete_subscriptions)
async def delete_subscription(request: Request) -> Response:
    name, force = text_of(request, "subscription"), bodies.flag(request, "force")
    parts = await _parts_with(request)
    readable = [part.subscriptions[name] for part in parts if name in part.subscriptions]
    if not force and any(subscription.consumers for subscription in readable):
        raise PreconditionFailed("Subscription has active connected consumers")
    await for_each(parts, lambda part: part.delete_subscription(name, force=force))
    return done()


@router.get(_SUBSCRIPTION + "/properties", summary="A subscription's properties")
@planned(each_partition(merged_objects))
async def get_properties(request: Request) -> Response:
    properties: dict[str, str] = {}
    for part in await _parts_with(request):
        refuse_broken(part, text_of(request, "subscription"))
        properties |= part.subscriptions[text_of(request, "subscription")].properties
    return answer(properties)


@router.put(
    _SUBSCRIPTION + "/properties",
    summary="Replace a subscription's properties",
    openapi_extra=described(body="Properties", example={"team": "payments"}),
)
@planned(each_partition(all_succeeded()))
async def put_properties(request: Request) -> Response:
    properties = await bodies.parse(request, dict[str, str]) or {}

    async def put(part: Topic) -> None:
        log = require_persistent(
            part, "A subscription of a non-persistent topic keeps no properties"
        )
        refuse_broken(part, text_of(request, "subscription"))
        await log.subscriptions[text_of(request, "subscription")].set_properties(properties)

    await for_each(await _parts_with(request), put)
    return done()


async def _parts_with(request: Request) -> list[Topic]:
    """Returns the topic, or those of its partitions that have the subscription; raises NotFound."""
    name, subscription = topic_of(request), text_of(request, "subscription")
    parts = await loaded_parts(service_of(request), name)
    with_it = [part for part in parts if has_subscription(part, subscription)]
    if not with_it:
        raise subscription_not_found(subscription, name)
    return with_it
