"""A reader of one topic, and the durable subscription that keeps its messages."""

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any, Final

from magnetar.core.errors import ServerError
from magnetar.core.ids import Position
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command
from magnetar.wire.message_id import signed64, unsigned64
from magnetar_spark.sink.client.brokers import Brokers
from magnetar_spark.sink.client.connection import Connection
from magnetar_spark.sink.client.errors import Refused, Unavailable

PERMITS: Final = 1_000
_EARLIEST: Final = pb.CommandSubscribe.InitialPosition.Earliest
_EXCLUSIVE: Final = pb.CommandSubscribe.SubType.Exclusive


@dataclass(frozen=True, slots=True)
class Read:
    """A message with its position."""

    position: Position
    value: bytes


class Reader:
    """Reads a topic's messages in order, without a durable subscription."""

    def __init__(self, connection: Connection, id_: int) -> None:
        self._connection = connection
        self._id = id_
        self._queue: asyncio.Queue[Read | Unavailable] = asyncio.Queue()
        self._taken = 0

    @classmethod
    async def open(cls, brokers: Brokers, topic: str, first: Position | None) -> "Reader":
        """Returns a reader from `first` on, inclusive; None: from the earliest message."""
        connection = await brokers.serving(topic)
        reader = cls(connection, connection.new_id())
        start = Position(-1, -1) if first is None else first
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=f"spark-sink-{uuid.uuid4().hex}",
            subType=_EXCLUSIVE,
            consumer_id=reader._id,
            durable=False,
            initialPosition=_EARLIEST,
        )
        # The broker includes the start; that readers exclude it is the doing of other clients.
        command.start_message_id.ledgerId = unsigned64(start.ledger_id)
        command.start_message_id.entryId = unsigned64(start.entry_id)
        connection.attach_reader(reader._id, reader)
        try:
            await connection.request(CommandType.SUBSCRIBE, command)
        except BaseException:
            connection.detach(reader._id)
            raise
        await reader._permit(PERMITS)
        return reader

    async def last(self) -> Position | None:
        """Returns the position of the last readable message; None if there is none."""
        command = pb.CommandGetLastMessageId(consumer_id=self._id)
        answer = await self._connection.request(CommandType.GET_LAST_MESSAGE_ID, command)
        last = answer.last_message_id
        entry_id = signed64(last.entryId)
        return None if entry_id < 0 else Position(signed64(last.ledgerId), entry_id)

    async def next(self, timeout_s: float) -> Read | None:
        """Returns the next message, None if there is none in time. Raises Unavailable."""
        try:
            async with asyncio.timeout(timeout_s):
                read = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(read, Unavailable):
            raise read
        self._taken += 1
        if self._taken >= PERMITS // 2:
            await self._permit(self._taken)
            self._taken = 0
        return read

    async def close(self) -> None:
        """Closes the reader. Raises Refused, Unavailable."""
        self._connection.detach(self._id)
        command = pb.CommandCloseConsumer(consumer_id=self._id)
        await self._connection.request(CommandType.CLOSE_CONSUMER, command)

    def received(self, kind: int, command: Any, payload: bytes | None) -> None:  # noqa: ARG002
        """See `Attached`."""
        position = Position(command.message_id.ledgerId, command.message_id.entryId)
        for message in messages_of(payload or b"")[1]:
            self._queue.put_nowait(Read(position, message.payload))

    def detached(self, error: Unavailable) -> None:
        """See `Attached`."""
        self._queue.put_nowait(error)

    async def _permit(self, count: int) -> None:
        command = pb.CommandFlow(consumer_id=self._id, messagePermits=count)
        await self._connection.send(encode_command(CommandType.FLOW, command))


async def keep_messages(
    brokers: Brokers, topic: str, subscription: str, done: Position | None
) -> None:
    """Creates a durable subscription, and acks all messages up to `done`.

    Messages behind it are kept. If another consumer is attached just now, nothing is acked. Raises
    Refused, Unavailable.
    """
    connection = await brokers.serving(topic)
    id_ = connection.new_id()
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=_EXCLUSIVE,
        consumer_id=id_,
        initialPosition=_EARLIEST,
    )
    try:
        await connection.request(CommandType.SUBSCRIBE, command)
    except Refused as error:
        if error.number == ServerError.CONSUMER_BUSY:
            return
        raise
    if done is not None:
        ack = pb.CommandAck(consumer_id=id_, ack_type=pb.CommandAck.Cumulative)
        ack.message_id.add(ledgerId=done.ledger_id, entryId=done.entry_id)
        await connection.request(CommandType.ACK, ack)
    close = pb.CommandCloseConsumer(consumer_id=id_)
    await connection.request(CommandType.CLOSE_CONSUMER, close)
