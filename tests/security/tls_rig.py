"""A TLS server of ours that echoes, and clients of the standard library against it."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import cast

from magnetar.security.tls.certificates import verified_certificate
from magnetar.security.tls.transport import Contexts, connect, server_factory

HOST = "127.0.0.1"
WITHIN_S = 20.0


class Echo(asyncio.BufferedProtocol):
    """Sends back what it receives, through a buffer smaller than a TLS record."""

    def __init__(self, server: "EchoServer") -> None:
        self._server = server
        self._buffer = bytearray(5_000)
        self.transport: asyncio.Transport | None = None
        self.certificate: bytes | None = None
        self.received_bytes = 0
        self.lost = asyncio.Event()
        self.error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.certificate = verified_certificate(transport)
        self._server.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        assert self.transport is not None
        self.received_bytes += nbytes
        self.transport.write(bytes(self._buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.lost.set()


class Peer(asyncio.Protocol):
    """A client that only connects."""

    def __init__(self, server: "EchoServer") -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._server.clients.append(cast("asyncio.Transport", transport))


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EchoServer:
    """Every connection of one listener, and the clients that tests open to it."""

    def __init__(self) -> None:
        self.connections: list[Echo] = []
        self.clients: list[asyncio.WriteTransport] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0
        self._more = asyncio.Event()

    def opened(self, connection: Echo) -> None:
        self.connections.append(connection)
        self._more.set()

    async def client(self, context: ssl.SSLContext | None, host: str = HOST) -> Streams:
        """Connects by the standard library, without a context in plain."""
        async with asyncio.timeout(WITHIN_S):
            streams = await asyncio.open_connection(
                HOST, self.port, ssl=context, server_hostname=host if context else None
            )
        self.clients.append(streams[1].transport)
        self._writers.append(streams[1])  # a writer without a reference warns
        return streams

    async def connect(self, tls: Contexts, host: str = HOST) -> None:
        """Connects by our own TLS."""
        async with asyncio.timeout(WITHIN_S):
            await connect(tls, lambda: Peer(self), host, self.port)

    async def connection(self, number: int = 0) -> Echo:
        async with asyncio.timeout(WITHIN_S):
            while len(self.connections) <= number:
                self._more.clear()
                await self._more.wait()
        return self.connections[number]


@contextlib.asynccontextmanager
async def echo_server(tls: Contexts, *, plain: bool = False) -> AsyncIterator[EchoServer]:
    """Serves until the block ends."""
    echo = EchoServer()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        server_factory(tls, lambda: Echo(echo), plain=plain), HOST, 0, backlog=1_024
    )
    echo.port = server.sockets[0].getsockname()[1]
    try:
        yield echo
    finally:
        server.close()
        for transport in echo.clients:
            transport.abort()
        for connection in echo.connections:
            if connection.transport is not None:
                connection.transport.abort()
        for _ in range(3):  # asyncio closes sockets in later turns of the loop
            await asyncio.sleep(0)


async def exchange(streams: Streams, data: bytes) -> bytes:
    """Sends bytes and returns as many."""
    reader, writer = streams
    async with asyncio.timeout(WITHIN_S):
        writer.write(data)
        answer = await reader.readexactly(len(data))
        await writer.drain()
    return answer
