"""Dead letters: brokers move them back to their origin in transactions, while everything breaks.

One producer (our own client) sends numbered letters to a dead letter topic, as consumers that give
a message up do. An operator starts redrives, again and again. Events hit the owner of the letters
as soon as the store has a record of a transaction. At the end each letter is at its origin exactly
as often as it is in the dead letter topic (its producer may have stored it twice).
"""

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.sim.append_faults import down_for
from tests.sim.apps import AGAIN_S, OPTIONS, Place, place_of, simulate_clients
from tests.sim.brokers import BROKER_PORT
from tests.sim.churn_faults import owner_of
from tests.sim.loop import Process

from magnetar.broker.redrive.letters import ORIGIN as REAL_TOPIC
from magnetar.broker.transactions.assignment import assign_partition
from magnetar.client import Client, SubscriptionType
from magnetar.client.errors import AlreadyClosed, ClientError
from magnetar.metadata.operations import Change
from magnetar.transactions.records import PREFIX, decode_record

if TYPE_CHECKING:
    from tests.sim.world import World

ORIGIN: Final = "persistent://public/default/origin"
LETTERS: Final = "persistent://public/default/origin-work-DLQ"
SUBSCRIPTION: Final = "dlq"
WORK: Final = "work"
AUDIT: Final = "audit"
HOST: Final = "letters"
REDRIVEN_S_MAX: Final = 200.0
LOOK_S: Final = 0.5
STRIKE_AFTER_S: Final = (0.0, 0.001, 0.02, 0.1)
PASSING: Final = (ClientError, TimeoutError)


class DeadLetters:
    """See the module's text."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._plan = world.plan.letters
        self._rng = Random(world.plan.seed ^ 0x1E7)
        self.process = Process(world.loop, HOST, HOST)
        self._receipts = 0
        self._at: dict[str, dict[Place, int]] = {ORIGIN: {}, LETTERS: {}}
        """By topic: the number of the message at each place."""
        self._attached: asyncio.Queue[str] = asyncio.Queue()
        self._client: Client | None = None
        self._over = False
        simulate_clients(world, self._rng)
        world.metadata.watching.on_change.append(self._changed)

    async def start(self) -> None:
        """Begins to work."""
        self.process.start(self._run(), "letters")
        self.process.start(self._request(), "letters requests")

    def missing(self) -> str:
        """What has not been done yet; empty once all has."""
        if self._receipts < self._plan.messages:
            return f"{LETTERS} has {self._receipts} receipts of {self._plan.messages}"
        return ""

    async def check(self) -> None:
        """Waits until all letters are moved, and compares both topics."""
        self._over = True
        deadline = self._world.loop.now + REDRIVEN_S_MAX
        while lack := self._lack():
            if self._world.loop.now > deadline:
                self._world.history.violated(f"{LETTERS}: {lack}")
                return
            await self._redrive_now()
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(LOOK_S)
        if extra := self._counts(ORIGIN) - self._counts(LETTERS):
            self._world.history.violated(f"{ORIGIN} has letters more often than sent: {extra}")
        self._world.watching.counts["letters: all were moved"] += 1

    async def close(self) -> None:
        """Closes the client."""
        if self._client is not None:
            await self.process.start(self._client.close(), "close")

    def _counts(self, topic: str) -> Counter[int]:
        return Counter(self._at[topic].values())

    def _lack(self) -> str:
        if absent := set(range(self._plan.messages)) - set(self._at[LETTERS].values()):
            return f"{min(absent)} was receipted, and has not come"
        if left := self._counts(LETTERS) - self._counts(ORIGIN):
            return f"{min(left)} has not come to its origin, or not often enough"
        return ""

    async def _run(self) -> None:
        urls = ",".join(f"{broker.name}:{BROKER_PORT}" for broker in self._world.brokers)
        self._client = client = Client(f"pulsar://{urls}", **OPTIONS)
        for topic, name in ((ORIGIN, WORK), (LETTERS, AUDIT)):
            self.process.start(self._consume(client, topic, name), f"letters {name}")
        for _ in self._at:
            await self._attached.get()
        # The subscription of the letters exists, and nobody consumes it.
        await (await self._opened(lambda: client.consumer(LETTERS, SUBSCRIPTION))).close()
        producer = await self._opened(
            lambda: client.producer(LETTERS, name="letters", send_timeout_s=0)
        )
        for number in range(self._plan.messages):
            sent = producer.send_nowait(b"%d" % number, properties={REAL_TOPIC: ORIGIN})
            sent.add_done_callback(self._receipted)
            await asyncio.sleep(self._rng.expovariate(1 / self._plan.pace_s))

    def _receipted(self, done: "asyncio.Future[Any]") -> None:
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            self._world.history.violated(f"{LETTERS}: a letter has failed: {error!r}")
        self._receipts += 1

    async def _opened(self, opening: Any) -> Any:
        while True:
            try:
                return await opening()
            except ClientError:
                await asyncio.sleep(AGAIN_S)

    async def _consume(self, client: Client, topic: str, name: str) -> None:
        """Notes what is where. The letters stay, the messages at their origin are acked."""
        consumer = await self._opened(
            lambda: client.consumer(topic, name, type=SubscriptionType.EXCLUSIVE)
        )
        self._attached.put_nowait(name)
        while True:
            try:
                message = await consumer.receive()
            except AlreadyClosed:
                return  # the run is over
            place, number = place_of(message.id), int(message.data)
            known = self._at[topic].setdefault(place, number)
            if known != number:
                self._world.history.violated(f"{topic}: {place} is {known}, and {number}")
            if topic == ORIGIN:
                with suppress(*PASSING):  # without its ack it comes again
                    await consumer.ack(message)

    async def _request(self) -> None:
        while not self._over:
            await asyncio.sleep(self._rng.expovariate(1 / self._plan.redrive_s))
            await self._redrive_now()

    async def _redrive_now(self) -> None:
        node = owner_of(self._world, LETTERS)
        if node is not None and node.process is not None and node.admin is not None:
            node.process.start(node.admin.redrive(LETTERS, SUBSCRIPTION), "redrive")

    def _changed(self, change: Change) -> None:
        coordinator, _, number = change.key.removeprefix(PREFIX).partition("/")
        if change.after is None or not change.key.startswith(PREFIX) or not number:
            return
        record = decode_record(change.key, change.after.value)
        if not any(of.topic == LETTERS for of in record.subscriptions):
            return
        self._world.watching.counts[f"letters: a transaction is {record.state}"] += 1
        owners = [owner_of(self._world, topic) for topic in (LETTERS, ORIGIN)]
        if None not in owners:
            where = "one broker" if owners[0] is owners[1] else "two brokers"
            self._world.watching.counts[f"letters: a transaction is {record.state}, {where}"] += 1
        if not self._world.healed_at and self._rng.random() < self._plan.strike_chance:
            self._world.loop.world.start(self._strike(int(coordinator)), "strike at a redrive")

    async def _strike(self, coordinator: int) -> None:
        """The owner of the letters, of their origin or of the coordinator dies or loses it."""
        rng, world = self._rng, self._world
        await asyncio.sleep(rng.choice(STRIKE_AFTER_S))
        topic = rng.choice((LETTERS, ORIGIN, str(assign_partition(coordinator))))
        node = owner_of(world, topic)
        if world.healed_at or node is None or node.process is None or node.admin is None:
            return
        struck = "the coordinator" if topic not in self._at else topic.rpartition("/")[2]
        world.watching.counts[f"letters: a strike at {struck}"] += 1
        if rng.random() < 0.6:
            await down_for(world, [node], rng.uniform(0.1, 1.0))
        else:
            node.process.start(node.admin.unload_bundle(topic), "unload")
