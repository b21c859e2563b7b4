"""The tiny HTTP server of processes that have no REST."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field

import pytest
import uvloop

from magnetar.observe import health
from magnetar.observe.metrics import single


@dataclass
class Process:
    """A process as the server sees it."""

    port: int = 0
    reason: str = ""
    broken: bool = False
    held: dict[str, object] = field(default_factory=dict)

    def not_ready(self) -> str:
        if self.broken:
            raise RuntimeError("no idea")
        return self.reason

    def status(self) -> Mapping[str, object]:
        return self.held

    def metrics(self) -> Iterable[str]:
        yield single("bookie_SERVER_STATUS", "", 1)

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer to raw bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        raw = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await writer.wait_closed()
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split(" ")[1]), headers, body

    async def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    async with serving() as process:
        yield process


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Process]:
    process = Process(held={"role": "bookie", "ledgers": 3})
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = health.HealthServer(health.Probes(process.not_ready, process.status), process.metrics)
    process.port = await server.start(listener)
    yield process
    await server.stop()


def test_the_loop_that_servers_run_on_serves_it_too() -> None:
    async def ask() -> int:
        async with serving() as process:
            return (await process.get("/healthz"))[0]

    assert uvloop.run(ask()) == 200


async def test_a_living_process_says_so(process: Process) -> None:
    status, headers, body = await process.get("/healthz")
    assert (status, body) == (200, b"ok\n")
    assert headers["content-length"] == "3"
    assert headers["connection"] == "close"


async def test_readiness_says_why_not(process: Process) -> None:
    assert (await process.get("/readyz"))[0] == 200
    process.reason = "the session is suspended"
    status, _, body = await process.get("/readyz?verbose")
    assert (status, body) == (503, b"the session is suspended\n")
    process.broken = True
    status, _, body = await process.get("/readyz")
    assert status == 500
    assert body == b"RuntimeError\n"


async def test_metrics_and_status(process: Process) -> None:
    status, headers, body = await process.get("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert body == b"# TYPE bookie_SERVER_STATUS gauge\nbookie_SERVER_STATUS 1\n"
    assert json.loads((await process.get("/status"))[2]) == {"role": "bookie", "ledgers": 3}


async def test_head_has_the_length_and_no_body(process: Process) -> None:
    status, headers, body = await process.ask(b"HEAD /healthz HTTP/1.0\r\n\r\n")
    assert (status, headers["content-length"], body) == (200, "3", b"")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /healthz SPDY\r\n\r\n", 400),
        (b"GET /" + b"x" * health.REQUEST_BYTES_MAX, 431),
    ],
)
async def test_what_is_no_request_of_ours_is_refused(
    process: Process, request_bytes: bytes, status: int
) -> None:
    assert (await process.ask(request_bytes))[0] == status


async def test_a_silent_peer_is_disconnected(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "REQUEST_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    writer.write(b"GET /healthz")
    try:
        assert await asyncio.wait_for(reader.read(), 20) == b""
    except ConnectionResetError:
        pass
    finally:
        writer.close()


async def test_idle_connections_make_room_for_a_probe(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CONNECTIONS_MAX", 4)
    idle = [await asyncio.open_connection("127.0.0.1", process.port) for _ in range(12)]
    try:
        assert (await process.ask(b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 200
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                assert await idle[0][0].read() == b""
    finally:
        for _, writer in idle:
            writer.close()
