"""Claims and splits whose bundle, namespace or lease changes before they are answered.

A namespace of its own keeps the race apart from what clients do: none of its bundles is claimed at
first. `store_watch.StoreWatch` judges every claim as it is written.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.churn_faults import Play, end_leases
from tests.sim.clocks import SimClock
from tests.sim.loop import Process
from tests.sim.metadata import REQUEST_TIMEOUT_S, MetadataClient, Writes
from tests.sim.nodes import Node
from tests.sim.plan import FaultPlan

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.resources import Resources
from magnetar.broker.ownership.bundles import Bundle, Ring, parts_of
from magnetar.broker.ownership.records import ownership_key
from magnetar.broker.ownership.rings import namespace_key, policies_of
from magnetar.broker.ownership.split_algorithms import RANGE, range_equally_divide
from magnetar.core.errors import MagnetarError
from magnetar.core.names import NamespaceName
from magnetar.metadata.store import Record

if TYPE_CHECKING:
    from tests.sim.world import World

SETUP_S_MAX: Final = 5.0
LATE_S_MAX: Final = 1.8
POLL_S: Final = 0.05
DELETE_CHANCE: Final = 0.25
CLAIM_AGAIN_S: Final = 0.1
"""Between the attempts of a broker to claim a part under its new lease."""


async def _claims_race(world: "World", fault: FaultPlan, rng: Random) -> None:
    """One broker's claim, or the answer, is on its way for long; another claims the bundle and
    splits it, or deletes the namespace, or the claimant's leases end."""
    if (scene := await _scene(world, fault, rng)) is None:
        return
    late, quick, bundle = scene
    name = bundle.namespace
    what = rng.choice(("delete", "delete", "split", "split", "split", "lease", "answer"))
    world.tell(f"{late.name} is late to claim {bundle}: {what}, by {quick.name} if not the store")
    late_s = world.metadata.late_to if what == "answer" else world.metadata.late_from
    late_s[late.name] = rng.uniform(0.2, LATE_S_MAX)
    _start(late, lambda: _take(world, late, bundle))
    await asyncio.sleep(rng.uniform(0.0, 0.05))
    if what == "delete":
        _start(quick, lambda: _deleted(quick, name))
    elif what == "split":
        _start(quick, lambda: _split(quick, bundle))
    else:
        end_leases(world, late)
    await asyncio.sleep(LATE_S_MAX)
    late_s.pop(late.name, None)


async def _split_unanswered(world: "World", fault: FaultPlan, rng: Random) -> None:
    """A split lands, and its answer is lost. Before it is retried, the namespace is deleted; or the
    lease ends with the claims of the parts, and the broker claims a part under its next lease, or
    another broker does."""
    if (scene := await _scene(world, fault, rng)) is None:
        return
    splitter, other, bundle = scene
    deleted = rng.random() < DELETE_CHANCE
    end = "its namespace is deleted" if deleted else "its lease is lost"
    world.tell(f"{splitter.name} splits {bundle} without an answer, and {end}")
    _start(splitter, lambda: _take(world, splitter, bundle))
    if not await _stored(world, bundle):
        return
    parts = parts_of(bundle, range_equally_divide(bundle))
    world.metadata.writes = Writes(lost_answer_chance=1.0)
    _start(splitter, lambda: _split(splitter, bundle))
    landed = await _stored(world, parts[0])
    world.metadata.writes = Writes()
    if not landed:
        return
    if deleted:
        _start(other, lambda: _deleted(other, bundle.namespace))
        return
    end_leases(world, splitter)
    claimants = rng.choice(((splitter, None), (splitter, other), (None, splitter), (other, None)))
    until = world.loop.now + REQUEST_TIMEOUT_S
    while world.loop.now < until:
        for node, part in zip(claimants, parts, strict=True):
            if node is not None and ownership_key(part) not in world.metadata.store._records:
                _start(node, lambda node=node, part=part: _take(world, node, part))  # type: ignore[misc]
        await asyncio.sleep(CLAIM_AGAIN_S)


async def _scene(world: "World", fault: FaultPlan, rng: Random) -> tuple[Node, Node, Bundle] | None:
    """Returns two brokers, and a bundle of a new namespace without an owner."""
    able = [node for node in world.brokers if node.ready and node.alive]
    if len(able) < 2:
        return None
    one, other = rng.sample(able, 2)
    name = NamespaceName.parse(f"public/race{fault.seed}")
    setup = Process(world.loop, "setup", "setup")
    await asyncio.wait([setup.start(_created(world, name), "namespace")], timeout=SETUP_S_MAX)
    stored = world.metadata.store._records.get(namespace_key(name))
    if stored is None:
        return None
    record = Record(namespace_key(name), stored.value, stored.revision)
    return one, other, rng.choice(Ring.of(name, policies_of(record)).bundles)


async def _stored(world: "World", bundle: Bundle) -> bool:
    """Whether the bundle's claim is in the store, within a time."""
    key, end = ownership_key(bundle), world.loop.now + REQUEST_TIMEOUT_S / 2
    while key not in world.metadata.store._records and world.loop.now < end:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    return key in world.metadata.store._records


async def _created(world: "World", name: NamespaceName) -> None:
    store = MetadataClient(world.metadata, SimClock(world.loop))
    await Resources(store).create_namespace(name, default_policies("magnetar"))


def _start(node: Node, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if node.alive and node.process is not None and node.service is not None:
        node.process.start(work(), "race")


async def _take(world: "World", node: Node, bundle: Bundle) -> None:
    """Claims the bundle, as a lookup does that has chosen this broker."""
    with suppress(MagnetarError):
        if await node.service.cluster_ownership.claims.acquire(bundle) is None:
            world.watching.counts["a claim came too late"] += 1


async def _split(node: Node, bundle: Bundle) -> None:
    ownership = node.service.cluster_ownership
    with suppress(MagnetarError):
        await ownership.claims.acquire(bundle)
        if ownership.has(bundle):
            await ownership.split(bundle, RANGE)


async def _deleted(node: Node, name: NamespaceName) -> None:
    if node.admin is not None:
        await node.admin.delete_namespace(str(name))


CLAIM_RACES: Final[dict[str, Play]] = {
    "claims race a split": _claims_race,
    "split without an answer": _split_unanswered,
}
