"""A producer of one topic or partition, on one connection. A lost one is replaced, not repaired."""

import asyncio
import time
from collections import OrderedDict
from typing import Any

from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_send
from magnetar_spark.sink.batches import Batch
from magnetar_spark.sink.client.brokers import Brokers
from magnetar_spark.sink.client.connection import Connection
from magnetar_spark.sink.client.errors import Refused, Unavailable
from magnetar_spark.sink.values import TopicSchema

Txn = tuple[int, int]
"""A transaction: most and least significant bits of its id."""


class Producer:
    """Sends batches in order; each has a receipt, or the producer is lost with all that follow."""

    def __init__(self, topic: str, connection: Connection, id_: int) -> None:
        self.topic = topic
        self.lost: MagnetarError | None = None
        self._connection = connection
        self._id = id_
        self._name = ""
        self._schema_version = b""
        self._next = 0
        self._waiting: OrderedDict[int, asyncio.Future[tuple[int, int]]] = OrderedDict()

    @classmethod
    async def attach(
        cls, brokers: Brokers, topic: str, schema: TopicSchema | None, *, transactional: bool
    ) -> "Producer":
        """Returns a producer of the topic; repeats the look-up while the topic moves.

        Raises Refused, for example if the topic refuses the schema, and Unavailable.
        """

        async def once() -> "Producer":
            connection = await brokers.serving(topic)
            producer = cls(topic, connection, connection.new_id())
            command = pb.CommandProducer(
                topic=topic,
                producer_id=producer._id,
                user_provided_producer_name=False,
                txn_enabled=transactional,
            )
            if schema is not None:
                command.schema.name = ""
                command.schema.type = schema.kind
                command.schema.schema_data = schema.definition
            connection.attach_producer(producer._id, producer)
            try:
                answer = await connection.request(CommandType.PRODUCER, command)
            except BaseException:
                connection.detach(producer._id)
                raise
            producer._name = answer.producer_name
            producer._schema_version = answer.schema_version if schema is not None else b""
            producer._next = answer.last_sequence_id + 1
            return producer

        return await brokers.repeated(once)

    async def send(self, batch: Batch, txn: Txn | None) -> "asyncio.Future[tuple[int, int]]":
        """Sends a batch; returns the future of its position. Raises Unavailable if it is lost."""
        if self.lost is not None:
            raise self.lost
        sequence_id = self._next
        self._next += batch.count
        metadata = pb.MessageMetadata()
        metadata.CopyFrom(batch.head)
        metadata.producer_name = self._name
        metadata.sequence_id = sequence_id
        metadata.publish_time = int(time.time() * 1000)
        command = pb.CommandSend(producer_id=self._id, sequence_id=sequence_id)
        if batch.count > 1:
            command.num_messages = batch.count
            command.highest_sequence_id = sequence_id + batch.count - 1
            metadata.highest_sequence_id = command.highest_sequence_id
        if self._schema_version:
            metadata.schema_version = self._schema_version
        if txn is not None:
            command.txnid_most_bits, command.txnid_least_bits = txn
            metadata.txnid_most_bits, metadata.txnid_least_bits = txn
        frame = encode_send(command, metadata, batch.payload)
        if len(batch.payload) > self._connection.message_bytes_max:
            raise PreconditionFailed(
                f"a message for {self.topic} has {len(batch.payload)} bytes, more than the "
                f"{self._connection.message_bytes_max} that brokers accept (maxMessageSize)"
            )
        future: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieved)
        self._waiting[sequence_id] = future
        await self._connection.send(frame)
        return future

    async def close(self) -> None:
        """Detaches from the topic; does nothing if it is lost."""
        if self.lost is not None:
            return
        self.detached(Unavailable("the producer was closed"))
        self._connection.detach(self._id)
        command = pb.CommandCloseProducer(producer_id=self._id)
        await self._connection.request(CommandType.CLOSE_PRODUCER, command)

    def received(self, kind: int, command: Any, payload: bytes | None) -> None:  # noqa: ARG002
        """See `Attached`."""
        if kind == CommandType.SEND_ERROR:
            self.detached(Refused(command.error, command.message))
            self._connection.detach(self._id)
            return
        future = self._waiting.pop(command.sequence_id, None)
        if future is not None and not future.done():
            position = command.message_id
            future.set_result((position.ledgerId, position.entryId))

    def detached(self, error: MagnetarError) -> None:
        """See `Attached`."""
        self.lost = self.lost or error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()


def _retrieved(future: "asyncio.Future[tuple[int, int]]") -> None:
    if not future.cancelled():
        future.exception()
