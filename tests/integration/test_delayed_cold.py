"""Delayed messages whose entries are offloaded or compacted before their time, on a standalone."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest
from tests.support.server_process import ServerProcess

ADMIN = "/admin/v2/persistent/public/default/"
MESSAGES = 30
DELAY_MS = 5_000
TICK_MS = 1_000
PATIENCE_MS = 60_000
POLL_S = 0.02


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    settings = {
        "MAGNETAR_OFFLOAD_DRIVER": "filesystem",
        "MAGNETAR_OFFLOAD_FOLDER": str(tmp_path / "cold"),
        "MAGNETAR_OFFLOAD_DELETION_LAG_MS": "0",
    }
    with ServerProcess(tmp_path, environment=settings) as started:
        yield started


def publish(client: pulsar.Client, topic: str, numbers: range) -> dict[bytes, int]:
    """Sends delayed messages of a few keys; returns their delivery times."""
    first_ms = int(time.time() * 1000) + DELAY_MS
    times_ms = {b"%d" % number: first_ms + number * 10 for number in numbers}
    producer = client.create_producer(topic)
    for content, at_ms in times_ms.items():
        producer.send_async(
            content, lambda *_: None, partition_key=f"k{int(content) % 5}", deliver_at=at_ms
        )
    producer.flush()
    producer.close()
    return times_ms


async def succeeded(http: httpx.AsyncClient, path: str) -> None:
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while (found := (await http.get(path)).json())["status"] != "SUCCESS":
            assert found["status"] in ("NOT_RUN", "RUNNING"), found
            await asyncio.sleep(POLL_S)


def received(consumer: pulsar.Consumer, times_ms: dict[bytes, int]) -> list[bytes]:
    """As many messages as were sent, none of them before its time."""
    contents: list[bytes] = []
    while len(contents) < len(times_ms):
        message = consumer.receive(PATIENCE_MS)
        assert time.time() * 1000 >= times_ms[message.data()] - TICK_MS
        contents.append(message.data())
        consumer.acknowledge(message)
    return contents


async def test_messages_that_are_offloaded_before_their_time_come_at_it(
    server: ServerProcess,
) -> None:
    client = pulsar.Client(server.service_url)
    topic, shared = "persistent://public/default/cold", pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "s", consumer_type=shared)
    times_ms = await asyncio.to_thread(publish, client, topic, range(MESSAGES))
    async with httpx.AsyncClient(base_url=server.http_url) as http:
        assert (await http.post(f"{ADMIN}cold/closeLedger")).status_code < 300
        # The newest ledger always stays.
        times_ms |= await asyncio.to_thread(publish, client, topic, range(MESSAGES, MESSAGES + 1))
        ledgers = (await http.get(f"{ADMIN}cold/internalStats")).json()["ledgers"]
        beyond = {"ledgerId": ledgers[-1]["ledgerId"], "entryId": 0, "partitionIndex": -1}
        assert (await http.put(f"{ADMIN}cold/offload", json=beyond)).status_code == 204
        await succeeded(http, f"{ADMIN}cold/offload")
        moved = (await http.get(f"{ADMIN}cold/internalStats")).json()["ledgers"]
        assert [ledger["offloaded"] for ledger in moved] == [True, False]
        # Its index and its entries are read back from what is stored.
        assert (await http.put(f"{ADMIN}cold/unload")).status_code == 204
    contents = await asyncio.to_thread(received, consumer, times_ms)
    assert sorted(contents) == sorted(times_ms)
    client.close()


async def test_messages_that_are_compacted_before_their_time_come_at_it(
    server: ServerProcess,
) -> None:
    client = pulsar.Client(server.service_url)
    topic, shared = "persistent://public/default/table", pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "s", consumer_type=shared)
    times_ms = await asyncio.to_thread(publish, client, topic, range(MESSAGES))
    async with httpx.AsyncClient(base_url=server.http_url) as http:
        assert (await http.put(f"{ADMIN}table/compaction")).status_code == 204
        await succeeded(http, f"{ADMIN}table/compaction")
        assert (await http.put(f"{ADMIN}table/unload")).status_code == 204
    view = client.subscribe(
        topic,
        "view",
        is_read_compacted=True,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    with contextlib.closing(view):
        table: dict[str, bytes] = {}
        while len(table) < 5:  # an exclusive subscription gets them at once, as in Pulsar
            message = view.receive(PATIENCE_MS)
            assert message.partition_key() not in table, "of each key, only the last is left"
            table[message.partition_key()] = message.data()
    assert table == {f"k{key}": b"%d" % (MESSAGES - 5 + key) for key in range(5)}
    contents = await asyncio.to_thread(received, consumer, times_ms)
    assert sorted(contents) == sorted(times_ms), "compaction changes nothing for the others"
    client.close()
