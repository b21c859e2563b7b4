"""`…/subscription/{subscription}/…`: reset, skip, expire: changes of a subscription's position."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.bulk import for_each
from magnetar.admin.cluster.answers import all_succeeded
from magnetar.admin.cluster.partitions import each_partition
from magnetar.admin.cluster.placement import at_owner, planned
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
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import done
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.admin.message_view import batch_size
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.persistent import PersistentTopic, require_persistent
from magnetar.core.errors import Conflict, NotFound, PreconditionFailed
from magnetar.core.ids import Position
from magnetar.documents.resources import MessageId
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.wire.message_id import full_ack_set

router = Routes(prefix="/admin/v2", tags=("subscriptions",), placement=at_owner)

_SUBSCRIPTION: Final = TOPIC_PATH + "/subscription/{subscription:name}"
_MESSAGE_ID: Final = described(
    body="Message id; isExcluded starts after it", example={"ledgerId": 3, "entryId": 0}
)


@router.post(
    _SUBSCRIPTION + "/resetcursor", summary="Reset to a message", openapi_extra=_MESSAGE_ID
)
async def reset_to_message(request: Request) -> Response:
    target = await _message_id(request)
    await refuse_partitioned(
        service_of(request),
        topic_of(request),
        "Reset-cursor at position is not allowed for partitioned-topic",
    )
    compaction = service_of(request).compaction
    for subscription in await _subscriptions(request):
        facts = await compaction.facts(subscription.ledger)
        await _reset(subscription, target, compacted=facts.record is not None)
    return done()


async def _message_id(request: Request) -> MessageId:
    """Returns the message id in the body; raises 400 without one."""
    message_id = await bodies.parse(request, MessageId)
    if message_id is None:
        raise HTTPException(400, "The body must be a message id")
    return message_id


async def _reset(
    subscription: PersistentSubscription, target: MessageId, *, compacted: bool
) -> None:
    """Seeks to a message, which may be inside a batch.

    `compacted`: a message that was trimmed may be in the compacted topic.
    Clients send a batch index without the batch's size, so the size is read from the entry. As in
    Pulsar, an index is ignored if the entry has no message there.
    """
    position, ledger = target.cursor_position, subscription.ledger
    if target.batch_index >= 0:
        size = await _messages_at(ledger, position)
        first = target.batch_index + (1 if target.after else 0)
        if remaining := full_ack_set(size) >> first << first:
            await subscription.seek(position, remaining, size)
            return
    if target.after and compacted and position < ledger.trimmed_to:
        position = Position(position.ledger_id, position.entry_id + 1)
    elif target.after and position.ledger_id >= 0:
        position = ledger.next_position(position)
    await subscription.seek(position, compacted=compacted)


async def _messages_at(ledger: ManagedLedger, position: Position) -> int:
    """Returns the number of messages in the batch at the position; 0 if there is no batch."""
    try:
        entry = await ledger.read_entry(position)
    except NotFound:
        return 0
    return batch_size(entry.data) or 0


@router.post(_SUBSCRIPTION + "/resetcursor/{timestamp:number}", summary="Reset to a time")
@planned(each_partition(all_succeeded()))
async def reset_to_time(request: Request) -> Response:
    timestamp = number_of(request, "timestamp")
    await for_each(
        await _subscriptions(request), lambda subscription: subscription.seek_to_time(timestamp)
    )
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


@router.post(_SUBSCRIPTION + "/skip_all", summary="Skip all messages")
@planned(each_partition(all_succeeded()))
async def skip_all(request: Request) -> Response:
    await for_each(await _subscriptions(request), lambda subscription: subscription.clear_backlog())
    return done()


@router.post(_SUBSCRIPTION + "/expireMessages/{seconds:number}", summary="Skip older messages")
@planned(each_partition(all_succeeded()))
async def expire(request: Request) -> Response:
    await _expire(request, await _subscriptions(request))
    return done()


@router.post(
    TOPIC_PATH + "/all_subscription/expireMessages/{seconds:number}",
    summary="Skip older messages on all subscriptions",
)
@planned(each_partition(all_succeeded()))
async def expire_all(request: Request) -> Response:
    readable: list[PersistentSubscription] = []
    broken: list[tuple[PersistentTopic, str]] = []
    for part in await loaded_parts(service_of(request), topic_of(request)):
        persistent = require_persistent(
            part, "Expire messages on a non-persistent topic is not allowed"
        )
        readable += persistent.subscriptions.values()
        broken += [(persistent, name) for name in persistent.broken_subscriptions]
    await _expire(request, readable)
    for part, name in broken:  # after all others
        refuse_broken(part, name)
    return done()


@router.post(
    _SUBSCRIPTION + "/expireMessages",
    summary="Skip all messages up to a message",
    openapi_extra=_MESSAGE_ID,
)
async def expire_to_message(request: Request) -> Response:
    last = await _message_id(request)
    await refuse_partitioned(
        service_of(request),
        topic_of(request),
        "Expire message at position is not supported for partitioned-topic",
    )
    if last.partition_index != topic_of(request).partition_index:
        raise PreconditionFailed(
            "Invalid parameter for expire message by position, partition index of passed in "
            "message position doesn't match partition index for the topic"
        )
    for subscription in await _subscriptions(request):
        position = last.cursor_position
        if position > subscription.ledger.last_confirmed:
            raise Conflict(
                f"Expire message by position not issued on topic {subscription.topic} for "
                f"subscription {subscription.name} due to ongoing message expiration not finished "
                "or invalid message position provided."
            )
        if last.after:
            position = subscription.ledger.previous_position(position)
        subscription.expire_up_to(position)
    return done()


async def _expire(request: Request, subscriptions: list[PersistentSubscription]) -> None:
    """Expires older messages of all subscriptions; raises at the end if a backlog is empty."""
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
    """Returns the subscription of the topic, or of each partition that has it; raises NotFound."""
    name, subscription_name = topic_of(request), text_of(request, "subscription")
    subscriptions = []
    for part in await loaded_parts(service_of(request), name):
        persistent = require_persistent(
            part, f"{name} is a non-persistent topic: its subscriptions have no position"
        )
        refuse_broken(part, subscription_name)
        if (subscription := persistent.subscriptions.get(subscription_name)) is not None:
            subscriptions.append(subscription)
    if not subscriptions:
        raise subscription_not_found(subscription_name, name)
    return subscriptions
