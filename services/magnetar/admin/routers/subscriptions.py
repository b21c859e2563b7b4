"""`…/subscription/{subscription}`: create, list, delete; properties.

On a partitioned topic each is done to all partitions.
"""

import contextlib
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer, done
from magnetar.admin.cluster.deletion import delete_subscriptions
from magnetar.admin.cluster.partitions import (
    NOT_FOUND_OR_THERE,
    all_done,
    each_partition,
    merged,
    union,
)
from magnetar.admin.cluster.route import at_owner, planned
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
from magnetar.admin.described import AUTHORITATIVE, FORCE, described, query
from magnetar.admin.documents import MessageId
from magnetar.admin.each import for_each
from magnetar.admin.routes import Routes
from magnetar.broker.session.refused import NO_REPLICATED_SUBSCRIPTIONS
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.subscribe import SubscriptionExists
from magnetar.broker.topics import Topic
from magnetar.core.errors import Conflict, NotAllowed, PreconditionFailed, TopicNotFound
from magnetar.core.ids import LATEST

router = Routes(prefix="/admin/v2", tags=("subscriptions",), placing=at_owner)

_TOPIC: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"
_SUBSCRIPTION: Final = _TOPIC + "/subscription/{subscription:name}"


@router.get(_TOPIC + "/subscriptions", summary="List a topic's subscriptions")
@planned(each_partition(union))
async def list_subscriptions(request: Request) -> Response:
    names: set[str] = set()
    for topic in await loaded_parts(service_of(request), topic_of(request)):
        names.update(topic.subscriptions)
        if isinstance(topic, PersistentTopic):
            names.update(topic.broken_subscriptions)
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
@planned(each_partition(all_done(NOT_FOUND_OR_THERE)))
async def create_subscription(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if bodies.flag(request, "replicated"):
        raise NotAllowed(NO_REPLICATED_SUBSCRIPTIONS)
    given = await bodies.parse(request, MessageId)
    start = LATEST if given is None else given.position
    properties = {} if given is None else given.properties or {}
    await require_namespace(service, name.namespace)
    if not name.persistent:
        raise NotAllowed("Create subscription on a non-persistent topic is not allowed")
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
        assert isinstance(topic, PersistentTopic)  # noqa: S101 - the domain was checked
        with contextlib.suppress(SubscriptionExists):
            await topic.create_subscription(text_of(request, "subscription"), start, properties)
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
    subscription, force = text_of(request, "subscription"), bodies.flag(request, "force")
    parts = await _parts_with(request)
    with_it = [found for part in parts if (found := part.subscriptions.get(subscription))]
    if not force and any(found.consumers for found in with_it):
        raise PreconditionFailed("Subscription has active connected consumers")
    await for_each(parts, lambda part: part.delete_subscription(subscription, force=force))
    return done()


@router.get(_SUBSCRIPTION + "/properties", summary="A subscription's properties")
@planned(each_partition(merged))
async def get_properties(request: Request) -> Response:
    found: dict[str, str] = {}
    for part in await _parts_with(request):
        refuse_broken(part, text_of(request, "subscription"))
        if isinstance(part, PersistentTopic):
            cursor = part.subscriptions[text_of(request, "subscription")].cursor
            found |= cursor.properties
    return answer(found)


@router.put(
    _SUBSCRIPTION + "/properties",
    summary="Replace a subscription's properties",
    openapi_extra=described(body="Properties", example={"team": "payments"}),
)
@planned(each_partition(all_done()))
async def put_properties(request: Request) -> Response:
    given = await bodies.parse(request, dict[str, str]) or {}

    async def put(part: Topic) -> None:
        if not isinstance(part, PersistentTopic):
            raise NotAllowed("A subscription of a non-persistent topic keeps no properties")
        refuse_broken(part, text_of(request, "subscription"))
        await part.subscriptions[text_of(request, "subscription")].cursor.set_properties(given)

    await for_each(await _parts_with(request), put)
    return done()


async def _parts_with(request: Request) -> list[Topic]:
    """The topic, or those of its partitions, that have the subscription: at least one."""
    name, subscription = topic_of(request), text_of(request, "subscription")
    parts = await loaded_parts(service_of(request), name)
    found = [part for part in parts if has_subscription(part, subscription)]
    if not found:
        raise subscription_not_found(subscription, name)
    return found
