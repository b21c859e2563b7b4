"""Faults at the records of transactions: a participant's broker is struck between two writes.

A coordinator writes a transaction's records one after the other, each within milliseconds of the
former, so faults at random times seldom come between them. These come as soon as the store has
applied a record of the drawn kind.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from tests.sim.append_faults import down_for
from tests.sim.churn_faults import Play, owner_of
from tests.sim.nodes import Node
from tests.sim.plan import FaultPlan
from tests.sim.transactions import ASSIGN, SOURCE, TARGETS

from magnetar.metadata.operations import Change
from magnetar.transactions.model import TransactionRecord, TxnState
from magnetar.transactions.records import PREFIX, decode_record

if TYPE_CHECKING:
    from tests.sim.world import World

WAIT_S_MIN: Final = 3.0
"""How long the fault waits for its record, at least."""
JOINT: Final = "joint"
KINDS: Final = (*(state.value for state in TxnState), JOINT, JOINT)
"""The states of records, and the decision of a joint commit."""
AFTER_S: Final = (0.0, 0.0, 0.001, 0.01)
"""How long after the record; the least is before its writer hears of it."""


BACK_S_MAX: Final = 0.3
LOOKS: Final = 200
BETWEEN_LOOKS_S: Final = 0.005


def _is_of(kind: str, record: TransactionRecord) -> bool:
    return bool(record.joined) if kind == JOINT else record.state.value == kind


async def _strike_at_a_record(world: "World", fault: FaultPlan, rng: Random) -> None:
    """A broker of a coordinator or participant dies, or loses its topic, at a record."""
    kind, after_s, kills = rng.choice(KINDS), rng.choice(AFTER_S), rng.random() < 0.7
    victim = rng.choice(("", "", SOURCE, *TARGETS))
    written: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def changed(change: Change) -> None:
        if written.done() or change.after is None or not change.key.startswith(PREFIX):
            return
        coordinator, _, number = change.key.removeprefix(PREFIX).partition("/")
        if number and _is_of(kind, decode_record(change.key, change.after.value)):
            written.set_result(int(coordinator))

    watched = world.metadata.watching.on_change
    watched.append(changed)
    try:
        async with asyncio.timeout(max(fault.for_s, WAIT_S_MIN)):
            coordinator = await written
    except TimeoutError:
        return
    finally:
        watched.remove(changed)
    if after_s:
        await asyncio.sleep(rng.uniform(0.0, after_s))
    topic = victim or f"{ASSIGN}-partition-{coordinator}"
    node = owner_of(world, topic)
    if node is None or node.process is None or node.admin is None:
        return
    world.watching.counts[f"struck at a record: {kind}"] += 1
    if kills:
        await down_for(world, [node], rng.uniform(0.1, 1.0))
        return
    back = rng.random() < 0.5
    await _unload(world, node, topic, kind)
    if back and (owner := await _other_owner(world, topic, node)) is not None:
        # Back before its former owner has noticed that it was away.
        await asyncio.sleep(rng.uniform(0.0, BACK_S_MAX))
        await _unload(world, owner, topic, kind)


async def _unload(world: "World", node: Node, topic: str, kind: str) -> None:
    if node.alive and node.process is not None and node.admin is not None:
        world.tell(f"{node.name} is asked to unload the bundle of {topic} at a record ({kind})")
        node.process.start(node.admin.unload_bundle(topic), "unload")


async def _other_owner(world: "World", topic: str, former: Node) -> Node | None:
    """The next owner of the topic's bundle, None if there is none in time."""
    for _ in range(LOOKS):
        owner = owner_of(world, topic)
        if owner is not None and owner is not former:
            return owner
        await asyncio.sleep(BETWEEN_LOOKS_S)
    return None


TXN_FAULTS: Final[dict[str, Play]] = {"strike at a record": _strike_at_a_record}
