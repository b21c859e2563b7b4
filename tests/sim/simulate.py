"""`simulate(seed)`: the run of one seed, from its plan to its result."""

import time
from typing import Final

from tests.sim import determinism
from tests.sim.bugs.bug import Bug
from tests.sim.checker import check_failures
from tests.sim.ledger_world import LedgerWorld
from tests.sim.loop import Deadlock, SimLoop, run
from tests.sim.plan import draw_plan
from tests.sim.run import Result
from tests.sim.watching import Watching
from tests.sim.world import World

from magnetar.bookie.net.connection import BookieConnection
from magnetar.broker.session.link import Link
from magnetar.broker.session.session import Session
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.cursor import Cursor
from magnetar.metadata.watches import LocalWatch

determinism.hash_by_birth(BookieConnection, Cursor, LedgerWriter, Link, LocalWatch, Session)

WORLDS: Final[dict[str, type[World]]] = {"topics": World, "ledgers": LedgerWorld}


def simulate(
    seed: int, *, trace: bool = False, bug: Bug | None = None, planted: bool = True
) -> Result:
    """Runs a seed in this process, which is good for nothing else afterwards.

    With a bug its plan is leant towards it; unless `planted`, the code stays as it is.
    """
    begun = time.perf_counter()
    determinism.begin(seed)
    plan = draw_plan(seed)
    if bug is not None and bug.lean is not None:
        bug.lean(plan)
    if bug is not None and planted:
        bug.patch()
    loop = SimLoop(seed)
    watching = Watching(loop, trace=trace)
    watching.install()
    world = WORLDS[plan.world](plan, loop, watching)
    result = Result(seed)
    try:
        run(loop, _main(world))
    except (TimeoutError, Deadlock) as error:
        world.history.violated(f"the run hangs: {error!r}")
    result.violations = world.history.violations
    result.story = watching.story
    result.counts = dict(watching.counts)
    result.virtual_s, result.turns = loop.now, loop.turns
    result.trace_hash = loop.trace_hash
    result.real_s = time.perf_counter() - begun
    return result


async def _main(world: World) -> None:
    plan = world.plan
    world.tell(
        f"seed {plan.seed}: {plan.world}, {plan.bookies} bookies, {plan.brokers} brokers, "
        f"quorum {plan.quorum}, {len(plan.topics)} topics, {len(plan.faults)} faults"
    )
    await world.run_all()
    check_failures(world)
