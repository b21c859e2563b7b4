"""`simulate(seed)`: the run of one seed, from its plan to its result."""

import asyncio
import time
from typing import Final

from tests.sim import determinism
from tests.sim.bugs.bug import Bug
from tests.sim.checker import check_failures
from tests.sim.churning import prepare
from tests.sim.ledger_world import LedgerWorld
from tests.sim.loop import Deadlock, Process, SimLoop, run
from tests.sim.plan import (
    add_app,
    add_churn,
    add_deduplication,
    add_delays,
    add_hazards,
    add_letters,
    add_strikes,
    add_table,
    add_transactions,
    draw_plan,
)
from tests.sim.run import Result
from tests.sim.watching import Watching
from tests.sim.world import World

from magnetar.bookie.net.connection import BookieConnection
from magnetar.broker.session import handlers
from magnetar.broker.session.link import Link
from magnetar.broker.session.session import Session
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.cursor import Cursor
from magnetar.metadata.watches import LocalWatch

# What a session imports when it is first used, imported once for all runs instead of in each.
PRELOADED: Final = (handlers,)

determinism.hash_by_birth(BookieConnection, Cursor, LedgerWriter, Link, LocalWatch, Session)

SPIN_LOOK_S: Final = 1.0
SPIN_TURNS: Final = 8_000
"""A turn takes some 30 µs: a process that is busy at a quarter of its time."""
SPINS_MAX: Final = 4
WORLDS: Final[dict[str, type[World]]] = {"topics": World, "ledgers": LedgerWorld}


def simulate(
    seed: int,
    *,
    trace: bool = False,
    bug: Bug | None = None,
    planted: bool = True,
    only_first: bool = False,
) -> Result:
    """Runs a seed in this process, which must end afterwards.

    With a bug its plan leans towards it; unless `planted`, the code stays unchanged. With
    `only_first` the run ends at its first violation, which for a proof is enough.
    """
    begun = time.perf_counter()
    determinism.begin(seed)
    plan = draw_plan(seed)
    if bug is None:
        add_churn(plan)
        add_hazards(plan)
        add_transactions(plan)
        add_strikes(plan)
        add_deduplication(plan)
        add_delays(plan)
        add_app(plan)
        add_table(plan)
        add_letters(plan)
    else:
        plan.ages = plan.tells = False  # its seeds were found without, unless it leans to that
    if bug is not None and bug.lean is not None:
        bug.lean(plan)
    if bug is not None and planted:
        bug.patch()
    loop = SimLoop(seed)
    watching = Watching(loop, trace=trace)
    watching.install()
    world = WORLDS[plan.world](plan, loop, watching)
    if only_first:
        world.history.on_violation = loop.stop
    prepare(world)
    result = Result(seed)
    try:
        run(loop, _main(world))
    except (TimeoutError, Deadlock) as error:
        world.history.violated(f"the run hangs: {error!r}")
    except RuntimeError:
        if not (only_first and world.history.violations):
            raise  # not the loop that was stopped
    history = world.history
    result.violations = history.violations + history.recording.violations(history.topics.values())
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
    watchdog = world.loop.create_task(_find_spins(world))
    await world.run_all()
    watchdog.cancel()
    check_failures(world)


async def _find_spins(world: World) -> None:
    """A process that never rests waits for something by asking again and again."""
    spun: dict[Process, int] = {}
    while True:
        before = {process: process.turns for process in world.processes()}
        await asyncio.sleep(SPIN_LOOK_S)
        for process, turns in before.items():
            if process.turns - turns < SPIN_TURNS * SPIN_LOOK_S:
                spun.pop(process, None)
                continue
            spun[process] = spun.get(process, 0) + 1
            if spun[process] == SPINS_MAX:
                world.history.violated(
                    f"{process.name} spins: {process.turns - turns} turns in {SPIN_LOOK_S} s"
                )
