"""Fixtures of the official client's tests, with `magnetar.pulsar` in its place."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.interop.support import ServerAddress

import magnetar.pulsar as pulsar
import magnetar.pulsar.asyncio

OPERATION_TIMEOUT_S = 30

ConnectClient = Callable[..., pulsar.Client]


@pytest.fixture
def connect(server: ServerAddress, client_log: Path) -> Iterator[ConnectClient]:
    """Opens clients that are closed with the test."""
    opened: list[pulsar.Client] = []

    def open_client(service_url: str | None = None, **options: object) -> pulsar.Client:
        options.setdefault("operation_timeout_seconds", OPERATION_TIMEOUT_S)
        options.setdefault("logger", pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(client_log)))
        client = pulsar.Client(service_url or server.service_url, **options)  # type: ignore[arg-type]
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        client.shutdown()


@pytest.fixture
def client(connect: ConnectClient) -> pulsar.Client:
    return connect()


@pytest.fixture
async def async_client(
    server: ServerAddress, client_log: Path
) -> AsyncIterator[magnetar.pulsar.asyncio.Client]:
    client = magnetar.pulsar.asyncio.Client(
        server.service_url,
        operation_timeout_seconds=OPERATION_TIMEOUT_S,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(client_log)),
    )
    yield client
    await client.close()
