"""A client without opinions: it sends commands and hands back what came, unretried.

Official clients reconnect, resend and filter; a test that must know exactly which message was
receipted and which ack was answered needs one that does not.
"""

import asyncio
import itertools
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import PONG_FRAME, encode_command, encode_send
from magnetar.wire.entry import payload_of
from magnetar.wire.events import Command

ANSWER_TIMEOUT_S = 30.0


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{pb.ServerError.Name(code)}: {text}")  # type: ignore[arg-type]
        self.code, self.text = code, text


@dataclass(slots=True)
class Received:
    """One MESSAGE frame."""

    ledger_id: int
    entry_id: int
    redelivery_count: int
    payload: bytes


class RawClient(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.decoder = FrameDecoder()
        self.transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()
        self._requests = itertools.count(1)
        self._ids = itertools.count(1)
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self.receipts: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.send_errors: dict[int, list[tuple[int, str]]] = defaultdict(list)
        self.messages: dict[int, asyncio.Queue[Received]] = defaultdict(asyncio.Queue)
        self.closed_by_server: list[int] = []
        self.closed_commands: list[Any] = []
        self.topic_updates: asyncio.Queue[Any] = asyncio.Queue()
        self.pongs = 0
        self.on_receipt = asyncio.Event()

    @classmethod
    async def connect(
        cls, host: str, port: int, command: pb.CommandConnect | None = None
    ) -> "RawClient":
        """A client that is connected, by CONNECT without credentials or by `command`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            _, client = await loop.create_connection(cls, host, port)
        connect = command or pb.CommandConnect(client_version="raw", protocol_version=21)
        client.write(encode_command(CommandType.CONNECT, connect))
        await client._answer(CommandType.CONNECTED)
        return client

    # -- asyncio ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        for event in self.decoder.feed(data):
            assert isinstance(event, Command)
            self._command(event.type, event.message, event.payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        self.on_receipt.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("connection lost"))

    def _command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind == CommandType.SEND_RECEIPT:
            position = (message.message_id.ledgerId, message.message_id.entryId)
            self.receipts[message.producer_id][message.sequence_id] = position
            self.on_receipt.set()
        elif kind == CommandType.MESSAGE:
            assert payload is not None
            self.messages[message.consumer_id].put_nowait(
                Received(
                    message.message_id.ledgerId,
                    message.message_id.entryId,
                    message.redelivery_count,
                    payload_of(payload),
                )
            )
        elif kind == CommandType.SEND_ERROR:
            self.send_errors[message.producer_id].append((message.error, message.message))
            self.on_receipt.set()
        elif kind == CommandType.PONG:
            self.pongs += 1
            self.on_receipt.set()
        elif kind == CommandType.PING:
            self.write(PONG_FRAME)
        elif kind == CommandType.CLOSE_PRODUCER:
            self.closed_by_server.append(message.producer_id)
            self.closed_commands.append(message)
            self.on_receipt.set()
        elif kind == CommandType.CLOSE_CONSUMER:
            self.closed_by_server.append(message.consumer_id)
            self.closed_commands.append(message)
            self.on_receipt.set()
        elif kind == CommandType.WATCH_TOPIC_UPDATE:
            self.topic_updates.put_nowait(message)
        elif hasattr(message, "request_id"):
            future = self._waiting.pop(message.request_id, None)
            if future is not None and not future.done():
                future.set_result((kind, message))
        else:
            future = self._waiting.pop(("kind", kind), None)
            if future is not None and not future.done():
                future.set_result((kind, message))

    # -- commands --------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def write_eof(self) -> None:
        assert self.transport is not None
        self.transport.write_eof()

    async def _answer(self, key: object) -> Any:
        future = asyncio.get_running_loop().create_future()
        self._waiting[("kind", key) if isinstance(key, int) and key < 100 else key] = future
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await future

    async def request(self, kind: int, message: Any) -> Any:
        """Sends a command with a fresh request id; returns its answer, or raises Refused."""
        message.request_id = 1_000 + next(self._requests)
        future = asyncio.get_running_loop().create_future()
        self._waiting[message.request_id] = future
        self.write(encode_command(kind, message))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answered, answer = await future
        if answered == CommandType.ERROR:
            raise Refused(answer.error, answer.message)
        return answer

    async def producer(
        self, topic: str, name: str | None = None, producer_id: int | None = None
    ) -> int:
        producer_id = next(self._ids) if producer_id is None else producer_id
        command = pb.CommandProducer(topic=topic, producer_id=producer_id)
        if name:
            command.producer_name = name
        await self.request(CommandType.PRODUCER, command)
        return producer_id

    def send(self, producer_id: int, sequence_id: int, payload: bytes, key: str = "") -> None:
        metadata = pb.MessageMetadata(
            producer_name="raw", sequence_id=sequence_id, publish_time=int(time.time() * 1000)
        )
        if key:
            metadata.partition_key = key
        command = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
        self.write(encode_send(command, metadata, payload))

    async def receipted(self, producer_id: int, count: int) -> None:
        """Waits until `count` messages of the producer have their receipt."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while len(self.receipts[producer_id]) < count:
                if self.lost.is_set():
                    raise ConnectionError("connection lost")
                self.on_receipt.clear()
                await self.on_receipt.wait()

    async def closings(self, count: int) -> list[Any]:
        """The CLOSE commands that came, once there are `count` of them."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while len(self.closed_commands) < count:
                self.on_receipt.clear()
                await self.on_receipt.wait()
        return self.closed_commands

    async def consumer(
        self, topic: str, subscription: str, *, kind: int = 0, earliest: bool = True, **more: Any
    ) -> int:
        consumer_id: int = more.pop("consumer_id", None) or next(self._ids)
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=kind,  # type: ignore[arg-type]
            consumer_id=consumer_id,
            initialPosition=int(earliest),  # type: ignore[arg-type]
            **more,
        )
        await self.request(CommandType.SUBSCRIBE, command)
        return consumer_id

    def flow(self, consumer_id: int, permits: int) -> None:
        command = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
        self.write(encode_command(CommandType.FLOW, command))

    def write_redelivery(self, consumer_id: int) -> None:
        """Asks for everything that the consumer holds unacknowledged to be sent again."""
        command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id)
        self.write(encode_command(CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES, command))

    async def receive(self, consumer_id: int) -> Received:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await self.messages[consumer_id].get()

    async def ack(self, consumer_id: int, positions: list[tuple[int, int]]) -> None:
        """Acks with a receipt; returns once the server has answered."""
        command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Individual)
        for ledger_id, entry_id in positions:
            command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        answer = await self.request(CommandType.ACK, command)
        if answer.HasField("error"):
            raise Refused(answer.error, answer.message)

    async def ponged(self) -> bool:
        """Whether a PONG came before the server closed."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while not self.pongs and not self.lost.is_set():
                self.on_receipt.clear()
                await self.on_receipt.wait()
        return self.pongs > 0

    async def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await self.lost.wait()
