"""Confirms an entry by just an ack quorum, then kills one bookie of that quorum and a laggard.

The ensemble changes from that very entry on, and the new bookies get the entry late. Meanwhile
another process ends the ledger without reaching the bookies that confirmed the entry. It must not
end the ledger before the entry.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.append_faults import down_for
from tests.sim.nodes import Node

from magnetar.core.tasks import TaskSet
from magnetar.ledger.quorum import write_set
from magnetar.ledger.writer import LedgerWriter

if TYPE_CHECKING:
    from tests.sim.ledger_world import LedgerWorld

WAITS_MAX: Final = 200
DOWN_S: Final = 2.0


async def late_quorum(world: "LedgerWorld", rng: Random) -> None:
    """Plays the fault once; does nothing if no ledger has bookies to spare."""
    able = [
        (node, writer)
        for node, writer in world.writing.values()
        if node.alive
        and writer.error is None
        and writer.metadata.ack_quorum < writer.metadata.write_quorum
        and len(writer.bookies) < len(world.bookies)
    ]
    enders = [node for node in world.brokers if node.alive and node.service is not None]
    if not able or not enders:
        return
    node, writer = rng.choice(able)
    ender = rng.choice(enders)
    entry_id, metadata = writer.next_entry, writer.metadata
    holders = [one.bookie_id for one in write_set(metadata, entry_id)]
    rng.shuffle(holders)
    confirming, lagging = holders[: metadata.ack_quorum], holders[metadata.ack_quorum :]
    others = [one.name for one in world.bookies if one.name not in confirming]
    world.tell(f"ledger {writer.ledger_id}: entry {entry_id} is confirmed by {confirming} alone")
    cuts = [(node.name, other) for other in others]
    for cut in cuts:
        world.network.cut(*cut)
    for name in confirming:
        _cut_once_stored(world, node, world.nodes[name], writer, entry_id, cuts)
    if await _confirmed(writer, entry_id):
        world.watching.counts["an entry was confirmed by its ack quorum alone"] += 1
        await _end_without(world, ender, writer, (confirming, lagging), rng)
    for name in confirming:
        world.nodes[name].promises.on_added = lambda *_: None
    for cut in cuts:
        world.network.heal(*cut)


def _cut_once_stored(
    world: "LedgerWorld",
    source: Node,
    bookie: Node,
    writer: LedgerWriter,
    entry_id: int,
    cuts: list[tuple[str, str]],
) -> None:
    """Cuts the writer off from the bookie as soon as the bookie has stored the entry."""

    def added(ledger_id: int, entry_ids: Sequence[int]) -> None:
        if ledger_id == writer.ledger_id and entry_id in entry_ids:
            bookie.promises.on_added = lambda *_: None
            world.network.cut(source.name, bookie.name)
            cuts.append((source.name, bookie.name))

    bookie.promises.on_added = added


async def _confirmed(writer: LedgerWriter, entry_id: int) -> bool:
    for _ in range(WAITS_MAX):
        if writer.last_add_confirmed >= entry_id:
            return True
        if writer.error is not None:
            return False
        await asyncio.sleep(0.005)
    return False


async def _end_without(
    world: "LedgerWorld",
    ender: Node,
    writer: LedgerWriter,
    holders: tuple[list[str], list[str]],
    rng: Random,
) -> None:
    """Kills a bookie of each kind, and has the ledger ended out of sight of the others."""
    confirming, lagging = holders
    down = [world.nodes[confirming[0]], *(world.nodes[name] for name in lagging)]
    rng.shuffle(down)
    unseen = [(ender.name, name) for name in confirming]
    for cut in unseen:
        world.network.cut(*cut)
    tasks = TaskSet("late quorum")
    killing = tasks.start(down_for(world, down, DOWN_S + rng.uniform(0.0, 2.0)), "kill")
    await asyncio.sleep(rng.uniform(0.05, 0.6))
    await world.end_by(ender, writer.ledger_id)
    await asyncio.sleep(rng.uniform(0.5, 1.5))
    for cut in unseen:
        world.network.heal(*cut)
    if killing is not None:
        await killing
