"""`…/subscription/{subscription}/…`: reset, skip, expire; what is done to where it stands."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import done
from magnetar.admin.cluster.partitions import all_done, each_partition
from magnetar.admin.cluster.route import at_owner, planned
from magnetar.admin.context import (
    loaded_parts,
    number_of,
    refuse_broken,
    refuse_partitioned,
    service_of,
    subscription_not_found,
    text_of,
    topic_of,
)
from magnetar.admin.described import described
from magnetar.admin.documents import MessageId
from magnetar.admin.each import for_each
from magnetar.admin.message_view import batch_size
from magnetar.admin.routes import Routes
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import Conflict, NotAllowed, NotFound, PreconditionFailed
from magnetar.core.ids import Position
from magnetar.core.names import TopicName
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.message_id import full_ack_set

router = Routes(prefix="/admin/v2", tags=("subscriptions",), placing=at_owner)

_TOPIC: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"
_SUBSCRIPTION: Final = _TOPIC + "/subscription/{subscription:name}"
_MESSAGE_ID: Final = described(
    body="Message id; isExcluded starts behind it", example={"ledgerId": 3, "entryId": 0}
)


@router.post(
    _SUBSCRIPTION + "/resetcursor", summary="Reset to a message", openapi_extra=_MESSAGE_ID
)
async def reset_to_message(request: Request) -> Response:
    given = await bodies.parse(request, MessageId)
    if given is None:
        raise HTTPException(400, "The body must be a message id")
    await refuse_partitioned(
        service_of(request),
        topic_of(request),
        "Reset-cursor at position is not allowed for partitioned-topic",
    )
    for subscription in await _subscriptions(request):
        await _reset(subscription, given)
    return done()


async def _reset(subscription: PersistentSubscription, given: MessageId) -> None:
    """Seeks to a message, also to one inside a batch.

    Clients send a batch index without the batch's size, so the size is read from the entry. Where
    the entry has no message at the index, the index counts as left out, as in Pulsar.
    """
    position, ledger = given.cursor_position, subscription.ledger
    if given.batch_index >= 0 and position.ledger_id >= 0:
        size = await _messages_at(ledger, position)
        first = given.batch_index + (1 if given.behind else 0)
        if left := full_ack_set(size) >> first << first:
            await subscription.seek(position, left, size)
            return
    if given.behind and position.ledger_id >= 0:
        position = ledger.next_position(position)
    await subscription.seek(position)


async def _messages_at(ledger: ManagedLedger, position: Position) -> int:
    """How many messages the batch at the position has; 0 where there is no batch."""
    try:
        entry = await ledger.read_entry(position)
    except NotFound:
        return 0
    return batch_size(entry.data) or 0


@router.post(_SUBSCRIPTION + "/resetcursor/{timestamp:number}", summary="Reset to a time")
@planned(each_partition(all_done()))
async def reset_to_time(request: Request) -> Response:
    timestamp = number_of(request, "timestamp")
    await for_each(await _subscriptions(request), lambda each: each.seek_to_time(timestamp))
    return done()


@router.post(_SUBSCRIPTION + "/skip/{count:number}", summary="Skip messages")
async def skip(request: Request) -> Response:
    count = number_of(request, "count")
    await refuse_partitioned(
        service_of(request),
        topic_of(request),
        "Skip messages on a partitioned topic is not allowed",
    )
    for subscription in await _subscriptions(request):
        if count > 0:
            await subscription.skip(count)
    return done()


@router.post(_SUBSCRIPTION + "/skip_all", summary="Skip everything")
@planned(each_partition(all_done()))
async def skip_all(request: Request) -> Response:
    await for_each(await _subscriptions(request), lambda each: each.clear_backlog())
    return done()


@router.post(_SUBSCRIPTION + "/expireMessages/{seconds:number}", summary="Skip what is older")
@planned(each_partition(all_done()))
async def expire(request: Request) -> Response:
    await _expire(request, await _subscriptions(request))
    return done()


@router.post(
    _TOPIC + "/all_subscription/expireMessages/{seconds:number}",
    summary="Skip what is older, on all subscriptions",
)
@planned(each_partition(all_done()))
async def expire_all(request: Request) -> Response:
    found: list[PersistentSubscription] = []
    broken: list[tuple[PersistentTopic, str]] = []
    for part in await loaded_parts(service_of(request), topic_of(request)):
        if not isinstance(part, PersistentTopic):
            raise NotAllowed("Expire messages on a non-persistent topic is not allowed")
        found += part.subscriptions.values()
        broken += [(part, name) for name in part.broken_subscriptions]
    await _expire(request, found)
    for part, name in broken:  # once all others are done
        refuse_broken(part, name)
    return done()


@router.post(
    _SUBSCRIPTION + "/expireMessages",
    summary="Skip everything up to a message",
    openapi_extra=_MESSAGE_ID,
)
async def expire_to_message(request: Request) -> Response:
    given = await bodies.parse(request, MessageId)
    if given is None:
        raise HTTPException(400, "The body must be a message id")
    await refuse_partitioned(
        service_of(request),
        topic_of(request),
        "Expire message at position is not supported for partitioned-topic",
    )
    if given.partition_index != topic_of(request).partition_index:
        raise PreconditionFailed(
            "Invalid parameter for expire message by position, partition index of passed in "
            "message position doesn't match partition index for the topic"
        )
    for subscription in await _subscriptions(request):
        position = given.cursor_position
        if position > subscription.ledger.last_confirmed:
            raise Conflict(
                f"Expire message by position not issued on topic {subscription.topic} for "
                f"subscription {subscription.name} due to ongoing message expiration not finished "
                "or invalid message position provided."
            )
        if given.behind:
            position = subscription.ledger.previous_position(position)
        subscription.expire_up_to(position)
    return done()


async def _expire(request: Request, subscriptions: list[PersistentSubscription]) -> None:
    """Expires what is older on all of them; those that have nothing to expire refuse at the end."""
    seconds = number_of(request, "seconds")

    async def expire(subscription: PersistentSubscription) -> None:
        if seconds < 0 or not subscription.cursor.backlog:
            raise Conflict(
                "Expire message by timestamp not issued on topic "
                f"{subscription.topic} for subscription {subscription.name} due to ongoing "
                "message expiration not finished or subscription almost catch  up. If it's "
                "performed on a partitioned topic operation might succeeded on other partitions, "
                "please check stats of individual partition."
            )
        await subscription.expire(seconds)

    await for_each(subscriptions, expire)


async def _subscriptions(request: Request) -> list[PersistentSubscription]:
    """The subscription of the topic, or of each of its partitions that has it; at least one."""
    name, wanted = topic_of(request), text_of(request, "subscription")
    found = []
    for part in await loaded_parts(service_of(request), name):
        if not isinstance(part, PersistentTopic):
            raise _not_persistent(name)
        refuse_broken(part, wanted)
        if (subscription := part.subscriptions.get(wanted)) is not None:
            found.append(subscription)
    if not found:
        raise subscription_not_found(wanted, name)
    return found


def _not_persistent(name: TopicName) -> NotAllowed:
    return NotAllowed(f"{name} is a non-persistent topic: its subscriptions have no position")
