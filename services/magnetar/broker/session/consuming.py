"""SUBSCRIBE and everything that a consumer says afterwards."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magnetar.broker.session.refused import check_subscribe
from magnetar.broker.session.schemas import schema_info
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.subscription.spec import (
    ConsumerSpec,
    KeySharedMode,
    KeySharedSpec,
    SubType,
)
from magnetar.broker.topic.last_message import last_message
from magnetar.broker.topic.nonpersistent import NonPersistentTopic
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.errors import (
    ConsumerNotFound,
    MagnetarError,
    MetadataError,
    NotAllowed,
    ServerError,
    ServiceNotReady,
)
from magnetar.core.ids import Position
from magnetar.core.names import TopicName, parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.message_id import ack_set_bits, message_id_data, signed64

if TYPE_CHECKING:
    from magnetar.broker.session.session import Session


@dataclass(slots=True)
class Attachment:
    """A consumer of this connection, and where it is attached."""

    topic: PersistentTopic | NonPersistentTopic
    subscription: Any  # of the topic's kind; the union would need a cast at every use
    consumer: Consumer

    @property
    def attached(self) -> bool:
        """False once the subscription has sent the consumer away, after a seek for instance."""
        return self.consumer in self.subscription.consumers

    def detach(self) -> None:
        """Gives back what the consumer held; harmless where it was sent away already."""
        self.topic.remove_consumer(self.subscription, self.consumer)


def on_subscribe(
    session: "Session", command: pb.CommandSubscribe
) -> Coroutine[Any, Any, None] | None:
    """Attaches a consumer; repeated for the same id it succeeds again."""
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
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")
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
    session: "Session", command: pb.CommandSubscribe, name: TopicName, request: SubscribeRequest
) -> None:
    service = session.service
    create = command.force_topic_creation and service.topics.creation.by_use(name)
    topic = await service.topics.get_or_open(name, create=create)
    if request.schema is not None:
        await topic.check_schema(request.schema)
    request.auto_create = topic.makes_subscriptions
    consumer = Consumer(request.spec, session.link, service.clock)
    if request.spec.read_compacted and isinstance(topic, PersistentTopic):
        consumer.compacted = await service.compaction.log_of(topic)
    session.link.consumer_attached(command.consumer_id, name.partition_index)
    subscription = await topic.subscribe(request, consumer)
    attachment = Attachment(topic, subscription, consumer)
    if session.wire.closed:
        attachment.detach()
        return
    session.consumers[command.consumer_id] = attachment
    session.link.success(command.request_id)


def _attachment(session: "Session", consumer_id: int) -> Attachment:
    attachment = session.consumers.get(consumer_id)
    if attachment is None:
        raise ConsumerNotFound("Consumer not found")
    return attachment


def _persistent(session: "Session", consumer_id: int, what: str) -> Attachment:
    attachment = _attachment(session, consumer_id)
    if not isinstance(attachment.topic, PersistentTopic):
        raise NotAllowed(f"{what} is not supported on non-persistent topics")
    return attachment


def on_flow(session: "Session", command: pb.CommandFlow) -> None:
    """The rare shapes of FLOW; the plain one has its own event."""
    attachment = session.consumers.get(command.consumer_id)
    if attachment is not None:
        attachment.subscription.flow(attachment.consumer, command.messagePermits)


def on_ack(session: "Session", command: pb.CommandAck) -> None:
    """Acks of many messages or of parts of batches, cumulative ones, and receipted ones."""
    attachment = session.consumers.get(command.consumer_id)
    wants_response = command.HasField("request_id")
    if attachment is None:
        if wants_response:
            _ack_response(session, command, ConsumerNotFound("Consumer not found"))
        return
    if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
        _ack_response(session, command, NotAllowed("Transaction manager is not not enabled"))
        return
    parts_count = session.service.settings.batch_index_acks
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
        last = command.message_id[0]  # part of its batch is acked, so all before it is
        positions = [(signed64(last.ledgerId), signed64(last.entryId) - 1, None, 0)]
    on_done = None
    if wants_response:

        def on_done(error: MagnetarError | None) -> None:
            _ack_response(session, command, error)

    attachment.subscription.ack(attachment.consumer, positions, cumulative, on_done)


def _ack_response(session: "Session", command: pb.CommandAck, error: MagnetarError | None) -> None:
    response = pb.CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id)
    if error is not None:
        response.error = int(error.code)  # type: ignore[assignment]
        response.message = error.message
    session.link.answer(CommandType.ACK_RESPONSE, response)


def on_redeliver(session: "Session", command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
    """Has no answer. Without ids: everything that the consumer holds."""
    attachment = session.consumers.get(command.consumer_id)
    if attachment is None:
        return
    positions = [
        (signed64(message_id.ledgerId), signed64(message_id.entryId))
        for message_id in command.message_ids
    ]
    epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
    attachment.subscription.redeliver(attachment.consumer, positions or None, epoch)


def on_unsubscribe(session: "Session", command: pb.CommandUnsubscribe) -> Coroutine[Any, Any, None]:
    attachment = _attachment(session, command.consumer_id)
    return _unsubscribe(session, command, attachment)


async def _unsubscribe(
    session: "Session", command: pb.CommandUnsubscribe, attachment: Attachment
) -> None:
    try:
        await attachment.topic.unsubscribe(
            attachment.subscription, attachment.consumer, force=command.force
        )
    except MagnetarError as error:
        session.link.error(command.request_id, error)
        if not attachment.attached:
            # Behind the error: only a client that goes on with the consumer attaches it again.
            session.link.close_consumer(command.consumer_id)
        return
    if session.consumers.get(command.consumer_id) is attachment:
        del session.consumers[command.consumer_id]
        session.link.forget_consumer(command.consumer_id)
    session.link.success(command.request_id)


def on_close_consumer(session: "Session", command: pb.CommandCloseConsumer) -> None:
    """Always succeeds, also for a consumer that is unknown or still being attached."""
    pending = session.pending_attachments.get(("consumer", command.consumer_id))
    if pending is not None:
        pending.end()
    attachment = session.consumers.pop(command.consumer_id, None)
    if attachment is not None:
        attachment.detach()
    session.link.forget_consumer(command.consumer_id)
    session.link.success(command.request_id)


def on_seek(session: "Session", command: pb.CommandSeek) -> Coroutine[Any, Any, None]:
    if not command.HasField("message_id") and not command.HasField("message_publish_time"):
        raise MetadataError("Message id and message publish time were not present")
    attachment = _persistent(session, command.consumer_id, "Seek")
    return _seek(session, command, attachment.subscription)


async def _seek(
    session: "Session", command: pb.CommandSeek, subscription: PersistentSubscription
) -> None:
    if command.HasField("message_id"):
        message_id = command.message_id
        position = Position(signed64(message_id.ledgerId), signed64(message_id.entryId))
        remaining = ack_set_bits(message_id.ack_set) if message_id.ack_set else None
        await subscription.seek(position, remaining)
    else:
        await subscription.seek_to_time(command.message_publish_time)
    session.link.success(command.request_id)


def on_get_last_message_id(
    session: "Session", command: pb.CommandGetLastMessageId
) -> Coroutine[Any, Any, None]:
    attachment = _attachment(session, command.consumer_id)
    if not isinstance(attachment.topic, PersistentTopic):
        raise NotAllowed("GetLastMessageId is not supported on non-persistent topics")
    return _last_message_id(session, command, attachment, attachment.topic)


async def _last_message_id(
    session: "Session",
    command: pb.CommandGetLastMessageId,
    attachment: Attachment,
    topic: PersistentTopic,
) -> None:
    """The last message with its index in its batch; -1:-1 where the topic holds none."""
    compacted = attachment.consumer.compacted
    position, batch_index = await last_message(topic, compacted)
    partition = topic.name.partition_index
    mark_delete = attachment.subscription.cursor.mark_delete
    response = pb.CommandGetLastMessageIdResponse(request_id=command.request_id)
    response.consumer_mark_delete_position.CopyFrom(message_id_data(*mark_delete))
    response.last_message_id.CopyFrom(message_id_data(*position, partition, batch_index))
    session.link.answer(CommandType.GET_LAST_MESSAGE_ID_RESPONSE, response)


def on_consumer_stats(session: "Session", command: pb.CommandConsumerStats) -> None:
    response = pb.CommandConsumerStatsResponse(request_id=command.request_id)
    attachment = session.consumers.get(command.consumer_id)
    if attachment is None:
        response.error_code = int(ServerError.CONSUMER_NOT_FOUND)  # type: ignore[assignment]
        response.error_message = f"Consumer {command.consumer_id} not found"
    else:
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
        response.connectedSince = session.service.rfc3339(consumer.connected_since_ms)
        response.type = subscription.type.name if subscription.type is not None else ""
        if isinstance(subscription, PersistentSubscription):
            response.msgBacklog = subscription.cursor.backlog
    session.link.answer(CommandType.CONSUMER_STATS_RESPONSE, response)
