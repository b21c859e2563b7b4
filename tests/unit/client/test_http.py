"""HTTP of the client: answers of each form, bounds, damage, and lookups' errors and redirects."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import Client
from magnetar.client.errors import (
    AuthenticationFailed,
    ClientError,
    ConnectFailed,
    InvalidConfiguration,
    LookupFailed,
    OperationTimeout,
    ServerFailed,
    TopicNotFound,
)
from magnetar.client.network import http
from magnetar.client.network.http import HttpAnswer, request

Serve = Callable[[bytes], None]


class Server:
    """Answers every request with the bytes of its path."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.heads: list[bytes] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        path = head.split(b" ")[1].decode().partition("?")[0]
        writer.write(self.answers.get(path, b""))
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    yield server
    listening.close()
    await listening.wait_closed()


async def get(url: str, headers: dict[str, str] | None = None) -> HttpAnswer:
    return await request("GET", url, headers=headers or {}, tls=None, timeout_s=30)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
        ),
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:5\r\n\r\nhello",
    ],
)
async def test_bodies(server: Server, answer: bytes) -> None:
    server.answers["/a"] = answer
    got = await get(f"{server.url}/a?b=c", {"Authorization": "Bearer t"})
    assert (got.status, got.body) == (200, b"hello")
    assert server.heads[0].startswith(b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer t\r\n" in server.heads[0]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
async def test_damaged_answers(server: Server, answer: bytes) -> None:
    server.answers["/a"] = answer
    with pytest.raises(ConnectFailed, match="No connection to http://127"):
        await get(f"{server.url}/a")


async def test_endless_bodies_are_cut(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 10)
    server.answers["/a"] = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 11
    with pytest.raises(ConnectFailed, match="larger than 10 bytes"):
        await get(f"{server.url}/a")


@given(st.binary(max_size=300))
def test_any_answer_is_read_or_refused(data: bytes) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        try:
            await http._answer(reader)
        except (ValueError, EOFError, asyncio.LimitOverrunError):
            return

    asyncio.run(read())


async def test_refused_requests(server: Server) -> None:
    with pytest.raises(InvalidConfiguration, match="line break"):
        await get(f"{server.url}/a", {"Authorization": "Bearer a\r\nX: y"})
    with pytest.raises(InvalidConfiguration, match="not an http"):
        await get("ftp://127.0.0.1/a")
    assert not server.heads


async def test_a_server_that_does_not_answer() -> None:
    held = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.close()

    listening = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    with pytest.raises(OperationTimeout, match=r"did not answer in 0\.01 s"):
        await request(
            "GET", f"http://127.0.0.1:{port}/?secret=x", headers={}, tls=None, timeout_s=0.01
        )
    held.set()
    listening.close()
    await listening.wait_closed()


PARTITIONS = "/admin/v2/persistent/public/default/t/partitions"


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", AuthenticationFailed, "answered 401"),
        (
            b'HTTP/1.1 404 No\r\nContent-Length: 24\r\n\r\n{"reason":"no such one"}',
            TopicNotFound,
            "no such one",
        ),
        (b"HTTP/1.1 412 No\r\nContent-Length: 0\r\n\r\n", ServerFailed, "answered 412"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", OperationTimeout, "answered 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n[", OperationTimeout, "not JSON"),
        (
            b"HTTP/1.1 307 T\r\nContent-Length: 0\r\nLocation: "
            + PARTITIONS.encode()
            + b"\r\n\r\n",
            OperationTimeout,
            "More than 20 redirects",
        ),
    ],
)
async def test_errors_of_lookups(
    server: Server, answer: bytes, error: type[ClientError], text: str
) -> None:
    server.answers[PARTITIONS] = answer
    async with Client(server.url, operation_timeout_s=0.3) as client:
        with pytest.raises(error, match=text):
            await client.partitions("t")


async def test_a_broker_without_an_address(server: Server) -> None:
    server.answers[PARTITIONS] = b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"partitions":0}'
    server.answers["/lookup/v2/topic/persistent/public/default/t"] = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    )
    async with Client(server.url, operation_timeout_s=0.3, listener="inside") as client:
        with pytest.raises(OperationTimeout, match="has no plain address"):
            await client.producer("t")
    assert any(b"authoritative=false&listenerName=inside" in head for head in server.heads)
    assert LookupFailed.retryable
