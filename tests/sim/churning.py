"""Puts the churn of a plan into a run: its clients, its topics, and the closing at the end."""

import asyncio
from typing import TYPE_CHECKING, Final

from tests.sim.append_faults import watch_swaps
from tests.sim.churn import Churner
from tests.sim.churn_faults import owner_of
from tests.sim.clocks import SimClock
from tests.sim.delays import prepare_delays
from tests.sim.fences import watch_fences
from tests.sim.loop import Process
from tests.sim.metadata import MetadataClient
from tests.sim.offloads import prepare_offloads
from tests.sim.plan import TopicPlan
from tests.sim.quorum_watch import watch_quorums
from tests.sim.tables import prepare_tables

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.resources import Resources
from magnetar.core.names import NamespaceName
from magnetar.managed_ledger import cursor_log

if TYPE_CHECKING:
    from tests.sim.world import World

SPAN_S_MIN: Final = 6.0
RELOAD_S_MAX: Final = 30.0


def prepare(world: "World") -> None:
    """Sets, before the run, the watched objects and the size at which cursor ledgers roll."""
    watch_fences(world)
    watch_swaps(world)
    watch_quorums(world)
    prepare_offloads(world)
    prepare_delays(world)
    prepare_tables(world)
    world.watching.watch_steps()
    if size_bytes := world.plan.churn.cursor_bytes:
        cursor_log.LEDGER_BYTES_MIN  # noqa: B018  # it must be there
        cursor_log.LEDGER_BYTES_MIN = size_bytes  # type: ignore[misc]
        cursor_log.LEDGER_SNAPSHOTS_MAX = 1  # type: ignore[misc]


async def start_churn(world: "World") -> None:
    """The churners, and the topics that only they delete."""
    plan, rng = world.plan, world.rng
    churn = plan.churn
    span_s = max(plan.fault_phase_s, SPAN_S_MIN)
    for number in range(churn.topics):
        namespace = f"public/churn{number}" if churn.namespaces else "public/default"
        if churn.namespaces:
            setup = Process(world.loop, "setup", "setup")
            await setup.start(_create_namespace(world, namespace), "namespace")
        messages = rng.choice((40, 80))
        topic = TopicPlan(
            name=f"persistent://{namespace}/again{number}",
            subscriptions=(),
            audited=False,
            producers=1,
            messages=messages,
            pace_s=span_s / messages * rng.choice((2.0, 4.0)),
            size_bytes=rng.choice((20, 200)),
        )
        world.produce(topic, "p0", rng)
        _churn(world, topic.name, "mine", deletes=True)
    for number in range(churn.churners if plan.topics else 0):
        _churn(world, rng.choice(plan.topics).name, f"mine{number}", deletes=False)


def _churn(world: "World", topic: str, name: str, *, deletes: bool) -> None:
    rng = world.new_rng()
    span_s = max(world.plan.fault_phase_s, SPAN_S_MIN)
    until = world.loop.now + span_s * rng.uniform(0.3, 1.0)
    world.add_consumer(Churner(world, topic, name, rng, until=until, deletes=deletes))


async def _create_namespace(world: "World", namespace: str) -> None:
    store = MetadataClient(world.metadata, SimClock(world.loop))
    name = NamespaceName.parse(namespace)
    await Resources(store).create_namespace(name, default_policies("magnetar"))


async def reload_topics(world: "World") -> None:
    """Has every topic closed by its owner, and opened again by its clients."""
    unloads = []
    for topic in world.topic_names():
        node = owner_of(world, topic)
        if node is not None and node.process is not None and node.admin is not None:
            world.tell(f"{node.name} is asked to unload {topic}")
            unloads.append(node.process.start(node.admin.unload_topic(topic), "unload"))
    if unloads:
        await asyncio.wait(unloads, timeout=RELOAD_S_MAX)
    await asyncio.sleep(1.0)
