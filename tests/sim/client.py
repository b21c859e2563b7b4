"""A client of the binary protocol: lookups, redirects, connections, answers, keep-alive.

It does what official clients do where that matters for the guarantees: it finds the owner by
lookup, keeps one connection per broker, notices a peer that is silent, and leaves to producers and
consumers what to do when their connection is gone.
"""

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import PING_FRAME, PONG_FRAME, encode_command
from magnetar.wire.events import Command

ANSWER_TIMEOUT_S: Final = 12.0
CONNECT_TIMEOUT_S: Final = 4.0
PING_S: Final = 3.0
SILENT_S: Final = 7.0
REDIRECTS_MAX: Final = 8

_Lookup = pb.CommandLookupTopicResponse

# Read from the enum once: its attributes are computed on every access.
SEND_RECEIPT: Final = CommandType.SEND_RECEIPT
SEND_ERROR: Final = CommandType.SEND_ERROR
MESSAGE: Final = CommandType.MESSAGE
ACTIVE_CONSUMER_CHANGE: Final = CommandType.ACTIVE_CONSUMER_CHANGE
PING: Final = CommandType.PING
CLOSE_PRODUCER: Final = CommandType.CLOSE_PRODUCER
CLOSE_CONSUMER: Final = CommandType.CLOSE_CONSUMER

PASSING: Final = (OSError, TimeoutError)
"""What a client gets over by trying again; so it does with `Refused`."""


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{pb.ServerError.Name(code)}: {text}")  # type: ignore[arg-type]
        self.code, self.text = code, text


class Attached(Protocol):
    """A producer or consumer on a connection. `number` is its id there."""

    number: int

    def command(self, kind: int, message: Any, payload: bytes | None) -> None: ...

    def detached(self, redirect: str) -> None:
        """The broker closed it, or the connection is gone."""


class Wire(asyncio.Protocol):
    """One connection to a broker."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.decoder = FrameDecoder()
        self.transport: Any = None
        self.gone = False
        self.producers: dict[int, Attached] = {}
        self.consumers: dict[int, Attached] = {}
        self._requests = itertools.count(1)
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._heard = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._heard = self.loop.time()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.gone:
            return
        self.gone = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("connection lost"))
        for attached in [*self.producers.values(), *self.consumers.values()]:
            attached.detached("")
        self.producers.clear()
        self.consumers.clear()

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        for event in self.decoder.feed(data):
            assert isinstance(event, Command)
            self._command(event.type, event.message, event.payload)

    def abort(self) -> None:
        """Gives the connection up."""
        if not self.gone:
            self.transport.abort()
            self.connection_lost(None)

    def abort_within(self, most_s: float, rng: Random) -> None:
        """Aborts it after a random time of at most `most_s`; immediately if that is 0."""
        if most_s:
            asyncio.get_running_loop().call_later(rng.uniform(0.0, most_s), self.abort)
        else:
            self.abort()

    def write(self, data: bytes) -> None:
        if not self.gone:
            self.transport.write(data)

    def _watch(self) -> None:
        if self.gone:
            return
        silent_s = self.loop.time() - self._heard
        if silent_s > SILENT_S:
            self.abort()
            return
        if silent_s > PING_S:
            self.write(PING_FRAME)
        self.loop.call_later(PING_S, self._watch)

    # -- commands --------------------------------------------------------------------------

    def _command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind in (SEND_RECEIPT, SEND_ERROR):
            self._tell(self.producers, message.producer_id, kind, message, None)
        elif kind == MESSAGE:
            self._tell(self.consumers, message.consumer_id, kind, message, payload)
        elif kind == ACTIVE_CONSUMER_CHANGE:
            self._tell(self.consumers, message.consumer_id, kind, message, None)
        elif kind == PING:
            self.write(PONG_FRAME)
        elif kind == CLOSE_PRODUCER:
            self._close(self.producers, message.producer_id, message)
        elif kind == CLOSE_CONSUMER:
            self._close(self.consumers, message.consumer_id, message)
        else:
            key = getattr(message, "request_id", None)
            future = self._waiting.pop(("kind", kind) if key is None else key, None)
            if future is not None and not future.done():
                future.set_result((kind, message))

    def _tell(
        self, to: dict[int, Attached], number: int, kind: int, message: Any, payload: bytes | None
    ) -> None:
        attached = to.get(number)
        if attached is not None:
            attached.command(kind, message, payload)

    def _close(self, of: dict[int, Attached], number: int, message: Any) -> None:
        attached = of.pop(number, None)
        if attached is not None:
            url = message.assignedBrokerServiceUrl
            attached.detached(url)

    async def hello(self) -> None:
        connect = pb.CommandConnect(client_version="sim", protocol_version=21)
        future = self.loop.create_future()
        self._waiting["kind", CommandType.CONNECTED] = future
        self.write(encode_command(CommandType.CONNECT, connect))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await future

    async def request(self, kind: int, message: Any, *, cut_s: float | None = None) -> Any:
        """Sends a command with a fresh id; returns its answer, or raises Refused.

        With `cut_s` the client closes the connection if there is no answer by then.
        """
        if self.gone:
            raise ConnectionError("connection lost")
        message.request_id = next(self._requests)
        future = self.loop.create_future()
        self._waiting[message.request_id] = future
        self.write(encode_command(kind, message))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S if cut_s is None else cut_s):
                answered, answer = await future
        except TimeoutError:
            if cut_s is not None:
                self.abort()
            raise
        finally:
            self._waiting.pop(message.request_id, None)
        if answered == CommandType.ERROR:
            raise Refused(answer.error, answer.message)
        return answer


class Client:
    """The connections of one client process."""

    def __init__(self, services: list[tuple[str, int]], random_index: Callable[[int], int]) -> None:
        self.services = services
        self.ids = itertools.count(1)
        self._random_index = random_index
        self._wires: dict[tuple[str, int], Wire] = {}
        self._connecting: dict[tuple[str, int], asyncio.Lock] = {}

    async def wire(self, address: tuple[str, int]) -> Wire:
        """The connection to a broker, made where there is none."""
        lock = self._connecting.setdefault(address, asyncio.Lock())
        async with lock:
            wire = self._wires.get(address)
            if wire is not None and not wire.gone:
                return wire
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, wire = await loop.create_connection(Wire, *address)
            try:
                await wire.hello()
            except (OSError, TimeoutError):
                wire.abort()
                raise
            self._wires[address] = wire
            return wire

    async def broker_of(self, topic: str) -> Wire:
        """A connection to the broker that says it owns the topic. Raises Refused, OSError."""
        address = self.services[self._random_index(len(self.services))]
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            wire = await self.wire(address)
            command = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            answer = await wire.request(CommandType.LOOKUP, command)
            if answer.response == _Lookup.Failed:
                raise Refused(answer.error, answer.message)
            url = urlsplit(answer.brokerServiceUrl)
            address = (str(url.hostname), int(url.port or 0))
            authoritative = answer.authoritative
            if answer.response == _Lookup.Connect:
                return await self.wire(address)
        raise TimeoutError("too many redirects")

    def abort(self) -> None:
        for wire in self._wires.values():
            wire.abort()
