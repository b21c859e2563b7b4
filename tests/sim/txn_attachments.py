"""Producers and consumers of the simulation's transactional clients, each on one connection."""

import asyncio
from typing import Any, Final

from tests.sim.client import Client, Refused, Wire
from tests.sim.workload import EARLIEST

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command, encode_send

PERMITS: Final = 64


async def ask(wire: Wire, kind: int, command: Any, *, cut_s: float | None = None) -> Any:
    """Requests; raises Refused for a response with an error, too."""
    answer = await wire.request(kind, command, cut_s=cut_s)
    if answer.HasField("error"):
        raise Refused(answer.error, answer.message)
    return answer


class Attachment:
    """A producer or consumer on one connection, until either is gone."""

    def __init__(self, client: Client, topic: str) -> None:
        self.topic = topic
        self.number = next(client.ids)
        self.wire: Wire | None = None
        self.gone = asyncio.Event()

    def detached(self, redirect: str) -> None:
        self.wire = None
        self.gone.set()


class TargetProducer(Attachment):
    """Sends to a target; every send is awaited."""

    def __init__(self, client: Client, topic: str, name: str) -> None:
        super().__init__(client, topic)
        self._client, self._name, self._next = client, name, 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def attach(self) -> None:
        wire = await self._client.broker_of(self.topic)
        wire.producers[self.number] = self
        self.wire = wire
        command = pb.CommandProducer(
            topic=self.topic, producer_id=self.number, producer_name=self._name
        )
        await wire.request(CommandType.PRODUCER, command)

    def leave(self) -> None:
        wire, self.wire = self.wire, None
        if wire is not None and wire.producers.pop(self.number, None) is not None:
            command = pb.CommandCloseProducer(producer_id=self.number, request_id=1 << 40)
            wire.write(encode_command(CommandType.CLOSE_PRODUCER, command))

    def send(self, payload: bytes, txn: tuple[int, int] | None) -> "asyncio.Future[None]":
        """Sends a message; the result comes with its receipt."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.wire is None:
            done.set_exception(ConnectionError("connection lost"))
            return done
        sequence, self._next = self._next, self._next + 1
        self._waiting[sequence] = done
        metadata = pb.MessageMetadata(
            producer_name=self._name, sequence_id=sequence, publish_time=1_800_000_000_000
        )
        command = pb.CommandSend(producer_id=self.number, sequence_id=sequence)
        if txn is not None:
            metadata.txnid_most_bits = command.txnid_most_bits = txn[0]
            metadata.txnid_least_bits = command.txnid_least_bits = txn[1]
        self.wire.write(encode_send(command, metadata, payload))
        return done

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        done = self._waiting.pop(message.sequence_id, None)
        if done is None or done.done():
            return
        if kind == CommandType.SEND_ERROR:
            done.set_exception(Refused(message.error, message.message))
        else:
            done.set_result(None)

    def detached(self, redirect: str) -> None:
        super().detached(redirect)
        for done in self._waiting.values():
            if not done.done():
                done.set_exception(ConnectionError("connection lost"))
        self._waiting.clear()


class Subscriber(Attachment):
    """A consumer that gives permits as it uses them."""

    def __init__(
        self, client: Client, topic: str, subscription: str, kind: int, permits: int = PERMITS
    ) -> None:
        super().__init__(client, topic)
        self._permits = permits
        self._client, self.subscription, self.kind = client, subscription, kind
        self.subscribed_at = 0.0
        self._used = 0

    async def attach(self) -> None:
        wire = await self._client.broker_of(self.topic)
        wire.consumers[self.number] = self
        self.wire = wire
        self.subscribed_at = asyncio.get_running_loop().time()
        command = pb.CommandSubscribe(
            topic=self.topic,
            subscription=self.subscription,
            subType=self.kind,  # type: ignore[arg-type]
            consumer_id=self.number,
            consumer_name=f"{self.subscription}-{self.number}",
            initialPosition=EARLIEST,  # type: ignore[arg-type]
        )
        await wire.request(CommandType.SUBSCRIBE, command)
        self._flow(self._permits)

    def leave(self) -> None:
        wire, self.wire = self.wire, None
        if wire is not None and wire.consumers.pop(self.number, None) is not None:
            command = pb.CommandCloseConsumer(consumer_id=self.number, request_id=1 << 40)
            wire.write(encode_command(CommandType.CLOSE_CONSUMER, command))

    def _flow(self, permits: int) -> None:
        if self.wire is not None:
            command = pb.CommandFlow(consumer_id=self.number, messagePermits=permits)
            self.wire.write(encode_command(CommandType.FLOW, command))

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind == CommandType.ACTIVE_CONSUMER_CHANGE or payload is None:
            return
        position = (message.message_id.ledgerId, message.message_id.entryId)
        _, messages = messages_of(payload)
        left = _bits(message.ack_set, len(messages))
        payloads = {index: one.payload for index, one in enumerate(messages) if left >> index & 1}
        self._used += len(payloads)
        if self._used >= self._permits // 2:
            self._flow(self._used)
            self._used = 0
        self.received(position, payloads, len(messages))

    def received(self, position: tuple[int, int], payloads: dict[int, bytes], size: int) -> None:
        """Takes the messages of an entry that are not acked."""


def _bits(words: Any, size: int) -> int:
    """The messages of a batch to take: all without words."""
    if not words:
        return (1 << size) - 1
    return sum((word & (1 << 64) - 1) << 64 * at for at, word in enumerate(words))
