"""The brokers of a cluster: look-ups, one connection to each, and requests that are repeated."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar_spark.sink.client.connection import Address, Connection, open_connection
from magnetar_spark.sink.client.errors import Refused, Unavailable, passes
from magnetar_spark.sink.settings import ClientSettings

REDIRECTS_MAX: Final = 20
RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 2.0
ANSWER_TIMEOUT_S: Final = 30.0
"""For one attempt at a request; brokers answer those of transactions within 25 s."""
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}

T = TypeVar("T")


class Brokers:
    """Connections by address. Use it as an asynchronous context manager."""

    def __init__(self, settings: ClientSettings) -> None:
        """Raises PreconditionFailed if the credentials or the files of TLS cannot be used."""
        self.settings = settings
        self._credentials = settings.credentials()
        self._tls = settings.client_tls()
        self._service = _addresses(settings.service_url)
        self._connections: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Lock] = {}

    async def __aenter__(self) -> "Brokers":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            await connection.close()
        await self._credentials.close()

    async def partitions(self, topic: str) -> int:
        """Returns the number of partitions of a topic, 0 if it has none."""
        command = pb.CommandPartitionedTopicMetadata(topic=topic)

        async def ask() -> Any:
            return await (await self._any()).request(CommandType.PARTITIONED_METADATA, command)

        answer = await self.repeated(ask)
        return int(answer.partitions)

    async def serving(self, topic: str) -> Connection:
        """Returns a connection to the broker that serves the topic; raises Refused, Unavailable."""
        connection = await self._any()
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            command = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            answer = await connection.request(CommandType.LOOKUP, command)
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                raise Refused(answer.error, answer.message)
            authoritative = answer.authoritative
            connection = await self._connected(self._address(connection, answer))
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return connection
        raise Unavailable(f"the look-up of {topic} was redirected {REDIRECTS_MAX} times")

    async def repeated(self, act: Callable[[], Awaitable[T]], within_s: float | None = None) -> T:
        """Returns the result of `act`, which is repeated while its errors may pass.

        Raises its last error after `within_s`, by default the operation timeout.
        """
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, random.Random())
        until = time.monotonic() + (within_s or self.settings.operation_timeout_s)
        while True:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    return await act()
            except TimeoutError:
                error: MagnetarError = Unavailable(f"no answer in {ANSWER_TIMEOUT_S:g} s")
            except MagnetarError as refused:
                if not passes(refused):
                    raise
                error = refused
            pause_s = backoff.failed_s()
            if time.monotonic() + pause_s > until:
                raise error
            await asyncio.sleep(pause_s)

    def _address(self, asked: Connection, answer: pb.CommandLookupTopicResponse) -> Address:
        url = answer.brokerServiceUrlTls if self._tls is not None else answer.brokerServiceUrl
        if not url:
            raise Refused(
                pb.ServerError.UnknownError,
                "the broker has no address of the kind of service.url: "
                f"it has {answer.brokerServiceUrl or answer.brokerServiceUrlTls}",
            )
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 6650)
        if answer.proxy_through_service_url:
            return Address(asked.address.host, asked.address.port, f"{host}:{port}")
        return Address(host, port)

    async def _any(self) -> Connection:
        """Returns a connection to one of the brokers of the service URL."""
        errors: list[MagnetarError] = []
        for address in random.sample(self._service, len(self._service)):
            try:
                return await self._connected(address)
            except MagnetarError as error:
                errors.append(error)
        raise errors[-1]

    async def _connected(self, address: Address) -> Connection:
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                if connection is not None:
                    await connection.close()
                connection = await open_connection(
                    address, self._credentials, self._tls, self.settings.connect_timeout_s
                )
                self._connections[address] = connection
            return connection


def _addresses(service_url: str) -> list[Address]:
    scheme, _, hosts = service_url.partition("://")
    addresses = []
    for host in hosts.rstrip("/").split(","):
        parts = urlsplit(f"//{host.strip()}")
        addresses.append(Address(parts.hostname or "", parts.port or _PORTS[scheme]))
    return addresses


def full_name(topic: str) -> str:
    """Returns the full name of a topic; raises InvalidTopicName."""
    return str(parse_topic(topic))
