"""A connection to a broker: requests with their answers, receipts, messages, keep-alive.

Producers and readers register here by their id. A connection that breaks fails every request and
tells every producer and reader; `brokers` opens another one.
"""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.security.credentials import Credentials
from magnetar.security.credentials.plugins import CredentialsUnavailable
from magnetar.security.tls.reload import ClientTls
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import PING_FRAME, PONG_FRAME, encode_command
from magnetar.wire.events import Command
from magnetar.wire.framing import MESSAGE_BYTES_MAX_DEFAULT, PROTOCOL_VERSION, ProtocolError
from magnetar_spark.sink.client.errors import Refused, Unavailable

CLIENT_VERSION: Final = "magnetar-spark"
PING_INTERVAL_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 35.0
"""For one answer, also while the broker answers PING; callers that repeat a request wait less."""
SILENCE_S_MAX: Final = 25.0
"""A connection without a byte for so long is closed: the broker answers PING."""

log = get_logger("magnetar.spark.sink")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a connection leads; `proxied` is the broker behind a proxy, empty without one."""

    host: str
    port: int
    proxied: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Attached(Protocol):
    """A producer or reader of a connection."""

    def received(self, kind: int, command: Any, payload: bytes | None) -> None:
        """Takes a command for it."""

    def detached(self, error: Unavailable) -> None:
        """The connection was lost, or the broker has closed the producer or reader."""


class Connection(asyncio.Protocol):
    """One connection. `open_connection` returns one."""

    def __init__(self, address: Address, credentials: Credentials) -> None:
        self.address = address
        self.message_bytes_max = MESSAGE_BYTES_MAX_DEFAULT
        self.joint_commit = False
        """Whether the broker commits several transactions at once."""
        self.closed = False
        self.ready = False
        """Whether the broker has accepted the connection."""
        self._credentials = credentials
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._connected: asyncio.Future[pb.CommandConnected] = (
            asyncio.get_running_loop().create_future()
        )
        self._producers: dict[int, Attached] = {}
        self._readers: dict[int, Attached] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._tasks = TaskSet(f"connection to {address}")
        self._gone = asyncio.Event()
        """Set once the socket is closed."""
        self._heard_at = 0.0

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - TCP or TLS
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._heard_at = asyncio.get_running_loop().time()
        try:
            for event in self._decoder.feed(data):
                if isinstance(event, Command):
                    self._command(event.type, event.message, event.payload)
        except ProtocolError as error:
            log.warning("connection closed", broker=str(self.address), error=str(error))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio.Protocol."""
        self._gone.set()
        self._fail()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._writable.set()

    # -- requests

    async def handshake(self) -> None:
        """Sends CONNECT and waits for CONNECTED; raises Refused, Unavailable."""
        method, data = await self._proof()
        connect = pb.CommandConnect(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
            auth_method_name=method,
            auth_data=data,
        )
        if self.address.proxied:
            connect.proxy_to_broker_url = self.address.proxied
        self._write(encode_command(CommandType.CONNECT, connect))
        answer = await self._connected
        self.joint_commit = answer.feature_flags.supports_joint_commit
        if answer.max_message_size:
            self.message_bytes_max = answer.max_message_size
        self.ready = True
        self._tasks.start(self._keep_alive(), "keep alive")

    async def request(self, kind: int, command: Any) -> Any:
        """Sends a command with a new request id and returns its answer.

        Raises Refused, also for an answer that has an error in it, and Unavailable, also if no
        answer comes within REQUEST_TIMEOUT_S.
        """
        command.request_id = next(self._ids)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[command.request_id] = future
        try:
            self._write(encode_command(kind, command))
            answer: Any = await self._answer(future)
        finally:
            self._pending.pop(command.request_id, None)
        if isinstance(answer, pb.CommandError) or _has_error(answer):
            raise Refused(answer.error, answer.message)
        return answer

    async def _answer(self, future: "asyncio.Future[Message]") -> Message:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise Unavailable(
                f"broker {self.address} has not answered in {REQUEST_TIMEOUT_S:g} s"
            ) from None

    def new_id(self) -> int:
        """Returns an id for a producer or reader."""
        return next(self._ids)

    def attach_producer(self, id_: int, producer: Attached) -> None:
        """Passes what comes for the producer to it, from now on."""
        self._producers[id_] = producer

    def attach_reader(self, id_: int, reader: Attached) -> None:
        """Passes what comes for the reader to it, from now on."""
        self._readers[id_] = reader

    def detach(self, id_: int) -> None:
        """Ends that."""
        self._producers.pop(id_, None)
        self._readers.pop(id_, None)

    async def send(self, frame: bytes) -> None:
        """Writes a frame that has no answer; waits while the socket is full. Raises Unavailable."""
        self._write(frame)
        if not self._writable.is_set():
            await self._writable.wait()

    def abort(self) -> None:
        """Drops the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._fail()

    async def close(self) -> None:
        """Closes the connection; idempotent."""
        self._fail()
        await self._tasks.stop()
        if self._transport is None or self._gone.is_set():
            return
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    # -- internals

    def _write(self, data: bytes) -> None:
        if self.closed or self._transport is None:
            raise self._lost()
        self._transport.write(data)

    def _command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind == CommandType.PING:
            self._write(PONG_FRAME)
        elif kind == CommandType.CONNECTED:
            if not self._connected.done():
                self._connected.set_result(message)
        elif kind == CommandType.AUTH_CHALLENGE:
            self._tasks.start(self._renew(), "renew credentials")
        elif kind in (CommandType.SEND_RECEIPT, CommandType.SEND_ERROR):
            if (producer := self._producers.get(message.producer_id)) is not None:
                producer.received(kind, message, payload)
        elif kind == CommandType.MESSAGE:
            if (reader := self._readers.get(message.consumer_id)) is not None:
                reader.received(kind, message, payload)
        elif kind == CommandType.CLOSE_PRODUCER:
            self._closed_by_broker(self._producers, message.producer_id)
        elif kind == CommandType.CLOSE_CONSUMER:
            self._closed_by_broker(self._readers, message.consumer_id)
        elif kind == CommandType.ERROR and not self._connected.done():
            self._connected.set_exception(Refused(message.error, message.message))
        elif (request_id := getattr(message, "request_id", None)) is not None:
            future = self._pending.get(request_id)
            # While a producer waits for its turn, PRODUCER_SUCCESS comes twice.
            if (
                future is not None
                and not future.done()
                and getattr(message, "producer_ready", True)
            ):
                future.set_result(message)

    def _closed_by_broker(self, attached: dict[int, Attached], id_: int) -> None:
        if (closed := attached.pop(id_, None)) is not None:
            closed.detached(Unavailable(f"broker {self.address} moves the topic"))

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            if loop.time() - self._heard_at > SILENCE_S_MAX:
                self.abort()
                return
            self._write(PING_FRAME)

    async def _renew(self) -> None:
        method, data = await self._proof()
        response = pb.CommandAuthResponse(
            client_version=CLIENT_VERSION, protocol_version=PROTOCOL_VERSION
        )
        response.response.auth_method_name, response.response.auth_data = method, data
        self._write(encode_command(CommandType.AUTH_RESPONSE, response))

    async def _proof(self) -> tuple[str, bytes]:
        try:
            method, secret = await self._credentials.method_and_data()
        except CredentialsUnavailable as error:
            raise Unavailable(f"the sink has no credentials: {error}") from None
        return method, secret.reveal()

    def _fail(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._writable.set()
        error = self._lost()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(error)
        for attached in [*self._producers.values(), *self._readers.values()]:
            attached.detached(error)
        self._producers.clear()
        self._readers.clear()

    def _lost(self) -> Unavailable:
        return Unavailable(f"the connection to broker {self.address} was lost")


def _has_error(answer: Any) -> bool:
    fields = answer.DESCRIPTOR.fields_by_name
    return "error" in fields and "message" in fields and answer.HasField("error")


async def open_connection(
    address: Address, credentials: Credentials, tls: ClientTls | None, timeout_s: float
) -> Connection:
    """Returns an authenticated connection. Raises Refused, and Unavailable if there is none."""
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(address, credentials),
                address.host,
                address.port,
                ssl=None if tls is None else tls.context,
            )
            await connection.handshake()
            return connection
    except OSError as error:
        reason = str(error) or f"no answer in {timeout_s:g} s"
        raise Unavailable(f"broker {address} cannot be reached: {reason}") from error
    finally:
        if connection is not None and not connection.ready:
            await connection.close()
