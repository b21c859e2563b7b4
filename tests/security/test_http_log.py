"""Malformed requests: one 400 or a closed connection, and no log that a client can fill."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from tests.fuzz.test_requests import answers, closed_port

from magnetar.admin.http import quiet_log

TIMES = 20
HOST = b"Host: b\r\n"
BROKEN_CHUNK = (
    b"POST /admin/v2/tenants HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
)
"""The head is whole, so its handler runs; then the body is malformed."""


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with closed_port() as number:
        yield number


@pytest.fixture(autouse=True)
def nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have had the same warnings."""
    logger = logging.getLogger(quiet_log.LOGGER)
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(quiet_log, "_FILTER", quiet_log.OncePerText())


@pytest.mark.parametrize(
    "request_bytes",
    [
        BROKEN_CHUNK,
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\nnonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"\x16\x03\x01\x00\x05abcde\r\n\r\n",
    ],
    ids=["body", "pipelined", "upgrade", "TLS"],
)
async def test_a_malformed_request_fills_no_log(
    port: int, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(TIMES):
        received = await answers(port, request_bytes)
        assert received.count(b"HTTP/1.1 ") <= 2, "one for each request"
        assert b"HTTP/1.1 500" not in received
    lines = [record for record in caplog.records if record.levelno >= logging.INFO]
    assert not [record for record in lines if record.levelno >= logging.ERROR]
    assert len(lines) <= 3, [record.getMessage() for record in lines]


async def test_a_malformed_body_ends_the_connection_while_the_answer_is_sent(port: int) -> None:
    """The page of metrics is streamed: its head is written when the next request is malformed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /metrics HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    async with asyncio.timeout(20):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.write(b"zz\r\n")
        await reader.read()
    writer.close()


def test_errors_always_pass() -> None:
    quiet = quiet_log.OncePerText()
    error = logging.LogRecord("x", logging.ERROR, "f", 1, "a bug", None, None)
    warning = logging.LogRecord("x", logging.WARNING, "f", 1, "a client", None, None)
    assert [quiet.filter(error), quiet.filter(error)] == [True, True]
    assert [quiet.filter(warning), quiet.filter(warning)] == [True, False]
