"""A standalone that is killed while it compacts: no view is lost, and nothing is left."""

import asyncio
import contextlib
import time
from pathlib import Path

import httpx
import pulsar
from tests.support.server_process import ServerProcess

TOPIC = "persistent://public/default/prices"
PATH = "/admin/v2/persistent/public/default/prices/compaction"
KEYS = 20
MESSAGES = 2_000
PATIENCE_S = 60.0
POLL_S = 0.02


def publish(client: pulsar.Client, first: int) -> None:
    producer = client.create_producer(TOPIC, block_if_queue_full=True)
    for number in range(first, first + MESSAGES):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % KEYS}")
    producer.flush()
    producer.close()


def view(client: pulsar.Client, upto: int) -> dict[str, bytes]:
    """What a reader of the compacted topic gets, up to the newest message; the last value wins."""
    consumer = client.subscribe(
        TOPIC,
        f"view-{time.monotonic_ns()}",
        initial_position=pulsar.InitialPosition.Earliest,
        is_read_compacted=True,
    )
    values: dict[str, bytes] = {}
    with contextlib.closing(consumer):
        while True:
            message = consumer.receive(int(PATIENCE_S * 1000))
            values[message.partition_key()] = message.data()
            if message.data() == b"%d" % (upto - 1):
                return values


def latest(upto: int) -> dict[str, bytes]:
    return {f"k{number % KEYS}": b"%d" % number for number in range(upto - KEYS, upto)}


async def status(http: httpx.AsyncClient, *awaited: str) -> str:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = (await http.get(PATH)).json()["status"]
            if found in awaited:
                return str(found)
            await asyncio.sleep(POLL_S)


async def test_a_standalone_killed_while_it_compacts_compacts_after_its_restart(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path) as server:
        folder = server.data_dir / "compacted"
        client = pulsar.Client(server.service_url)
        async with httpx.AsyncClient(base_url=server.http_url) as http:
            await asyncio.to_thread(publish, client, 0)
            assert (await http.put(PATH)).status_code == 204
            assert await status(http, "SUCCESS", "ERROR") == "SUCCESS"
            before = set(folder.rglob("*.parquet"))
            await asyncio.to_thread(publish, client, MESSAGES)
            assert (await http.put(PATH)).status_code == 204
            server.kill()
        server.start()
        async with httpx.AsyncClient(base_url=server.http_url) as http:
            assert await asyncio.to_thread(view, client, 2 * MESSAGES) == latest(2 * MESSAGES)
            # If the killed one had begun, it has failed; else its request is still open.
            assert (await http.put(PATH)).status_code in (204, 409)
            assert await status(http, "SUCCESS", "ERROR") == "SUCCESS"
            assert await asyncio.to_thread(view, client, 2 * MESSAGES) == latest(2 * MESSAGES)
        client.close()
        after = set(folder.rglob("*.parquet"))
        assert before < after, "the replaced file stays for a while for its readers"
        assert len({path.parent for path in after}) == 2, "the killed one's folder is gone"
        stray = [path for path in folder.rglob("*") if path.is_file() and path not in after]
        assert stray == []
