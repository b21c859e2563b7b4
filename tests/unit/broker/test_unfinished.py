"""Connections that begin something and do not finish it, on real sockets, with short deadlines."""

import asyncio
import contextlib
import os
import socket
import struct

import pytest
import uvloop
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient
from tests.unit.broker.peer import peer_of

from magnetar.broker.session import connection as connection_module
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PING_FRAME, encode_command, encode_send
from magnetar.wire.progress import PROGRESS_BYTES_MIN

CONNECT = encode_command(
    CommandType.CONNECT, pb.CommandConnect(client_version="raw", protocol_version=21)
)
WAIT_S = 20.0
TOPIC = "persistent://public/default/t"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.service.SWEEP_S", 0.02)
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connection_module, "FRAME_STALL_S", 0.2)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Returns the bytes that the broker sent until it closed the connection.

    The kernel resets a connection that is closed while bytes from the client are unread.
    """
    received = b""
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(1 << 16):
                received += data
    return received


@pytest.mark.parametrize("sent", [b"", CONNECT[:1], CONNECT[:-1], PING_FRAME])
async def test_connections_that_do_not_finish_connect_are_closed(sent: bytes) -> None:
    async with running_broker() as (service, port):
        opened = [await asyncio.open_connection(HOST, port) for _ in range(30)]
        for _, writer in opened:
            writer.write(sent)
        for reader, writer in opened:
            await ended(reader)
            writer.close()
        assert not service.sessions
        client = await RawClient.connect(HOST, port)
        await client.close()


async def test_a_connect_that_trickles_is_late_all_the_same() -> None:
    async with running_broker() as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)

        async def trickle() -> None:
            for byte in CONNECT[:-1]:
                writer.write(bytes((byte,)))
                await asyncio.sleep(0.05)

        trickling = asyncio.ensure_future(trickle())
        assert await ended(reader) == b""
        trickling.cancel()
        writer.close()


async def test_half_a_frame_of_a_connected_client_ends_its_connection() -> None:
    async with running_broker() as (service, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        frame = encode_command(CommandType.LOOKUP, pb.CommandLookupTopic(topic=TOPIC, request_id=1))
        writer.write(CONNECT + frame[:-2])
        assert await ended(reader)
        assert not service.sessions
        writer.close()


async def test_a_connected_client_that_is_idle_between_frames_stays() -> None:
    async with running_broker() as (_, port):
        client = await RawClient.connect(HOST, port)
        # Another one, of the same age, is closed meanwhile for half a frame.
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(CONNECT + PING_FRAME[:-1])
        await ended(reader)
        writer.close()
        assert not client.lost.is_set()
        client.write(PING_FRAME)
        async with asyncio.timeout(WAIT_S):
            while not client.pongs:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)
        await client.close()


async def test_a_busy_client_is_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sweep finds as much of a frame as the last one did, but of another frame."""
    monkeypatch.setattr("magnetar.broker.service.SWEEP_S", 3600.0)
    async with running_broker() as (service, port), peer_of(port) as peer:
        (session,) = service.sessions
        connection = session.wire
        assert isinstance(connection, connection_module.Connection)
        now = asyncio.get_running_loop().time()
        peer.write(PING_FRAME[:5])
        for _ in range(5):
            peer.write(PING_FRAME[5:] + PING_FRAME[:5])
            await peer.until(CommandType.PONG)
            connection.check_deadlines(now)
            assert not connection.closed
            now += connection_module.FRAME_STALL_S * 2
        connection.check_deadlines(now)
        assert connection.closed


async def test_a_large_frame_that_comes_slowly_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "FRAME_STALL_S", 3.0)
    async with running_broker() as (_, port), peer_of(port) as peer:
        producer = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=2)
        peer.send(CommandType.PRODUCER, producer)
        await peer.until(CommandType.PRODUCER_SUCCESS)
        frame = encode_send(
            pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1),
            pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1),
            bytes(18 * PROGRESS_BYTES_MIN),
        )
        # It takes longer than the deadline, of which each piece begins another.
        for start in range(0, len(frame), PROGRESS_BYTES_MIN):
            peer.write(frame[start : start + PROGRESS_BYTES_MIN])
            await asyncio.sleep(0.2)
        receipt = await peer.until(CommandType.SEND_RECEIPT)
        assert receipt.sequence_id == 0


def test_peers_that_reset_at_once_leave_no_socket_open() -> None:
    """As some health checks do. With uvloop, as brokers run: it closes no socket after an error."""

    def sockets() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def run() -> None:
        async with running_broker() as (service, port):
            client = await RawClient.connect(HOST, port)
            before = sockets()
            for _ in range(20):
                with socket.create_connection((HOST, port)) as peer:
                    at_once = struct.pack("ii", 1, 0)
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            await client.close()
            async with asyncio.timeout(WAIT_S):
                while service.sessions or sockets() > before:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)

    uvloop.run(run())
