"""More HTTP connections than the server keeps, on real sockets: those that wait for clients end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from magnetar.admin.http import connection as http_connection
from magnetar.admin.http import embedded_server
from magnetar.admin.http.server import AdminServer
from magnetar.broker.service import BrokerService

from .support import start_service, stop_service

HOST = "127.0.0.1"
WAIT_S = 20.0
MOST = 8
PROBE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"PUT /admin/v2/tenants/t2 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[BrokerService, int]]:
    monkeypatch.setattr(http_connection, "CONNECTIONS_MAX", MOST)
    monkeypatch.setattr(embedded_server, "CONNECTIONS_MAX", MOST)
    service = await start_service()
    server = AdminServer()
    yield service, await server.start(service, HOST, 0)
    await server.stop()
    await stop_service(service)


async def connection(port: int, sent: bytes = b"") -> Streams:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def status(streams: Streams) -> int:
    async with asyncio.timeout(WAIT_S):
        head = await streams[0].readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1])


async def ended(streams: Streams) -> bool:
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionResetError):
            while await streams[0].read(1 << 16):
                pass
    return True


@pytest.mark.parametrize(
    "held",
    [b"", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{", PROBE],
    ids=["silent", "half a head", "half a body", "kept alive"],
)
async def test_connections_that_wait_for_their_clients_make_room_for_others(
    held: bytes, running: tuple[BrokerService, int]
) -> None:
    _, port = running
    strangers = [await connection(port, held) for _ in range(3 * MOST)]
    if held == PROBE:
        assert await status(strangers[-1]) == 200
    for _ in range(2):
        probe = await connection(port, PROBE)
        assert await status(probe) == 200
        probe[1].close()
    assert await ended(strangers[0])
    for _, writer in strangers:
        writer.close()


async def test_requests_that_are_being_served_are_not_ended(
    running: tuple[BrokerService, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, port = running
    going_on, served = asyncio.Event(), 0
    tenants = service.resources.tenants

    async def slowly() -> object:
        nonlocal served
        served += 1
        await going_on.wait()
        return await tenants()

    monkeypatch.setattr(service.resources, "tenants", slowly)
    asked = [
        await connection(port, b"GET /admin/v2/tenants HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(MOST - 1)
    ]
    async with asyncio.timeout(WAIT_S):
        while served < len(asked):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.002)
    strangers = [await connection(port) for _ in range(3 * MOST)]
    probe = await connection(port, PROBE)
    assert await status(probe) == 200
    going_on.set()
    for streams in asked:
        assert await status(streams) == 200
    for _, writer in (*asked, *strangers, probe):
        writer.close()
