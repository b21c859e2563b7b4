"""The commands that open and close the producer of one topic or partition."""

import asyncio
from typing import Any, cast

from magnetar.client.errors import ClientError, OperationTimeout
from magnetar.client.network.connection import Connection
from magnetar.client.network.lookup import schema_to_wire
from magnetar.client.options import ProducerOptions
from magnetar.schemas.model import SchemaInfo
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command


def producer_command(
    options: ProducerOptions,
    topic: str,
    producer_id: int,
    epoch: int,
    name: str,
    schema: SchemaInfo | None,
    topic_epoch: int | None,
) -> pb.CommandProducer:
    """Returns the PRODUCER; an empty `name` lets the broker choose one."""
    command = pb.CommandProducer(
        topic=topic,
        producer_id=producer_id,
        request_id=0,
        epoch=epoch,
        user_provided_producer_name=bool(options.name),
        producer_access_mode=pb.ProducerAccessMode.ValueType(int(options.access_mode)),
        metadata=[pb.KeyValue(key=k, value=v) for k, v in options.properties.items()],
        txn_enabled=True,
        encrypted=options.encryption is not None,
    )
    if name:
        command.producer_name = name
    if schema is not None:
        command.schema.CopyFrom(schema_to_wire(schema))
    if topic_epoch is not None:
        command.topic_epoch = topic_epoch
    if options.initial_subscription:
        command.initial_subscription_name = options.initial_subscription
    return command


async def producer_created(
    connection: Connection,
    producer_id: int,
    topic: str,
    answer: "asyncio.Future[Any]",
    timeout_s: float | None,
) -> pb.CommandProducerSuccess:
    """Returns the answer to PRODUCER; without one, the broker is asked to close the producer."""
    try:
        async with asyncio.timeout(timeout_s):
            return cast("pb.CommandProducerSuccess", await answer)
    except BaseException as error:
        connection.detach_producer(producer_id)
        if not isinstance(error, ClientError):
            close_unanswered(connection, producer_id)
        if isinstance(error, TimeoutError) and not isinstance(error, ClientError):
            raise OperationTimeout(
                f"PRODUCER was not answered in {timeout_s} s",
                topic=topic,
                broker=connection.address,
            ) from None
        raise


def close_unanswered(connection: Connection, producer_id: int) -> None:
    """Closes a producer without waiting for the broker's answer."""
    closing = pb.CommandCloseProducer(
        producer_id=producer_id, request_id=connection.next_request_id()
    )
    connection.write(encode_command(CommandType.CLOSE_PRODUCER, closing))
