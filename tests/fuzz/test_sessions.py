"""Mutated frames against live sessions: no exception escapes one, and no other one notices.

Attackers connect, attach a producer and a consumer so that hot commands find somebody, and write
mutated frames until the broker closes the connection or the frames are used up. Meanwhile a witness
on a connection of its own sends messages and receives each of them, in order.
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Iterator

import pytest
from tests.fuzz.fuzz_frames import mutated_frames
from tests.support.broker import HOST, running_broker
from tests.support.raw_client import RawClient, Refused

from magnetar.wire.encoder import PING_FRAME

ATTACKERS = 4
FRAMES_PER_CONNECTION_MAX = 12
TOPIC = "persistent://public/default/fuzzed"
TOPICS = 50
IDS = (0, 1, 2)
SHARED = 1
STORED_S_MAX = 20.0
FRAMES_LONG = 1_000_000


async def _attack(port: int, frames: Iterator[bytes]) -> int:
    """Writes frames over connection after connection; returns how many connections lived on."""
    survived = 0
    for number in itertools.count():
        batch = list(itertools.islice(frames, FRAMES_PER_CONNECTION_MAX))
        if not batch:
            return survived
        client = await RawClient.connect(HOST, port)
        for producer_id in IDS:
            await client.producer(f"{TOPIC}-{number % TOPICS}", producer_id=producer_id)
        # Refused while a frame of another attacker is deleting the subscription, and rightly so.
        with contextlib.suppress(Refused):
            await client.consumer(f"{TOPIC}-{number % TOPICS}", "fuzz", kind=SHARED)
        client.write(b"".join(batch) + PING_FRAME)
        client.write_eof()  # a frame whose size was raised would wait for more for ever
        # Ends with the answer to the last frame, or where the broker closed on a broken one.
        survived += await client.ponged()
        await client.close()
    return survived


async def _witness(port: int, stop: asyncio.Event) -> int:
    client = await RawClient.connect(HOST, port)
    topic = "persistent://public/default/witness"
    consumer_id = await client.consumer(topic, "witness")
    producer_id = await client.producer(topic)
    client.flow(consumer_id, 1_000_000)
    sent = 0
    while not stop.is_set():
        payload = b"witness-%d" % sent
        client.send(producer_id, sent, payload)
        sent += 1
        await client.receipted(producer_id, sent)
        assert (await client.receive(consumer_id)).payload == payload
        await asyncio.sleep(0)
    assert not client.lost.is_set()
    await client.close()
    return sent


async def _campaign(seed: int, frames: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with running_broker() as (service, port):
        stop = asyncio.Event()
        witness = asyncio.create_task(_witness(port, stop))
        streams = [
            mutated_frames(seed + number, frames // ATTACKERS) for number in range(ATTACKERS)
        ]
        survived = await asyncio.gather(*(_attack(port, stream) for stream in streams))
        stop.set()
        assert await witness > 0
        assert sum(survived) > 0, "every connection was closed: no session was tried in depth"
        async with asyncio.timeout(STORED_S_MAX):
            # What was sent before a frame that ended its connection is still being stored.
            while service.budget.pending_bytes:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors, f"seed {seed}: {errors[0].getMessage()}\n{errors[0].exc_text}"


@pytest.mark.timeout(120)
async def test_mutated_frames_disturb_nobody(caplog: pytest.LogCaptureFixture) -> None:
    await _campaign(int(os.environ.get("FUZZ_SEED", "1")), 8_000, caplog)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_a_million_mutated_frames_disturb_nobody(caplog: pytest.LogCaptureFixture) -> None:
    count = int(os.environ.get("FUZZ_FRAMES", FRAMES_LONG))
    await _campaign(int(os.environ.get("FUZZ_SEED", "1")), count, caplog)
