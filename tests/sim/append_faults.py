"""Faults that make appends fail, cursors unreadable and leases late.

`late quorum` and `fail at the swap` act at exact moments, so they watch what bookies store and
when a writer swaps its ledger's record.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.bookies import registered_bookies
from tests.sim.brokers import ledger_settings
from tests.sim.churn_faults import Play, cut_for, owner_of
from tests.sim.metadata import MetadataClient
from tests.sim.nodes import Node
from tests.sim.plan import FaultPlan

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError
from magnetar.ledger import ensemble_change
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.record import (
    CURSORS_PREFIX,
    NO_LEDGER,
    decode_cursor,
)

if TYPE_CHECKING:
    from tests.sim.world import World

DOWN_S_MAX: Final = 2.0
SWAP_S_MAX: Final = 0.02
"""About as long as a swap takes in good weather."""
FENCE_S_MAX: Final = 20.0
UNREADABLE_S_MAX: Final = 8.0

SWAP: Final = "swap"
Swap = Callable[[Any, LedgerMetadata, int], Awaitable[int]]


async def down_for(world: "World", nodes: Iterable[Node], for_s: float) -> None:
    """Kills these nodes, and starts them again."""
    lives = [(node, node.process) for node in nodes if node.alive]
    for node, _ in lives:
        world.tell(f"{node.name} is killed for {for_s:.2f} s")
        node.kill()
    await asyncio.sleep(for_s)
    for node, life in lives:
        if node.process is life:
            node.start()


def writer_of(world: "World", topic: str) -> tuple[Node, LedgerWriter] | None:
    """The broker that serves the topic, and the ledger that it writes."""
    node = owner_of(world, topic)
    if node is None or node.service is None:
        return None
    for one in node.service.topics:
        if isinstance(one, PersistentTopic) and one.full_name == topic:
            writer = one.managed_ledger._appender.writer
            return None if writer is None or writer.error is not None else (node, writer)
    return None


async def _most_bookies_down(world: "World", fault: FaultPlan, rng: Random) -> None:
    """Fewer bookies live than an ack quorum has, so every append fails."""
    count = len(world.bookies) - world.plan.quorum[2] + 1
    for _ in range(rng.choice((1, 2, 4))):
        await down_for(world, rng.sample(world.bookies, count), rng.uniform(0.1, DOWN_S_MAX))
        await asyncio.sleep(rng.uniform(0.1, DOWN_S_MAX))


async def _fence_ledger(world: "World", fault: FaultPlan, rng: Random) -> None:
    """Another process recovers, and so fences, the ledger that a topic's owner writes."""
    found = writer_of(world, rng.choice(world.topic_names())) if world.topic_names() else None
    if found is None:
        return
    ledger_id = found[1].ledger_id
    world.tell(f"a stranger ends ledger {ledger_id} of {found[0].name}")
    stranger = Node(world.loop, world.network, "stranger", lambda _: asyncio.sleep(0))
    stranger.start()
    assert stranger.process is not None

    async def end() -> None:
        store = MetadataClient(world.metadata, stranger.clock)
        bookies = registered_bookies(stranger, store)
        await bookies.start()
        ledgers = LedgerClient(
            store, bookies, stranger.clock, ledger_settings(world), rng=stranger.rng
        )
        with suppress(MagnetarError, TimeoutError):
            await ledgers.open(ledger_id, recover=True)

    await asyncio.wait([stranger.process.start(end(), "end a ledger")], timeout=FENCE_S_MAX)
    stranger.kill()


async def _late_quorum(world: "World", fault: FaultPlan, rng: Random) -> None:
    await world.late_quorum(rng)


# -- at the swap


def _in_use(world: "World", rng: Random) -> list[Node]:
    """The bookies of a ledger that is being written."""
    writers = [one for topic in world.topic_names() if (one := writer_of(world, topic))]
    writers += world.writers()
    if not writers:
        return []
    return [world.nodes[one.bookie_id] for one in rng.choice(writers)[1].bookies]


def watch_swaps(world: "World") -> None:
    """Reports every change of an ensemble that a writer is about to record, and has recorded."""
    swap: Swap = getattr(ensemble_change, SWAP)  # it must be there

    async def watched(context: Any, wanted: LedgerMetadata, revision: int) -> int:
        world.on_swap("before", wanted)
        changed = await swap(context, wanted, revision)
        world.on_swap("after", wanted)
        return changed

    setattr(ensemble_change, SWAP, watched)


async def _fail_at_the_swap(world: "World", fault: FaultPlan, rng: Random) -> None:
    """A bookie dies, so that its ledgers change their ensembles; another one dies at the swap."""
    moment = rng.choice(("before", "at", "after"))
    armed = asyncio.get_running_loop().create_future()

    def swapping(when: str, wanted: LedgerMetadata) -> None:
        if armed.done() or (when == "after") != (moment == "after"):
            return
        if len(wanted.ensembles) > 1:
            armed.set_result(wanted)

    world.on_swap = swapping
    killed = rng.choice(_in_use(world, rng) or world.bookies)
    first = asyncio.ensure_future(down_for(world, [killed], fault.for_s))
    try:
        async with asyncio.timeout(max(fault.for_s, 1.0)):
            wanted: LedgerMetadata = await armed
        if moment == "at":
            await asyncio.sleep(rng.uniform(0.0, SWAP_S_MAX))
        name = rng.choice(wanted.ensembles[rng.choice((-1, -1, -2))].bookies).bookie_id
        world.tell(f"ledger {wanted.ledger_id} is being swapped ({moment})")
        world.watching.counts["a bookie failed at a swap"] += 1
        await down_for(world, [world.nodes[name]], rng.uniform(0.2, DOWN_S_MAX))
    except TimeoutError:
        pass
    await first


# -- cursors


async def _cursors_unreadable(world: "World", fault: FaultPlan, rng: Random) -> None:
    """Bookies refuse reads of cursor ledgers, or delay them, while a topic is opened again."""
    topics = world.topic_names()
    node = owner_of(world, topic := rng.choice(topics)) if topics else None
    if node is None or node.process is None or node.admin is None:
        return
    ledgers = frozenset(
        ledger_id
        for key, one in world.metadata.store._records.items()
        if key.startswith(CURSORS_PREFIX)
        for record in (decode_cursor(key, one.value),)
        for ledger_id in (record.ledger_id, *record.kept)
        if ledger_id != NO_LEDGER
    )
    delay_s = rng.choice((0.0, 0.0, rng.uniform(0.5, 6.0)))
    for_s = rng.uniform(1.0, UNREADABLE_S_MAX)
    world.tell(f"cursor ledgers {sorted(ledgers)} are late by {delay_s:.1f} s for {for_s:.1f} s")
    for bookie in world.bookies:
        bookie.promises.unreadable, bookie.promises.late_s = ledgers, delay_s
    world.hurry_acks(topic, 0.1)
    node.process.start(node.admin.unload_bundle(topic), "unload")
    await asyncio.sleep(for_s)
    for bookie in world.bookies:
        bookie.promises.unreadable = frozenset()


# -- receipts


async def _kill_at_a_receipt(world: "World", fault: FaultPlan, rng: Random) -> None:
    """A broker dies as soon as a client has the receipt of an ack, or of a commit of acks.

    Disks are slow: if the receipt came too early, its write is still under way.
    """
    armed = asyncio.get_running_loop().create_future()

    def receipted(topic: str) -> None:
        if not armed.done():
            armed.set_result(topic)

    await asyncio.sleep(rng.uniform(0.0, 0.3))
    disk_ms = rng.choice((5.0, 50.0, 300.0))
    for bookie in world.bookies:
        bookie.disk_ms = disk_ms
    world.habits.on_ack_receipt = receipted
    with suppress(TimeoutError):
        async with asyncio.timeout(max(fault.for_s, 1.0)):
            topic = await armed
        node = owner_of(world, topic)
        if node is not None:
            world.watching.counts["a broker died at a receipt"] += 1
            await down_for(world, [node], rng.uniform(0.1, 1.0))
    for bookie in world.bookies:
        bookie.disk_ms = 0.3


async def _late_renewals(world: "World", fault: FaultPlan, rng: Random) -> None:
    """A broker's renewals are answered late, and then it is cut off from the store."""
    node = rng.choice(world.brokers)
    late_s = rng.choice((0.3, 0.6, 1.0))
    world.tell(f"answers of the store to {node.name} are late by {late_s:.1f} s, then lost")
    world.metadata.late_to[node.name] = late_s
    await asyncio.sleep(2.0 + rng.uniform(0.0, 3.0))
    world.metadata.late_to.pop(node.name, None)
    await cut_for(world, 6.0 + rng.uniform(0.0, 2.0), [("metadata", node.name)])


async def _stop_past_the_lease(world: "World", fault: FaultPlan, rng: Random) -> None:
    """SIGSTOP for longer than the lease; then the broker continues with its former claims."""
    node = rng.choice(world.brokers)
    if not node.alive or node.process is None or node.process.paused:
        return
    life, for_s = node.process, 5.0 + rng.uniform(0.0, 4.0)
    world.tell(f"{node.name} is stopped for {for_s:.2f} s, past its lease")
    world.hurry_acks(None, 0.1)
    await asyncio.sleep(rng.uniform(0.0, 0.1))
    life.pause()
    await asyncio.sleep(for_s)
    if life.paused and life.alive:
        life.resume()


APPEND_FAULTS: Final[dict[str, Play]] = {
    "most bookies down": _most_bookies_down,
    "fence a ledger": _fence_ledger,
    "late quorum": _late_quorum,
    "fail at the swap": _fail_at_the_swap,
    "cursors unreadable": _cursors_unreadable,
    "kill at a receipt": _kill_at_a_receipt,
    "late renewals": _late_renewals,
    "stop past the lease": _stop_past_the_lease,
}
