"""A session of a broker in memory: a client's frames go in, the broker's commands come out."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import Message
from tests.unit.broker.lifecycle.world import World, world

from magnetar.broker.session import handlers
from magnetar.broker.session.link import Wire
from magnetar.broker.session.session import Session
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.security.api import Peer
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import encode_command
from magnetar.wire.events import Command, Event

TURNS_MAX = 5_000
TOPIC = "persistent://public/default/t"


class Socket(Wire):
    """The connection below a session: records the broker's frames and calls."""

    def __init__(self) -> None:
        self.closed = False
        self.writable = True
        self.heard = True
        self.peer = Peer("127.0.0.1")
        self.reading = True
        self.on_close: Callable[[], object] | None = None
        self.commands: deque[Command] = deque()
        self._decoder = FrameDecoder()

    def send(self, frame: bytes) -> None:
        if self.closed:
            return
        for event in self._decoder.feed(frame):
            assert isinstance(event, Command)
            self.commands.append(event)

    def send_parts(self, parts: list[bytes]) -> None:
        self.send(b"".join(parts))

    def admit(self) -> None:
        """The decoder of tests takes frames of full size from the start."""

    def pause_reading(self) -> None:
        assert self.reading, "it is paused once for all reasons"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        if not self.closed and self.on_close is not None:
            asyncio.get_running_loop().call_soon(self.on_close)
        self.closed = True


class Client:
    """One connection's client and the broker's session of it."""

    def __init__(self, w: World, *, version: str = "test", protocol: int = 21) -> None:
        self.world = w
        self.socket = Socket()
        self.session = Session(
            w.service,
            handlers.handlers(
                w.service.security,
                transactional=w.service.transactions is not None,
                limit=w.service.command_limit,
            ),
        )
        self.socket.on_close = lambda: self.session.lost(None)
        self.session.opened(self.socket, "/127.0.0.1:40712")
        self._decoder = FrameDecoder()
        self._connect = pb.CommandConnect(client_version=version, protocol_version=protocol)

    def connect(self) -> "Client":
        self.say(CommandType.CONNECT, self._connect)
        (connected,) = self.told()
        assert connected.type == CommandType.CONNECTED
        return self

    def write(self, *frames: bytes) -> None:
        """Delivers bytes as one read of the socket does."""
        self.handle(self._decoder.feed(b"".join(frames)))

    def handle(self, events: Sequence[Event]) -> None:
        self.session.handle(list(events))

    def say(self, kind: int, message: Message) -> None:
        self.write(encode_command(kind, message))

    def told(self) -> list[Command]:
        """Returns the commands that the broker has sent since the last call."""
        told = list(self.socket.commands)
        self.socket.commands.clear()
        return told

    def kinds(self) -> list[str]:
        """Returns the types of the commands since the last call."""
        return [CommandType.Name(each.type) for each in self.told()]  # type: ignore[arg-type]

    async def quiet(self) -> None:
        """Every command of this client has been dealt with, and what follows from it."""
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            if not len(self.session.tasks):
                break
        else:
            raise AssertionError("a command does not come to an end")
        for _ in range(20):
            await asyncio.sleep(0)

    async def hears(self, kind: int) -> Any:
        """The next command of that kind; those before it are passed over."""
        for _ in range(TURNS_MAX):
            while self.socket.commands:
                command = self.socket.commands.popleft()
                if command.type == kind:
                    return command.message
            await asyncio.sleep(0)
        raise AssertionError(f"the broker says no {CommandType.Name(kind)}")  # type: ignore[arg-type]

    async def ask(self, kind: int, message: Message, answer: int) -> Any:
        """Says it and waits for an answer of that kind."""
        self.say(kind, message)
        return await self.hears(answer)

    async def produces(self, producer_id: int = 1, topic: str = TOPIC, **more: Any) -> Any:
        command = pb.CommandProducer(
            topic=topic, producer_id=producer_id, request_id=producer_id, **more
        )
        return await self.ask(CommandType.PRODUCER, command, CommandType.PRODUCER_SUCCESS)

    async def consumes(
        self, consumer_id: int = 1, topic: str = TOPIC, *, permits: int = 0, **more: Any
    ) -> None:
        fields: dict[str, Any] = {"subscription": "s", "subType": pb.CommandSubscribe.Shared}
        fields |= more
        command = pb.CommandSubscribe(
            topic=topic, consumer_id=consumer_id, request_id=consumer_id, **fields
        )
        await self.ask(CommandType.SUBSCRIBE, command, CommandType.SUCCESS)
        if permits:
            flow = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
            self.say(CommandType.FLOW, flow)
            await self.quiet()


@asynccontextmanager
async def broker(**settings: Any) -> AsyncIterator[World]:
    """A broker in memory with a stopped clock."""
    async with world(**settings) as w:
        yield w


@asynccontextmanager
async def client_of(**settings: Any) -> AsyncIterator[Client]:
    """A connected client with its own broker."""
    async with broker(**settings) as w:
        yield Client(w).connect()


async def loaded(w: World) -> PersistentTopic:
    """The topic that all of these tests use."""
    return await w.topic("t")
