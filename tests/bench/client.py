"""Messages per client CPU second: our own client beside the official wheel, on one server.

    make bench-client ARGS="--messages 50000 --runs 3 'produce 1024 batched'"

Each row runs in a process of its own against one `magnetar standalone`, or the server that
`--url` names. CPU is that of the client process, all threads, from the first message to the last
answer. The clients do the same: `send` with a receipt for each message, at most `WINDOW` pending;
`receive` and an acknowledgment for each message.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import pulsar
import pulsar.asyncio
from tests.support.server_process import ServerProcess

from magnetar.client import Batching, Client, InitialPosition

WINDOW: Final = 1000
PENDING_MAX: Final = 2000
BATCH_MESSAGES: Final = 1000
BATCH_DELAY_MS: Final = 10
CLIENTS: Final = ("own", "own await", "wheel asyncio", "wheel callback")


def quiet() -> Any:
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


# -- produce -----------------------------------------------------------------------------------


async def own_produce(url: str, topic: str, body: bytes, count: int, *, batched: bool) -> float:
    batching = Batching(messages_max=BATCH_MESSAGES, bytes_max=4 << 20) if batched else None
    async with Client(url) as client, client.producer(topic, batching=batching) as producer:
        await producer.send(body)
        start = time.process_time()
        waiting: list[Any] = []
        for _ in range(count):
            waiting.append(producer.send_nowait(body))
            if len(waiting) >= WINDOW:
                await waiting[0]
                del waiting[: WINDOW // 2]
                if not batched:
                    await asyncio.sleep(0)
        await producer.flush()
        return time.process_time() - start


async def own_await(url: str, topic: str, body: bytes, count: int, *, batched: bool) -> float:
    batching = Batching(messages_max=BATCH_MESSAGES, bytes_max=4 << 20) if batched else None
    async with Client(url) as client, client.producer(topic, batching=batching) as producer:
        await producer.send(body)
        start = time.process_time()
        for _ in range(count // WINDOW):
            await asyncio.gather(*(producer.send(body) for _ in range(WINDOW)))
        return time.process_time() - start


async def wheel_asyncio_produce(
    url: str, topic: str, body: bytes, count: int, *, batched: bool
) -> float:
    client = pulsar.asyncio.Client(url, logger=quiet())
    producer = await client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_allowed_size_in_bytes=4 << 20,
        batching_max_publish_delay_ms=BATCH_DELAY_MS,
        max_pending_messages=PENDING_MAX,
        block_if_queue_full=True,
    )
    await producer.send(body)
    start = time.process_time()
    for _ in range(count // WINDOW):
        await asyncio.gather(*(producer.send(body) for _ in range(WINDOW)))
    used_s = time.process_time() - start
    await client.close()
    return used_s


def wheel_callback_produce(
    url: str, topic: str, body: bytes, count: int, *, batched: bool
) -> float:
    client = pulsar.Client(url, logger=quiet())
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_allowed_size_in_bytes=4 << 20,
        batching_max_publish_delay_ms=BATCH_DELAY_MS,
        max_pending_messages=PENDING_MAX,
        block_if_queue_full=True,
    )
    producer.send(body)
    answered = 0
    done = threading.Event()

    def on_sent(result: Any, message_id: Any) -> None:
        nonlocal answered
        answered += 1
        if answered == count:
            done.set()

    start = time.process_time()
    for _ in range(count):
        producer.send_async(body, on_sent)
    producer.flush()
    done.wait()
    used_s = time.process_time() - start
    client.close()
    return used_s


# -- consume -----------------------------------------------------------------------------------


async def own_consume(url: str, topic: str, count: int) -> float:
    async with (
        Client(url) as client,
        client.consumer(topic, "bench", initial_position=InitialPosition.EARLIEST) as consumer,
    ):
        await consumer.ack(await consumer.receive())
        start = time.process_time()
        for _ in range(count):
            await consumer.ack(await consumer.receive())
        return time.process_time() - start


async def wheel_asyncio_consume(url: str, topic: str, count: int) -> float:
    client = pulsar.asyncio.Client(url, logger=quiet())
    consumer = await client.subscribe(
        topic, "bench", initial_position=pulsar.InitialPosition.Earliest
    )
    await consumer.acknowledge(await consumer.receive())
    start = time.process_time()
    for _ in range(count):
        await consumer.acknowledge(await consumer.receive())
    used_s = time.process_time() - start
    await client.close()
    return used_s


def wheel_callback_consume(url: str, topic: str, count: int) -> float:
    client = pulsar.Client(url, logger=quiet())
    received = 0
    done = threading.Event()

    def listener(consumer: Any, message: Any) -> None:
        nonlocal received
        consumer.acknowledge(message)
        received += 1
        if received >= count:
            done.set()

    start = time.process_time()
    client.subscribe(
        topic,
        "bench",
        message_listener=listener,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    done.wait()
    used_s = time.process_time() - start
    client.close()
    return used_s


# -- rows --------------------------------------------------------------------------------------


def worker(arguments: argparse.Namespace) -> None:
    """One measurement, in this process; prints CPU microseconds per message."""
    body, count = b"x" * arguments.size, arguments.messages
    url, topic, batched = arguments.url, arguments.topic, arguments.batched
    produce: dict[str, Callable[[], Any]] = {
        "own": lambda: asyncio.run(own_produce(url, topic, body, count, batched=batched)),
        "own await": lambda: asyncio.run(own_await(url, topic, body, count, batched=batched)),
        "wheel asyncio": lambda: asyncio.run(
            wheel_asyncio_produce(url, topic, body, count, batched=batched)
        ),
        "wheel callback": lambda: wheel_callback_produce(url, topic, body, count, batched=batched),
    }
    consume: dict[str, Callable[[], Any]] = {
        "own": lambda: asyncio.run(own_consume(url, topic, count)),
        "wheel asyncio": lambda: asyncio.run(wheel_asyncio_consume(url, topic, count)),
        "wheel callback": lambda: wheel_callback_consume(url, topic, count),
    }
    used_s = (produce if arguments.worker == "produce" else consume)[arguments.client]()
    print(json.dumps({"cpu_us": used_s / count * 1e6}))


def measure(url: str, topic: str, row: str, client: str, messages: int) -> float:
    action, size, batching = row.split()
    command = [
        sys.executable, "-m", "tests.bench.client", "--worker", action, "--client", client,
        "--url", url, "--topic", topic, "--size", size, "--messages", str(messages),
    ]  # fmt: skip
    if batching == "batched":
        command.append("--batched")
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    return float(json.loads(output.splitlines()[-1])["cpu_us"])


def rows() -> list[str]:
    return [
        f"{action} {size} {batching}"
        for action in ("produce", "consume")
        for size in (100, 1024)
        for batching in ("batched", "unbatched")
    ]


def compare(url: str, arguments: argparse.Namespace) -> None:
    wanted = arguments.rows or rows()
    print(f"{'CPU µs per message':28}" + "".join(f"{name:>16}" for name in CLIENTS), flush=True)
    for row in wanted:
        cells = []
        count = arguments.messages if row.endswith(" batched") else arguments.messages // 2
        for client in CLIENTS:
            if row.startswith("consume") and client == "own await":
                cells.append(f"{'':>16}")
                continue
            figures = []
            for _ in range(arguments.runs):
                topic = f"bench-{uuid.uuid4().hex[:8]}"
                if row.startswith("consume"):
                    # A subscription first, so that the messages are kept.
                    fill = f"produce{row.removeprefix('consume')}"
                    asyncio.run(subscribe(url, topic))
                    measure(url, topic, fill, "own", count + 1000)
                figures.append(measure(url, topic, row, client, count))
            cells.append(f"{median(figures):16.2f}")
        print(f"{row:28}" + "".join(cells), flush=True)


async def subscribe(url: str, topic: str) -> None:
    async with Client(url) as client:
        await client.consumer(topic, "bench")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="such as 'produce 1024 batched'; default: all")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--url", default="")
    parser.add_argument("--worker", choices=("produce", "consume"), help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batched", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    if arguments.url:
        compare(arguments.url, arguments)
        return
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server:
        compare(server.service_url, arguments)


if __name__ == "__main__":
    main()
