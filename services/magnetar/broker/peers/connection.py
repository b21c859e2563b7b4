"""A connection to another broker: requests of the binary protocol, and their responses.

The connection authenticates with this broker's own credentials, also when the other one challenges
it, and answers its PING. Requests are matched with responses by their id. A connection that breaks
fails every pending request; its owner (`client`) opens another one.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.message import Message

from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType, parse_command
from magnetar.wire.encoder import PONG_FRAME, encode_command
from magnetar.wire.framing import FRAME_HEADER, PROTOCOL_VERSION, ProtocolError

if TYPE_CHECKING:
    from magnetar.security.credentials import Credentials

CONNECT_TIMEOUT_S: Final = 3.0
CLOSE_TIMEOUT_S: Final = 1.0
RESPONSE_BYTES_MAX: Final = 64 << 10
"""Maximum size of a frame from another broker; responses are small."""

log = get_logger("magnetar.peers")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker, and the TLS context of connections to it; None without TLS."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PeerConnection:
    """A connection to a broker. `open_peer` returns one."""

    def __init__(
        self,
        address: Address,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        credentials: "Credentials | None",
    ) -> None:
        self._address = address
        self._reader = reader
        self._writer = writer
        self._credentials = credentials
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._request_ids = 0
        self._tasks = TaskSet(f"connection to broker {address}")
        self.closed = False

    async def handshake(self, client_version: str) -> None:
        """Sends CONNECT and waits for CONNECTED; raises ServiceNotReady."""
        method, data = await self._proof()
        connect = pb.CommandConnect(
            client_version=client_version,
            protocol_version=PROTOCOL_VERSION,
            feature_flags=pb.FeatureFlags(supports_auth_refresh=True),
        )
        if method is not None:
            connect.auth_method_name, connect.auth_data = method, data
        self._writer.write(encode_command(CommandType.CONNECT, connect))
        while True:
            kind, message = await self._next()
            if kind == CommandType.CONNECTED:
                break
            if isinstance(message, pb.CommandError):
                raise ServiceNotReady(
                    f"Broker {self._address} refused the connection: {message.message}"
                )
            await self._handle(kind, message)
        self._tasks.start(self._read(), "read")

    def new_request_id(self) -> int:
        """Returns an id for the next request."""
        self._request_ids += 1
        return self._request_ids

    async def request(self, kind: int, request_id: int, command: Message) -> Message:
        """Sends a command and returns its response; the caller sets a deadline.

        Raises ServiceNotReady if the connection breaks, or if the broker answers with ERROR.
        """
        if self.closed:
            raise self._lost()
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = future
        try:
            self._writer.write(encode_command(kind, command))
            await self._writer.drain()
            return await future
        except OSError as error:
            raise self._lost() from error
        finally:
            self._pending.pop(request_id, None)

    async def close(self) -> None:
        """Closes the connection; pending requests fail. Idempotent."""
        self._fail()
        await self._tasks.stop(CLOSE_TIMEOUT_S)
        self._writer.close()

    async def _read(self) -> None:
        try:
            while True:
                kind, message = await self._next()
                await self._handle(kind, message)
        except (OSError, EOFError, ProtocolError, MagnetarError) as error:
            if not self.closed:
                log.info("connection to broker lost", peer=str(self._address), error=str(error))
        finally:
            self._fail()
            self._writer.close()

    async def _next(self) -> tuple[int, Message]:
        """Returns the next command's type and message."""
        header = await self._reader.readexactly(FRAME_HEADER.size)
        total_bytes, command_bytes = FRAME_HEADER.unpack(header)
        if command_bytes + 4 != total_bytes or total_bytes > RESPONSE_BYTES_MAX:
            raise ProtocolError(f"A broker sent a frame of {total_bytes} bytes that is no response")
        return parse_command(await self._reader.readexactly(command_bytes))

    async def _handle(self, kind: int, message: Message) -> None:
        if kind == CommandType.PING:
            self._writer.write(PONG_FRAME)
        elif kind == CommandType.AUTH_CHALLENGE:
            await self._renew()
        elif (request_id := getattr(message, "request_id", None)) is not None:
            future = self._pending.get(request_id)
            if future is None or future.done():
                return  # its deadline has passed
            if isinstance(message, pb.CommandError):
                future.set_exception(ServiceNotReady(f"Broker {self._address}: {message.message}"))
            else:
                future.set_result(message)

    async def _renew(self) -> None:
        method, data = await self._proof()
        response = pb.CommandAuthResponse(protocol_version=PROTOCOL_VERSION)
        response.response.auth_method_name = method or ""
        response.response.auth_data = data
        self._writer.write(encode_command(CommandType.AUTH_RESPONSE, response))

    async def _proof(self) -> tuple[str | None, bytes]:
        if self._credentials is None:
            return None, b""
        # Here: an open broker starts without the modules of security.
        from magnetar.security.credentials.plugins import CredentialsUnavailable

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                method, secret = await self._credentials.method_and_data()
        except (CredentialsUnavailable, TimeoutError) as error:
            raise ServiceNotReady(
                f"This broker has no credentials for broker {self._address} now: {error}"
            ) from error
        return method, secret.reveal()

    def _fail(self) -> None:
        self.closed = True
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._lost())

    def _lost(self) -> ServiceNotReady:
        return ServiceNotReady(f"The connection to broker {self._address} was lost")


async def open_peer(
    address: Address, credentials: "Credentials | None", client_version: str
) -> PeerConnection:
    """Returns an authenticated connection; raises ServiceNotReady if there is none in time."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=address.tls
            )
            connection = PeerConnection(address, reader, writer, credentials)
            try:
                await connection.handshake(client_version)
            except BaseException:
                writer.close()
                raise
            return connection
    except (OSError, EOFError, ProtocolError) as error:
        reason = str(error) or f"no answer in {CONNECT_TIMEOUT_S:g} s"
        raise ServiceNotReady(f"Broker {address} cannot be reached: {reason}") from error
