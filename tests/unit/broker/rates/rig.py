"""A broker on a loop whose time passes at once, and clients on connections without sockets.

The broker, its sessions, topics and dispatchers are the real ones over a bookie and a store in
memory; only the socket is missing: a client's bytes are passed to the session's decoder in reads
of READ_BYTES, and not while the broker has paused reading.
"""

import asyncio
import itertools
import socket
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.support.broker import HOST, RECORD
from tests.support.memory_bookie import MemoryBookie
from tests.unit.ledger.flaky_store import LoopClock

from magnetar.bookie.api import BookieError, OnAdded
from magnetar.broker.assemble import assemble
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.service import BrokerService
from magnetar.broker.session.handlers import HANDLERS
from magnetar.broker.session.session import Session
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.memory import MemoryStore
from magnetar.policies.policy import Policy
from magnetar.security.api import Peer
from magnetar.settings.broker import BrokerSettings
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import encode_command, encode_send
from magnetar.wire.events import Command

NAMESPACE = NamespaceName("public", "default")
READ_BYTES = 64 << 10
DISK_S = 0.002


class SlowBookie(MemoryBookie):
    """Its answers take DISK_S, and come in order."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: deque[tuple[OnAdded, BookieError | None]] = deque()

    def add_entries(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        last_add_confirmed: int,
        on_added: OnAdded,
        recovery: bool = False,
    ) -> None:
        def done(error: BookieError | None) -> None:
            self._answers.append((on_added, error))
            asyncio.get_running_loop().call_later(DISK_S, self._answer)

        super().add_entries(
            ledger_id,
            entry_ids,
            entries,
            last_add_confirmed=last_add_confirmed,
            on_added=done,
            recovery=recovery,
        )

    def _answer(self) -> None:
        on_added, error = self._answers.popleft()
        on_added(error)


@asynccontextmanager
async def broker(settings: BrokerSettings | None = None) -> AsyncIterator[BrokerService]:
    clock = LoopClock()
    store = MemoryStore(clock)
    client = LedgerClient(store, LocalBookies([SlowBookie()]), clock, SINGLE)
    service = assemble(settings or BrokerSettings(), store, client, clock, RECORD)
    tenant = {"adminRoles": [], "allowedClusters": [service.cluster]}
    await service.resources.create_tenant("public", tenant)
    await service.resources.create_namespace(NAMESPACE, default_policies(service.cluster))
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)
    await service.start(listener)
    try:
        yield service
    finally:
        await service.stop()
        await service.ledgers.close()
        await store.close()


async def set_policy(service: BrokerService, topic: str, policy: Policy, value: object) -> None:
    """As REST does at the level of the topic; it holds when this returns."""
    await service.policies.update(
        parse_topic(topic), lambda policies: policies.having(policy.name, value)
    )
    await asyncio.sleep(0.001)  # the watch reports the deletion


async def set_namespace_policy(service: BrokerService, policy: Policy, value: object) -> None:
    """As REST does at the level of the namespace; it holds when this returns."""
    kept = {service.cluster: value} if policy.by_cluster else value
    await service.resources.update_policies(
        NAMESPACE, lambda document: {**document, policy.document: kept}
    )
    await asyncio.sleep(0.2)  # topics are notified in turns


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class Client:
    """A connection without a socket: the `Wire` of its session."""

    def __init__(self, service: BrokerService, address: str = "/10.0.0.1:1000") -> None:
        self.closed, self.writable, self.heard = False, True, True
        self.peer = Peer("10.0.0.1")
        self.paused = False
        self.pauses = 0
        self.receipts: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.positions: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.errors: list[tuple[int, int, int, str]] = []
        self.told: list[tuple[str, int]] = []
        """Receipts and refusals in the order in which they came."""
        self.received: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.sent_away: list[int] = []
        self.on_message: Callable[[int, Any], None] | None = None
        self._answers: dict[int, asyncio.Future[Command]] = {}
        self._numbers = itertools.count(1)
        self._outgoing: deque[bytes] = deque()
        self._session_decoder = FrameDecoder()
        self._decoder = FrameDecoder()
        self.session = Session(service, HANDLERS)
        self.session.opened(self, address)
        self._write(
            encode_command(
                CommandType.CONNECT, pb.CommandConnect(client_version="rig", protocol_version=21)
            )
        )

    # -- the session's side

    def send(self, frame: bytes) -> None:
        for event in self._decoder.feed(frame):
            assert isinstance(event, Command)
            self._told(event)

    def send_parts(self, parts: list[bytes]) -> None:
        self.send(b"".join(parts))

    def admit(self) -> None:
        """Frames of all sizes are taken already."""

    def pause_reading(self) -> None:
        self.paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        self.paused = False
        asyncio.get_running_loop().call_soon(self._deliver)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.session.lost(None)

    def _told(self, event: Command) -> None:
        message: Any = event.message
        now = asyncio.get_running_loop().time()
        if event.type == CommandType.SEND_RECEIPT:
            self.receipts[message.producer_id].append((now, message.sequence_id))
            where = (message.message_id.ledgerId, message.message_id.entryId)
            self.positions[message.producer_id].append(where)
            self.told.append(("receipt", message.sequence_id))
        elif event.type == CommandType.SEND_ERROR:
            self.errors.append(
                (message.producer_id, message.sequence_id, message.error, message.message)
            )
            self.told.append(("error", message.sequence_id))
        elif event.type == CommandType.MESSAGE:
            self.received[message.consumer_id].append((now, message.message_id.entryId))
            if self.on_message is not None:
                self.on_message(message.consumer_id, message.message_id)
        elif event.type in (CommandType.CLOSE_PRODUCER, CommandType.CLOSE_CONSUMER):
            self.sent_away.append(
                message.producer_id
                if event.type == CommandType.CLOSE_PRODUCER
                else message.consumer_id
            )
        elif (answer := self._answers.pop(getattr(message, "request_id", 0), None)) is not None:
            answer.set_result(event)

    # -- the client's side

    def _write(self, data: bytes) -> None:
        self._outgoing.append(data)
        self._deliver()

    def _deliver(self) -> None:
        """Delivers the written bytes, one read's worth at a time."""
        while self._outgoing and not self.paused and not self.closed:
            read = bytearray()
            while self._outgoing and len(read) + len(self._outgoing[0]) <= READ_BYTES:
                read += self._outgoing.popleft()
            if not read:
                read += self._outgoing.popleft()
            self.session.handle(self._session_decoder.feed(bytes(read)))

    @property
    def unread(self) -> int:
        """Frames that the broker does not read."""
        return len(self._outgoing)

    async def request(self, kind: int, message: Any) -> Any:
        message.request_id = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._answers[message.request_id] = answer
        self._write(encode_command(kind, message))
        event = await asyncio.wait_for(answer, 3_000.0)
        if event.type == CommandType.ERROR:
            raise Refused(event.message.error, event.message.message)
        return event.message

    async def producer(self, topic: str, **more: Any) -> int:
        producer_id = next(self._numbers)
        command = pb.CommandProducer(topic=topic, producer_id=producer_id, **more)
        await self.request(CommandType.PRODUCER, command)
        return producer_id

    async def close_producer(self, producer_id: int) -> None:
        await self.request(
            CommandType.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=producer_id)
        )

    def publish(
        self,
        producer_id: int,
        numbers: range,
        *,
        size: int = 10,
        messages: int = 1,
        metadata: pb.MessageMetadata | None = None,
    ) -> None:
        """One SEND for each number."""
        for number in numbers:
            about = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
            if metadata is not None:
                about.MergeFrom(metadata)
            command = pb.CommandSend(producer_id=producer_id, sequence_id=number)
            if messages > 1:
                command.num_messages = about.num_messages_in_batch = messages
                command.highest_sequence_id = number
            self._outgoing.append(encode_send(command, about, bytes(size)))
        self._deliver()

    async def consumer(
        self, topic: str, subscription: str, kind: Any = pb.CommandSubscribe.Shared, **more: Any
    ) -> int:
        consumer_id: int = more.pop("consumer_id", 0) or next(self._numbers)
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=consumer_id,
            initialPosition=pb.CommandSubscribe.Earliest,
            **more,
        )
        await self.request(CommandType.SUBSCRIBE, command)
        return consumer_id

    def flow(self, consumer_id: int, permits: int) -> None:
        command = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
        self._write(encode_command(CommandType.FLOW, command))

    def ack(self, consumer_id: int, ledger_id: int, entry_id: int) -> None:
        command = pb.CommandAck(consumer_id=consumer_id, ack_type=pb.CommandAck.Individual)
        command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        self._write(encode_command(CommandType.ACK, command))
