"""The connections of this broker to the others: one to each, opened at first use."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from google.protobuf.message import Message

from magnetar import __version__
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.peers.connection import Address, PeerConnection, open_peer
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.tasks import TaskSet

if TYPE_CHECKING:
    from magnetar.security.credentials import Credentials
    from magnetar.security.tls.reload import ClientTls

CONNECTIONS_MAX: Final = 256
"""Maximum number of connections; beyond it, the oldest is closed."""
CLIENT_VERSION: Final = f"Magnetar-Broker-{__version__}"

_Key = tuple[str, int]


class PeerClient:
    """Sends requests of the binary protocol to other brokers."""

    def __init__(
        self, credentials: "Credentials | None" = None, tls: "ClientTls | None" = None
    ) -> None:
        """`credentials` are this broker's own; with `tls`, connections are encrypted."""
        self.credentials = credentials
        self.tls = tls
        self._tasks = TaskSet("connections to brokers")
        self._connections: dict[_Key, PeerConnection] = {}
        self._opening: dict[_Key, asyncio.Task[PeerConnection | MagnetarError]] = {}

    async def request(
        self, broker: BrokerRecord, kind: int, command: Callable[[int], Message]
    ) -> Message:
        """Returns the response to the command that `command` makes for a request id.

        The caller sets a deadline. Raises ServiceNotReady if the broker cannot be reached.
        """
        connection = await self._connected(broker)
        request_id = connection.new_request_id()
        return await connection.request(kind, request_id, command(request_id))

    async def close(self) -> None:
        """Closes all connections. Idempotent."""
        await self._tasks.stop()
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.close()

    async def _connected(self, broker: BrokerRecord) -> PeerConnection:
        # A broker that was started again has the same address and is another process.
        key = (broker.broker_id, broker.start)
        connection = self._connections.get(key)
        if connection is not None and not connection.closed:
            return connection
        opening = self._opening.get(key)
        if opening is None:
            opening = self._tasks.start(self._open(key, broker), f"connect {broker.broker_id}")
            if opening is None:
                raise ServiceNotReady("The broker is shutting down, please retry")
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        try:
            # Shielded: other requests wait for it, too.
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise ServiceNotReady("The broker is shutting down, please retry") from None
            raise
        if isinstance(opened, MagnetarError):
            raise ServiceNotReady(opened.message)
        return opened

    async def _open(self, key: _Key, broker: BrokerRecord) -> PeerConnection | MagnetarError:
        """Opens a connection; returns an error, since several requests may wait for this task."""
        try:
            connection = await open_peer(self.address_of(broker), self.credentials, CLIENT_VERSION)
        except MagnetarError as error:
            return error
        self._connections.pop(key, None)
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = self._connections.pop(next(iter(self._connections)))
            self._tasks.start(oldest.close(), "close the oldest connection")
        self._connections[key] = connection
        return connection

    def address_of(self, broker: BrokerRecord) -> Address:
        """Returns the broker's address for other brokers; raises ServiceNotReady if it has none."""
        if self.tls is None:
            if not broker.urls.service_url:
                raise ServiceNotReady(
                    f"Broker {broker.broker_id} has a binary port with TLS only: set "
                    "broker_client_tls (brokerClientTlsEnabled)"
                )
            url = urlsplit(broker.urls.service_url)
            return Address(url.hostname or broker.host, url.port or broker.port)
        if not broker.urls.service_url_tls:
            raise ServiceNotReady(
                f"Broker {broker.broker_id} has no binary port with TLS (port_tls), which "
                "broker_client_tls requires"
            )
        url = urlsplit(broker.urls.service_url_tls)
        return Address(url.hostname or broker.host, url.port or broker.port, self.tls.context)
