"""Killed with -9 under load, again and again: nothing receipted is lost, nothing acked comes back.

Several producers and consumers write and ack as fast as they are answered, the process is killed at
a random moment, and started again on the same data. Every round checks what all rounds before have
been promised. The short form runs by default; the long one kills 50 times.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess

TOPICS = 3
IN_FLIGHT_MAX = 200
KILL_AFTER_S = (0.05, 0.9)
PATIENCE_S = 30.0
SHARED = 1


class Promises:
    """What the server has answered, over all its lives."""

    def __init__(self) -> None:
        self.receipts: dict[str, dict[tuple[int, int], bytes]] = {}
        self.acked: dict[str, set[tuple[int, int]]] = {}
        self.ack_receipted = asyncio.Event()
        self.sent = 0

    def payload(self, topic: str) -> bytes:
        self.sent += 1
        return f"{topic}/{self.sent}/".encode() + os.urandom(self.sent % 700)


async def _produce(server: ServerProcess, topic: str, promises: Promises) -> None:
    client = await RawClient.connect(server.host, server.port)
    producer_id = await client.producer(topic)
    newest = max(promises.receipts.setdefault(topic, {}), default=(-1, -1))
    payloads: dict[int, bytes] = {}
    sequence_id = answered = 0
    try:
        while not client.lost.is_set():
            while sequence_id - answered < IN_FLIGHT_MAX:
                payloads[sequence_id] = promises.payload(topic)
                client.send(producer_id, sequence_id, payloads[sequence_id])
                sequence_id += 1
            await client.on_receipt.wait()
            client.on_receipt.clear()
            answered = len(client.receipts[producer_id])
    finally:
        for sequence, position in sorted(client.receipts[producer_id].items()):
            assert position > newest, f"{topic}: id {position} after {newest}"
            newest = position
            promises.receipts[topic][position] = payloads[sequence]


async def _consume(server: ServerProcess, topic: str, promises: Promises) -> None:
    client = await RawClient.connect(server.host, server.port)
    consumer_id = await client.consumer(topic, "acks", kind=SHARED)
    client.flow(consumer_id, 1_000_000)
    acked = promises.acked.setdefault(topic, set())
    chance = random.Random(topic)
    held: list[tuple[int, int]] = []
    while not client.lost.is_set():
        message = await client.receive(consumer_id)
        position = (message.ledger_id, message.entry_id)
        assert position not in acked, f"{topic}: receipted ack of {position} was undone"
        if chance.random() < 0.7:
            held.append(position)
        if len(held) >= 20:
            chance.shuffle(held)
            await client.ack(consumer_id, held)
            acked.update(held)
            promises.ack_receipted.set()
            held.clear()


async def _first_ack_or_end(promises: Promises, work: list[asyncio.Task[None]]) -> None:
    acked = asyncio.create_task(promises.ack_receipted.wait())
    await asyncio.wait({acked, *work}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    acked.cancel()


async def _until_lost(work: list[asyncio.Task[None]]) -> None:
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(
            result, ConnectionError | TimeoutError | asyncio.CancelledError
        ):
            raise result


async def _read_back(server: ServerProcess, topic: str, promises: Promises) -> None:
    """Everything receipted is there, byte for byte; everything acked is not delivered again."""
    client = await RawClient.connect(server.host, server.port)
    wanted = promises.receipts.setdefault(topic, {})  # killed before its producer was there
    reader = await client.consumer(topic, f"check-{random.random()}", durable=False)
    client.flow(reader, 10_000_000)
    last = max(wanted, default=None)
    seen: list[tuple[int, int]] = []
    while last is not None and (not seen or seen[-1] < last):
        message = await client.receive(reader)
        position = (message.ledger_id, message.entry_id)
        assert not seen or position > seen[-1], f"{topic}: {position} after {seen[-1]}"
        seen.append(position)
        if position in wanted:
            assert message.payload == wanted[position], f"{topic}: {position} has other bytes"
    missing = wanted.keys() - set(seen)
    assert not missing, f"{topic}: {len(missing)} receipted messages lost, {min(missing)} first"
    await client.close()


async def _campaign(root: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    promises = Promises()
    topics = [f"persistent://public/default/crash-{index}" for index in range(TOPICS)]
    # Retention keeps what was acked, so that the checks can still read it.
    with ServerProcess(
        root,
        environment={"MAGNETAR_RETENTION_MINUTES": "-1", "MAGNETAR_RETENTION_SIZE_MB": "-1"},
    ) as server:
        for kill in range(kills):
            promises.ack_receipted.clear()
            work = [
                asyncio.create_task(job(server, topic, promises))
                for topic in topics
                for job in (_produce, _consume)
            ]
            if kill % 2:  # from the middle of the work; else from its beginning, whatever is done
                await _first_ack_or_end(promises, work)
            await asyncio.sleep(chance.uniform(*KILL_AFTER_S))
            server.kill()
            await asyncio.sleep(0)
            for task in work:
                task.cancel()
            await _until_lost(work)
            server.start()
            for topic in topics:
                await _read_back(server, topic, promises)
    assert all(promises.receipts.get(topic) for topic in topics), "no message got a receipt"
    assert any(promises.acked.values()), "no ack got a receipt"


@pytest.mark.timeout(180)
async def test_nothing_promised_is_lost_by_five_kills(tmp_path: Path) -> None:
    await _campaign(tmp_path, kills=5, seed=int(os.environ.get("CRASH_SEED", "1")))


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_nothing_promised_is_lost_by_fifty_kills(tmp_path: Path) -> None:
    await _campaign(tmp_path, kills=50, seed=int(os.environ.get("CRASH_SEED", "2")))
