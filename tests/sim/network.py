"""The network between simulated hosts: delay, order, stalls, cuts in one direction, resets.

A connection keeps its order, whatever happens; between connections nothing is ordered. What meets
a cut waits at it, as TCP retransmits, and goes on some time after the cut has healed, or ends the
connection at the sender after a time-out. A host that is off answers nothing; one that is on
answers for a socket it does not know with a reset.
"""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.sim.loop import PROCESS, Process, SimLoop
from tests.sim.transport import Address, Segment, SimServer, SimTransport

SYN_RETRIES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
EPHEMERAL_FIRST: Final = 40_000
RETRANSMIT_S_MAX: Final = 0.8
GIVE_UP_S: Final = (15.0, 90.0)


@dataclass(slots=True)
class Weather:
    """How the network is in one run."""

    latency_s: float = 0.0003
    jitter_s: float = 0.0004
    slow_chance: float = 0.002
    """Of a segment that takes up to `slow_s`."""
    slow_s: float = 0.08


class Listener:
    """Who takes connections at an address."""

    __slots__ = ("factory", "process")

    def __init__(self, factory: Callable[[], asyncio.BaseProtocol], process: Process) -> None:
        self.factory, self.process = factory, process


class Network:
    """See the module's text."""

    def __init__(self, loop: SimLoop, weather: Weather | None = None) -> None:
        self.loop = loop
        self.weather = weather or Weather()
        self.bytes_sent = 0
        self.connections: dict[SimTransport, None] = {}
        self.on_segment: Callable[[SimTransport, Segment], None] | None = None
        self._rng = loop.rng
        self._listeners: dict[Address, Listener] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._off: dict[str, None] = {}
        self._blocked: dict[SimTransport, None] = {}
        self._port = EPHEMERAL_FIRST
        self._arrived = self._arrive
        loop.network = self

    # -- faults ----------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from one host to the other until `heal` was called as often."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        left = self._cuts.get((source, target), 0) - 1
        if left > 0:
            self._cuts[source, target] = left
        else:
            self._cuts.pop((source, target), None)
            self._retry_blocked()

    def heal_all(self) -> None:
        self._cuts.clear()
        self._retry_blocked()

    def power_off(self, host: str) -> None:
        """The host answers nothing until `power_on`."""
        self._off[host] = None

    def power_on(self, host: str) -> None:
        self._off.pop(host, None)
        self._retry_blocked()

    def passes(self, source: str, target: str) -> bool:
        """Whether what leaves one host now would come to the other."""
        if source == target or not (self._cuts or self._off):
            return True
        return (source, target) not in self._cuts and target not in self._off

    def reset(self, transport: SimTransport) -> None:
        """Drops the connection between the two; both see a reset."""
        error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        for end in (transport, transport.peer):
            self._drop(end)
            end.broken(error)

    def killed(self, process: Process) -> None:
        """The process is gone, its host is not: the kernel ends its connections."""
        self._forget_listeners(process)
        for end in [one for one in self.connections if one.process is process]:
            now = self.loop.now
            while end.outgoing and end.outgoing[-1].departs > now:
                end.outgoing.pop()
            end.vanish("reset")
            self.forget(end)

    def lost_power(self, process: Process) -> None:
        """Ends the process and its host without notice to peers."""
        self._forget_listeners(process)
        for end in [one for one in self.connections if one.process is process]:
            now = self.loop.now
            while end.outgoing and end.outgoing[-1].departs > now:
                end.outgoing.pop()
            end.gone = True
            self.forget(end)

    def _forget_listeners(self, process: Process) -> None:
        for address in [at for at, one in self._listeners.items() if one.process is process]:
            del self._listeners[address]

    # -- messages, for what does not speak TCP here ----------------------------------------

    def latency(self, source: str, target: str) -> float:
        """How long one segment takes."""
        if source == target:
            return 20e-6
        draw, weather = self.loop.draw, self.weather
        if draw() < weather.slow_chance:
            return self._rng.uniform(weather.latency_s, weather.slow_s)
        return weather.latency_s + weather.jitter_s * draw()

    # -- connections -----------------------------------------------------------------------

    def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        process: Process,
        host: str | None,
        port: int | None,
    ) -> SimServer:
        """A server of the process, at its own host whatever `host` says."""
        if not port:
            self._port += 1
            port = self._port
        address = (process.host, port)
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{address} is in use")
        self._listeners[address] = Listener(factory, process)
        return SimServer(self.loop, address, lambda: self._unlisten(address, process))

    def _unlisten(self, address: Address, process: Process) -> None:
        listener = self._listeners.get(address)
        if listener is not None and listener.process is process:
            del self._listeners[address]

    async def connect(
        self, factory: Callable[[], Any], host: str | None, port: int | None
    ) -> tuple[SimTransport, Any]:
        """See `loop.create_connection`."""
        process = PROCESS.get()
        self._port += 1
        local, remote = (process.host, self._port), (str(host), int(port or 0))
        if remote[0] in ("127.0.0.1", "localhost", "0.0.0.0"):  # noqa: S104  # compared only
            remote = (process.host, remote[1])
        future: asyncio.Future[SimTransport] = self.loop.create_future()
        self._syn(process, local, remote, future, 0)
        client = await future
        if client.gone and not client.process.alive:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        protocol = factory()
        client.protocol = protocol
        protocol.connection_made(client)
        client.resume_reading()
        return client, protocol

    def _syn(
        self,
        process: Process,
        local: Address,
        remote: Address,
        future: "asyncio.Future[SimTransport]",
        attempt: int,
    ) -> None:
        if future.done() or not process.alive:
            return
        there, back = self.passes(local[0], remote[0]), self.passes(remote[0], local[0])
        if not there or not back:
            if attempt == len(SYN_RETRIES_S):
                error = TimeoutError(errno.ETIMEDOUT, f"connect to {remote} timed out")
                process.post(_fail, future, error)
                return
            wait_s = SYN_RETRIES_S[attempt]
            when = self.loop.now + wait_s
            self.loop.at(when, self._syn, process, local, remote, future, attempt + 1)
            return
        when = self.loop.now + self.latency(local[0], remote[0])
        self.loop.at(when, self._syn_arrived, process, local, remote, future)

    def _syn_arrived(
        self,
        process: Process,
        local: Address,
        remote: Address,
        future: "asyncio.Future[SimTransport]",
    ) -> None:
        if not process.alive or future.done():
            return
        when = self.loop.now + self.latency(remote[0], local[0])
        listener = self._listeners.get(remote)
        if listener is None or not listener.process.alive:
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"connect to {remote} refused")
            self.loop.at(when, process.post, _fail, future, error)
            return
        client = SimTransport(self, process, local, remote)
        server = SimTransport(self, listener.process, remote, local)
        client.peer, server.peer = server, client
        client.pause_reading()
        self.connections[client] = self.connections[server] = None
        listener.process.post(_accept, server, listener.factory)
        self.loop.at(when, process.post, _connected, future, client)

    def forget(self, transport: SimTransport) -> None:
        self.connections.pop(transport, None)

    # -- segments --------------------------------------------------------------------------

    def send(self, end: SimTransport, kind: str, data: bytes) -> None:
        """A segment leaves the process at the end of its turn."""
        loop = self.loop
        process = end.process
        departs = loop.now
        if process.busy_until > departs and process.alive:
            departs = process.busy_until
        arrives = departs + self.latency(end.local[0], end.remote[0])
        outgoing = end.outgoing
        if outgoing and outgoing[-1].arrives >= arrives:
            arrives = outgoing[-1].arrives + 1e-7
        self.bytes_sent += len(data)
        outgoing.append(Segment(kind, data, departs, arrives))
        if len(outgoing) == 1 and end.blocked_since < 0:
            loop.at(arrives, self._arrived, end)

    def acknowledge(self, end: SimTransport, opened: Callable[[], None]) -> None:
        """The sender learns a moment later that its peer has read."""
        when = self.loop.now + self.latency(end.local[0], end.remote[0])
        self.loop.at(when, opened)

    def _arrive(self, end: SimTransport) -> None:
        """The first segment of this direction is at the other host, or at a cut."""
        outgoing = end.outgoing
        if not outgoing:
            return
        source, target = end.local[0], end.remote[0]
        if not self.passes(source, target):
            self._block(end)
            return
        end.blocked_since = -1.0
        segment = outgoing.popleft()
        peer = end.peer
        self.loop.note(peer.process.index, len(segment.data))
        if self.on_segment is not None:
            self.on_segment(end, segment)
        if not peer.gone:
            peer.arrive(segment)
        elif segment.kind == "data":
            self._answer_reset(end)
        if outgoing:
            self.loop.at(max(outgoing[0].arrives, self.loop.now), self._arrived, end)

    def _answer_reset(self, end: SimTransport) -> None:
        if self.passes(end.remote[0], end.local[0]):
            error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            when = self.loop.now + self.latency(end.remote[0], end.local[0])
            self._drop(end)
            self.loop.at(when, end.broken, error)

    def _drop(self, end: SimTransport) -> None:
        end.outgoing.clear()
        self._blocked.pop(end, None)

    def _block(self, end: SimTransport) -> None:
        if end.blocked_since < 0:
            end.blocked_since = self.loop.now
            if not end.gone:
                when = self.loop.now + self._rng.uniform(*GIVE_UP_S)
                self.loop.at(when, self._give_up, end, end.blocked_since)
        self._blocked[end] = None

    def _give_up(self, end: SimTransport, since: float) -> None:
        if end.blocked_since == since:
            self._drop(end)
            end.broken(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def _retry_blocked(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for end in blocked:
            when = self.loop.now + self._rng.random() * RETRANSMIT_S_MAX
            self.loop.at(when, self._arrived, end)


def _accept(server: SimTransport, factory: Callable[[], asyncio.BaseProtocol]) -> None:
    if server.gone:
        return
    protocol = factory()
    server.protocol = protocol
    protocol.connection_made(server)
    server.resume_reading()


def _connected(future: "asyncio.Future[SimTransport]", client: SimTransport) -> None:
    if future.done():
        client.abort()
    else:
        future.set_result(client)


def _fail(future: "asyncio.Future[SimTransport]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
