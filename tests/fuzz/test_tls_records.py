"""Mutated TLS records against a TLS port: in the handshake, and of a connection that is open.

No mutated handshake creates a session, no changed record reaches one, every connection ends, no
error is logged, and a witness with a connection of its own is served throughout.
"""

import asyncio
import contextlib
import logging
import os
import random
import ssl
from pathlib import Path

import pytest
from tests.security.tls_rig import HOST, EchoServer, echo_server, exchange
from tests.support.certificates import Authority

from magnetar.security.tls.pacer import pacer
from magnetar.security.tls.reload import open_server_tls
from magnetar.security.tls.settings import ServerTlsConfig

RECORDS_SHORT = 400
RECORDS_LONG = 100_000
ENDS_S_MAX = 60.0
PAYLOAD = b"sent by a client that follows the protocol" * 20
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
TYPES = (0, 20, 21, 22, 23, 24, 128, 255)
SIZES = (0, 1, 4, 255, 2**14, 2**14 + 256, 2**14 + 257, 2**16 - 1)


class Client:
    """A client of the standard library whose records pass through the test."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=HOST)

    def step(self) -> bytes:
        """Returns the next records of the handshake, or nothing once it is complete."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    def records(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


def mutated(rng: random.Random, records: bytes) -> bytes:
    """Returns the records with at least one change."""
    while True:
        data = bytearray(records)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(data))
            match rng.randrange(7):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    data[0] = rng.choice(TYPES)
                case 2:
                    data[3:5] = rng.choice(SIZES).to_bytes(2)
                case 3:
                    del data[at : at + rng.randint(1, 20)]
                case 4:
                    data[at:at] = rng.randbytes(rng.randint(1, 20))
                case 5:
                    data += data[: rng.randint(1, len(data))]
                case _:
                    data[at:] = b""
            if not data:
                return b"\x16"
        if data != records:
            return bytes(data)


async def until_closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(ENDS_S_MAX):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


async def in_the_handshake(rng: random.Random, port: int, context: ssl.SSLContext) -> None:
    """Mutates one flight of a handshake: the first, or the one behind the server's."""
    client = Client(context)
    reader, writer = await asyncio.open_connection(HOST, port)
    with contextlib.suppress(ConnectionError):
        hello = client.step()
        if rng.random() < 0.5:
            writer.write(mutated(rng, hello))
        else:
            writer.write(hello)
            async with asyncio.timeout(ENDS_S_MAX):
                client.incoming.write(await reader.read(1 << 16))
            writer.write(mutated(rng, client.step() or b"\x14\x03\x03\x00\x01\x01"))
        writer.write_eof()
        await until_closed(reader)
    writer.close()


async def when_open(rng: random.Random, port: int, context: ssl.SSLContext) -> None:
    """Mutates a record of a connection that is open."""
    client = Client(context)
    reader, writer = await asyncio.open_connection(HOST, port)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(ENDS_S_MAX):
            while client.tls.version() is None or not finished(client):
                writer.write(client.step())
                if finished(client):
                    break
                client.incoming.write(await reader.read(1 << 16))
        writer.write(client.step())
        writer.write(mutated(rng, client.records(PAYLOAD)))
        writer.write_eof()
        await until_closed(reader)
    writer.close()


def finished(client: Client) -> bool:
    """Whether the client's side of the handshake is complete."""
    try:
        client.tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


async def witness(server: EchoServer, context: ssl.SSLContext, stop: asyncio.Event) -> int:
    streams = await server.client(context)
    times = 0
    while not stop.is_set():
        assert await exchange(streams, PAYLOAD) == PAYLOAD
        times += 1
        await asyncio.sleep(0)
    return times


async def campaign(seed: int, count: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    rng = random.Random(seed)
    ca = Authority(tmp_path)
    own = ca.issue("server")
    contexts = []
    for version in VERSIONS:
        contexts.append(ca.client_context())
        contexts[-1].minimum_version = contexts[-1].maximum_version = version
    config = ServerTlsConfig(cert_file=own.cert, key_file=own.key)
    async with echo_server(open_server_tls(config)) as server:
        stop = asyncio.Event()
        watching = asyncio.create_task(witness(server, ca.client_context(), stop))
        first = await server.connection()
        for number in range(count):
            attack = when_open if number % 2 else in_the_handshake
            await attack(rng, server.port, rng.choice(contexts))
        stop.set()
        assert await watching > 0
        assert len(server.connections) > 1, "no handshake was completed"
        for connection in server.connections:
            if connection is first:
                continue
            # What was sent before the change may arrive, and a record may arrive twice: never both.
            assert connection.received_bytes in (0, len(PAYLOAD)), f"seed {seed}"
        async with asyncio.timeout(ENDS_S_MAX):
            while pacer().unfinished:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, f"seed {seed}: {errors[0].getMessage()}\n{errors[0].exc_text}"


@pytest.mark.timeout(180)
async def test_mutated_records_disturb_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await campaign(int(os.environ.get("FUZZ_SEED", "1")), RECORDS_SHORT, tmp_path, caplog)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
async def test_a_hundred_thousand_mutated_records_disturb_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = int(os.environ.get("FUZZ_RECORDS", RECORDS_LONG))
    await campaign(int(os.environ.get("FUZZ_SEED", "1")), count, tmp_path, caplog)
