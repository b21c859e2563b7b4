"""Decommissions a bookie, and replaces it by an empty one of the same name.

The operator also asks for the proof early: it must fail until every ledger has all its copies on
other bookies. So each proof that succeeds is compared with the bookies' disks at once.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.bookies import RECOVERY, registered_bookies
from tests.sim.churn_faults import Play
from tests.sim.copies import closed_ledgers, lack_without
from tests.sim.metadata import MetadataClient
from tests.sim.nodes import Node
from tests.sim.plan import LOSSY, FaultPlan

from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.drain import drains
from magnetar.autorecovery.drain.decommission import Decommission
from magnetar.autorecovery.rate import ByteRate
from magnetar.core.errors import MagnetarError

if TYPE_CHECKING:
    from tests.sim.world import World

EMPTY_S_MAX: Final = 30.0
BETWEEN_PROOFS_S: Final = 2.0
AWAY_S: Final = 3.0
PASSING: Final = (MagnetarError, TimeoutError)


async def _decommission(world: "World", fault: FaultPlan, rng: Random) -> None:
    leaving = rng.choice(world.bookies)
    if len(world.bookies) <= world.plan.quorum[0] or world.leaving:
        return
    world.leaving = leaving.name
    operator = Node(world.loop, world.network, "operator", lambda _: asyncio.sleep(0))
    operator.start()
    assert operator.process is not None
    world.tell(f"{leaving.name} is to be emptied")
    work = operator.process.start(_emptied(world, operator, leaving), "decommission")
    await asyncio.wait([work], timeout=EMPTY_S_MAX)
    if work.done() and not work.cancelled() and work.exception() is None and work.result():
        world.watching.counts["a bookie was decommissioned"] += 1
        world.tell(f"{leaving.name} was emptied, and is replaced under its name")
        life = leaving.process
        leaving.kill()
        leaving.wipe()
        await asyncio.sleep(AWAY_S)
        if leaving.process is life:
            leaving.start()
    operator.kill()
    keeper = Node(world.loop, world.network, "operator", lambda _: asyncio.sleep(0))
    keeper.start()
    assert keeper.process is not None
    cancel = keeper.process.start(_cancelled(world, keeper, leaving.name), "cancel")
    await asyncio.wait([cancel], timeout=EMPTY_S_MAX)
    world.leaving = ""


async def _emptied(world: "World", operator: Node, leaving: Node) -> bool:
    """Whether the proof succeeded, and the bookie received nothing meanwhile."""
    store = MetadataClient(world.metadata, operator.clock)
    bookies = registered_bookies(operator, store)
    await bookies.start()
    job = Decommission(store, bookies, operator.clock, leaving.name)
    prover = Prover(bookies, ByteRate(0, operator.clock), RECOVERY.request_timeout_s)
    checker = LedgerChecker(bookies, prover, None, RECOVERY.request_timeout_s)
    marked = False
    while True:
        with suppress(*PASSING):
            if not marked:
                if (await job.preflight()).problem:
                    return False
                await job.mark()
                marked = True
            # A ledger that is closed after the proof has read its record still has to be moved:
            # `remaining` finds it.
            closed = closed_ledgers(world)
            summary = await job.prove(checker, lambda _: None)
            if not summary.exit_code:
                await _judge(world, leaving, closed & job.held)
                world.watching.counts["a decommission was proven"] += 1
                left = await job.remaining()
                late = await job.late_arrivals() if not left.ledgers else left
                if not (late.ledgers or late.unproven or late.unreadable):
                    return await job.is_still_marked()
        await asyncio.sleep(BETWEEN_PROOFS_S)


async def _judge(world: "World", leaving: Node, proven: frozenset[int]) -> None:
    """Every closed ledger of the proof has all its copies on the other bookies."""
    lossy = any(fault.kind in LOSSY for fault in world.plan.faults)
    if lossy or not all(node.alive and node.ready for node in world.bookies):
        return  # proven copies may have been lost since
    if lack := await lack_without(world, leaving, proven):
        world.history.violated(f"{leaving.name} was proven to be empty: {lack}")


async def _cancelled(world: "World", node: Node, bookie_id: str) -> None:
    store = MetadataClient(world.metadata, node.clock)
    while True:
        with suppress(*PASSING):
            await drains.cancel(store, bookie_id)
            return
        await asyncio.sleep(BETWEEN_PROOFS_S)


DECOMMISSIONS: Final[dict[str, Play]] = {"decommission": _decommission}
