"""SUBSCRIBE, and the later commands of a consumer."""

from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Final

from magnetar.broker.session.attachment import Attachment
from magnetar.broker.session.refusal import check_subscribe, transaction_of
from magnetar.broker.session.schemas import schema_info
from magnetar.broker.session.session import Session
from magnetar.broker.subscription.api import Subscription
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.spec import (
    ConsumerSpec,
    KeySharedMode,
    KeySharedSpec,
    SubType,
)
from magnetar.broker.topic.persistent import require_persistent
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.errors import (
    ConsumerNotFound,
    MagnetarError,
    MetadataError,
    NotAllowed,
    ServiceNotReady,
)
from magnetar.core.ids import Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.transactions.model import TxnId
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import error_number
from magnetar.wire.message_id import ack_set_bits, message_id_data, signed64

NO_COMPACTED_READS: Final = "readCompacted only allowed on failover or exclusive subscriptions"


def on_subscribe(
    session: Session, command: pb.CommandSubscribe
) -> Coroutine[Any, Any, None] | None:
    """Attaches a consumer; a repetition for the same id succeeds again."""
    key = ("consumer", command.consumer_id)
    former = session.consumers.get(command.consumer_id)
    if former is not None and former.attached:
        session.link.success(command.request_id)
        return None
    if key in session.pending_attachments:
        raise ServiceNotReady("Consumer is already present on the connection")
    name = parse_topic(command.topic)
    request = _request(command, name)
    attaching = session.attaching(*key)
    return attaching.run(lambda: _attach(session, command, name, request))


def _request(command: pb.CommandSubscribe, name: TopicName) -> SubscribeRequest:
    check_subscribe(command)
    sub_type = SubType(command.subType)
    if not command.subscription:
        raise MetadataError("Empty subscription name")
    if command.read_compacted and not (
        name.persistent and sub_type in (SubType.Exclusive, SubType.Failover)
    ):
        raise NotAllowed(NO_COMPACTED_READS)
    key_shared = None
    if command.HasField("keySharedMeta"):
        meta = command.keySharedMeta
        key_shared = KeySharedSpec(
            KeySharedMode(meta.keySharedMode),
            tuple((item.start, item.end) for item in meta.hashRanges),
            meta.allowOutOfOrderDelivery,
        )
    start: Position | None = None
    if command.HasField("start_message_id"):
        message_id = command.start_message_id
        start = Position(signed64(message_id.ledgerId), signed64(message_id.entryId))
    spec = ConsumerSpec(
        command.consumer_id,
        command.consumer_name,
        sub_type,
        command.priority_level,
        command.durable,
        command.read_compacted,
        key_shared,
        {pair.key: pair.value for pair in command.metadata},
        command.consumer_epoch if command.HasField("consumer_epoch") else None,
        start,
        has_schema=command.schema.type != pb.Schema.AutoConsume,
    )
    return SubscribeRequest(
        command.subscription,
        spec,
        durable=command.durable,
        from_earliest=command.initialPosition == pb.CommandSubscribe.Earliest,
        start=start,
        rollback_s=command.start_message_rollback_duration_sec,
        properties={pair.key: pair.value for pair in command.subscription_properties},
        schema=schema_info(command.schema) if command.HasField("schema") else None,
    )


async def _attach(
    session: Session, command: pb.CommandSubscribe, name: TopicName, request: SubscribeRequest
) -> None:
    service = session.service
    create = command.force_topic_creation and service.topics.creation.by_use(name)
    topic = await service.topics.get_or_open(name, create=create)
    if request.schema is not None:
        await topic.check_schema(request.schema)
    request.auto_create = topic.makes_subscriptions
    consumer = Consumer(request.spec, session.link, service.clock)
    if request.spec.read_compacted:
        log = require_persistent(topic, NO_COMPACTED_READS)
        consumer.compacted = await service.compaction.log_of(log)
    subscription = await topic.subscribe(request, consumer)
    attachment = Attachment(topic, subscription, consumer)
    if session.wire.closed:
        attachment.detach()
        return
    # Not before: it gets no message without permits, and an UNSUBSCRIBE or a CLOSE_CONSUMER of the
    # former consumer with this id may end meanwhile.
    session.link.consumer_attached(command.consumer_id, name.partition_index)
    session.consumers[command.consumer_id] = attachment
    refusals = service.refusals
    refusals.attached(topic.full_name, "consumer", command.consumer_name, command.subscription)
    session.link.success(command.request_id)


def _attachment(session: Session, consumer_id: int) -> Attachment:
    attachment = session.consumers.get(consumer_id)
    if attachment is None:
        raise ConsumerNotFound("Consumer not found")
    return attachment


def on_flow(session: Session, command: pb.CommandFlow) -> None:
    """Handles the rare forms of FLOW; the plain form has its own event."""
    attachment = session.consumers.get(command.consumer_id)
    if attachment is not None:
        attachment.subscription.flow(attachment.consumer, command.messagePermits)


def on_ack(session: Session, command: pb.CommandAck) -> None:
    """Handles every ACK except the plain single one, which has its own event."""
    attachment = session.consumers.get(command.consumer_id)
    wants_response = command.HasField("request_id")
    if attachment is None:
        if wants_response:
            _ack_response(session, command, ConsumerNotFound("Consumer not found"))
        return
    parts_count = session.service.settings.subscriptions.batch_index_acks
    positions = [
        (
            signed64(message_id.ledgerId),
            signed64(message_id.entryId),
            ack_set_bits(message_id.ack_set) if message_id.ack_set else None,
            message_id.batch_size,
        )
        for message_id in command.message_id
        # Without batch index acks a batch stays whole until its last message is acked.
        if parts_count or not any(message_id.ack_set)
    ]
    cumulative = command.ack_type == pb.CommandAck.Cumulative
    if cumulative and not positions and len(command.message_id) == 1:
        last = command.message_id[0]  # a part of its batch is acked, so all entries before it are
        positions = [(signed64(last.ledgerId), signed64(last.entryId) - 1, None, 0)]

    def respond(error: MagnetarError | None) -> None:
        if wants_response:
            _ack_response(session, command, error)

    subscription, consumer = attachment.subscription, attachment.consumer
    if (txn := transaction_of(command)) is not None:
        subscription.ack_in_transaction(consumer, TxnId(*txn), positions, cumulative, respond)
    else:
        on_done = respond if wants_response else None
        subscription.ack(consumer, positions, cumulative, on_done)


def _ack_response(session: Session, command: pb.CommandAck, error: MagnetarError | None) -> None:
    session.link.ack_response(command.consumer_id, command.request_id, error)


def on_redeliver(session: Session, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
    """Redelivers the given messages, or all of the consumer's; sends no answer."""
    attachment = session.consumers.get(command.consumer_id)
    if attachment is None:
        return
    positions = [
        (signed64(message_id.ledgerId), signed64(message_id.entryId))
        for message_id in command.message_ids
    ]
    epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
    attachment.subscription.redeliver(attachment.consumer, positions or None, epoch)


def on_unsubscribe(session: Session, command: pb.CommandUnsubscribe) -> Coroutine[Any, Any, None]:
    """Deletes the subscription of a consumer."""
    attachment = _attachment(session, command.consumer_id)
    return _unsubscribe(session, command, attachment)


async def _unsubscribe(
    session: Session, command: pb.CommandUnsubscribe, attachment: Attachment
) -> None:
    try:
        await attachment.topic.unsubscribe(
            attachment.subscription, attachment.consumer, force=command.force
        )
    except MagnetarError as error:
        session.link.error(command.request_id, error)
        if not attachment.attached:
            # After the error, so that only a client that keeps the consumer reattaches it.
            session.link.close_consumer(command.consumer_id)
        return
    if session.consumers.get(command.consumer_id) is attachment:
        del session.consumers[command.consumer_id]
        session.link.forget_consumer(command.consumer_id)
    session.link.success(command.request_id)


def on_close_consumer(session: Session, command: pb.CommandCloseConsumer) -> None:
    """Detaches a consumer; succeeds even if it is unknown or still being attached."""
    pending = session.pending_attachments.get(("consumer", command.consumer_id))
    if pending is not None:
        pending.end()
    attachment = session.consumers.pop(command.consumer_id, None)
    if attachment is not None:
        attachment.detach()
    session.link.forget_consumer(command.consumer_id)
    session.link.success(command.request_id)


def on_seek(session: Session, command: pb.CommandSeek) -> Coroutine[Any, Any, None]:
    """Moves a subscription to a message or a publish time."""
    if not command.HasField("message_id") and not command.HasField("message_publish_time"):
        raise MetadataError("Message id and message publish time were not present")
    attachment = _attachment(session, command.consumer_id)
    return _seek(session, command, attachment.subscription)


async def _seek(session: Session, command: pb.CommandSeek, subscription: Subscription) -> None:
    if command.HasField("message_id"):
        message_id = command.message_id
        position = Position(signed64(message_id.ledgerId), signed64(message_id.entryId))
        remaining = ack_set_bits(message_id.ack_set) if message_id.ack_set else None
        await subscription.seek(position, remaining)
    else:
        await subscription.seek_to_time(command.message_publish_time)
    session.link.success(command.request_id)


def on_get_last_message_id(
    session: Session, command: pb.CommandGetLastMessageId
) -> Coroutine[Any, Any, None]:
    """Answers the last message that a consumer can receive."""
    attachment = _attachment(session, command.consumer_id)
    return _last_message_id(session, command, attachment)


async def _last_message_id(
    session: Session,
    command: pb.CommandGetLastMessageId,
    attachment: Attachment,
) -> None:
    """Answers the last message with its index in its batch; -1:-1 if the topic has no message."""
    topic = attachment.topic
    position, batch_index = await topic.last_message(attachment.consumer.compacted)
    partition = topic.name.partition_index
    mark_delete = attachment.subscription.mark_delete
    response = pb.CommandGetLastMessageIdResponse(request_id=command.request_id)
    response.consumer_mark_delete_position.CopyFrom(message_id_data(*mark_delete))
    response.last_message_id.CopyFrom(message_id_data(*position, partition, batch_index))
    session.link.answer(CommandType.GET_LAST_MESSAGE_ID_RESPONSE, response)


def rfc3339(at_ms: int) -> str:
    """Formats a time as Pulsar does in CONSUMER_STATS_RESPONSE."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def on_consumer_stats(session: Session, command: pb.CommandConsumerStats) -> None:
    """Answers the statistics of a consumer."""
    attachment = session.consumers.get(command.consumer_id)
    if attachment is None:
        error = ConsumerNotFound(f"Consumer {command.consumer_id} not found")
        refuse_stats(session, command, error)
    else:
        response = pb.CommandConsumerStatsResponse(request_id=command.request_id)
        consumer, subscription = attachment.consumer, attachment.subscription
        now_s = session.service.clock.monotonic()
        consumer.rates.update(consumer, now_s)
        response.msgRateOut = consumer.rates.out
        response.msgThroughputOut = consumer.rates.throughput
        response.msgRateRedeliver = consumer.rates.redeliver
        response.messageAckRate = consumer.rates.ack
        response.consumerName = consumer.name
        response.availablePermits = max(0, consumer.permits)
        response.unackedMessages = consumer.unacked
        response.blockedConsumerOnUnackedMsgs = consumer.blocked
        response.address = session.link.address
        response.connectedSince = rfc3339(consumer.connected_since_ms)
        response.type = subscription.type.name if subscription.type is not None else ""
        if subscription.backlog is not None:
            response.msgBacklog = subscription.backlog
        session.link.answer(CommandType.CONSUMER_STATS_RESPONSE, response)


def refuse_stats(session: Session, command: pb.CommandConsumerStats, error: MagnetarError) -> None:
    """Answers CONSUMER_STATS with an error."""
    response = pb.CommandConsumerStatsResponse(request_id=command.request_id)
    response.error_code = error_number(error.code)
    response.error_message = error.message
    session.link.answer(CommandType.CONSUMER_STATS_RESPONSE, response)
