"""The connections to etcd's members: one channel each, and the member in use.

All calls use one member until it fails, then the next, in a circle. There is no health check: calls
detect failures. gRPC reconnects with a back-off (RECONNECT_*) and pings idle connections, so that a
silently broken one is detected (`keepalive_*` of the settings). Every call carries `hasleader`: a
member without a leader refuses at once instead of holding the call. Proxies of the environment are
not used.

gRPC reconnects with the certificates of the channel's creation. If the files have changed since, a
member that failed gets a new channel: renewed certificates and new authorities need no restart.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from magnetar.core.tasks import TaskSet
from magnetar.metadata.etcd.errors import Outcome, PassingFault, by_peer, translate
from magnetar.metadata.etcd.settings import EtcdSettings, MetadataSettingsError

RECONNECT_MS_MIN: Final = 50
RECONNECT_MS_MAX: Final = 1_000
CONNECT_TIMEOUT_MS: Final = 2_000
ANSWER_BYTES_MAX: Final = 32 << 20
CLOSE_GRACE_S: Final = 0.2

log = logging.getLogger(__name__)

Headers = tuple[tuple[str, str], ...]
HEADERS: Final[Headers] = (("hasleader", "true"),)

Files = tuple[bytes | None, bytes | None, bytes | None]
"""The authorities, the private key and the certificate, as gRPC takes them."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """An RPC of etcd's API."""

    path: str
    request: type[Request]
    response: type[Response]


class Endpoint:
    """A member's address and channel."""

    def __init__(self, address: str, channel: grpc.aio.Channel, files: Files | None = None) -> None:
        self.address = address
        self.channel = channel
        self.files = files
        """The certificates of the channel; None without TLS."""
        # The call objects of grpc.aio are generic in the messages; Method carries the types.
        self._calls: dict[str, Callable[..., Any]] = {}

    @property
    def connected(self) -> bool:
        """Whether the channel is connected; reading this also starts to connect."""
        return self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def unary(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        headers: Headers,
    ) -> Response:
        """Makes a unary call. Raises PassingFault or a final MetadataError."""
        call = self._calls.get(method.path)
        if call is None:
            call = self._calls[method.path] = self.channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        try:
            response: Response = await call(request, timeout=timeout_s, metadata=headers)
        except grpc.aio.AioRpcError as error:
            raise translate(error) from None
        except asyncio.CancelledError:
            if by_peer():
                raise PassingFault(Outcome.UNKNOWN, "the connection was closed") from None
            raise
        return response

    def stream(
        self,
        method: Method[Request, Response],
        headers: Headers,
        timeout_s: float | None = None,
    ) -> "grpc.aio.StreamStreamCall[Request, Response]":
        """Opens a bidirectional stream; its `read` and `write` raise AioRpcError."""
        call: Callable[..., Any] = self.channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        opened: grpc.aio.StreamStreamCall[Request, Response]
        opened = call(timeout=timeout_s, metadata=headers)
        return opened


class Endpoints:
    """All members of an etcd cluster, and the one in use."""

    def __init__(self, settings: EtcdSettings, random: Random) -> None:
        self._tls = settings.tls
        files = None if self._tls is None else self._tls.read()
        self._closing = TaskSet("etcd channels")
        self._options: list[tuple[str, int]] = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
            ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
            ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
            ("grpc.keepalive_time_ms", int(settings.keepalive_interval_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(settings.keepalive_timeout_s * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        self._all = [self._open(address, files) for address in settings.endpoints]
        # A random start spreads clients over the members.
        self._index = random.randrange(len(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def __str__(self) -> str:
        return ", ".join(endpoint.address for endpoint in self._all)

    @property
    def current(self) -> Endpoint:
        return self._all[self._index]

    def failed(self, endpoint: Endpoint) -> None:
        """Switches to the next member, unless another caller has switched already."""
        if endpoint is self.current:
            self._renew(endpoint)
            self._index = (self._index + 1) % len(self._all)

    def _open(self, address: str, files: Files | None) -> Endpoint:
        if files is None:
            return Endpoint(address, grpc.aio.insecure_channel(address, self._options))
        credentials = grpc.ssl_channel_credentials(*files)
        channel = grpc.aio.secure_channel(address, credentials, self._options)
        return Endpoint(address, channel, files)

    def _renew(self, endpoint: Endpoint) -> None:
        """Gives a member that failed a new channel if the certificates have changed."""
        if self._tls is None:
            return
        try:
            files = self._tls.read()
        except MetadataSettingsError as error:
            log.warning("certificates for etcd stay as they were: %s", error)
            return
        if files == endpoint.files:
            return
        log.info("etcd %s gets a new connection: the certificates have changed", endpoint.address)
        self._all[self._index] = self._open(endpoint.address, files)
        closing = endpoint.channel.close(CLOSE_GRACE_S)
        self._closing.start(closing, f"close the old channel to {endpoint.address}")

    async def close(self) -> None:
        for endpoint in self._all:
            await endpoint.channel.close(CLOSE_GRACE_S)
        await self._closing.stop()
