"""Jobs that move closed ledgers to the object store while topics are used, trimmed and deleted.

Everything but Spark is the product's: the executors' steps (`awaiting` makes coroutines of them),
attempts and their commits, the writer of files, the release of bookies' copies, the removal of the
leftovers of killed jobs, the trash. Two jobs do the same work at the same time, and are killed and
stopped for longer than their leases.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.awaiting import awaiting
from tests.sim.bookies import registered_bookies
from tests.sim.brokers import ledger_settings
from tests.sim.churn_faults import Play
from tests.sim.metadata import MetadataClient
from tests.sim.nodes import Node
from tests.sim.object_store import SPEC, ObjectStore, install
from tests.sim.plan import FaultPlan

from magnetar.bookie.api import BookieError, StoredEntry
from magnetar.core.errors import MagnetarError
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.ranges import Range
from magnetar.jobs.offload import file_writer as writing
from magnetar.jobs.offload import lease, leftovers
from magnetar.jobs.offload import release as releasing
from magnetar.jobs.offload.work import LedgerTask, Result
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LEDGERS_PREFIX, decode
from magnetar.managed_ledger.record import (
    MANAGED_LEDGERS_PREFIX,
    decode_managed_ledger,
)
from magnetar.metadata.operations import Change
from magnetar.offload.records import (
    OFFLOADS_PREFIX,
    OffloadRecord,
    decode_offload,
    parse_offload_key,
)
from magnetar.offload.trash import empty_trash

if TYPE_CHECKING:
    from tests.sim.world import World

JOBS: Final = 2
LEASE_S: Final = 3.0
BETWEEN_RUNS_S: Final = (0.5, 3.0)
FILES_MAX: Final = 16
"""Of one run: each costs some milliseconds."""
READ_BYTES: Final = 1 << 20
STEPS: Final = ("offload", "_offload", "_write", "_verify", "_give_up")
WRITER: Final[Any] = awaiting(writing.LedgerOffloader, STEPS, ("read",))
CLUSTER_ID: Final = "sim"
LAGS_MS: Final = (0, 0, 1_500)
PASSING: Final = (MagnetarError, TimeoutError, OSError)


def prepare_offloads(world: "World") -> None:
    """Starts the object store and watches deletions, if the plan has offloads."""
    if not world.plan.hazards.offloads:
        return
    world.objects = ObjectStore(world.loop, world.metadata, world.history.violated)
    install(world.objects)
    lease.LEASE_S = LEASE_S  # type: ignore[misc]
    world.metadata.watching.on_change.append(lambda change: _changed(world, change))
    for number in range(JOBS):
        node = Node(world.loop, world.network, f"job-{number + 1}", lambda one: _main(one, world))
        world.jobs.append(node)
        world.nodes[node.name] = node


def stop_offloads(world: "World") -> None:
    """Ends the jobs; their unfinished work stays."""
    for node in world.jobs:
        node.wanted_down = True
        node.kill()


def missing_files(world: "World") -> str:
    """A live file that the store has not, or one of a ledger that its topic does not have."""
    if world.objects is None:
        return ""
    records = world.metadata.store._records
    for key, one in records.items():
        if not key.startswith(OFFLOADS_PREFIX):
            continue
        file = decode_offload(key, one.value)
        if file.path not in world.objects.files:
            return f"{file.path} is live, and the store has no such file"
        name, ledger_id = parse_offload_key(key)
        stored = records.get(MANAGED_LEDGERS_PREFIX + name)
        listed = () if stored is None else decode_managed_ledger(name, stored.value).ledgers
        if ledger_id not in {item.ledger_id for item in listed}:
            return f"{file.path} is live, and {name} has no ledger {ledger_id}"
    return ""


def offloaded(world: "World") -> set[int]:
    """Ledgers of which a file is live."""
    keys = [key for key in world.metadata.store._records if key.startswith(OFFLOADS_PREFIX)]
    return {parse_offload_key(key)[1] for key in keys}


def _changed(world: "World", change: Change) -> None:
    """Asserts that a listed ledger is deleted only when a complete file of it is live."""
    if change.after is not None or not change.key.startswith(LEDGERS_PREFIX):
        return
    assert change.before is not None and world.objects is not None  # noqa: PT018
    metadata = decode(change.key, change.before.value)
    for key, one in world.metadata.store._records.items():
        if not key.startswith(MANAGED_LEDGERS_PREFIX):
            continue
        record = decode_managed_ledger(key, one.value)
        mine = [item for item in record.ledgers if item.ledger_id == metadata.ledger_id]
        if not mine or record.deleted or not mine[0].entries:
            continue
        name = key.removeprefix(MANAGED_LEDGERS_PREFIX)
        file = _live(world, name, metadata.ledger_id)
        stored = None if file is None else world.objects.files.get(file.path)
        if file is None or stored is None or not stored.whole:
            world.history.violated(
                f"ledger {metadata.ledger_id} of {name} is deleted, and no whole file of it is live"
            )


def _live(world: "World", name: str, ledger_id: int) -> OffloadRecord | None:
    key = f"{OFFLOADS_PREFIX}{name}/{ledger_id:020d}"
    one = world.metadata.store._records.get(key)
    return None if one is None else decode_offload(key, one.value)


# -- one job


async def _main(node: Node, world: "World") -> None:
    """Runs again and again, as a schedule has it."""
    store = MetadataClient(world.metadata, node.clock)
    bookies = registered_bookies(node, store)
    await bookies.start()
    settings = ledger_settings(world)
    context = LedgerContext(store, bookies, node.clock, settings, node.rng)
    ledgers = LedgerClient(store, bookies, node.clock, settings, rng=node.rng)
    job = Job(node, world, Log(store, bookies, context, None), ledgers)
    node.ready = True
    while True:
        await asyncio.sleep(node.rng.uniform(*BETWEEN_RUNS_S))
        with suppress(*PASSING):
            await job.run()


class Job:
    """The steps of the job `offload`, in the order in which `jobs.offload.job` has them."""

    def __init__(self, node: Node, world: "World", log: Log, ledgers: LedgerClient) -> None:
        self._node, self._world, self._log, self._ledgers = node, world, log, ledgers
        self._lag_ms = node.rng.choice(LAGS_MS)

    async def run(self) -> None:
        """One run of the job."""
        store, name = self._log.store, f"{self._node.name}-{self._node.rng.getrandbits(32):08x}"
        async with lease.job_lease(store, name):
            await leftovers.remove_attempts(store, name, all_tasks_over=False)
            await empty_trash(store)
            records = await store.list(MANAGED_LEDGERS_PREFIX)
            topics = [one.key.removeprefix(MANAGED_LEDGERS_PREFIX) for one in records]
            for record, topic in zip(records, topics, strict=True):
                for task in tasks_of(topic, decode_managed_ledger(record.key, record.value)):
                    if self._world.watching.counts[f"an offload: {Result.OFFLOADED}"] < FILES_MAX:
                        with suppress(*PASSING):
                            await self.offload(task, name)
            lags = [(topic, self._lag_ms) for topic in topics]
            done = await releasing.release(self._log, lags, self._node.clock.now_ms())
            if done.ledgers:
                self._world.watching.counts["a ledger was released"] += done.ledgers
            await leftovers.remove_attempts(store, name, all_tasks_over=True)

    async def offload(self, task: LedgerTask, job: str) -> None:
        """The steps of the job's executors, by their own code."""
        made = WRITER(job, CLUSTER_ID, self._log.store, Entries(self._ledgers))
        made._clock = self._node.clock
        outcome = await made.offload(task)
        self._world.watching.counts[f"an offload: {outcome.result}"] += 1


class Entries:
    """Reads ledgers as `log.reading.EntryReader` does, over the simulated network."""

    def __init__(self, ledgers: LedgerClient) -> None:
        self._ledgers = ledgers

    async def read(self, whole: Range) -> AsyncIterator[list[StoredEntry]]:
        reader = await self._ledgers.open(whole.ledger_id, recover=False)
        first = whole.first
        while first <= whole.last:
            some = await reader.read(first, whole.last, bytes_max=READ_BYTES)
            if not some:
                raise BookieError(f"ledger {whole.ledger_id} has no entry {first}")
            yield some
            first = some[-1].entry_id + 1


def tasks_of(name: str, record: object) -> Iterator[LedgerTask]:
    """The closed ledgers of a topic, elder first."""
    for item in getattr(record, "ledgers", ()):
        if item.closed_ms and item.entries:
            yield LedgerTask(
                name,
                name,
                -1,
                item.ledger_id,
                item.size_bytes,
                item.created_ms,
                item.closed_ms,
                SPEC,
            )


# -- faults


async def _bad_object_store(world: "World", fault: FaultPlan, rng: Random) -> None:
    """The store refuses, is away, or keeps uploads that are damaged; a job dies, stops, or is late
    with what it writes to the metadata store."""
    objects = world.objects
    if objects is None:
        return
    node = rng.choice(world.jobs)
    match rng.choice(("down", "refuses", "torn", "torn", "kill", "stop", "late", "late")):
        case "down":
            objects.down = True
        case "refuses":
            objects.refuse_chance = rng.choice((0.1, 0.5))
        case "torn":
            objects.torn_chance = rng.choice((0.3, 1.0))
        case "kill":
            node.kill()
        case "late":
            world.metadata.late_from[node.name] = rng.uniform(0.3, 1.8)
            await asyncio.sleep(rng.uniform(0.0, 3.0))
            world.hurry_acks(None, 0.3)  # ledgers are trimmed while commits are on their way
        case _ if node.process is not None:
            node.process.pause()
    await asyncio.sleep(fault.for_s)
    objects.heal()
    world.metadata.late_from.pop(node.name, None)
    if not node.alive and not node.wanted_down:
        node.start()
    elif node.process is not None:
        node.process.resume()


OFFLOAD_FAULTS: Final[dict[str, Play]] = {"bad object store": _bad_object_store}
