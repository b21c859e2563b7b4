"""Batches of our client at a fixed rate, beside those of Java's client with its defaults.

    python -m tests.bench.batching [--rates 1000 5000] [--seconds 10] [--pairs 3] [--turns 3]

Both send the same compressible messages of 1 KiB to a topic of 100 partitions, with ZSTD and
without any tuning, to one standalone, in turns. Measured are the bytes on the server's sockets, in
both directions (`ss` of iproute2), the CPU of the server process, and the entries that it stored;
medians are printed after the pairs. A second table has our client with one of ten partitions
blocked: its receipts are held back.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import httpx
from tests.interop.java_programs import compiled, jars, java_path
from tests.support.server_process import ServerProcess

from magnetar.client import Client, Compression
from magnetar.client.errors import MemoryBufferIsFull
from magnetar.wire.client_decoder import Receipt

PARTITIONS: Final = 100
BLOCKED_OF: Final = 10
BLOCKED: Final = 3
"""The partition that is blocked."""
AT_ONCE: Final = 500
"""Messages between two turns of the loop."""
WARM_MESSAGES: Final = 150_000
BODIES: Final = 2_000
BODY_BYTES: Final = 1_024
TICK_S: Final = 0.001
WARM_S: Final = 3
"""Seconds of messages before those that count."""
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
ANSWER_TIMEOUT_S: Final = 120.0
REST_TIMEOUT_S: Final = 30.0
SOURCES: Final = Path(__file__).parent / "java"
STATES: Final = ("CREATED", "PAID", "PACKED", "SHIPPED", "DELIVERED", "RETURNED")
CITIES: Final = ("Amsterdam", "Berlin", "Chengdu", "Dongguan", "Eindhoven", "Florence", "Geneva")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run took of the server."""

    messages: int
    entries: int
    wire_bytes: int
    cpu_s: float

    def row(self, name: str) -> str:
        return (
            f"{name:24}{self.messages / self.entries:12.1f}"
            f"{self.wire_bytes / self.messages:12.0f}{self.cpu_s / self.messages * 1e6:12.1f}"
        )


@dataclass(frozen=True, slots=True)
class Flat:
    """How fast one run was, and its mean batch."""

    messages_per_s: float
    messages_per_entry: float


def bodies(rng: random.Random) -> list[bytes]:
    """Orders as JSON: field names and words repeat, numbers do not."""
    found = []
    for number in range(BODIES):
        order = {
            "order": number,
            "customer": f"{rng.getrandbits(64):016x}",
            "state": rng.choice(STATES),
            "city": rng.choice(CITIES),
            "items": [
                {
                    "sku": f"SKU-{rng.randrange(5000):05}",
                    "quantity": rng.randrange(1, 9),
                    "price": rng.randrange(100, 99_999) / 100,
                    "currency": "EUR",
                }
                for _ in range(11)
            ],
        }
        found.append(json.dumps(order).encode().ljust(BODY_BYTES)[:BODY_BYTES])
    return found


async def send(url: str, topic: str, lines: list[bytes], rate: int, seconds: int) -> None:
    """The same loop as `java/FixedRate.java`, with our client."""
    loop = asyncio.get_running_loop()
    async with (
        Client(url) as client,
        client.producer(topic, compression=Compression.ZSTD) as producer,
    ):

        async def run(count: int) -> None:
            began, sent = loop.time(), 0
            while sent < count:
                due = min(count, int((loop.time() - began) * rate))
                for number in range(sent, due):
                    producer.send_nowait(lines[number % len(lines)])
                sent = max(sent, due)
                await asyncio.sleep(TICK_S)
            await producer.flush()

        await run(rate * WARM_S)  # each partition has had a first entry
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await run(rate * seconds)
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


def cpu_s(pid: int) -> float:
    """CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def wire_bytes(port: int) -> int:
    """The bytes of payload of the connections of a local port, in both directions."""
    command = ["ss", "-tniH", "state", "established", f"( sport = :{port} )"]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    wanted = ("bytes_received:", "bytes_sent:")
    return sum(int(word.partition(":")[2]) for word in words if word.startswith(wanted))


def entries(server: ServerProcess, topic: str, partitions: int) -> int:
    """The entries that a topic's partitions have stored since the server started."""
    stored = 0
    base = f"{server.http_url}/admin/v2/persistent/public/default/{topic}-partition-"
    with httpx.Client(timeout=REST_TIMEOUT_S) as client:
        for partition in range(partitions):
            answer = client.get(f"{base}{partition}/internalStats")
            if answer.status_code != httpx.codes.NOT_FOUND:
                stored += answer.raise_for_status().json()["entriesAddedCounter"]
    return stored


def create(server: ServerProcess, topic: str, partitions: int) -> None:
    """Creates a partitioned topic."""
    url = f"{server.http_url}/admin/v2/persistent/public/default/{topic}/partitions"
    httpx.put(url, json=partitions, timeout=REST_TIMEOUT_S).raise_for_status()


@contextlib.contextmanager
def sender(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A program that answers "ready" and "done"; its end follows."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        expect(process, "ready")
        yield process
        go_on(process)
        process.wait(ANSWER_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


def expect(process: "subprocess.Popen[str]", word: str) -> None:
    """Reads lines up to one that is `word`; programs of Java may print others."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(f"{process.args!r} ended before it said {word!r}")


def go_on(process: "subprocess.Popen[str]") -> None:
    """Lets a program take its next step."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def measure(
    server: ServerProcess, name: str, rate: int, pair: int, options: argparse.Namespace
) -> Figures:
    """Runs one client at one rate over a topic of its own."""
    topic = f"batching-{name}-{rate}-{pair}"
    create(server, topic, PARTITIONS)
    numbers = (str(options.bodies), str(rate), str(options.seconds), str(WARM_S))
    where = (server.service_url, f"persistent://public/default/{topic}")
    if name == "java":
        class_path = compiled(SOURCES, jars("client"))
        command = [java_path(), "-cp", class_path, "FixedRate", *where, *numbers]
    else:
        command = [sys.executable, "-m", "tests.bench.batching", "--worker", *where, *numbers]
    with sender(command) as process:
        before = entries(server, topic, PARTITIONS)
        before_s, before_bytes = cpu_s(server.pid), wire_bytes(server.port)
        go_on(process)
        expect(process, "done")
        used_s = cpu_s(server.pid) - before_s
        sent_bytes = wire_bytes(server.port) - before_bytes
        stored = entries(server, topic, PARTITIONS) - before
    return Figures(rate * options.seconds, stored, sent_bytes, used_s)


# -- a blocked partition -----------------------------------------------------------------------


async def flat_out(url: str, topic: str, seconds: int, lines: list[bytes], *, block: bool) -> Flat:
    """Sends as fast as there is room; with `block`, one partition's receipts are held back."""
    loop = asyncio.get_running_loop()
    async with Client(url) as client, client.producer(topic) as producer:
        lane = producer._lanes[BLOCKED]
        held: list[Receipt] = []
        if block:
            lane.on_receipt = held.append  # type: ignore[method-assign, assignment]
        until = loop.time() + ANSWER_TIMEOUT_S
        number = 0

        async def send_until(end: Callable[[], bool]) -> None:
            nonlocal number
            while not end():
                try:
                    producer.send_nowait(lines[number % BODIES])
                    number += 1
                except MemoryBufferIsFull:
                    await asyncio.sleep(TICK_S)
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)

        # Until the partition is blocked, or as long: caches and the loop get warm.
        await send_until(lambda: loop.time() > until or (lane.blocked or number > WARM_MESSAGES))
        before, began = copy(producer.stats), loop.time()
        await send_until(lambda: loop.time() > began + seconds)
        after, elapsed_s = copy(producer.stats), loop.time() - began
        messages = after.messages_sent - before.messages_sent
        if block:
            del lane.on_receipt
        for receipt in held:
            lane.on_receipt(receipt)
    return Flat(messages / elapsed_s, messages / (after.entries_sent - before.entries_sent))


def blocked(server: ServerProcess, options: argparse.Namespace, lines: list[bytes]) -> None:
    """Prints the medians of runs with and without a blocked partition, which take turns."""
    found: dict[bool, list[Flat]] = {False: [], True: []}
    for turn in range(options.turns):
        for block in found:
            topic = f"blocked-{turn}-{block}"
            create(server, topic, BLOCKED_OF)
            run = flat_out(server.service_url, topic, options.seconds, lines, block=block)
            found[block].append(asyncio.run(run))
    print(f"\n{'1 KiB, flat out':24}{'messages/s':>12}{'per entry':>12}")
    rates, means = [], []
    for block, runs in found.items():
        rates.append(median(run.messages_per_s for run in runs))
        means.append(median(run.messages_per_entry for run in runs))
        name = f"1 of {BLOCKED_OF} blocked" if block else f"{BLOCKED_OF} partitions"
        print(f"{name:24}{rates[-1]:12.0f}{means[-1]:12.1f}")
    print(f"{'ratio':24}{rates[1] / rates[0]:12.2f}{means[1] / means[0]:12.2f}", flush=True)


def fixed_rates(server: ServerProcess, options: argparse.Namespace) -> None:
    """Prints what each client takes of the server at each rate, and our share of Java's."""
    head = f"{'per entry':>12}{'wire bytes':>12}{'CPU us':>12}"
    for rate in options.rates:
        print(f"{f'{rate} messages/s':24}{head}")
        found: dict[str, list[Figures]] = {"java": [], "own": []}
        for pair in range(options.pairs):
            for name, runs in found.items():
                runs.append(measure(server, name, rate, pair, options))
                print(runs[-1].row(name), flush=True)
        java, own = (_medians(runs) for runs in found.values())
        print(java.row("java, median"), own.row("own, median"), sep="\n")
        print(
            f"{'ratio':24}{java.entries / own.entries:12.2f}"
            f"{own.wire_bytes / java.wire_bytes:12.2f}{own.cpu_s / java.cpu_s:12.2f}\n",
            flush=True,
        )


def _medians(runs: list[Figures]) -> Figures:
    return Figures(
        runs[0].messages,
        round(median(run.entries for run in runs)),
        round(median(run.wire_bytes for run in runs)),
        median(run.cpu_s for run in runs),
    )


def main() -> None:
    """Prints both tables."""
    if sys.argv[1:2] == ["--worker"]:
        url, topic, path, rate, seconds, _ = sys.argv[2:]
        lines = Path(path).read_bytes().split(b"\n")
        asyncio.run(send(url, topic, lines, int(rate), int(seconds)))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="*", default=[1_000, 5_000])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=3, help="of runs at each rate")
    parser.add_argument("--turns", type=int, default=3, help="of the runs with a blocked partition")
    options = parser.parse_args()
    lines = bodies(random.Random(1))
    with tempfile.TemporaryDirectory() as folder:
        options.bodies = Path(folder) / "bodies"
        options.bodies.write_bytes(b"\n".join(lines))
        with ServerProcess(Path(folder)) as server:
            fixed_rates(server, options)
            if options.turns:
                blocked(server, options, lines)


if __name__ == "__main__":
    main()
