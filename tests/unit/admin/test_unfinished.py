"""Unfinished HTTP requests, on real sockets with short deadlines."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from magnetar.admin.http import connection as http_connection
from magnetar.admin.http import embedded_server
from magnetar.admin.http.server import AdminServer
from magnetar.wire.progress import PROGRESS_BYTES_MIN

from .support import start_service, stop_service

HOST = "127.0.0.1"
WAIT_S = 20.0
HEAD = b"GET /admin/v2/tenants HTTP/1.1\r\nHost: x\r\n"
POST = b"PUT /admin/v2/tenants/t2 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(embedded_server, "TICK_S", 0.02)
    monkeypatch.setattr(http_connection, "HEAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(http_connection, "BODY_STALL_S", 0.5)
    service = await start_service()
    server = AdminServer()
    yield await server.start(service, HOST, 0)
    await server.stop()
    await stop_service(service)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Returns the bytes that the server sent before it closed the connection."""
    async with asyncio.timeout(WAIT_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("sent", [b"", HEAD[:1], HEAD, HEAD + b"\r"])
async def test_half_a_head_ends_its_connection(sent: bytes, port: int) -> None:
    opened = [await asyncio.open_connection(HOST, port) for _ in range(30)]
    for _, writer in opened:
        writer.write(sent)
    for reader, writer in opened:
        assert await ended(reader) == b""
        writer.close()


async def test_a_slow_head_meets_the_same_deadline(port: int) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)

    async def trickle() -> None:
        for byte in HEAD:
            writer.write(bytes((byte,)))
            await asyncio.sleep(0.05)

    trickling = asyncio.ensure_future(trickle())
    assert await ended(reader) == b""
    trickling.cancel()
    writer.close()


async def test_half_a_body_ends_its_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(POST + b'Content-Length: 100\r\n\r\n{"adminRoles"')
    assert await ended(reader) == b""
    writer.close()


async def test_half_a_second_request_ends_its_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(HEAD + b"\r\n")
    async with asyncio.timeout(WAIT_S):
        assert b"200" in await reader.readuntil(b"\r\n")
    writer.write(HEAD)
    assert b"t1" in await ended(reader)
    writer.close()


async def test_a_pause_between_requests_and_a_slow_upload_are_allowed(port: int) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(HEAD + b"\r\n")
    async with asyncio.timeout(WAIT_S):
        await reader.readuntil(b'["t1"]')
    # The pause exceeds the deadline of a head, which closes another connection meanwhile.
    other, other_writer = await asyncio.open_connection(HOST, port)
    assert await ended(other) == b""
    other_writer.close()
    # The upload exceeds the time that a body may pause.
    body = b'{"adminRoles": [], "allowedClusters": ["standalone"]}'.ljust(12 * PROGRESS_BYTES_MIN)
    writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body))
    for start in range(0, len(body), PROGRESS_BYTES_MIN):
        writer.write(body[start : start + PROGRESS_BYTES_MIN])
        await asyncio.sleep(0.1)
    async with asyncio.timeout(WAIT_S):
        status = await reader.readuntil(b"\r\n")
    assert b"HTTP/1.1 204" in status or b"HTTP/1.1 412" in status
    writer.close()


@pytest.mark.parametrize("half_close", [True, False])
async def test_a_client_that_leaves_within_a_body_is_no_error(
    half_close: bool, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a client could fill the log with tracebacks."""
    caplog.set_level(logging.WARNING)
    for _ in range(10):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(POST + b'Content-Length: 100\r\n\r\n{"adminRoles"')
        await writer.drain()
        await asyncio.sleep(0.01)
        if half_close:
            writer.write_eof()
            await ended(reader)
        writer.close()
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(HEAD + b"Connection: close\r\n\r\n")
    assert b" 200 " in await ended(reader)
    writer.close()
    assert not [record.getMessage() for record in caplog.records]
