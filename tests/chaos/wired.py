"""Clients that speak the protocol themselves, acks with receipts included, and note their history.

Key_Shared consumers of topics that others write, which come and go, and consumers and producers of
topics of their own (`moved`). Runs as a process of its own, which nobody kills. A line on stdin
calms the consumers: they stay. A second one ends all: producers wait for their receipts, and
consumers until nothing comes.
"""

import argparse
import asyncio
import contextlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.consumer import WireConsumer, addresses_of
from tests.chaos.moved import Feed, movers
from tests.chaos.recording import Histories, by_wire
from tests.history.events import Kind
from tests.sim.client import Client

KEYED: Final = "keyed"
KEYED_CONSUMERS: Final = 3
QUIET_S: Final = 5.0
"""All consumers are attached and nothing comes: what was due has come."""
RECEIPTS_TIMEOUT_S: Final = 60.0
QUIET_TIMEOUT_S: Final = 120.0


def keyed(
    addresses: list[tuple[str, int]], topic: str, histories: Histories, rng: random.Random
) -> list[WireConsumer]:
    """The consumers of one topic's Key_Shared subscription."""
    recording = by_wire(histories.of(topic))
    return [
        WireConsumer(
            Client(addresses, rng.randrange),
            recording,
            topic,
            KEYED,
            Kind.KEY_SHARED,
            f"{KEYED}-{number}",
            random.Random(rng.random()),
        )
        for number in range(KEYED_CONSUMERS)
    ]


async def consume(consumers: Sequence[WireConsumer], feeds: Sequence[Feed]) -> None:
    """Until two lines have come on stdin, and then nothing for a while."""
    tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
    feeding = [asyncio.create_task(feed.run()) for feed in feeds]
    await asyncio.to_thread(sys.stdin.readline)
    for consumer in consumers:
        consumer.calm.set()
    await asyncio.to_thread(sys.stdin.readline)
    for feed in feeds:
        feed.end()
    await asyncio.wait(feeding, timeout=RECEIPTS_TIMEOUT_S)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(QUIET_TIMEOUT_S):
            while min(one.quiet_s for one in consumers) < QUIET_S:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)
    for consumer in consumers:
        consumer.recording.drained(consumer.topic, consumer.subscription)
    for task in (*tasks, *feeding):
        task.cancel()
    ended = await asyncio.gather(*tasks, *feeding, return_exceptions=True)
    for consumer in consumers:
        await consumer.stop()
    for error in ended:
        if isinstance(error, Exception):
            raise RuntimeError("a client ended before its time") from error


async def run(
    services: list[str],
    admins: list[str],
    topics: list[str],
    moved: list[str],
    histories: Histories,
) -> None:
    rng, addresses = random.Random(), addresses_of(services)
    consumers: list[WireConsumer] = []
    for topic in topics:
        consumers += keyed(addresses, topic, histories, rng)
    for topic in moved:
        consumers += movers(addresses, admins, topic, histories.of(topic), rng)
    feeds = [
        Feed(Client(addresses, rng.randrange), topic, random.Random(rng.random()))
        for topic in moved
    ]
    try:
        await consume(consumers, feeds)
    finally:
        for topic, feed in zip(moved, feeds, strict=True):
            feed.note(histories.of(topic))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--services", nargs="+", required=True)
    parser.add_argument("--admins", nargs="+", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--keyed", nargs="*", required=True, help="topics that others write")
    parser.add_argument("--moved", nargs="+", required=True, help="topics of their own")
    args = parser.parse_args()
    with Histories(args.out, [*args.keyed, *args.moved]) as histories:
        asyncio.run(run(args.services, args.admins, args.keyed, args.moved, histories))


if __name__ == "__main__":
    main()
