"""A compacted topic: brokers compact it while it is written, read, unloaded, and its owner dies.

One producer (our own client) sends numbered values and tombstones of a few keys. Readers with
`read_compacted` read the whole topic, again and again. An operator requests compactions, and
brokers compact above a threshold; their worker processes are those of `worker_processes`. Events
hit the topic's owner as soon as the store has a record of a compaction. Checked

- for every read: of each key, the last value is not older than the last one that had its receipt
  when the read began, unless a compaction removed the tombstone that came after it; a key that is
  missing was deleted by a later tombstone; a value is what was sent;
- at the end, when an operator's request has compacted everything: each key has exactly its last
  value, once, and a deleted key has none;
- at once: no live file is deleted (`object_store.py`), and the horizon never moves back.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.append_faults import down_for
from tests.sim.apps import AGAIN_S, OPTIONS, simulate_clients
from tests.sim.brokers import BROKER_PORT
from tests.sim.churn_faults import owner_of
from tests.sim.clocks import SimClock
from tests.sim.loop import Process
from tests.sim.metadata import MetadataClient
from tests.sim.object_store import ObjectStore, install
from tests.sim.worker_processes import prepare_workers

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.resources import Resources
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.client import Client, Reader
from magnetar.client.errors import ClientError
from magnetar.compaction.records import (
    ATTEMPTS_PREFIX,
    CompactionRecord,
    compaction_key,
    decode_compaction,
)
from magnetar.core.ids import Position
from magnetar.core.names import NamespaceName, parse_topic
from magnetar.jobs.compaction import swap
from magnetar.metadata.operations import Change
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD

if TYPE_CHECKING:
    from tests.sim.world import World

NAMESPACE: Final = "public/table"
TOPIC: Final = f"persistent://{NAMESPACE}/table"
LOG: Final = ledger_name(parse_topic(TOPIC))
HOST: Final = "table"
NUMBER: Final = "n"
LEASE_S: Final = 3.0
BETWEEN_READS_S: Final = (0.5, 4.0)
READ_S_MAX: Final = 20.0
READ_AT_END_S_MAX: Final = 60.0
COMPACTED_S_MAX: Final = 90.0
LOOK_S: Final = 0.5
STRIKE_AFTER_S: Final = (0.0, 0.001, 0.02, 0.1)
PASSING: Final = (ClientError, TimeoutError)

Found = dict[str, tuple[int, bytes, Position]]
"""By key: the number, the value and the position of its last message."""


def prepare_tables(world: "World") -> None:
    """Simulates worker processes and the object store, if the plan has a compacted topic."""
    if not world.plan.table.messages:
        return
    prepare_workers(world)
    swap.LEASE_S = LEASE_S  # type: ignore[misc]
    if world.objects is None:
        world.objects = ObjectStore(world.loop, world.metadata, world.history.violated)
        install(world.objects)
    world.objects.refuse_chance = world.objects.torn_chance = world.plan.table.bad_store_chance


class Table:
    """See the module's text."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._plan = world.plan.table
        self._rng = Random(world.plan.seed ^ 0x7AB)
        self.process = Process(world.loop, HOST, HOST)
        self._values: list[tuple[str, bytes | None]] = []
        """Key and value of every message by its number; None: a tombstone."""
        self._places: list[Position] = []
        """Where the first messages are, whose receipts have come; they come in order."""
        self._horizon: Position = Position(-1, -1)
        self._client: Client | None = None
        self._over = False
        simulate_clients(world, self._rng)
        world.metadata.watching.on_change.append(self._changed)

    async def start(self) -> None:
        """Creates the namespace, and begins to work."""
        setup = Process(self._world.loop, "setup", "setup")
        await setup.start(self._create_namespace(), "namespace")
        self.process.start(self._run(), "table")
        self.process.start(self._request(), "table requests")

    def missing(self) -> str:
        """What has not been done yet; empty once all has."""
        if len(self._places) < self._plan.messages:
            return f"the table has {len(self._places)} receipts of {self._plan.messages}"
        return ""

    async def check(self) -> None:
        """Has everything compacted, and reads the result."""
        self._over = True
        deadline = self._world.loop.now + COMPACTED_S_MAX
        last_place = max(self._places)
        while self._horizon < last_place:
            if self._world.loop.now > deadline:
                self._violated(f"is compacted to {self._horizon}, and ends at {last_place}")
                return
            await self._compact_now()
            await asyncio.sleep(LOOK_S)
        record = self._record()
        while self._world.loop.now < deadline:
            try:
                async with asyncio.timeout(READ_AT_END_S_MAX):
                    read = self.process.start(self._read(), "table read at the end")
                    self._judge_whole(*await read, record)
                return
            except PASSING:
                await asyncio.sleep(AGAIN_S)
        self._violated("could not be read to its end")

    async def close(self) -> None:
        """Closes the client."""
        if self._client is not None:
            await self.process.start(self._client.close(), "close")

    # -- what happens

    async def _create_namespace(self) -> None:
        policies = default_policies("magnetar")
        assert COMPACTION_THRESHOLD.document is not None
        policies[COMPACTION_THRESHOLD.document] = self._plan.threshold_bytes
        store = MetadataClient(self._world.metadata, SimClock(self._world.loop))
        await Resources(store).create_namespace(NamespaceName.parse(NAMESPACE), policies)

    async def _run(self) -> None:
        urls = ",".join(f"{broker.name}:{BROKER_PORT}" for broker in self._world.brokers)
        self._client = client = Client(f"pulsar://{urls}", **OPTIONS)
        producer: Any = None
        while producer is None:
            try:
                producer = await client.producer(TOPIC, name="table", send_timeout_s=0)
            except ClientError:
                await asyncio.sleep(AGAIN_S)
        self.process.start(self._keep_reading(), "table reads")
        rng = self._rng
        for number in range(self._plan.messages):
            key = f"k{rng.randrange(self._plan.keys)}"
            dead = rng.random() < self._plan.tombstone_chance
            value = None if dead else f"{key}={number}".encode()
            self._values.append((key, value))
            sent = producer.send_nowait(value, key=key, properties={NUMBER: str(number)})
            sent.add_done_callback(self._receipted)
            await asyncio.sleep(rng.expovariate(1 / self._plan.pace_s))

    def _receipted(self, done: "asyncio.Future[Any]") -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            self._violated(f"a message has failed: {error!r}")
            return
        self._places.append(Position(done.result().ledger_id, done.result().entry_id))

    async def _request(self) -> None:
        while not self._over:
            await asyncio.sleep(self._rng.expovariate(1 / self._plan.request_s))
            await self._compact_now()

    async def _compact_now(self) -> None:
        node = owner_of(self._world, TOPIC)
        if node is not None and node.process is not None and node.admin is not None:
            node.process.start(node.admin.compact(TOPIC), "compact")

    # -- reads

    async def _keep_reading(self) -> None:
        while not self._over:
            await asyncio.sleep(self._rng.uniform(*BETWEEN_READS_S))
            floor = len(self._places)
            try:
                async with asyncio.timeout(READ_S_MAX):
                    found, _ = await self._read()
            except PASSING:
                continue  # a read that is cut off shows nothing
            self._judge(found, floor)

    async def _read(self) -> tuple[Found, list[tuple[str, Position]]]:
        """Reads the topic from its beginning to its end: the last of each key, and the order."""
        assert self._client is not None
        found: Found = {}
        order: list[tuple[str, Position]] = []
        reader: Reader[bytes] = await self._client.reader(TOPIC, read_compacted=True)
        try:
            while await reader.has_message_available():
                message = await reader.read(OPTIONS["operation_timeout_s"])
                place = Position(message.id.ledger_id, message.id.entry_id)
                key = str(message.key)
                found[key] = (int(message.properties[NUMBER]), message.data or b"", place)
                order.append((key, place))
        finally:
            await reader.close()
        self._world.watching.counts["table: read to its end"] += 1
        return found, order

    def _judge(self, found: Found, floor: int) -> None:
        """Compares a read with the messages that had a receipt when it began."""
        latest: dict[str, int] = {}
        for number in range(floor):
            latest[self._values[number][0]] = number
        for key, number in latest.items():
            if key in found:
                if found[key][0] < number and not self._tombstone_went(key, number):
                    self._violated(f"{key} is read as {found[key][0]}, and {number} was receipted")
                continue
            later = range(number, len(self._values))
            if not any(self._values[one] == (key, None) for one in later):
                self._violated(f"{key} is not there, and {number} was receipted")
        for key, (number, value, place) in found.items():
            if self._values[number] != (key, value or None):
                self._violated(f"{key} at {place} is {value!r}, not what was sent as {number}")

    def _tombstone_went(self, key: str, number: int) -> bool:
        """Whether a compaction may have removed the last tombstone of the key, not before `number`.

        Who has read the value before it, and goes on behind the compaction, does not get it.
        """
        last = -1
        for later in range(number, len(self._values)):
            if self._values[later][0] != key:
                continue
            if later >= len(self._places):
                if self._values[later][1] is None:
                    return True  # it may be stored already, for all its sender knows
            elif self._places[later] <= self._horizon:
                last = later
        return last >= 0 and self._values[last][1] is None

    def _judge_whole(
        self, found: Found, order: list[tuple[str, Position]], record: CompactionRecord | None
    ) -> None:
        """Everything was compacted: exactly the last values are there."""
        self._judge(found, len(self._places))
        alive = {key for key, value in dict(self._values).items() if value is not None}
        horizon = Position(-1, -1) if record is None else record.horizon
        inside = [key for key, place in order if place <= horizon]
        if len(set(inside)) < len(inside):
            self._violated(f"has keys more than once up to {horizon}: {inside}")
        if extra := sorted(key for key in inside if key not in alive):
            self._violated(f"has deleted keys up to {horizon}: {extra}")

    # -- records

    def _record(self) -> CompactionRecord | None:
        key = compaction_key(LOG)
        stored = self._world.metadata.store._records.get(key)
        return None if stored is None else decode_compaction(key, stored.value)

    def _changed(self, change: Change) -> None:
        is_commit = change.key == compaction_key(LOG)
        if change.after is None or not (is_commit or change.key.startswith(ATTEMPTS_PREFIX)):
            return
        counts = self._world.watching.counts
        counts["table: compacted" if is_commit else "table: an attempt began"] += 1
        if is_commit:
            horizon = decode_compaction(change.key, change.after.value).horizon
            if horizon < self._horizon:
                self._violated(f"its horizon moves back from {self._horizon} to {horizon}")
            self._horizon = max(self._horizon, horizon)
        if not self._world.healed_at and self._rng.random() < self._plan.strike_chance:
            self._world.loop.world.start(self._strike(), "strike at a compaction")

    async def _strike(self) -> None:
        """The owner dies, stops for longer than its lease, or loses the topic."""
        rng, world = self._rng, self._world
        await asyncio.sleep(rng.choice(STRIKE_AFTER_S))
        node = owner_of(world, TOPIC)
        if world.healed_at or node is None or node.process is None or node.admin is None:
            return
        how = rng.choice(("kill", "kill", "unload", "unload", "pause"))
        world.watching.counts[f"table: {how} at a compaction"] += 1
        if how == "kill":
            await down_for(world, [node], rng.uniform(0.1, 1.0))
        elif how == "unload":
            node.process.start(node.admin.unload_bundle(TOPIC), "unload")
        else:
            life = node.process
            life.pause()
            await asyncio.sleep(rng.uniform(LEASE_S, 3 * LEASE_S))
            life.resume()

    def _violated(self, text: str) -> None:
        self._world.history.violated(f"{TOPIC}: {text}")
