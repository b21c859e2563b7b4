"""A bookie's TCP server: accepts connections, bounds them, and closes those that are dead.

`connection` serves one client; this module has the state that connections share: the bookie, its
backlog, and whether it accepts adds. While its `pending_bytes` exceed PENDING_BYTES_HIGH, no
connection is read, so that writers wait in their TCP windows; the bookie reports when the backlog
is low again, and a periodic sweep covers a missed report. All frames under way together hold at
most RECEIVING_BYTES_MAX of memory; beyond it, the connection that holds most is closed. The sweep
also closes connections that sent no hello in time, stalled within a frame, were silent for long, or
did not read their answers.

Stop: the server accepts and reads nothing more, answers the requests that it has read, and closes.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.bookie.api import Bookie, BookieError
from magnetar.bookie.net.access import OPEN, Access
from magnetar.bookie.net.connection import BookieConnection
from magnetar.bookie.net.messages_v1 import State
from magnetar.bookie.net.settings import ServerSettings
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.security.tls.transport import Contexts, Factory, server_factory

log = get_logger("magnetar.bookie.net.server")

PENDING_BYTES_HIGH: Final = 64 << 20
"""Bytes of adds that are not durable yet; above it, no connection is read."""

RECEIVING_BYTES_MAX: Final = 256 << 20
"""Memory for the frames under way of all connections; above it, the largest one is closed."""

BACKLOG: Final = 128


class Pressure(Protocol):
    """A bookie's backlog of adds that are not durable yet; LocalBookie implements it."""

    @property
    def pending_bytes(self) -> int: ...

    def notify_low(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the loop, when `pending_bytes` is low (again)."""


class BookieServer:
    """Serves one bookie. `start`, then `stop`; the bookie is not closed."""

    def __init__(
        self,
        bookie: Bookie,
        *,
        cluster: str = "",
        pressure: Pressure | None = None,
        state: Callable[[], State] = State,
        settings: ServerSettings | None = None,
        tls: Contexts | None = None,
        plain: bool = True,
        access: Access = OPEN,
    ) -> None:
        """With `tls`, clients connect by TLS; `plain` also admits clients without it."""
        self.bookie = bookie
        self.cluster = cluster
        self.access = access
        self.settings = settings or ServerSettings()
        self.state = state
        self.add_refusal: BookieError | None = None
        """Set by the bookie's owner: the answer to all adds. Reads are served."""
        self.tasks = TaskSet("bookie server")
        self.held = False
        """Whether connections are held because the bookie's backlog is too large."""
        self.connections: set[BookieConnection] = set()
        self.connections_refused = 0
        self.receiving_bytes = 0
        """Memory that all connections hold for frames under way."""
        self._tls, self._plain = tls, plain
        self._pressure = pressure
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._port = 0
        self._stopping = False
        self._drained: asyncio.Event = asyncio.Event()

    @property
    def writable(self) -> bool:
        """Whether adds are accepted now."""
        return self.add_refusal is None and self.bookie.writable

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        return self._port

    async def start(
        self, listener: socket.socket | None = None, *, host: str = "", port: int = 0
    ) -> None:
        """Listens on a bound socket, or on an address."""
        loop = asyncio.get_running_loop()
        accept: Factory = self._accept
        if self._tls is not None:
            accept = server_factory(self._tls, self._accept, plain=self._plain)
        if listener is not None:
            self._server = await loop.create_server(accept, sock=listener, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(accept, host, port, backlog=BACKLOG)
        self._port = port or int(self._server.sockets[0].getsockname()[1])
        self._sweeper = loop.call_later(self.settings.sweep_s, self._sweep)

    async def stop(self) -> None:
        """Answers the requests that were read, within `drain_timeout_s`; closes all connections."""
        if self._stopping:
            return
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.drain("the bookie is stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                while self.connections:
                    self._drained.clear()
                    await self._drained.wait()
        for connection in tuple(self.connections):
            connection.abort()
        await self.tasks.stop()

    def _accept(self) -> BookieConnection:
        return BookieConnection(self)

    def opened(self, connection: BookieConnection) -> bool:
        """Counts a new connection; returns whether it may stay."""
        if self._stopping or len(self.connections) >= self.settings.connections_max:
            self.connections_refused += 1
            return False
        self.connections.add(connection)
        return True

    def lost(self, connection: BookieConnection) -> None:
        self.connections.discard(connection)
        self._drained.set()

    def added(self) -> None:
        """Holds all connections if the adds that were handed to the bookie are too many."""
        pressure = self._pressure
        if pressure is None or self.held or pressure.pending_bytes <= PENDING_BYTES_HIGH:
            return
        self.held = True
        for connection in self.connections:
            connection.hold()
        pressure.notify_low(self._low)

    def receiving(self, change_bytes: int) -> None:
        """Called when the memory that a connection holds for a frame under way changed."""
        self.receiving_bytes += change_bytes
        if change_bytes > 0 and self.receiving_bytes > RECEIVING_BYTES_MAX:
            largest = max(self.connections, key=lambda connection: connection.held_bytes)
            log.warning(
                "connection closed: it held the most memory for unfinished frames",
                peer=largest.peer,
            )
            largest.refuse("the bookie receives too many large frames at once")

    def _low(self) -> None:
        self.held = False
        for connection in tuple(self.connections):
            connection.resume()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self.settings.sweep_s, self._sweep)
        now = loop.time()
        pressure = self._pressure
        if self.held and pressure is not None and pressure.pending_bytes <= PENDING_BYTES_HIGH:
            # `notify_low` should have called; if a call were ever missed, nothing would be read.
            self._low()
        for connection in tuple(self.connections):
            connection.check_deadlines(now)
