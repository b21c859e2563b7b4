"""A TCP proxy that can cut a process off, in one direction or both, without closing anything.

Every process of the cluster is advertised by the address of its proxy: the same port on another
loopback address. While a direction is cut,
what arrives for it stays unread, as when packets are dropped: the peers see a silent connection,
and new connections are accepted but never answered. Healing lets everything go on.
"""

import asyncio
from enum import Flag, auto

BUFFER_BYTES_MAX = 1 << 18
STOP_TIMEOUT_S = 30.0
TURNS_OF_AN_ACCEPT = 4
"""Of the event loop: a connection that is accepted before them is open after them."""


class Direction(Flag):
    """Which way is cut."""

    NONE = 0
    IN = auto()
    """To the process."""
    OUT = auto()
    """From the process."""
    BOTH = IN | OUT


class _Half(asyncio.Protocol):
    """One side of a proxied connection: what it reads goes to the other side."""

    def __init__(self, proxy: "Proxy", direction: Direction) -> None:
        self.proxy = proxy
        self.direction = direction
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None
        self._waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(BUFFER_BYTES_MAX)
        self.proxy.halves.add(self)
        if self.proxy.stopped:  # accepted in the turn of the loop in which the proxy was stopped
            transport.abort()
        self.flow()

    def data_received(self, data: bytes) -> None:
        other = self.other
        if other is None or other.transport is None or other.transport.is_closing():
            self._waiting.append(data)
        else:
            other.transport.write(data)

    def connected(self, other: "_Half") -> None:
        self.other = other
        if other.transport is not None:
            other.transport.writelines(self._waiting)
        self._waiting.clear()

    def flow(self) -> None:
        """Reads, unless its direction is cut or the other side is full."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.direction in self.proxy.cut or self.full:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    full = False

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.full = True
            self.other.flow()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.full = False
            self.other.flow()

    def connection_lost(self, _error: Exception | None) -> None:
        self.proxy.halves.discard(self)
        if self.other is not None and self.other.transport is not None:
            # A cut hides the end of a connection as well; only the healing shows it.
            if self.direction in self.proxy.cut:
                self.proxy.ended.append(self.other)
            else:
                self.other.transport.close()


class Proxy:
    """Stands before one port of one process, at another address."""

    def __init__(self, host: str, port: int, target_host: str) -> None:
        self.host, self.port, self.target_host = host, port, target_host
        self.cut = Direction.NONE
        self.stopped = False
        self.halves: set[_Half] = set()
        self.ended: list[_Half] = []
        self._server: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self.host, self.port)

    def _accept(self) -> _Half:
        half = _Half(self, Direction.IN)
        task = asyncio.ensure_future(self._open(half))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return half

    async def _open(self, outer: _Half) -> None:
        try:
            _, inner = await asyncio.get_running_loop().create_connection(
                lambda: _Half(self, Direction.OUT), self.target_host, self.port
            )
        except OSError:
            if outer.transport is not None:
                outer.transport.abort()
            return
        inner.connected(outer)
        outer.connected(inner)

    def set_cut(self, cut: Direction) -> None:
        """Cuts what it names and heals the rest."""
        self.cut = cut
        if not cut:
            for half in self.ended:
                if half.transport is not None:
                    half.transport.close()
            self.ended.clear()
        for half in list(self.halves):
            half.flow()

    async def refuse(self) -> None:
        """The process is gone: nobody listens any more, as its own port would show."""
        server, self._server = self._server, None
        if server is None:
            return
        # asyncio leaks a connection that is accepted in the turn in which its server is closed.
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(TURNS_OF_AN_ACCEPT):
            await asyncio.sleep(0)
        server.close()

    async def stop(self) -> None:
        """Closes everything; returns once no connection is left."""
        self.stopped = True
        await self.refuse()
        async with asyncio.timeout(STOP_TIMEOUT_S):
            while self._opening or self.halves:
                for task in self._opening:
                    task.cancel()
                for half in self.halves:
                    if half.transport is not None:
                        half.transport.abort()
                await asyncio.sleep(0)
