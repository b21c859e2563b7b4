"""The faults of a plan, each with its effect and its end.

A fault that finds its target gone already picks nothing and does nothing: faults overlap freely.
Those that take a copy for good keep to one bookie (see `plan.LOSSY`).
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.append_faults import APPEND_FAULTS
from tests.sim.churn_faults import CHURN_FAULTS, Play, cut_for
from tests.sim.claim_races import CLAIM_RACES
from tests.sim.decommissions import DECOMMISSIONS
from tests.sim.nodes import Node
from tests.sim.offloads import OFFLOAD_FAULTS
from tests.sim.plan import FaultPlan
from tests.sim.txn_kills import TXN_FAULTS

if TYPE_CHECKING:
    from tests.sim.world import World

BETWEEN_RESETS_S: Final = 0.4
BETWEEN_STALLS_S: Final = 0.4
FLIPPED_BITS_MAX: Final = 3
LEAPS_MS: Final = (-31_536_000_000, -7_200_000, 7_200_000, 31_536_000_000)
"""Two hours and a year: more than `brokers.MESSAGE_TTL_S`."""
LEAP_SPREAD_MS: Final = 7_000_000
STOP_S_MAX: Final = 30.0
STEPS_MAX: Final = 40
FLIPPED_BEHIND_BYTES: Final = 6 << 10
"""Bytes at the end of a journal; earlier ones are mostly in entry logs already."""


async def play(world: "World") -> None:
    """Plays all faults of the plan; returns when the last one has ended."""
    begun = world.loop.now
    async with asyncio.TaskGroup() as group:
        for fault in world.plan.faults:
            group.create_task(_play_one(world, fault, begun))
    workload_s = max((t.pace_s * t.messages for t in world.plan.topics), default=0.0)
    await asyncio.sleep(max(begun + min(workload_s, 30.0) - world.loop.now, 0.0))


async def _play_one(world: "World", fault: FaultPlan, begun: float) -> None:
    await asyncio.sleep(begun + fault.at_s - world.loop.now)
    world.watching.counts[f"fault: {fault.kind}"] += 1
    await FAULTS[fault.kind](world, fault, Random(fault.seed))


def _one_of(nodes: list[Node], rng: Random) -> Node | None:
    """A node that lives; which one does not hang on which of them live."""
    node = nodes[rng.randrange(len(nodes))]
    return node if node.alive else None


def _kill(bookies: bool, *, power: bool = False) -> Play:
    async def kill(world: "World", fault: FaultPlan, rng: Random) -> None:
        node = _one_of(world.bookies if bookies else world.brokers, rng)
        if node is None:
            return
        life = node.process
        if power and rng.random() < 0.6:
            steps = rng.randint(1, STEPS_MAX)
            world.tell(f"{node.name} loses power at the {steps}th step of its disk from now")
            node.power_off_within(steps)
        elif power:
            world.tell(f"{node.name} loses power for {fault.for_s:.2f} s")
            node.power_off()
        else:
            world.tell(f"{node.name} is killed for {fault.for_s:.2f} s")
            node.kill()
        await asyncio.sleep(fault.for_s)
        if node.disk is not None:
            node.disk.cut_at = -1  # also where the process has ended by something else
        if node.process is life and not node.alive:
            world.tell(f"{node.name} starts again")
            node.start()

    return kill


def _stop(bookies: bool) -> Play:
    async def stop(world: "World", fault: FaultPlan, rng: Random) -> None:
        node = _one_of(world.bookies if bookies else world.brokers, rng)
        if node is None or node.stop is None or node.process is None:
            return
        life, ending = node.process, node.stop
        node.stop = None
        world.tell(f"{node.name} is stopped in order, for {fault.for_s:.2f} s")
        stopping = life.start(ending(), "stop")
        await asyncio.wait([stopping], timeout=STOP_S_MAX)
        if node.process is not life:
            return
        world.tell(f"{node.name} has {'ended' if stopping.done() else 'not ended in time'}")
        node.kill()
        await asyncio.sleep(fault.for_s)
        if node.process is life:
            world.tell(f"{node.name} starts again")
            node.start()

    return stop


def _pause(bookies: bool) -> Play:
    async def pause(world: "World", fault: FaultPlan, rng: Random) -> None:
        node = _one_of(world.bookies if bookies else world.brokers, rng)
        if node is None or node.process is None or node.process.paused:
            return
        life = node.process
        world.tell(f"{node.name} is paused for {fault.for_s:.2f} s")
        life.pause()
        await asyncio.sleep(fault.for_s)
        if life.paused and life.alive:
            world.tell(f"{node.name} goes on")
            life.resume()

    return pause


async def _isolate(world: "World", fault: FaultPlan, rng: Random) -> None:
    name = rng.choice(sorted(world.nodes))
    others = [host for host in world.hosts() if host != name]
    world.tell(f"{name} is cut off from all for {fault.for_s:.2f} s")
    pairs = [pair for other in others for pair in ((name, other), (other, name))]
    await cut_for(world, fault.for_s, pairs)
    world.tell(f"{name} is back on the network")


async def _cut_one_way(world: "World", fault: FaultPlan, rng: Random) -> None:
    source, target = rng.sample(world.hosts(), 2)
    world.tell(f"nothing passes from {source} to {target} for {fault.for_s:.2f} s")
    await cut_for(world, fault.for_s, [(source, target)])


async def _stalls(world: "World", fault: FaultPlan, rng: Random) -> None:
    """What one process sends to one bookie waits, now and then."""
    source, end = rng.choice(world.brokers).name, world.loop.now + fault.for_s
    world.tell(f"what {source} sends to bookies stalls now and then for {fault.for_s:.2f} s")
    async with asyncio.TaskGroup() as group:
        while world.loop.now < end:
            target = rng.choice(world.bookies).name
            group.create_task(cut_for(world, rng.uniform(0.05, 1.5), [(source, target)]))
            await asyncio.sleep(rng.expovariate(1 / BETWEEN_STALLS_S))


async def _cut_both_ways(world: "World", fault: FaultPlan, rng: Random) -> None:
    one, other = rng.choice(sorted(world.nodes)), rng.choice(world.hosts())
    world.tell(f"nothing passes between {one} and {other} for {fault.for_s:.2f} s")
    await cut_for(world, fault.for_s, [(one, other), (other, one)])


async def _cut_off_metadata(world: "World", fault: FaultPlan, rng: Random) -> None:
    name = rng.choice(sorted(world.nodes))
    world.tell(f"{name} cannot reach the metadata store for {fault.for_s:.2f} s")
    await cut_for(world, fault.for_s, [(name, "metadata"), ("metadata", name)])


async def _metadata_down(world: "World", fault: FaultPlan, rng: Random) -> None:
    if world.metadata.down:
        return
    world.tell(f"the metadata store is down for {fault.for_s:.2f} s")
    world.metadata.go_down()
    await asyncio.sleep(fault.for_s)
    world.metadata.come_up()
    if rng.random() < 0.5:
        world.metadata.compact()


async def _metadata_loses_answers(world: "World", fault: FaultPlan, rng: Random) -> None:
    chance = rng.choice((0.05, 0.2, 0.5))
    world.tell(f"the metadata store loses {chance:.0%} of its answers for {fault.for_s:.2f} s")
    world.metadata.lost_answer_chance = chance
    await asyncio.sleep(fault.for_s)
    world.metadata.lost_answer_chance = 0.0


async def _metadata_compacts(world: "World", fault: FaultPlan, rng: Random) -> None:
    world.metadata.compact()


async def _slow_disk(world: "World", fault: FaultPlan, rng: Random) -> None:
    node = rng.choice(world.bookies)
    node.disk_ms = rng.choice((20.0, 200.0, 1500.0))
    world.tell(f"a sync of {node.name} takes {node.disk_ms:.0f} ms for {fault.for_s:.2f} s")
    await asyncio.sleep(fault.for_s)
    node.disk_ms = 0.3


async def _full_disk(world: "World", fault: FaultPlan, rng: Random) -> None:
    node = rng.choice(world.bookies)
    if node.disk is None:
        return
    node.disk.capacity = node.disk.used() + rng.choice((0, 8 << 10, 40 << 10))
    world.tell(f"the disk of {node.name} is nearly full for {fault.for_s:.2f} s")
    await asyncio.sleep(fault.for_s)
    node.disk.capacity = node.capacity


async def _flip_bits(world: "World", fault: FaultPlan, rng: Random) -> None:
    node = rng.choice(world.bookies)
    disk = node.disk
    if disk is None:
        return
    logs = [
        path
        for path, inode in sorted(disk.inodes.items())
        if path.parent.name == "entry-logs" and len(inode.data)
    ]
    for _ in range(rng.randint(1, FLIPPED_BITS_MAX)):
        if logs:
            path = rng.choice(logs)
            bit = rng.randrange(8 * len(disk.inodes[path].data))
            node.harmed = True
            disk.flip(path, bit)
            world.tell(f"{node.name}: bit {bit % 8} of byte {bit // 8} of {path} is flipped")


async def _flip_journal(world: "World", fault: FaultPlan, rng: Random) -> None:
    """Bits of what a restart would replay; so the bookie is restarted."""
    node = rng.choice(world.bookies)
    if node.disk is None or not node.alive:
        return
    node.kill()
    life = node.process
    journals = [
        path
        for path, inode in sorted(node.disk.inodes.items())
        if path.parent.name == "journal" and any(inode.data)
    ]
    for _ in range(rng.randint(1, FLIPPED_BITS_MAX)):
        if journals:
            path = journals[-1] if rng.random() < 0.7 else rng.choice(journals)
            used = len(node.disk.inodes[path].data.rstrip(b"\0"))
            bit = 8 * used - 1 - rng.randrange(8 * min(used, FLIPPED_BEHIND_BYTES))
            node.harmed = True
            node.disk.flip(path, bit)
            world.tell(f"{node.name}: bit {bit % 8} of byte {bit // 8} of {path} is flipped")
    await asyncio.sleep(fault.for_s)
    if node.process is life:
        node.start()


async def _wipe(world: "World", fault: FaultPlan, rng: Random) -> None:
    node = rng.choice(world.bookies)
    world.tell(f"{node.name} gets an empty disk, after {fault.for_s:.2f} s")
    node.kill()
    life = node.process
    node.wipe()
    await asyncio.sleep(fault.for_s)
    if node.process is life:
        node.start()


async def _clock_jump(world: "World", fault: FaultPlan, rng: Random) -> None:
    node = world.nodes[rng.choice(sorted(world.nodes))]
    jump_ms = rng.choice((-30_000, -3_000, 3_000, 30_000))
    if world.plan.ages:
        # Until it is put right, which a new life finds done; one that begins with a wrong clock
        # has nothing to see that by.
        leap_ms = rng.choice(LEAPS_MS)
        world.tell(f"the wall clock of {node.name} leaps by {leap_ms / 1000:.0f} s")
        clock = node.clock
        clock.skew_ms += leap_ms
        await asyncio.sleep(fault.for_s)
        clock.skew_ms -= leap_ms
        world.tell(f"the wall clock of {node.name} is put right")
        return
    world.tell(f"the wall clock of {node.name} jumps by {jump_ms / 1000:.0f} s")
    node.jump_clock(jump_ms)


async def _leap_of_all_clocks(world: "World", fault: FaultPlan, rng: Random) -> None:
    """Every node's wall clock leaps, each by another time, until it is put right.

    Not that of a broker that is starting: a clock that is wrong at the start is not detected.
    """
    nodes = list(world.nodes.values())
    leaps = [rng.choice(LEAPS_MS) + rng.randrange(-LEAP_SPREAD_MS, LEAP_SPREAD_MS) for _ in nodes]
    starting = [node for node in world.brokers if node.alive and not node.ready]
    leaps = [0 if node in starting else leap for node, leap in zip(nodes, leaps, strict=True)]
    clocks = [node.clock for node in nodes]
    world.tell(f"all wall clocks leap, by {[leap // 3_600_000 for leap in leaps]} hours")
    for clock, leap_ms in zip(clocks, leaps, strict=True):
        clock.skew_ms += leap_ms
    await asyncio.sleep(fault.for_s)
    for clock, leap_ms in zip(clocks, leaps, strict=True):
        clock.skew_ms -= leap_ms


async def _resets(world: "World", fault: FaultPlan, rng: Random) -> None:
    world.tell(f"connections are reset for {fault.for_s:.2f} s")
    end = world.loop.now + fault.for_s
    while world.loop.now < end:
        if connections := list(world.network.connections):
            world.network.reset(rng.choice(connections))
        await asyncio.sleep(rng.expovariate(1 / BETWEEN_RESETS_S))


async def _slow_network(world: "World", fault: FaultPlan, rng: Random) -> None:
    weather = world.network.weather
    former = weather.slow_chance, weather.slow_s
    weather.slow_chance, weather.slow_s = rng.choice((0.05, 0.3)), rng.choice((0.2, 1.0, 3.0))
    world.tell(f"{weather.slow_chance:.0%} of segments are slow for {fault.for_s:.2f} s")
    await asyncio.sleep(fault.for_s)
    weather.slow_chance, weather.slow_s = former


async def _unload(world: "World", fault: FaultPlan, rng: Random) -> None:
    node = _one_of(world.brokers, rng)
    if node is None or node.admin is None or node.process is None:
        return
    topic = rng.choice(world.plan.topics)
    world.tell(f"{node.name} is asked to unload {topic.name}")
    node.process.start(node.admin.unload_bundle(topic.name), "unload")


async def _late_copy(world: "World", fault: FaultPlan, rng: Random) -> None:
    await world.late_copy(rng)


FAULTS: Final[dict[str, Play]] = {
    "late copy": _late_copy,
    "kill bookie": _kill(True),
    "kill broker": _kill(False),
    "power off bookie": _kill(True, power=True),
    "pause bookie": _pause(True),
    "pause broker": _pause(False),
    "isolate": _isolate,
    "cut one way": _cut_one_way,
    "cut both ways": _cut_both_ways,
    "stalls": _stalls,
    "cut off metadata": _cut_off_metadata,
    "metadata down": _metadata_down,
    "metadata loses answers": _metadata_loses_answers,
    "metadata compacts": _metadata_compacts,
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "flip bits": _flip_bits,
    "flip journal": _flip_journal,
    "wipe bookie": _wipe,
    "clock jump": _clock_jump,
    "resets": _resets,
    "slow network": _slow_network,
    "unload": _unload,
    "stop broker": _stop(False),
    "stop bookie": _stop(True),
    **CHURN_FAULTS,
    **APPEND_FAULTS,
    **CLAIM_RACES,
    **DECOMMISSIONS,
    **OFFLOAD_FAULTS,
    **TXN_FAULTS,
    "leap of all clocks": _leap_of_all_clocks,
}
