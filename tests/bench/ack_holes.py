"""Ack holes of one subscription, and kill -9.

    python -m tests.bench.ack_holes [--holes 10000000] [--json FILE]

A standalone gets twice as many messages as holes, unbatched. A Shared subscription acknowledges
every other one by itself, with receipts. After the last receipt the server is killed with SIGKILL
and started again; a new consumer then receives everything that the subscription has left. Prints a
row per step: seconds, CPU seconds and memory of the server. Ends with 1 if a message with a
receipted ack is delivered again, or one without an ack is missing.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvloop
from tests.bench.secured import Security
from tests.bench.servers import MagnetarServer, cpu_seconds, memory_mib
from tests.support.raw_client import RawClient

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command, encode_send

HOST: Final = "127.0.0.1"
PORT: Final = 27660
HTTP_PORT: Final = 29090
TOPIC: Final = "persistent://public/default/holes"
SUBSCRIPTION: Final = "holes"
UNLIMITED: Final = {
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
}
PENDING_MAX: Final = 20_000
SENDS_AT_ONCE: Final = 2_000
ACKS_PER_COMMAND: Final = 1_000
COMMANDS_AT_ONCE: Final = 50
PERMITS: Final = 50_000
SILENCE_S: Final = 10.0
STEP_S_MAX: Final = 3_600.0

Position = tuple[int, int]
Row = dict[str, float]


class Delivered:
    """How often each position was delivered, a byte each."""

    def __init__(self) -> None:
        self.count = 0
        self._ledgers: dict[int, bytearray] = {}

    def add(self, ledger: int, entry: int) -> None:
        entries = self._ledgers.setdefault(ledger, bytearray())
        if entry >= len(entries):
            entries.extend(bytes(entry + 1 - len(entries)))
        entries[entry] = min(entries[entry] + 1, 255)
        self.count += 1

    def times(self, position: Position) -> int:
        entries = self._ledgers.get(position[0], b"")
        return entries[position[1]] if position[1] < len(entries) else 0


class CountingClient(RawClient):
    """Counts receipts and deliveries, instead of keeping each."""

    def __init__(self) -> None:
        super().__init__()
        self.receipt_count = 0
        self.failures: list[str] = []
        self.delivered = Delivered()
        self.progress = asyncio.Event()

    def _command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind == CommandType.SEND_RECEIPT:
            self.receipt_count += 1
            self.progress.set()
        elif kind == CommandType.SEND_ERROR:
            self.failures.append(message.message)
            self.progress.set()
        elif kind == CommandType.MESSAGE:
            self.delivered.add(message.message_id.ledgerId, message.message_id.entryId)
            self.progress.set()
        else:
            super()._command(kind, message, payload)


async def publish(count: int) -> None:
    """Publishes `count` equal messages, at most `PENDING_MAX` of them without a receipt."""
    client = await CountingClient.connect(HOST, PORT)
    assert isinstance(client, CountingClient)
    await client.consumer(TOPIC, SUBSCRIPTION, kind=pb.CommandSubscribe.Shared)
    producer = await client.producer(TOPIC)
    metadata = pb.MessageMetadata(producer_name="holes", sequence_id=0, publish_time=1)
    send = encode_send(pb.CommandSend(producer_id=producer, sequence_id=0), metadata, b"x" * 16)
    sent = 0
    while client.receipt_count < count:
        if client.failures or client.lost.is_set():
            raise SystemExit(f"publishing failed: {client.failures[:1] or 'connection lost'}")
        room = min(SENDS_AT_ONCE, count - sent, PENDING_MAX - (sent - client.receipt_count))
        if room >= min(SENDS_AT_ONCE, count - sent) > 0:
            client.write(send * room)
            sent += room
        client.progress.clear()
        await client.progress.wait()
    await client.close()


def ledgers() -> list[tuple[int, int]]:
    """Returns (ledger id, entries) of the topic, in order."""
    url = f"http://{HOST}:{HTTP_PORT}/admin/v2/{TOPIC.replace('://', '/')}/internalStats"
    with urllib.request.urlopen(url, timeout=60) as answer:
        stats = json.load(answer)
    rows = [(each["ledgerId"], each["entries"]) for each in stats["ledgers"]]
    last = stats["lastConfirmedEntry"].split(":")
    return [(ledger, entries or int(last[1]) + 1) for ledger, entries in rows]


def every_other(all_ledgers: list[tuple[int, int]], first: int) -> Iterator[Position]:
    """Every other entry, from the first (0) or the second (1) one, over the borders of ledgers."""
    number = first + 1
    for ledger, entries in all_ledgers:
        for entry in range(entries):
            if number % 2:
                yield ledger, entry
            number += 1


async def acknowledge(positions: Iterator[Position]) -> int:
    """Acknowledges each position by itself; returns their number once all have a receipt."""
    client = await CountingClient.connect(HOST, PORT)
    consumer = await client.consumer(TOPIC, SUBSCRIPTION, kind=pb.CommandSubscribe.Shared)
    count, more = 0, True
    while more:
        commands = []
        for _ in range(COMMANDS_AT_ONCE):
            command = pb.CommandAck(consumer_id=consumer, ack_type=pb.CommandAck.Individual)
            for _ in range(ACKS_PER_COMMAND):
                position = next(positions, None)
                if position is None:
                    more = False
                    break
                command.message_id.add(ledgerId=position[0], entryId=position[1])
                count += 1
            if command.message_id:
                commands.append(client.request(CommandType.ACK, command))
        for answer in await asyncio.gather(*commands):
            if answer.HasField("error"):
                raise SystemExit(f"an ack was refused: {answer.message}")
    await client.close()
    return count


async def drain(expected: int) -> tuple[float, Delivered]:
    """Returns the seconds until the first message, and what is delivered."""
    client = await CountingClient.connect(HOST, PORT)
    assert isinstance(client, CountingClient)
    began = time.monotonic()
    consumer = await client.consumer(TOPIC, SUBSCRIPTION, kind=pb.CommandSubscribe.Shared)
    client.flow(consumer, PERMITS)
    first, granted = 0.0, PERMITS
    while True:
        client.progress.clear()
        try:
            async with asyncio.timeout(SILENCE_S if client.delivered.count >= expected else 60):
                await client.progress.wait()
        except TimeoutError:
            break
        first = first or time.monotonic() - began
        if granted - client.delivered.count < PERMITS // 2:
            client.write(
                encode_command(
                    CommandType.FLOW,
                    pb.CommandFlow(consumer_id=consumer, messagePermits=PERMITS // 2),
                )
            )
            granted += PERMITS // 2
    await client.close()
    return first, client.delivered


class Steps:
    """Runs and prints the steps."""

    def __init__(self, server: MagnetarServer) -> None:
        self._server = server
        self.rows: dict[str, Row] = {}

    def record(self, name: str, began: float, cpu_before: float, **more: float) -> None:
        cpu_s = sum(cpu_seconds(self._server).values()) - cpu_before
        now, peak = memory_mib(self._server)
        row = {
            "seconds": time.monotonic() - began, "cpu_s": cpu_s,
            "memory_mib": now, "peak_mib": peak, **more,
        }  # fmt: skip
        self.rows[name] = {key: round(value, 2) for key, value in row.items()}
        print(json.dumps({"step": name, **self.rows[name]}), flush=True)

    def cpu(self) -> float:
        return sum(cpu_seconds(self._server).values())


def run(count: int, server: MagnetarServer) -> tuple[dict[str, Row], int, int]:
    """Returns the rows, how many acked messages came again, and how many others are missing."""
    steps = Steps(server)
    server.start()
    began, cpu = time.monotonic(), steps.cpu()
    uvloop.run(publish(2 * count))
    steps.record("publish", began, cpu)
    began, cpu = time.monotonic(), steps.cpu()
    all_ledgers = ledgers()
    acked = uvloop.run(acknowledge(every_other(all_ledgers, 1)))
    steps.record("acknowledge", began, cpu, acks=acked)
    os.kill(server.pids["standalone"], signal.SIGKILL)
    server.stop()
    began = time.monotonic()
    server.start()
    steps.record("restart", began, 0.0)
    began, cpu = time.monotonic(), steps.cpu()
    first, delivered = uvloop.run(drain(2 * count - acked))
    steps.record("drain", began, cpu, first_s=first, messages=delivered.count)
    again = sum(delivered.times(each) > 0 for each in every_other(all_ledgers, 1))
    missing = sum(delivered.times(each) == 0 for each in every_other(all_ledgers, 0))
    return steps.rows, again, missing


def main() -> int:
    parser = argparse.ArgumentParser(description="ack holes and kill -9")
    parser.add_argument("--holes", type=int, default=10_000_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="holes-"))
    server = MagnetarServer(root, PORT, HTTP_PORT, security=Security(UNLIMITED))
    try:
        rows, again, missing = run(arguments.holes, server)
    finally:
        server.stop()
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({"acked_again": again, "missing": missing}))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 1 if again or missing else 0


if __name__ == "__main__":
    sys.exit(main())
