"""HTTP of the client: answers of each form, bounds, damage, and lookups' errors and redirects."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import Client
from magnetar.client.errors import (
    AuthenticationFailed,
    AuthorizationFailed,
    ClientError,
    ConnectFailed,
    InvalidConfiguration,
    OperationTimeout,
    ServerFailed,
    TopicNotFound,
)
from magnetar.client.network import http
from magnetar.client.network.http import HttpAnswer, request

Serve = Callable[[bytes], None]


class Server:
    """Answers each request with the next bytes of its path; the last ones remain."""

    def __init__(self) -> None:
        self.answers: dict[str, list[bytes]] = {}
        self.heads: list[bytes] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        path = head.split(b" ")[1].decode().partition("?")[0]
        answers = self.answers[path]
        writer.write(answers.pop(0) if len(answers) > 1 else answers[0])
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
    server.answers["/a"] = [answer]
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
    server.answers["/a"] = [answer]
    with pytest.raises(ConnectFailed, match="No connection to http://127"):
        await get(f"{server.url}/a")


async def test_endless_bodies_are_cut(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 10)
    server.answers["/a"] = [b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 11]
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


def answer(status: int, body: bytes = b"", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), more, body)


@pytest.mark.parametrize(
    ("refusal", "error", "text"),
    [
        (answer(401), AuthenticationFailed, "answered 401"),
        (answer(401, b'{"reason":"Unauthorized to x"}'), AuthorizationFailed, "to x"),
        (answer(404, b'{"reason":"no such one"}'), TopicNotFound, "no such one"),
        (answer(412), ServerFailed, "answered 412"),
    ],
)
async def test_errors_that_end_a_lookup(
    server: Server, refusal: bytes, error: type[ClientError], text: str
) -> None:
    server.answers[PARTITIONS] = [refusal]
    async with Client(server.url) as client:
        with pytest.raises(error, match=text):
            await client.partitions("t")
    assert len(server.heads) == 1


@pytest.mark.parametrize(
    "failures",
    [
        [answer(500)],
        [answer(503)],
        [answer(200, b"[")],
        [answer(200, b'{"partitions":"two"}'), answer(200, b'{"partitions":null}')],
        [answer(307, more=b"Location: http://[\r\n")],
        [b""],
        [answer(307, more=b"Location: %s\r\n" % PARTITIONS.encode())] * 20,
    ],
)
async def test_errors_after_which_a_lookup_is_repeated(
    server: Server, failures: list[bytes]
) -> None:
    server.answers[PARTITIONS] = [*failures, answer(200, b'{"partitions":2}')]
    async with Client(server.url) as client:
        assert len(await client.partitions("t")) == 2
    assert len(server.heads) == len(failures) + 1


async def test_redirects_are_followed(server: Server) -> None:
    server.answers[PARTITIONS] = [answer(307, more=b"Location: /there?x=y\r\n")]
    server.answers["/there"] = [answer(200, b'{"partitions":3}')]
    async with Client(server.url) as client:
        assert len(await client.partitions("t")) == 3


async def test_a_broker_without_an_address_is_looked_up_again(server: Server) -> None:
    server.answers[PARTITIONS] = [answer(200, b'{"partitions":0}')]
    path = "/lookup/v2/topic/persistent/public/default/t"
    server.answers[path] = [answer(200, b"{}"), answer(404)]
    async with Client(server.url, listener="inside") as client:
        with pytest.raises(TopicNotFound):
            await client.producer("t")
    lookups = [head for head in server.heads if path.encode() in head]
    assert len(lookups) == 2
    assert b"authoritative=false&listenerName=inside" in lookups[0]
