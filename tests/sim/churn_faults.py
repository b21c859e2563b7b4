"""Faults that close topics, move and split bundles, and leave writes under way in the store."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.admin import ALGORITHMS
from tests.sim.bookies import SESSION_TTL_S
from tests.sim.metadata import Writes
from tests.sim.nodes import Node
from tests.sim.plan import FaultPlan

if TYPE_CHECKING:
    from tests.sim.world import World

Play = Callable[["World", FaultPlan, Random], Awaitable[None]]

BETWEEN_UNLOADS_S: Final = 0.7
HURRY_S: Final = 0.3
"""Acks that waited for a topic's closing come within this time of it."""
UNKNOWN_S: Final = 14.0
"""After so long a write of which no repetition was answered is given up (`write_guarded`)."""
OUTLIVE_S_MAX: Final = 4.0
"""How much longer than its lease a broker is away from the store, at most."""


async def cut_for(world: "World", for_s: float, pairs: list[tuple[str, str]]) -> None:
    """Cuts these directions, for a time."""
    for source, target in pairs:
        world.network.cut(source, target)
    await asyncio.sleep(for_s)
    for source, target in pairs:
        world.network.heal(source, target)


def owner_of(world: "World", topic: str) -> Node | None:
    """The broker that serves the topic now, if there is one."""
    for node in world.brokers:
        if node.alive and node.admin is not None and node.admin.owns(topic):
            return node
    return None


async def _unloads(world: "World", fault: FaultPlan, rng: Random, *, bundles: bool) -> None:
    """Unloads topics again and again, with acks that come just then."""
    end = world.loop.now + fault.for_s
    while world.loop.now < end:
        topic = rng.choice(world.topic_names())
        node = owner_of(world, topic)
        if node is not None and node.process is not None and node.admin is not None:
            unload = node.admin.unload_bundle if bundles else node.admin.unload_topic
            what = "the bundle of " if bundles else ""
            world.tell(f"{node.name} is asked to unload {what}{topic}")
            world.hurry_acks(topic, HURRY_S)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0.0, HURRY_S / 2))
            if node.alive:
                node.process.start(unload(topic), "unload")
        await asyncio.sleep(rng.expovariate(1 / BETWEEN_UNLOADS_S))


async def _unload_topic(world: "World", fault: FaultPlan, rng: Random) -> None:
    await _unloads(world, fault, rng, bundles=False)


async def _unload_bundles(world: "World", fault: FaultPlan, rng: Random) -> None:
    await _unloads(world, fault, rng, bundles=True)


async def _split_bundle(world: "World", fault: FaultPlan, rng: Random) -> None:
    topic = rng.choice(world.topic_names())
    node = owner_of(world, topic)
    if node is None or node.process is None or node.admin is None:
        return
    algorithm, unload = rng.choice(ALGORITHMS), rng.random() < 0.4
    world.tell(f"{node.name} is asked to split the bundle of {topic} by {algorithm}")
    split = node.admin.split_bundle(topic, algorithm, unload=unload)
    node.process.start(split, "split")


async def _expire_lease(world: "World", fault: FaultPlan, rng: Random) -> None:
    """A broker's leases end in the store while it is in touch with it."""
    node = rng.choice(world.brokers)
    if not node.alive or node.store is None:
        return
    world.hurry_acks(None, HURRY_S)
    end_leases(world, node)


def end_leases(world: "World", node: Node) -> None:
    """Ends all leases of a node in the store, if the node can hear of it.

    Nothing ends the lease of a live broker that cannot reach the store before its TTL is over.
    """
    network = world.network
    if node.store is None or not network.passes("metadata", node.name):
        return
    world.tell(f"the leases of {node.name} are ended")
    store = world.metadata.store
    for lease_id in node.store.lease_ids():
        world.metadata.process.start(store.revoke_lease(lease_id), "revoke")


def serves_without_lease(world: "World", host: str, topic: str) -> bool:
    """Whether the broker on that host serves the topic by a lease that has ended early.

    Its clock gives it the right to; in touch with the store, it hears of the end soon.
    """
    leases = world.metadata.store._leases._leases
    for node in world.brokers:
        if node.name == host and node.alive and node.store is not None and node.admin is not None:
            ended = any(lease_id not in leases for lease_id in node.store.lease_ids())
            return ended and node.admin.owns(topic)
    return False


async def _writes_under_way(world: "World", fault: FaultPlan, rng: Random) -> None:
    """Acks are being written, and ledgers trimmed, while the topic is unloaded and opened again.

    Writes do not arrive, are late or not answered, for a moment only: when the topic is opened
    again, its former instance still has them under way.
    """
    topic = rng.choice(world.topic_names())
    node = owner_of(world, topic)
    if node is None or node.process is None or node.admin is None:
        return
    world.metadata.writes = rng.choice(
        (
            Writes(lost_chance=rng.choice((0.5, 1.0))),
            Writes(late_chance=0.7, late_s=rng.choice((0.1, 1.0, 4.0))),
            Writes(slow_chance=1.0, slow_s=rng.choice((0.1, 1.0, 3.0))),
            Writes(lost_answer_chance=0.7),
        )
    )
    what = rng.choice(("lease", "lease", "topic", "bundle"))
    within_s = rng.choice((0.05, 0.3, 1.5))
    world.tell(f"{world.metadata.writes}, then {node.name} loses {topic} by its {what}")
    world.hurry_acks(None, within_s)
    world.provoke()
    await asyncio.sleep(rng.uniform(0.0, 1.5 * within_s))
    if rng.random() < 0.7:
        world.metadata.writes = Writes()
    if what == "lease":
        end_leases(world, node)
    elif node.alive and node.admin is not None:
        unload = node.admin.unload_bundle if what == "bundle" else node.admin.unload_topic
        node.process.start(unload(topic), "unload")
    await asyncio.sleep(fault.for_s)
    world.metadata.writes = Writes()


async def _outlive_lease(world: "World", fault: FaultPlan, rng: Random) -> None:
    """A broker cannot reach the store for longer than its lease lasts."""
    name = rng.choice(world.brokers).name
    for_s = SESSION_TTL_S + rng.uniform(0.0, OUTLIVE_S_MAX)
    world.tell(f"{name} cannot reach the metadata store for {for_s:.2f} s, past its lease")
    ways = [(name, "metadata"), ("metadata", name)]
    pairs = rng.choice((ways, ways, ways[1:]))
    await cut_for(world, for_s, pairs)


async def _slow_writes(world: "World", fault: FaultPlan, rng: Random) -> None:
    chance, slow_s = rng.choice((0.3, 1.0)), rng.choice((0.2, 1.0, 2.5, 5.0))
    await _writes(world, Writes(slow_chance=chance, slow_s=slow_s), fault.for_s)


async def _late_writes(world: "World", fault: FaultPlan, rng: Random) -> None:
    chance, late_s = rng.choice((0.2, 0.5)), rng.choice((0.2, 1.0, 4.0, 8.0))
    await _writes(world, Writes(late_chance=chance, late_s=late_s), fault.for_s)


async def _unanswered_writes(world: "World", fault: FaultPlan, rng: Random) -> None:
    """Writes land and are not answered: for so long that even repetitions end in the unknown."""
    for_s = rng.choice((fault.for_s, UNKNOWN_S + fault.for_s / 2))
    await _writes(world, Writes(lost_answer_chance=rng.choice((0.3, 1.0, 1.0))), for_s)


async def _writes(world: "World", writes: Writes, for_s: float) -> None:
    """Delays or loses writes to the store for a time."""
    world.tell(f"{writes} for {for_s:.2f} s")
    world.metadata.writes = writes
    world.provoke()
    await asyncio.sleep(for_s)
    world.metadata.writes = Writes()


async def _cut_off_bookies(world: "World", fault: FaultPlan, rng: Random) -> None:
    """Nothing that a broker appends gets anywhere: appends fail, and wait for new ledgers."""
    name = rng.choice(world.brokers).name
    world.tell(f"{name} cannot reach the bookies for {fault.for_s:.2f} s")
    pairs = [(name, bookie.name) for bookie in world.bookies]
    if rng.random() < 0.5:
        pairs += [(target, source) for source, target in pairs]
    await cut_for(world, fault.for_s, pairs)


CHURN_FAULTS: Final[dict[str, Play]] = {
    "unload topic": _unload_topic,
    "unload bundles": _unload_bundles,
    "split bundle": _split_bundle,
    "expire lease": _expire_lease,
    "outlive lease": _outlive_lease,
    "slow writes": _slow_writes,
    "late writes": _late_writes,
    "unanswered writes": _unanswered_writes,
    "writes under way": _writes_under_way,
    "cut off bookies": _cut_off_bookies,
}
