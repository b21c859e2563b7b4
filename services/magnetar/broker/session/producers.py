"""PRODUCER and CLOSE_PRODUCER."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from magnetar.broker.lifecycle.enforcement import refusal as quota_refusal
from magnetar.broker.session.schemas import schema_info
from magnetar.broker.session.session import Session
from magnetar.broker.topic.dead_letters import keep_dead_letters
from magnetar.broker.topic.producer import AccessMode, Producer
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName, parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb


def on_producer(session: Session, command: pb.CommandProducer) -> Coroutine[Any, Any, None] | None:
    """Attaches a producer; a repetition for the same id succeeds again with the same producer."""
    attached = session.producers.get(command.producer_id)
    if attached is not None and not attached[0].closed:
        producer, _ = attached
        if producer.closing:
            raise ServiceNotReady("Producer is still being closed, please retry")
        producer.request_id = command.request_id
        session.link.producer_ready(producer)
        return None
    if ("producer", command.producer_id) in session.pending_attachments:
        raise ServiceNotReady("Producer is already present on the connection")
    topic = parse_topic(command.topic)
    attaching = session.attaching("producer", command.producer_id)
    return attaching.run(lambda: _attach(session, command, topic))


async def _attach(session: Session, command: pb.CommandProducer, name: TopicName) -> None:
    service = session.service
    topic = await service.topics.get_or_open(name, create=service.topics.creation.by_use(name))
    topic.check_producer(command.producer_name, encrypted=command.encrypted)
    if (refusal := await quota_refusal(topic)) is not None:
        raise refusal
    producer = Producer(
        command.producer_id,
        command.producer_name or service.new_producer_name(),
        session.link,
        epoch=command.epoch,
        generated_name=not command.user_provided_producer_name,
        access_mode=AccessMode(command.producer_access_mode),
        topic_epoch=command.topic_epoch if command.HasField("topic_epoch") else None,
        request_id=command.request_id,
        connected_since_ms=service.clock.now_ms(),
        metadata=[(pair.key, pair.value) for pair in command.metadata],
        encrypted=command.encrypted,
    )
    schema = schema_info(command.schema) if command.HasField("schema") else None
    producer.schema_version = await topic.add_schema(schema)
    if command.initial_subscription_name:
        await topic.initial_subscription(command.initial_subscription_name)
    else:
        await keep_dead_letters(topic, service.settings.subscriptions.dead_letter_subscription)
    try:
        await topic.add_producer(producer)
    except asyncio.CancelledError:
        topic.remove_producer(producer)
        raise
    if session.wire.closed:
        topic.remove_producer(producer)
        return
    session.producers[command.producer_id] = (producer, topic)
    service.refusals.attached(topic.full_name, "producer", command.producer_name)
    session.link.producer_ready(producer)


def on_close_producer(session: Session, command: pb.CommandCloseProducer) -> None:
    """Detaches a producer; succeeds even if it is unknown or still being created.

    Earlier messages are receipted first: the client considers messages without a receipt lost.
    """
    pending = session.pending_attachments.get(("producer", command.producer_id))
    if pending is not None:
        pending.end()
    attached = session.producers.get(command.producer_id)
    if attached is None:
        session.link.success(command.request_id)
        return
    producer, topic = attached

    def close() -> None:
        if session.producers.get(command.producer_id) is attached:
            del session.producers[command.producer_id]
            session.producer_closed(command.producer_id)
        if not producer.closed:
            topic.remove_producer(producer)
        session.link.success(command.request_id)

    if producer.pending_runs and not producer.closed and not producer.closing:
        producer.when_drained(close)
    else:
        close()
