"""Delayed messages of one topic: memory, restart after kill -9, CPU, and lateness beside Pulsar.

    python -m tests.bench.delayed [--messages 10000000] [--subscriptions 10] [--json FILE]
    python -m tests.bench.delayed --kit DIR [--messages 1000000] [--watch-s 120]

The first form publishes messages, unbatched, whose delivery times are spread over 30 days, to a
topic with Shared subscriptions. It kills the server with SIGKILL, starts it again, and attaches a
consumer to each subscription. Ends with 1 if a message is delivered before its time, or if the
backlog of delayed messages is not what was published.

The second form publishes messages that are delayed up to an hour, first to this checkout, then to
the Pulsar of the kit, with one Shared consumer that acknowledges. It prints the lateness of the
messages whose time falls into the run: the clock at arrival minus the delivery time, in
milliseconds. Ends with 1 if one of them is missing.

Each step prints seconds, CPU seconds and memory of the server, and the load of the machine.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import uvloop
from tests.bench.ack_holes import HOST, PENDING_MAX, SENDS_AT_ONCE, CountingClient
from tests.bench.secured import Security
from tests.bench.servers import (
    MagnetarServer,
    PulsarServer,
    Server,
    cpu_seconds,
    memory_mib,
    shared_memory_mib,
)

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command, encode_send

PORT: Final = 27670
HTTP_PORT: Final = 29190
DELAYED: Final = "persistent://public/default/delayed"
PLAIN: Final = "persistent://public/default/plain"
DAYS_MS: Final = 30 * 86_400_000
HOUR_MS: Final = 3_600_000
DELAY_MS_MIN: Final = 1_800_000
"""Longer than the run of the first form: nothing is due in it."""
SOON_MS: Final = 2_000
"""The shortest delay of the second form."""
STEP: Final = 2_654_435_761
"""A prime: its multiples spread delivery times evenly, in no order."""
PLAIN_MESSAGES_MAX: Final = 200_000
PERMITS: Final = 50_000
SETTLE_S: Final = 5.0
LATE_S_MAX: Final = 30.0
"""How long a message may be late before it counts as missing."""
UNLIMITED: Final = {
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
}

Row = dict[str, Any]
DeliverAt = Callable[[int], int]
"""Returns the delivery time of the n-th message in ms; 0: none."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class WatchingClient(CountingClient):
    """Notes how late each message is, and acknowledges it."""

    def __init__(self) -> None:
        super().__init__()
        self.late_ms: list[int] = []
        self._used = 0

    def _command(self, kind: int, message: Any, payload: bytes | None) -> None:
        if kind != CommandType.MESSAGE:
            super()._command(kind, message, payload)
            return
        assert payload is not None
        metadata, _ = messages_of(payload)
        self.late_ms.append(now_ms() - metadata.deliver_at_time)
        ack = pb.CommandAck(consumer_id=message.consumer_id, ack_type=pb.CommandAck.Individual)
        ack.message_id.add(ledgerId=message.message_id.ledgerId, entryId=message.message_id.entryId)
        self.write(encode_command(CommandType.ACK, ack))
        self._used += 1
        if self._used == PERMITS // 2:
            self.flow(message.consumer_id, self._used)
            self._used = 0
        self.progress.set()


async def connect(topic: str, kind: type[CountingClient] = CountingClient) -> CountingClient:
    """Returns a connection that has looked the topic up, which makes the server claim it."""
    client = await kind.connect(HOST, PORT)
    assert isinstance(client, CountingClient)
    await client.request(CommandType.LOOKUP, pb.CommandLookupTopic(topic=topic))
    return client


async def publish(topic: str, count: int, deliver_at: DeliverAt) -> list[int]:
    """Publishes messages, at most `PENDING_MAX` without a receipt; returns their times."""
    client = await connect(topic)
    producer = await client.producer(topic)
    command = pb.CommandSend(producer_id=producer, sequence_id=0)
    metadata = pb.MessageMetadata(producer_name="delayed", sequence_id=0, publish_time=now_ms())
    times: list[int] = []
    while client.receipt_count < count:
        if client.failures or client.lost.is_set():
            raise SystemExit(f"publishing failed: {client.failures[:1] or 'connection lost'}")
        left = count - len(times)
        room = min(SENDS_AT_ONCE, left, PENDING_MAX - (len(times) - client.receipt_count))
        if room >= min(SENDS_AT_ONCE, left) > 0:
            sends = bytearray()
            for number in range(len(times), len(times) + room):
                command.sequence_id = metadata.sequence_id = number
                if at_ms := deliver_at(number):
                    metadata.deliver_at_time = at_ms
                times.append(at_ms)
                sends += encode_send(command, metadata, b"x" * 16)
            client.write(bytes(sends))
        client.progress.clear()
        await client.progress.wait()
    await client.close()
    return times


async def subscribe(topic: str, count: int) -> tuple[float, float, list[CountingClient]]:
    """Attaches a consumer to each subscription; seconds until the first and the last one serve."""
    clients: list[CountingClient] = []
    began, first_s = time.monotonic(), 0.0
    for number in range(count):
        client = await connect(topic)
        consumer = await client.consumer(topic, f"s{number}", kind=pb.CommandSubscribe.Shared)
        client.flow(consumer, PERMITS)
        first_s = first_s or time.monotonic() - began
        clients.append(client)
    return first_s, time.monotonic() - began, clients


async def create_subscriptions(topic: str, count: int) -> None:
    for client in (await subscribe(topic, count))[2]:
        await client.close()


async def attach(topic: str, count: int) -> tuple[float, float, int]:
    """As `subscribe`, and the number of messages that are delivered within `SETTLE_S`."""
    first_s, all_s, clients = await subscribe(topic, count)
    await asyncio.sleep(SETTLE_S)
    early = sum(client.delivered.count for client in clients)
    for client in clients:
        await client.close()
    return first_s, all_s, early


def delayed_by_subscription(topic: str) -> list[int]:
    """Returns `msgDelayed` of each subscription."""
    url = f"http://{HOST}:{HTTP_PORT}/admin/v2/{topic.replace('://', '/')}/stats"
    with urllib.request.urlopen(url, timeout=60) as answer:
        stats = json.load(answer)
    return [each["msgDelayed"] for each in stats["subscriptions"].values()]


class Steps:
    """Prints the steps of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.rows: dict[str, Row] = {}
        self._began, self._cpu = 0.0, 0.0

    def begin(self) -> None:
        self._began, self._cpu = time.monotonic(), sum(cpu_seconds(self._server).values())

    def record(self, name: str, messages: int = 0, **more: float) -> Row:
        """Prints what has passed since `begin`; `messages` gives CPU per message."""
        cpu_s = sum(cpu_seconds(self._server).values()) - self._cpu
        now, peak = memory_mib(self._server)
        row: Row = {"seconds": time.monotonic() - self._began, "cpu_s": cpu_s, **more}
        if messages:
            row["cpu_us_per_message"] = cpu_s * 1e6 / messages
        row |= {"rss_mib": now, "peak_mib": peak, "pss_mib": shared_memory_mib(self._server)}
        row["load"] = os.getloadavg()[0]
        self.rows[name] = {key: round(value, 2) for key, value in row.items()}
        print(
            json.dumps({"server": self._server.name, "step": name, **self.rows[name]}), flush=True
        )
        return self.rows[name]


def run_months(server: MagnetarServer, messages: int, subscriptions: int) -> tuple[Steps, bool]:
    """The first form; returns whether everything was as it must be."""
    steps = Steps(server)
    server.start()
    uvloop.run(create_subscriptions(DELAYED, subscriptions))
    plain = min(messages, PLAIN_MESSAGES_MAX)
    uvloop.run(create_subscriptions(PLAIN, subscriptions))
    steps.begin()
    uvloop.run(publish(PLAIN, plain, lambda _: 0))
    steps.record("publish without a time", plain)
    begun_ms = now_ms() + DELAY_MS_MIN
    steps.begin()
    uvloop.run(publish(DELAYED, messages, lambda n: begun_ms + n * STEP % DAYS_MS))
    steps.record("publish", messages)
    os.kill(server.pids["standalone"], signal.SIGKILL)
    server.stop()
    server.launch()
    steps.begin()
    uvloop.run(_until_ready(server))
    before = steps.record("restart")
    steps.begin()
    first_s, all_s, early = uvloop.run(attach(DELAYED, subscriptions))
    delayed = delayed_by_subscription(DELAYED)
    after = steps.record("attach", first_s=first_s, all_s=all_s, early=early)
    steps.rows["index"] = {
        "rss_mib": round(after["rss_mib"] - before["rss_mib"], 2),
        "pss_mib": round(after["pss_mib"] - before["pss_mib"], 2),
        "restart_until_served_s": round(before["seconds"] + first_s, 2),
    }
    print(json.dumps({"step": "index", **steps.rows["index"], "delayed": delayed}), flush=True)
    return steps, early == 0 and delayed == [messages] * subscriptions


async def _until_ready(server: MagnetarServer) -> None:
    """Waits until the restarted server accepts connections."""
    while True:
        try:
            client = await CountingClient.connect(HOST, PORT)
        except OSError:
            await asyncio.sleep(0.005)
            continue
        await client.close()
        return


async def watch(server: Server, messages: int, watch_s: float, steps: Steps) -> int:
    """Publishes and receives; returns the number of messages whose time has come, and that miss."""
    client = await connect(DELAYED, WatchingClient)
    assert isinstance(client, WatchingClient)
    consumer = await client.consumer(DELAYED, "watch", kind=pb.CommandSubscribe.Shared)
    client.flow(consumer, PERMITS)
    steps.begin()

    def deliver_at(number: int) -> int:
        return now_ms() + SOON_MS + number * STEP % HOUR_MS

    times = await publish(DELAYED, messages, deliver_at)
    steps.record("publish", messages, **lateness(client.late_ms))
    published = len(client.late_ms)
    steps.begin()
    end_ms = now_ms() + int(watch_s * 1000)
    due = sum(at_ms <= end_ms for at_ms in times)
    await asyncio.sleep(watch_s)
    deadline = time.monotonic() + LATE_S_MAX
    while len(client.late_ms) < due and time.monotonic() < deadline:
        client.progress.clear()
        try:
            async with asyncio.timeout(1.0):
                await client.progress.wait()
        except TimeoutError:
            continue
    received = client.late_ms[published:]
    steps.record("deliver", max(len(received), 1), due=due, **lateness(received))
    missing = max(due - len(client.late_ms), 0)
    await client.close()
    return missing


def lateness(late_ms: list[int]) -> dict[str, float]:
    """Returns p50, p99, the extremes and the number of some latenesses."""
    if not late_ms:
        return {"delivered": 0}
    ordered = sorted(late_ms)
    return {
        "delivered": len(ordered),
        "late_ms_min": ordered[0],
        "late_ms_p50": ordered[len(ordered) // 2],
        "late_ms_p99": ordered[len(ordered) * 99 // 100],
        "late_ms_max": ordered[-1],
    }


def run_hour(server: Server, messages: int, watch_s: float) -> tuple[Steps, int]:
    """The second form on one server; returns the number of missing messages, too."""
    steps = Steps(server)
    started_s = server.start()
    steps.begin()
    steps.record("start", start_s=started_s)
    missing = uvloop.run(watch(server, messages, watch_s, steps))
    return steps, missing


def main() -> int:
    parser = argparse.ArgumentParser(description="delayed messages")
    parser.add_argument("--messages", type=int)
    parser.add_argument("--subscriptions", type=int, default=10)
    parser.add_argument("--kit", type=Path, help="beside the Pulsar of this kit")
    parser.add_argument("--watch-s", type=float, default=120.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="delayed-"))
    servers: list[Server] = [MagnetarServer(root, PORT, HTTP_PORT, security=Security(UNLIMITED))]
    if arguments.kit is not None:
        security = Security(UNLIMITED)
        servers.append(PulsarServer(arguments.kit, root, PORT, HTTP_PORT, security=security))
    rows, good = {}, True
    try:
        for server in servers:
            try:
                if arguments.kit is None:
                    assert isinstance(server, MagnetarServer)
                    messages = arguments.messages or 10_000_000
                    steps, good = run_months(server, messages, arguments.subscriptions)
                else:
                    messages = arguments.messages or 1_000_000
                    steps, missing = run_hour(server, messages, arguments.watch_s)
                    print(json.dumps({"server": server.name, "missing": missing}), flush=True)
                    good = good and not missing
                rows[server.name] = steps.rows
            finally:
                server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
