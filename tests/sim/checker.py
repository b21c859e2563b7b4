"""What must hold when a run has settled: a fresh consumer reads the whole topic, and copies count.

What could be held to at once was: see `history.py`.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from tests.sim.copies import check_copies
from tests.sim.history import TopicHistory
from tests.sim.loop import Process
from tests.sim.reading import read_all

if TYPE_CHECKING:
    from tests.sim.world import World

READ_S_MAX: Final = 120.0


async def check(world: "World") -> None:
    """Every rule that is asked at the end."""
    history = world.history
    await _leave(world)
    for plan in world.plan.topics:
        topic = history.topics[plan.name]
        for key, sent in topic.sent.items():
            if not sent.stored:
                history.violated(f"{topic.name}: {key} was never receipted")
                break
        if plan.audited:
            await _check_log(world, topic)
    for of in history.topics.values():
        for subscription in of.subscriptions.values():
            if subscription.keyed is not None and subscription.keyed.moves:
                world.watching.counts["a key moved to another consumer"] += 1
    await check_copies(world)


def check_failures(world: "World") -> None:
    """Asserts that no task of any node ended with an unexpected exception."""
    world.loop.unread_failures(world.processes())
    for process, text, error in world.loop.failures:
        world.history.violated(f"unhandled in {process.name}: {text} {error!r}")
    for text, seen in world.watching.corrupt.items():
        world.history.violated(f"a cursor is lost: {seen}: {text}")
    for text in world.watching.errors:
        world.history.violated(f"an error was logged: {text}")


async def _leave(world: "World") -> None:
    """The consumers go, so that the audit can have the subscriptions."""
    for client in world.clients:
        world.network.killed(client)
        client.kill()
    await asyncio.sleep(0.1)


async def _check_log(world: "World", topic: TopicHistory) -> None:
    """Compares the topic's whole content, in order, with the messages sent and their receipts."""
    reader = Process(world.loop, "auditor", "auditor")
    violated = world.history.violated
    wanted = {sent.receipt for sent in topic.sent.values() if sent.receipt is not None}
    try:
        found = await reader.start(read_all(world, topic.name, "audit", max(wanted)), "audit")
    except TimeoutError:
        violated(f"{topic.name} could not be read to its end in {READ_S_MAX:.0f} s")
        return
    world.network.killed(reader)
    reader.kill()
    last: dict[str, int] = {}
    times: dict[tuple[str, int], int] = {}
    before = (-1, -1)
    for position, key, payload in found:
        if position < before:
            violated(f"{topic.name}: {position} was read after {before}")
        before = position
        sent = topic.sent.get(key)
        if sent is None:
            violated(f"{topic.name}: {key} at {position} was never sent")
            continue
        if sent.payload != payload:
            violated(f"{topic.name}: {key} at {position} is not what was sent")
        times[key] = times.get(key, 0) + 1
        producer, sequence = key
        if times[key] == 1:
            if sequence != last.get(producer, -1) + 1:
                violated(
                    f"{topic.name}: {key} at {position} comes after {last.get(producer, -1)}: "
                    f"out of order, or one is missing"
                )
            last[producer] = max(sequence, last.get(producer, -1))
        if times[key] > 1 and world.plan.deduplicates:
            violated(f"{topic.name}: {key} is there {times[key]} times, in spite of deduplication")
        if times[key] > sent.sends:
            violated(f"{topic.name}: {key} is there {times[key]} times, sent {sent.sends} times")
    at = {position: key for position, key, _ in found}
    for key, sent in topic.sent.items():
        if not sent.stored:
            continue
        if not times.get(key):
            violated(f"{topic.name}: {key}, receipted as {sent.receipt}, is lost")
        elif sent.receipt is not None and sent.receipt not in at:
            violated(f"{topic.name}: {key} was receipted as {sent.receipt}, which is not there")
