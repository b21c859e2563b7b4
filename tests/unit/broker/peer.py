"""A raw socket to a broker: sends given commands and returns every received one."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import Message
from tests.support.broker import HOST

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import PING_FRAME, encode_command
from magnetar.wire.events import Command

ANSWER_TIMEOUT_S = 30.0
READ_BYTES = 1 << 16
PROTOCOL_VERSION = 21


class Peer:
    """A raw connection to a broker that reads only on request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._commands: deque[Command] = deque()

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, kind: int, message: Message) -> None:
        self.write(encode_command(kind, message))

    async def next(self) -> Command | None:
        """The next command of the broker; None where it closed the connection."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while not self._commands:
                try:
                    data = await self.reader.read(READ_BYTES)
                except ConnectionError:
                    return None
                if not data:
                    return None
                for event in self._decoder.feed(data):
                    assert isinstance(event, Command)
                    self._commands.append(event)
        return self._commands.popleft()

    async def until(self, kind: int) -> Any:
        """The next command of that kind; others are passed over."""
        while True:
            command = await self.next()
            assert command is not None, "the broker closed the connection"
            if command.type == kind:
                return command.message

    async def connect(self) -> Any:
        connect = pb.CommandConnect(client_version="peer", protocol_version=PROTOCOL_VERSION)
        self.send(CommandType.CONNECT, connect)
        return await self.until(CommandType.CONNECTED)

    async def is_silent(self) -> bool:
        """Whether the broker has nothing to say but the answer to a PING sent now."""
        self.write(PING_FRAME)
        command = await self.next()
        return command is not None and command.type == CommandType.PONG


@asynccontextmanager
async def peer_of(port: int, *, connected: bool = True) -> AsyncIterator[Peer]:
    """A peer of the broker on that port; `connected` has sent CONNECT already."""
    peer = Peer(*await asyncio.open_connection(HOST, port))
    try:
        if connected:
            await peer.connect()
        yield peer
    finally:
        peer.writer.close()
