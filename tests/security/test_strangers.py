"""The cost of unauthenticated clients is bounded: bytes, memory, time; on real sockets."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.security.sessions import ADMIN, connect_command, secured
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient

from magnetar.broker.service import BrokerService
from magnetar.broker.session import connection as connection_module
from magnetar.broker.session.connection import (
    UNPROVEN_BUFFER_BYTES,
    UNPROVEN_FRAME_BYTES_MAX,
    Connection,
)
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PING_FRAME, encode_command
from magnetar.wire.receive_buffer import SLACK_BYTES

WAIT_S = 60.0
TOPIC = "persistent://public/default/t"
CONNECT = encode_command(CommandType.CONNECT, connect_command(ADMIN))
STRANGERS = 1_000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.service.SWEEP_S", 0.05)


@asynccontextmanager
async def closed() -> AsyncIterator[tuple[BrokerService, int]]:
    async with running_broker(secure=secured()) as running:
        yield running


async def rest(reader: asyncio.StreamReader) -> bytes:
    """The bytes that the broker sent until it closed the connection."""
    received = b""
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(1 << 16):
                received += data
    return received


async def until_left(service: BrokerService, left: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(service.sessions) > left:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("sent", [CONNECT[:-1], CONNECT[:5], PING_FRAME, b""])
async def test_a_flood_of_strangers_is_closed_and_others_are_served(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closed() as (service, port):
        witness = await RawClient.connect(HOST, port, connect_command(ADMIN))
        producer = await witness.producer(TOPIC)
        monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT_S", 1.0)
        opened = []
        for number in range(STRANGERS):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(sent)
            opened.append((reader, writer))
            if not number % 100:
                witness.send(producer, number // 100, b"x")
                await witness.receipted(producer, number // 100 + 1)
        await until_left(service, 1)
        assert not witness.lost.is_set()
        witness.send(producer, STRANGERS, b"x")
        await witness.receipted(producer, STRANGERS // 100 + 1)
        for _, writer in opened:
            writer.close()
        await witness.close()


async def test_half_a_frame_of_a_stranger_holds_little_memory() -> None:
    async with closed() as (service, port):
        total = UNPROVEN_FRAME_BYTES_MAX - 4
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(struct.pack(">II", total, total - 4) + bytes(100))
        async with asyncio.timeout(WAIT_S):
            while not (held := sum(map(held_bytes, service.sessions))):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
        assert held <= UNPROVEN_BUFFER_BYTES + SLACK_BYTES
        writer.close()


def held_bytes(session: object) -> int:
    wire = getattr(session, "wire", None)
    return wire._decoder.held_bytes if isinstance(wire, Connection) else 0


async def test_a_large_frame_of_a_stranger_is_refused_at_its_head() -> None:
    async with closed() as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(struct.pack(">II", UNPROVEN_FRAME_BYTES_MAX, 8) + bytes(8))
        assert await rest(reader) == b""
        writer.close()


async def test_credentials_of_the_largest_size_are_taken() -> None:
    async with closed() as (_, port):
        role = "r" * (UNPROVEN_FRAME_BYTES_MAX - 200)
        client = await RawClient.connect(HOST, port, connect_command(role))
        await client.close()


async def test_a_client_may_send_large_frames_once_it_is_connected() -> None:
    async with closed() as (_, port):
        client = await RawClient.connect(HOST, port, connect_command(ADMIN))
        producer = await client.producer(TOPIC)
        client.send(producer, 0, bytes(3 << 20))
        await client.receipted(producer, 1)
        await client.close()
