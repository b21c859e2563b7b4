"""Our own client while brokers are killed: `python -m tests.chaos.client_kills --kills 100`.

Two brokers deduplicate. Producers with fixed names send numbers without a timeout, consumers of two
subscriptions per topic acknowledge them with receipts. The brokers are killed with -9 in turn, and
started again. Then:

- every number is in the log once, in the order of its producer;
- every subscription has had every number, and none again after the receipt of its ack;
- once the client is closed, no task of it is left;
- the process's memory grows by at most GROWTH_KIB_PER_KILL_MAX per kill.
"""

import argparse
import asyncio
import gc
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from tests.support.cluster_processes import brokers, running_cluster

from magnetar.client import (
    EARLIEST,
    BatchReceive,
    Client,
    Consumer,
    Message,
    Producer,
    SubscriptionType,
)
from magnetar.client.errors import Disconnected
from magnetar.client.interceptors import ConsumerInterceptor
from magnetar.cluster.local.cluster import LocalCluster

TOPICS: Final = 3
SEND_PAUSE_S: Final = 0.005
TOGETHER: Final = BatchReceive(messages_max=50, timeout_s=0.05)
DOWN_S_MAX: Final = 1.0
UP_S_MAX: Final = 2.0
"""Between the start of a broker and the kill of the next one."""
READY_TIMEOUT_S: Final = 60.0
DRAIN_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.5
READ_TIMEOUT_S: Final = 30.0
REST_TIMEOUT_S: Final = 30.0
SILENCE_S: Final = 3.0
WARM_KILLS: Final = 10
"""Kills before the first look at the memory."""
GROWTH_KIB_PER_KILL_MAX: Final = 100
"""Several times what the accounts of the messages between two kills take, a byte per message and
subscription: a client that keeps what a lost connection had would exceed it."""

RECEIPTS: Final[Any] = {"ack_receipt": True, "batch_index_ack": True}
"""An ack of a message of a batch counts by itself, so that its receipt means something."""
SUBSCRIPTIONS: Final = {
    "exclusive": SubscriptionType.EXCLUSIVE,
    "shared": SubscriptionType.SHARED,
}


class Arrivals(ConsumerInterceptor):
    """Judges messages as they arrive: a copy that the broker sent before it had the ack may be in
    the client's queue when the receipt comes."""

    def __init__(self, topic: "Topic", subscription: str) -> None:
        self._topic, self._subscription = topic, subscription

    def before_consume(self, message: Message[Any]) -> Message[Any]:
        number = int(message.data)
        if number in self._topic.acked.get(self._subscription, Numbers()):
            self._topic.faults.append(
                f"{self._subscription}: {number} came again after its ack's receipt"
            )
        return message


class Numbers:
    """A set of numbers that takes a byte for each up to the largest."""

    def __init__(self) -> None:
        self._present = bytearray()

    def __contains__(self, number: int) -> bool:
        return number < len(self._present) and bool(self._present[number])

    def __len__(self) -> int:
        return self._present.count(1)

    def update(self, numbers: Iterable[int]) -> None:
        """Adds numbers."""
        for number in numbers:
            if number >= len(self._present):
                self._present.extend(bytes(number + 1 - len(self._present)))
            self._present[number] = 1


@dataclass
class Topic:
    """A topic, what was sent to it, and what its subscriptions got."""

    name: str
    sent: int = 0
    receipts: int = 0
    got: dict[str, Numbers] = field(default_factory=dict)
    acked: dict[str, Numbers] = field(default_factory=dict)
    """By subscription, the numbers whose acks have receipts."""
    faults: list[str] = field(default_factory=list)

    async def produce(self, producer: Producer[bytes], stop: asyncio.Event) -> None:
        """Sends numbers until `stop`, then waits for the receipts."""
        unanswered: deque[asyncio.Future[Any]] = deque()
        while unanswered or not stop.is_set():
            if not stop.is_set():
                unanswered.append(producer.send_nowait(b"%d" % self.sent))
                self.sent += 1
                await asyncio.sleep(SEND_PAUSE_S)
            else:
                await unanswered[0]
            while unanswered and unanswered[0].done():
                unanswered.popleft().result()
                self.receipts += 1

    async def consume(self, subscription: str, consumer: Consumer[bytes]) -> None:
        """Acknowledges what comes until cancelled."""
        got = self.got.setdefault(subscription, Numbers())
        acked = self.acked.setdefault(subscription, Numbers())
        while True:
            messages = await consumer.receive_many(TOGETHER)
            numbers = [int(message.value) for message in messages]
            got.update(numbers)
            try:
                await consumer.ack_many(messages)
            except Disconnected:
                continue  # they come again, unless the broker has the acks
            acked.update(numbers)


def resident_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


async def campaign(cluster: LocalCluster, kills: int, rng: random.Random) -> list[str]:
    """Runs the kills; returns what was broken."""
    topics = [Topic(f"persistent://public/default/kills-{number}") for number in range(TOPICS)]
    at_first = asyncio.all_tasks()
    stop = asyncio.Event()
    memory: list[float] = []
    async with Client(cluster.service_url) as client:
        consumers = [
            (
                topic,
                name,
                await client.consumer(
                    topic.name, name, type=kind, interceptors=[Arrivals(topic, name)], **RECEIPTS
                ),
            )
            for topic in topics
            for name, kind in SUBSCRIPTIONS.items()
        ]
        producers = [
            await client.producer(topic.name, name=f"p-{number}", send_timeout_s=0)
            for number, topic in enumerate(topics)
        ]
        consuming = [
            asyncio.create_task(topic.consume(name, consumer))
            for topic, name, consumer in consumers
        ]
        producing = [
            asyncio.create_task(topic.produce(producer, stop))
            for topic, producer in zip(topics, producers, strict=True)
        ]
        for kill in range(kills):
            await _strike(cluster, brokers(cluster)[kill % 2].name, rng)
            gc.collect()
            memory.append(resident_mib())
            print(f"{kill + 1}/{kills} {sum(topic.sent for topic in topics)} sent", flush=True)
        stop.set()
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            await asyncio.gather(*producing)
            while await asyncio.to_thread(_backlog, cluster, topics):  # noqa: ASYNC110 - by REST
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(SILENCE_S)
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)
        faults = [fault for topic in topics for fault in topic.faults]
        for topic in topics:
            faults += await _judge_log(client, topic)
            for name, got in topic.got.items():
                missing = topic.sent - len(got)
                faults += [f"{topic.name}, {name}: {missing} messages missing"] * bool(missing)
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - at_first
    faults += [f"task left: {task}" for task in left]
    faults += _judge_memory(memory)
    print(
        f"{sum(topic.receipts for topic in topics)} messages, {kills} kills, {len(faults)} faults"
    )
    return faults


async def _strike(cluster: LocalCluster, name: str, rng: random.Random) -> None:
    await asyncio.to_thread(cluster.kill, name)
    await asyncio.sleep(rng.uniform(0, DOWN_S_MAX))
    await asyncio.to_thread(cluster.start, name)
    await asyncio.to_thread(cluster.wait_ready, [name], READY_TIMEOUT_S)
    await asyncio.sleep(rng.uniform(0, UP_S_MAX))


def _judge_memory(memory_mib: list[float]) -> list[str]:
    """Compares the memory after the last kill with that after the first ones."""
    steady = memory_mib[WARM_KILLS - 1 :]
    if len(steady) < 2:
        return []
    print(f"memory after {WARM_KILLS} kills {steady[0]:.1f} MiB, at the end {steady[-1]:.1f} MiB")
    per_kill_kib = (steady[-1] - steady[0]) * 1024 / (len(steady) - 1)
    if per_kill_kib <= GROWTH_KIB_PER_KILL_MAX:
        return []
    return [f"memory grew by {per_kill_kib:.0f} KiB per kill"]


def _backlog(cluster: LocalCluster, topics: list[Topic]) -> int:
    """The unacknowledged messages of all subscriptions."""
    backlog = 0
    for topic in topics:
        url = f"{brokers(cluster)[0].http_url}/admin/v2/{topic.name.replace('://', '/')}/stats"
        answer = httpx.get(url, timeout=REST_TIMEOUT_S, follow_redirects=True).raise_for_status()
        subscriptions = answer.json()["subscriptions"].values()
        backlog += sum(subscription["msgBacklog"] for subscription in subscriptions)
    return backlog


async def _judge_log(client: Client, topic: Topic) -> list[str]:
    """Every number is in the log once, in order."""
    found: list[int] = []
    async with client.reader(topic.name, EARLIEST) as reader:
        while len(found) < topic.sent or await reader.has_message_available():
            found.append(int((await reader.read(READ_TIMEOUT_S)).value))
    if found == list(range(topic.sent)):
        return []
    return [f"{topic.name}: {len(found)} messages ({len(set(found))} different) of {topic.sent}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}")
    with (
        tempfile.TemporaryDirectory(prefix="client-kills-") as root,
        running_cluster(
            Path(root), bookies=2, brokers=2, brokerDeduplicationEnabled=True
        ) as cluster,
    ):
        url = f"{brokers(cluster)[0].http_url}/admin/v2/namespaces/public/default/retention"
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        httpx.post(url, json=keep, timeout=REST_TIMEOUT_S).raise_for_status()
        faults = asyncio.run(campaign(cluster, options.kills, random.Random(options.seed)))
    for fault in sorted(faults, key=len)[:20]:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
