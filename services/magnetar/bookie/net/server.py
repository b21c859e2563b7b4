"""A bookie's TCP server: accepts connections, bounds them, and sweeps out those that are dead.

What one connection does is in `connection`. Here is what they share: the bookie, how full it is,
and whether it takes adds at all. While `pending_bytes` of the bookie is above PENDING_BYTES_HIGH no
connection is read from, so that writers wait in their TCP windows; the bookie says when it is low
again, and a sweep makes sure of it. Frames under way hold RECEIVING_BYTES_MAX of memory together:
beyond it the connection that holds most is closed. A sweep closes connections that said no hello in
time, did not go on with a frame, said nothing for long, or did not read their answers.

Stopping: no more connections, nothing more is read, what was read is answered, then they close.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.bookie.api import Bookie, BookieError
from magnetar.bookie.net.connection import BookieConnection
from magnetar.bookie.net.messages_v1 import State
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet

log = get_logger("magnetar.bookie.server")

PENDING_BYTES_HIGH: Final = 64 << 20
"""Of adds that are not durable yet: above it no connection is read from."""

RECEIVING_BYTES_MAX: Final = 256 << 20
"""Of memory for frames under way, of all connections: above it the largest one is closed."""

BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Bounds of the server; times in seconds."""

    connections_max: int = 4096
    hello_timeout_s: float = 5.0
    frame_stall_s: float = 25.0
    """How long a frame under way may not grow (`wire.progress`)."""
    idle_timeout_s: float = 60.0
    """Clients ping more often than that."""
    unread_timeout_s: float = 30.0
    """How long a peer may leave its answers unread."""
    sweep_s: float = 1.0
    drain_timeout_s: float = 10.0


class Pressure(Protocol):
    """How much a bookie has taken and not stored yet; LocalBookie can say it."""

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
    ) -> None:
        self.bookie = bookie
        self.cluster = cluster
        self.settings = settings or ServerSettings()
        self.state = state
        self.add_refusal: BookieError | None = None
        """Set by the bookie's owner: adds are answered with it, reads go on."""
        self.tasks = TaskSet("bookie server")
        self.held = False
        """Whether the bookie has more adds than it should take."""
        self.connections: set[BookieConnection] = set()
        self.connections_refused = 0
        self.receiving_bytes = 0
        """Memory that connections hold for frames under way."""
        self._pressure = pressure
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._port = 0
        self._stopping = False
        self._drained: asyncio.Event = asyncio.Event()

    @property
    def writable(self) -> bool:
        """Whether adds are taken at present."""
        return self.add_refusal is None and self.bookie.writable

    @property
    def port(self) -> int:
        """Where it listens, once started."""
        return self._port

    async def start(
        self, listener: socket.socket | None = None, *, host: str = "", port: int = 0
    ) -> None:
        """Listens on a bound socket, or on an address."""
        loop = asyncio.get_running_loop()
        if listener is not None:
            self._server = await loop.create_server(self._accept, sock=listener, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        self._port = port or int(self._server.sockets[0].getsockname()[1])
        self._sweeper = loop.call_later(self.settings.sweep_s, self._sweep)

    async def stop(self) -> None:
        """Answers what was read, within `drain_timeout_s`, and closes every connection."""
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

    # -- the connections' side -------------------------------------------------------------

    def _accept(self) -> BookieConnection:
        return BookieConnection(self)

    def opened(self, connection: BookieConnection) -> bool:
        """Whether the connection may stay."""
        if self._stopping or len(self.connections) >= self.settings.connections_max:
            self.connections_refused += 1
            return False
        self.connections.add(connection)
        return True

    def lost(self, connection: BookieConnection) -> None:
        self.connections.discard(connection)
        self._drained.set()

    def added(self) -> None:
        """Called after adds were handed over: holds every connection where that was too much."""
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
            log.warning("a connection closed for its large frame", peer=largest.peer)
            largest.refuse("the bookie receives too many large frames at once")

    def _low(self) -> None:
        self.held = False
        for connection in tuple(self.connections):
            connection.go_on()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self.settings.sweep_s, self._sweep)
        now = loop.time()
        pressure = self._pressure
        if self.held and pressure is not None and pressure.pending_bytes <= PENDING_BYTES_HIGH:
            # Not for want of trust in `notify_low`, but a missed call would end all reads.
            self._low()
        for connection in tuple(self.connections):
            connection.look(now)
