"""The connections of a client: one or several per broker, opened on demand and shared.

A connection is identified by the broker it reaches and the address it goes through, which differ
behind a proxy. Any number of callers that need the same connection wait for the same attempt. An
attempt belongs to the pool: a caller that is cancelled does not end it.
"""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Final

from magnetar import __version__
from magnetar.client.auth.api import Authentication
from magnetar.client.errors import (
    AlreadyClosed,
    ClientError,
    ConnectFailed,
    Disconnected,
    OperationTimeout,
)
from magnetar.client.network.access import Access, supplied
from magnetar.client.network.connection import Connection
from magnetar.client.network.service_urls import Address
from magnetar.client.network.tls import connect_failed
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command
from magnetar.wire.framing import PROTOCOL_VERSION

log = get_logger("magnetar.client.pool")

CLIENT_VERSION: Final = f"Magnetar-Python-v{__version__}"
CLOSE_TIMEOUT_S: Final = 2.0
"""How long the pool waits at its end for sockets to close."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of all connections of a client."""

    connect_timeout_s: float
    keep_alive_s: float
    per_broker: int


_Key = tuple[Address, Address, int]


class ConnectionPool:
    """Opens, shares and closes connections."""

    def __init__(self, settings: PoolSettings, access: Access, tasks: TaskSet) -> None:
        self._settings = settings
        self.access = access
        """Of the cluster that the client uses."""
        self._tasks = tasks
        self._connections: dict[_Key, Connection] = {}
        self._attempts: dict[_Key, asyncio.Task[Connection]] = {}
        self._turns = itertools.count()
        self._refreshing: set[Connection] = set()
        """Connections whose challenge is being answered."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._connections)

    async def get(self, broker: Address, through: Address | None = None) -> Connection:
        """Returns a connection to `broker`, by way of the proxy `through` if there is one."""
        if self._closed:
            raise AlreadyClosed("The client is closed")
        key = (broker, through or broker, next(self._turns) % self._settings.per_broker)
        connection = self._connections.get(key)
        if connection is not None and not connection.closed:
            return connection
        attempt = self._attempts.get(key)
        if attempt is None:
            started = self._tasks.start(self._connect(key), f"connect {through or broker}")
            if started is None:
                raise AlreadyClosed("The client is closed")
            attempt = self._attempts[key] = started
            attempt.add_done_callback(lambda _: self._attempts.pop(key, None))
        try:
            opened: Connection | ClientError = await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled() and not self._closed:
                raise Disconnected("The connection was given up", broker=str(broker)) from None
            if attempt.cancelled():
                raise AlreadyClosed("The client is closed") from None
            raise
        if isinstance(opened, ClientError):
            raise opened.with_traceback(None)
        return opened

    async def _connect(self, key: _Key) -> "Connection | ClientError":
        try:
            connection = await self._opened(key, self.access)
        except ClientError as error:
            return error
        if self._closed:
            connection.close()
            return AlreadyClosed("The client is closed")
        self._connections[key] = connection
        connection.ended.add_done_callback(lambda _: self._forget(key, connection))
        return connection

    def _forget(self, key: _Key, connection: Connection) -> None:
        if self._connections.get(key) is connection:
            del self._connections[key]

    async def _opened(self, key: _Key, access: Access) -> Connection:
        broker, through, _ = key
        settings = self._settings
        loop = asyncio.get_running_loop()
        connection = Connection(loop, str(broker), settings.keep_alive_s)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                tls = access.tls.context(access.auth.certificate) if through.tls else None
                await loop.create_connection(
                    lambda: connection,
                    through.host,
                    through.port,
                    ssl=tls,
                    server_hostname=through.host if tls is not None else None,
                )
                await self._greet(connection, access.auth, broker, through)
        except BaseException as error:
            connection.abort("The connection could not be opened")
            if isinstance(error, TimeoutError) and not isinstance(error, ClientError):
                raise OperationTimeout(
                    f"No connection to {through} in {settings.connect_timeout_s:g} s",
                    broker=str(broker),
                ) from None
            # A host name that cannot be encoded raises ValueError.
            if isinstance(error, OSError | ValueError) and not isinstance(error, ClientError):
                raise connect_failed(error, str(through), str(broker)) from error
            if isinstance(error, Disconnected):
                raise ConnectFailed(error.message, broker=str(broker)) from error
            raise
        return connection

    async def _greet(
        self, connection: Connection, auth: Authentication, broker: Address, through: Address
    ) -> None:
        connect = pb.CommandConnect(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=auth.method,
            feature_flags=pb.FeatureFlags(
                supports_auth_refresh=True,
                supports_broker_entry_metadata=True,
                supports_partial_producer=True,
                supports_topic_watchers=True,
                supports_get_partitioned_metadata_without_auto_creation=True,
            ),
        )
        if credentials := await supplied(auth.credentials()):
            connect.auth_data = credentials
        if through != broker:
            connect.proxy_to_broker_url = broker.host_port
        connection.on_challenge = lambda _: self._answer_challenge(connection, auth)
        connection.write(encode_command(CommandType.CONNECT, connect))
        await asyncio.shield(connection.greeting)

    def _answer_challenge(self, connection: Connection, auth: Authentication) -> None:
        if connection in self._refreshing:
            return  # the answer to an earlier challenge is on its way
        refreshing = self._tasks.start(
            self._refresh(connection, auth), f"credentials for {connection.address}"
        )
        if refreshing is not None:
            self._refreshing.add(connection)
            refreshing.add_done_callback(lambda _: self._refreshing.discard(connection))

    async def _refresh(self, connection: Connection, auth: Authentication) -> None:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                credentials = await supplied(auth.credentials())
        except (ClientError, TimeoutError) as error:
            log.warning(
                "credentials could not be refreshed, closing the connection",
                broker=connection.address,
                error=str(error),
            )
            connection.abort(f"The credentials could not be refreshed: {error}")
            return
        response = pb.CommandAuthResponse(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            response=pb.AuthData(auth_method_name=auth.method, auth_data=credentials),
        )
        connection.write(encode_command(CommandType.AUTH_RESPONSE, response))

    async def answers(self, address: Address, access: Access) -> bool:
        """Whether a service accepts a new connection, and a broker greets this client."""
        try:
            if address.http:
                async with asyncio.timeout(self._settings.connect_timeout_s):
                    _, writer = await asyncio.open_connection(address.host, address.port)
                writer.transport.abort()
            else:
                connection = await self._opened((address, address, 0), access)
                connection.close()
        except (ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
            log.info("cluster does not answer", service=str(address), error=str(error))
            return False
        return True

    def drop(self, reason: str) -> None:
        """Closes all connections; producers and consumers look their brokers up again."""
        for connection in list(self._connections.values()):
            connection.abort(reason)
        self._connections.clear()
        for attempt in list(self._attempts.values()):
            attempt.cancel()

    async def close(self) -> None:
        """Closes all connections; those that are being opened are given up with their tasks."""
        self._closed = True
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        ends = [connection.ended for connection in connections if not connection.ended.done()]
        try:
            if ends:
                await asyncio.wait(ends, timeout=CLOSE_TIMEOUT_S)
        finally:
            for connection in connections:
                if not connection.ended.done():
                    connection.abort("The client closed the connection")
