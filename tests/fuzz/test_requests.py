"""Mutated requests against the admin REST of a closed broker, over real connections.

Attackers write several requests over each connection and read whatever comes. No answer is a 500,
a request without valid credentials gets no 2xx outside of the public paths, no secret is in any
answer, no error is logged, and a witness with a connection of its own is served throughout.
"""

import asyncio
import itertools
import logging
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.fuzz.fuzz_requests import PUBLIC, Request, Requests, shown
from tests.security.rest import KEY, SUPER, closed_rest, token

from magnetar.admin.http.server import AdminServer

ATTACKERS = 4
PER_CONNECTION = 8
HOST = "127.0.0.1"
READ_S_MAX = 60.0
REQUESTS_SHORT = 2_000
REQUESTS_LONG = 1_000_000
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@asynccontextmanager
async def closed_port() -> AsyncIterator[int]:
    """The port of the admin REST of a closed broker."""
    async with closed_rest() as closed:
        server = AdminServer()
        port = await server.start(closed.service, HOST, 0)
        await server.ready()
        try:
            yield port
        finally:
            await server.stop()


async def answers(port: int, data: bytes) -> bytes:
    """All that the server sends to these bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(data)
        writer.write_eof()  # a length that was raised would wait for more until the deadline
        async with asyncio.timeout(READ_S_MAX):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def check(batch: list[Request], received: bytes) -> int:
    """Raises AssertionError if the answers are not as they must be; returns their count."""
    statuses = [int(status) for status in _STATUS.findall(received)]
    text = "\n".join(map(shown, batch))
    assert 500 not in statuses, f"{received!r} to {text}"
    assert KEY not in received, f"the key is in the answer to {text}"
    if len(batch) == 1 and not batch[0].proven and batch[0].path.rstrip("/") not in PUBLIC:
        assert all(status >= 400 for status in statuses), f"{received!r} to {text}"
    return len(statuses)


async def attack(port: int, requests: Iterator[Request]) -> int:
    """Sends all requests; returns how many were answered."""
    answered = 0
    for number in itertools.count():
        batch = list(itertools.islice(requests, 1 if number % 2 else PER_CONNECTION))
        if not batch:
            return answered
        received = await answers(port, b"".join(request.data for request in batch))
        answered += check(batch, received)
    raise AssertionError  # islice ends


async def witness(port: int, stop: asyncio.Event) -> int:
    served = 0
    headers = {"authorization": f"Bearer {token(SUPER)}"}
    async with httpx.AsyncClient(
        base_url=f"http://{HOST}:{port}", headers=headers, trust_env=False, timeout=READ_S_MAX
    ) as http:
        while not stop.is_set():
            response = await http.get("/admin/v2/clusters")
            assert response.status_code == 200
            served += 1
            await asyncio.sleep(0.01)
    return served


async def campaign(seed: int, count: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with closed_port() as port:
        stop = asyncio.Event()
        watching = asyncio.create_task(witness(port, stop))
        streams = [Requests(seed + number).make(count // ATTACKERS) for number in range(ATTACKERS)]
        answered = await asyncio.gather(*(attack(port, stream) for stream in streams))
        stop.set()
        assert await watching > 0
    assert sum(answered) > count // 10, "hardly any request was answered: none was tried in depth"
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, f"seed {seed}: {errors[0].getMessage()}\n{errors[0].exc_text}"


@pytest.mark.timeout(180)
async def test_mutated_requests_disturb_nobody(caplog: pytest.LogCaptureFixture) -> None:
    await campaign(int(os.environ.get("FUZZ_SEED", "1")), REQUESTS_SHORT, caplog)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
async def test_a_million_mutated_requests_disturb_nobody(caplog: pytest.LogCaptureFixture) -> None:
    count = int(os.environ.get("FUZZ_REQUESTS", REQUESTS_LONG))
    await campaign(int(os.environ.get("FUZZ_SEED", "1")), count, caplog)
