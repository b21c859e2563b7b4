"""Mutated frames against a broker that asks for credentials: before and after CONNECT.

Strangers write mutated frames without a valid CONNECT, and get nothing but ERROR, PING and PONG.
Clients of a role with grants write them after CONNECT, and reach no topic of another namespace.
Meanwhile a witness sends messages and receives each of them.
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fuzz.fuzz_frames import mutated_frames
from tests.security.sessions import ADMIN, connect_command, secured
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient, Refused
from tests.unit.broker.lifecycle.world import NAMESPACE

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.service import BrokerService
from magnetar.core.names import NamespaceName
from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.encoder import PING_FRAME, encode_command
from magnetar.wire.events import Command

PAIRS = 2
"""Strangers, and as many clients with grants."""
FRAMES_PER_CONNECTION_MAX = 12
FRAMES_SHORT = 6_000
FRAMES_LONG = 1_000_000
FUZZER = "fuzzer"
TOPIC = "persistent://public/default/fuzzed"
WITNESSED = "persistent://witness/own/t"
TOPICS = 50
SHARED = 1
ENDS_S_MAX = 60.0
STORED_S_MAX = 20.0
WRONG = encode_command(CommandType.CONNECT, connect_command("-"))
TO_STRANGERS = {CommandType.ERROR, CommandType.PING, CommandType.PONG}


async def stranger(port: int, frames: Iterator[bytes]) -> int:
    """Writes frames without credentials; returns how many connections there were."""
    for number in itertools.count():
        batch = list(itertools.islice(frames, FRAMES_PER_CONNECTION_MAX))
        if not batch:
            return number
        if not number % 3:
            batch.insert(number % len(batch), WRONG)
        reader, writer = await asyncio.open_connection(HOST, port)
        received = b""
        with contextlib.suppress(ConnectionError):
            writer.write(b"".join(batch))
            writer.write_eof()
            async with asyncio.timeout(ENDS_S_MAX):
                received = await reader.read(1 << 20)
        writer.close()
        for event in FrameDecoder().feed(received):
            assert isinstance(event, Command)
            assert event.type in TO_STRANGERS, command_name(event.type)
    raise AssertionError  # islice ends


async def granted(port: int, frames: Iterator[bytes]) -> int:
    """Writes frames as FUZZER; returns how many connections lived on."""
    survived = 0
    for number in itertools.count():
        batch = list(itertools.islice(frames, FRAMES_PER_CONNECTION_MAX))
        if not batch:
            return survived
        client = await RawClient.connect(HOST, port, connect_command(FUZZER))
        topic = f"{TOPIC}-{number % TOPICS}"
        await client.producer(topic, producer_id=0)
        # Refused while a frame of the other client is deleting the subscription.
        with contextlib.suppress(Refused):
            await client.consumer(topic, "fuzz", kind=SHARED)
        client.write(b"".join(batch) + PING_FRAME)
        client.write_eof()
        survived += await client.ponged()
        await client.close()
    raise AssertionError  # islice ends


async def witness(port: int, stop: asyncio.Event) -> int:
    client = await RawClient.connect(HOST, port, connect_command(ADMIN))
    consumer_id = await client.consumer(WITNESSED, "witness")
    producer_id = await client.producer(WITNESSED)
    client.flow(consumer_id, 1_000_000)
    sent = 0
    while not stop.is_set():
        payload = b"witness-%d" % sent
        client.send(producer_id, sent, payload)
        sent += 1
        await client.receipted(producer_id, sent)
        assert (await client.receive(consumer_id)).payload == payload
        await asyncio.sleep(0)
    await client.close()
    return sent


async def prepared(service: BrokerService) -> None:
    """Gives FUZZER its grants, and the witness a tenant of its own."""
    info = {"adminRoles": [], "allowedClusters": [service.cluster]}
    await service.resources.create_tenant("witness", info)
    document = default_policies(service.cluster)
    await service.resources.create_namespace(NamespaceName("witness", "own"), document)

    def change(former: dict[str, Any]) -> dict[str, Any]:
        grants = {"namespace_auth": {FUZZER: ["produce", "consume"]}}
        return {**former, "auth_policies": {**former["auth_policies"], **grants}}

    await service.resources.update_policies(NAMESPACE, change)


async def until_granted(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            client = await RawClient.connect(HOST, port, connect_command(FUZZER))
            try:
                await client.producer(f"{TOPIC}-0")
            except Refused:
                await asyncio.sleep(0.01)
            else:
                return
            finally:
                await client.close()


async def campaign(seed: int, count: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with running_broker(secure=secured()) as (service, port):
        await prepared(service)
        await until_granted(port)
        stop = asyncio.Event()
        watching = asyncio.create_task(witness(port, stop))
        streams = [mutated_frames(seed + n, count // (2 * PAIRS)) for n in range(2 * PAIRS)]
        attacks = [
            *(stranger(port, stream) for stream in streams[:PAIRS]),
            *(granted(port, stream) for stream in streams[PAIRS:]),
        ]
        outcomes = await asyncio.gather(*attacks)
        stop.set()
        assert await watching > 0
        assert sum(outcomes[PAIRS:]) > 0, "every connection was closed: none was tried in depth"
        foreign = [topic for topic in service.topics if topic.name.namespace != NAMESPACE]
        assert [topic.full_name for topic in foreign] == [WITNESSED]
        async with asyncio.timeout(STORED_S_MAX):
            while service.budget.pending_bytes:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, f"seed {seed}: {errors[0].getMessage()}\n{errors[0].exc_text}"


@pytest.mark.timeout(180)
async def test_mutated_frames_open_no_closed_broker(caplog: pytest.LogCaptureFixture) -> None:
    await campaign(int(os.environ.get("FUZZ_SEED", "1")), FRAMES_SHORT, caplog)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
async def test_a_million_mutated_frames_open_no_closed_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = int(os.environ.get("FUZZ_FRAMES", FRAMES_LONG))
    await campaign(int(os.environ.get("FUZZ_SEED", "1")), count, caplog)
