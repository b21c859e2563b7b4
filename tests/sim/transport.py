"""One end of a simulated TCP connection, as asyncio's protocols see it.

What is written in a turn leaves when the turn ends. A window bounds what travels and what the
peer has not read; beyond it bytes wait in the transport's own buffer, and the protocol is told to
pause writing as asyncio's transports do. Bytes arrive in order, in pieces as the seed says.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from tests.sim.loop import Process

if TYPE_CHECKING:
    from tests.sim.network import Network

WINDOW_BYTES: Final = 512 << 10
READ_BYTES_MAX: Final = 256 << 10
HIGH_BYTES_DEFAULT: Final = 64 << 10
SPLIT_CHANCE: Final = 0.03
"""Of reads that end at a random byte instead of where the peer's write ended."""

Address = tuple[str, int]


class Segment:
    """What travels in one direction: bytes, the end, or a reset."""

    __slots__ = ("arrives", "data", "departs", "kind")

    def __init__(self, kind: str, data: bytes, departs: float, arrives: float) -> None:
        self.kind, self.data = kind, data
        self.departs, self.arrives = departs, arrives


class SimTransport(asyncio.Transport):
    """See the module's text."""

    def __init__(
        self, network: "Network", process: Process, local: Address, remote: Address
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self.network, self.process = network, process
        self.local, self.remote = local, remote
        self.peer: SimTransport = self
        self.protocol: asyncio.BaseProtocol | None = None
        self.outgoing: deque[Segment] = deque()
        """What is under way to the peer."""
        self.blocked_since = -1.0
        self.flying = 0
        """Bytes that travel or that the peer has not read."""
        self.gone = False
        """The socket does not exist any more: what arrives is answered with a reset."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._arrived: deque[Segment] = deque()
        self._reading, self._read_posted = True, False
        self._closing, self._eof_wanted, self._eof_sent = False, False, False
        self._lost_called = False
        self._ship_due = False
        self._write_paused = False
        self._high, self._low = HIGH_BYTES_DEFAULT, HIGH_BYTES_DEFAULT // 4

    # -- asyncio's side: state -------------------------------------------------------------

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast("asyncio.BaseProtocol", self.protocol)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return max(self._out_bytes - max(WINDOW_BYTES - self.flying, 0), 0)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_BYTES_DEFAULT if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._check_high()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._post_read()

    # -- asyncio's side: writing -----------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof_wanted:
            raise RuntimeError("write after write_eof")
        if self._lost_called or self.gone or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        if not self._ship_due:
            self._ship_with_turn()
        if self._out_bytes > self._high:
            self._check_high()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_wanted = True
        self._ship_with_turn()

    def close(self) -> None:
        if self._closing or self.gone:
            return
        self._closing = True
        self._ship_with_turn()

    def abort(self) -> None:
        if self.gone:
            return
        self._out, self._out_bytes = [], 0
        self._closing = True
        self.vanish("reset")
        self._post_lost(None)

    # -- sending ---------------------------------------------------------------------------

    def _ship_with_turn(self) -> None:
        if not self._ship_due:
            self._ship_due = True
            if self.process.loop.current is self.process:
                self.process.unsent.append(self._ship)
            else:
                self._ship()

    def _ship(self) -> None:
        self._ship_due = False
        if self.gone:
            return
        room = WINDOW_BYTES - self.flying
        if self._out_bytes and room > 0:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            data, rest = data[:room], data[room:]
            self._out, self._out_bytes = [rest] if rest else [], len(rest)
            self.flying += len(data)
            self.network.send(self, "data", data)
            if self._write_paused:
                self._check_low()
        if self._out_bytes:
            return
        if (self._eof_wanted or self._closing) and not self._eof_sent:
            self._eof_sent = True
            self.network.send(self, "eof", b"")
        if self._closing:
            self.gone = True
            self._post_lost(None)

    def window_opened(self) -> None:
        """The peer has read: more may leave."""
        if self._out_bytes and not self._ship_due:
            self._ship()

    def _check_high(self) -> None:
        if not self._write_paused and self.get_write_buffer_size() > self._high:
            self._write_paused = True
            if isinstance(self.protocol, asyncio.BaseProtocol):
                self.protocol.pause_writing()

    def _check_low(self) -> None:
        if self._write_paused and self.get_write_buffer_size() <= self._low:
            self.process.post(self._resume_writing)

    def _resume_writing(self) -> None:
        if self._write_paused and self.get_write_buffer_size() <= self._low:
            self._write_paused = False
            if self.protocol is not None and not self._lost_called:
                self.protocol.resume_writing()

    def vanish(self, kind: str) -> None:
        """Closes the socket now; the peer sees `kind` after the bytes that were already sent."""
        if self.gone:
            return
        self.gone = True
        self._arrived.clear()
        self.network.send(self, kind, b"")

    # -- receiving -------------------------------------------------------------------------

    def arrive(self, segment: Segment) -> None:
        """A segment is at this end."""
        if segment.kind == "reset":
            self.broken(ConnectionResetError(104, "Connection reset by peer"))
            return
        self._arrived.append(segment)
        self._post_read()

    def broken(self, error: Exception) -> None:
        """The connection is no more, at this end."""
        if self.gone:
            return
        self.gone = True
        self._arrived.clear()
        self._out, self._out_bytes = [], 0
        self._closing = True
        self._post_lost(error)

    def _post_read(self) -> None:
        if self._arrived and self._reading and not self._read_posted and not self._closing:
            self._read_posted = True
            self.process.post(self._read)

    def _read(self) -> None:
        self._read_posted = False
        if not self._reading or self._closing or not self._arrived or self.protocol is None:
            return
        if self._arrived[0].kind == "eof":
            self._arrived.popleft()
            protocol = cast("asyncio.Protocol", self.protocol)
            if not protocol.eof_received():
                self.close()
            return
        data = self._arrived.popleft().data
        if self._arrived:
            parts, size = [data], len(data)
            while self._arrived and self._arrived[0].kind == "data" and size < READ_BYTES_MAX:
                part = self._arrived.popleft().data
                parts.append(part)
                size += len(part)
            data = b"".join(parts)
        rng = self.process.loop.rng
        if len(data) > 1 and rng.random() < SPLIT_CHANCE:
            at = rng.randrange(1, len(data))
            data, rest = data[:at], data[at:]
            self._arrived.appendleft(Segment("data", rest, 0.0, 0.0))
        self._give(data)
        if self._arrived:
            self._post_read()

    def _give(self, data: bytes) -> None:
        peer, size = self.peer, len(data)
        peer.flying -= size
        if peer._out_bytes:
            self.network.acknowledge(self, peer.window_opened)
        protocol = self.protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            cast("asyncio.Protocol", protocol).data_received(data)
            return
        given = 0
        while given < size and not self._closing:
            buffer = memoryview(cast("Any", protocol.get_buffer(-1)))
            taken = min(len(buffer), size - given)
            buffer[:taken] = data if taken == size else data[given : given + taken]
            buffer.release()
            protocol.buffer_updated(taken)
            given += taken
            if given < size and not self._reading:
                self._arrived.appendleft(Segment("data", data[given:], 0.0, 0.0))
                peer.flying += size - given
                return

    def _post_lost(self, error: Exception | None) -> None:
        if not self._lost_called:
            self._lost_called = True
            self.process.post(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        self.network.forget(self)
        if self.protocol is not None:
            self.protocol.connection_lost(error)


class SimSocket:
    """A bound address: what `create_server(sock=…)` is given in place of a socket."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        """Nothing is held."""


class SimServer(asyncio.AbstractServer):
    """A listening address of a process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, end: Callable[[], None]):
        self._loop, self.address, self._end = loop, address, end
        self.sockets = (SimSocket(*address),)
        self._serving = True

    def close(self) -> None:
        if self._serving:
            self._serving = False
            self._end()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        """It serves from the start."""

    async def serve_forever(self) -> None:
        await self._loop.create_future()

    async def wait_closed(self) -> None:
        """Connections are their own."""

    def close_clients(self) -> None:
        """Connections are their own."""

    def abort_clients(self) -> None:
        """Connections are their own."""
