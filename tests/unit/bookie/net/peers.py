"""Both ends of the bookie protocol, driven by tests: a scripted client and a scripted server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from tests.support.memory_bookie import MemoryBookie

from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.client import RemoteBookie
from magnetar.bookie.net.protocol_v1 import Add, AnyFrame, Frame, FrameDecoder
from magnetar.bookie.net.server import BookieServer
from magnetar.bookie.net.settings import RemoteSettings, ServerSettings
from magnetar.bookie.packed import PackedEntries, pack

HOST = "127.0.0.1"
IDENTITY = BookieIdentity("b1", "one")
DEADLINE_S = 20.0


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = FrameDecoder()

    async def frame(self) -> AnyFrame | None:
        """The next frame of the other end; None at the end."""
        while (frame := self._decoder.take()) is None:
            try:
                data = await asyncio.wait_for(self.reader.read(1 << 16), DEADLINE_S)
            except ConnectionError:
                return None  # closed with unread bytes of ours
            if not data:
                return None
            while data:
                free = self._decoder.get_buffer()
                count = min(len(free), len(data))
                free[:count] = data[:count]
                self._decoder.received(count)
                data = data[count:]
        return frame

    async def failure(self, kind: int) -> messages.Failure:
        """Returns the error of the next frame, which must be of this kind."""
        frame = await self.frame()
        assert isinstance(frame, Frame)
        assert frame.kind == kind
        return messages.decode_failure(frame.payload)

    def send(self, *parts: bytes) -> None:
        self.writer.writelines(parts)

    def say(self, kind: int, id_: int = 0, payload: bytes = b"", flags: int = 0) -> None:
        self.send(protocol.encode_frame(kind, flags, id_, payload))

    def add(self, number: int, ledger_id: int = 1, entries: Sequence[bytes] = (b"x",)) -> None:
        group: PackedEntries = pack(entries)
        ids = range(10 * number, 10 * number + len(entries))
        head = protocol.encode_add(number, ledger_id, -1, ids, group, recovery=False)
        self.send(head, *group.body)

    def hello(self, identity: BookieIdentity = IDENTITY, **more: int) -> None:
        hello = messages.Hello(identity, **more)  # type: ignore[arg-type]
        self.say(protocol.HELLO, 0, messages.encode_hello(hello))

    def welcome(self, identity: BookieIdentity = IDENTITY, version: int = 1) -> None:
        welcome = messages.Welcome(identity, protocol.BODY_BYTES_MAX, version=version)
        self.say(protocol.WELCOME, 0, messages.encode_welcome(welcome))

    def rest(self) -> None:
        """Reads nothing more from the socket."""
        transport = self.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def serving(
    bookie: MemoryBookie | None = None, **settings: float
) -> AsyncIterator[BookieServer]:
    """A server of a bookie in memory."""
    server = BookieServer(
        bookie or MemoryBookie(*IDENTITY),
        settings=ServerSettings(**settings),  # type: ignore[arg-type]
    )
    await server.start(host=HOST)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(server: BookieServer, *, hello: bool = True) -> AsyncIterator[Peer]:
    """A client by hand, welcomed."""
    peer = Peer(*await asyncio.open_connection(HOST, server.port))
    try:
        if hello:
            peer.hello()
            welcome = await peer.frame()
            assert isinstance(welcome, Frame)
            assert welcome.kind == protocol.WELCOME
        yield peer
    finally:
        peer.close()


@asynccontextmanager
async def pretending(
    behave: Callable[[Peer], Awaitable[None]],
) -> AsyncIterator[tuple[int, list[Peer]]]:
    """A server by hand: its port, and the connections so far. `behave` is run for each."""
    peers: list[Peer] = []
    tasks: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        peer = Peer(reader, writer)
        peers.append(peer)
        try:
            await behave(peer)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            peer.close()

    server = await asyncio.start_server(accepted, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1], peers
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def remote(
    port: int, identity: BookieIdentity = IDENTITY, **settings: float
) -> AsyncIterator[RemoteBookie]:
    """A client of a port."""
    bookie = RemoteBookie(identity, HOST, port, settings=RemoteSettings(**settings))
    try:
        yield bookie
    finally:
        await bookie.close()


async def greeted(peer: Peer) -> None:
    """Takes the hello and answers it."""
    hello = await peer.frame()
    assert isinstance(hello, Frame)
    assert hello.kind == protocol.HELLO
    peer.welcome()


async def next_add(peer: Peer) -> Add:
    frame = await peer.frame()
    assert isinstance(frame, Add)
    return frame


async def until(condition: Callable[[], bool]) -> None:
    """Gives the loop its turns until the condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # these conditions have no event
            await asyncio.sleep(0)


class Adding:
    """Adds through a bookie and records the answers, in order."""

    def __init__(self, bookie: RemoteBookie) -> None:
        self._bookie = bookie
        self.answers: list[tuple[int, BookieError | None]] = []
        self._answered = asyncio.Event()

    def add(self, entry_id: int, data: bytes = b"x", ledger_id: int = 1) -> None:
        def on_added(error: BookieError | None) -> None:
            self.answers.append((entry_id, error))
            self._answered.set()

        self._bookie.add_entries(
            ledger_id,
            range(entry_id, entry_id + 1),
            [data],
            last_add_confirmed=-1,
            on_added=on_added,
        )

    async def count(self, count: int) -> list[tuple[int, type[BookieError] | None]]:
        """Waits for that many answers; returns their adds and error classes."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.answers) < count:
                self._answered.clear()
                await self._answered.wait()
        return [(id_, None if error is None else type(error)) for id_, error in self.answers]
