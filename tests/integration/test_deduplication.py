"""A producer with a fixed name sends through kill -9: each message is stored once.

The client is the official one of Python. It resends every message without a receipt after each
reconnection, so without deduplication the topic has some messages twice.
"""

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess

from magnetar.wire.commands import CommandType
from magnetar.wire.entry import parse_metadata

NAME = "orders"
PATIENCE_S = 60.0
KILL_AFTER_S = (0.05, 0.7)
IN_FLIGHT_MAX = 500
BIG_BYTES = 6 << 20
"""More than a message may have, so that the client sends it in chunks."""


class Producing(threading.Thread):
    """Sends numbered messages until it is stopped, and waits until all have their receipts."""

    def __init__(
        self, client: pulsar.Client, topic: str, count_max: int = 1 << 30, **options: object
    ) -> None:
        super().__init__(daemon=True)
        self.producer = client.create_producer(
            topic, producer_name=NAME, send_timeout_millis=0, **options
        )
        self.sent = 0
        self.failures: list[str] = []
        self._room = threading.Semaphore(IN_FLIGHT_MAX)
        self._count_max = count_max
        self._enough = threading.Event()

    def _answered(self, result: pulsar.Result, _id: object) -> None:
        if result != pulsar.Result.Ok:
            self.failures.append(str(result))
        self._room.release()

    def run(self) -> None:
        while self.sent < self._count_max and not self._enough.is_set():
            if self._room.acquire(timeout=0.1):
                self.producer.send_async(self.content(self.sent), self._answered)
                self.sent += 1
        self.producer.flush()

    def content(self, number: int) -> bytes:
        return b"%d" % number

    def finish(self) -> None:
        self._enough.set()
        self.join(PATIENCE_S)
        assert not self.is_alive(), "some messages got no receipt"


class ProducingChunks(Producing):
    """Sends messages that are larger than an entry."""

    def content(self, number: int) -> bytes:
        return b"%d " % number + bytes(BIG_BYTES)


def numbers_in(client: pulsar.Client, topic: str) -> list[int]:
    """The numbers of all stored messages, in order."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    numbers = []
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=int(PATIENCE_S * 1000))
        numbers.append(int(message.data().partition(b" ")[0]))
    reader.close()
    return numbers


class ChunkReader(RawClient):
    """Assembles chunked messages as Java's consumer does: a repeated first chunk starts anew.

    The wheel's consumer drops the message instead (apache/pulsar-client-cpp#587).
    """

    def __init__(self) -> None:
        super().__init__()
        self.whole: list[int] = []
        """The sequence ids of whole messages, in order."""
        self._next_chunk: dict[str, int] = {}
        self.progress = asyncio.Event()

    def _command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind != CommandType.MESSAGE:
            super()._command(kind, message, payload)
            return
        assert payload is not None
        metadata = parse_metadata(payload)
        expected = self._next_chunk.get(metadata.uuid, 0)
        if metadata.chunk_id not in (0, expected):
            return
        self._next_chunk[metadata.uuid] = metadata.chunk_id + 1
        if metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            self.whole.append(metadata.sequence_id)
            del self._next_chunk[metadata.uuid]
        self.progress.set()


async def chunked_numbers_in(server: ServerProcess, topic: str, last: int) -> list[int]:
    """The numbers of all whole messages, up to the last one."""
    host, _, port = server.service_url.removeprefix("pulsar://").partition(":")
    reader = await ChunkReader.connect(host, int(port))
    assert isinstance(reader, ChunkReader)
    reader.flow(await reader.consumer(topic, "chunks"), 10_000)
    async with asyncio.timeout(PATIENCE_S):
        while last not in reader.whole:
            reader.progress.clear()
            await reader.progress.wait()
    await reader.close()
    return reader.whole


def settled(server: ServerProcess) -> pulsar.Client:
    return pulsar.Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def check_once(numbers: list[int], sent: int) -> None:
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    assert not twice, f"{len(twice)} stored more than once, first {twice[0]}"
    missing = set(range(sent)) - set(numbers)
    assert not missing, f"{len(missing)} lost, first {min(missing)}"
    assert numbers == sorted(numbers)


def campaign(root: Path, kills: int, seed: int, **options: object) -> None:
    chance = random.Random(seed)
    topic = "persistent://public/default/once"
    chunks = bool(options.get("chunking_enabled"))
    with ServerProcess(
        root,
        environment={
            "MAGNETAR_DEDUPLICATION": "true",
            "MAGNETAR_DEDUPLICATION_SNAPSHOT_ENTRIES": "300",
            "MAGNETAR_RETENTION_MINUTES": "-1",
            "MAGNETAR_RETENTION_SIZE_MB": "-1",
        },
    ) as server:
        client = settled(server)
        producing = (ProducingChunks if chunks else Producing)(
            client, topic, 40 if chunks else 1 << 30, **options
        )
        producing.start()
        for _ in range(kills):
            producing.join(chance.uniform(*KILL_AFTER_S))
            server.kill()
            server.start()
        producing.join(chance.uniform(*KILL_AFTER_S))
        producing.finish()
        assert not producing.failures
        assert producing.producer.last_sequence_id() == producing.sent - 1
        if chunks:
            numbers = asyncio.run(chunked_numbers_in(server, topic, producing.sent - 1))
        else:
            numbers = numbers_in(client, topic)
        check_once(numbers, producing.sent)
        client.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("batching", [False, True])
def test_five_kills_store_each_message_once(tmp_path: Path, batching: bool) -> None:
    campaign(tmp_path, kills=5, seed=1 + batching, batching_enabled=batching)


@pytest.mark.timeout(240)
def test_kills_between_chunks_store_each_message_once(tmp_path: Path) -> None:
    campaign(tmp_path, kills=3, seed=3, batching_enabled=False, chunking_enabled=True)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_fifty_kills_store_each_message_once(tmp_path: Path) -> None:
    campaign(tmp_path, kills=50, seed=4, batching_enabled=True)
