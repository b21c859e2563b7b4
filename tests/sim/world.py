"""One run: the nodes of a plan are started, clients work, faults come, all heals, all is checked.

The phases: start (until every subscription is there), faults, heal (everything is started, resumed
and connected again), settle (until clients have done what they wanted and copies are whole, within
a bound of virtual time), check.
"""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from tests.sim.apps import App
from tests.sim.bookies import bookie_main
from tests.sim.brokers import BROKER_PORT, broker_main, prepare_cluster
from tests.sim.checker import check
from tests.sim.churning import reload_topics, start_churn
from tests.sim.client import Client
from tests.sim.dead_letters import DeadLetters
from tests.sim.delays import Delays
from tests.sim.faults import play
from tests.sim.history import History
from tests.sim.loop import Process, SimLoop
from tests.sim.metadata import MetadataServer, Writes
from tests.sim.network import Network
from tests.sim.nodes import Node
from tests.sim.object_store import ObjectStore
from tests.sim.offloads import missing_files, stop_offloads
from tests.sim.plan import Plan, TopicPlan
from tests.sim.records import disagreement, trimmed_early
from tests.sim.tables import Table
from tests.sim.transactions import Transactions
from tests.sim.watching import Watching
from tests.sim.workload import Consumer, Habits, Producer

from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.writer import LedgerWriter

START_S_MAX: Final = 60.0
SETTLE_S_MAX: Final = 240.0
LOOK_S: Final = 0.25
QUIET_S: Final = 2.0
AUDIT: Final = "audit"


class World:
    """See the module's text."""

    def __init__(self, plan: Plan, loop: SimLoop, watching: Watching) -> None:
        self.plan, self.loop, self.watching = plan, loop, watching
        self.rng = Random(plan.seed ^ 0x5EED)
        self.network = Network(loop, plan.weather)
        self.metadata = MetadataServer(loop, self.network)
        self.history = History(loop.time)
        self.history.delays = Delays(self)
        self.bookies = [
            Node(loop, self.network, f"bookie-{n + 1}", lambda node: bookie_main(node, self))
            for n in range(plan.bookies)
        ]
        self.brokers = [
            Node(loop, self.network, f"broker-{n + 1}", self.member_main)
            for n in range(plan.brokers)
        ]
        self.nodes = {node.name: node for node in (*self.bookies, *self.brokers)}
        self.clients = [Process(loop, f"client-{n}", f"client-{n}") for n in range(2)]
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.habits = Habits(
            plan.churn.cut_chance,
            plan.churn.rest_chance,
            plan.churn.hoard_chance,
            plan.hazards.again_chance,
            plan.hazards.error_s_max,
            plan.delays,
        )
        self.metadata.etcd_leases = plan.hazards.etcd_leases
        self.metadata.watching.start(self.history.violated)
        self.on_swap: Callable[[str, LedgerMetadata], None] = lambda *_: None
        """Called `before` and `after` a writer records another ensemble."""
        self.objects: ObjectStore | None = None
        self.jobs: list[Node] = []
        """What moves ledgers there, in runs that have offloads."""
        self.leaving = ""
        """The bookie that an operator takes away, if there is one."""
        self.transactions = Transactions(self) if plan.txn.messages else None
        self.app = App(self) if plan.app.messages else None
        self.table = Table(self) if plan.table.messages else None
        self.letters = DeadLetters(self) if plan.letters.messages else None
        self.started_at = 0.0
        self.healed_at = 0.0

    def member_main(self, node: Node) -> Coroutine[Any, Any, None]:
        """What runs in a broker's process."""
        return broker_main(node, self)

    def tell(self, text: str) -> None:
        self.watching.tell(text)

    def processes(self) -> list[Process]:
        """Every life there was."""
        lives = [process for node in self.nodes.values() for process in node.processes]
        apps = [one.process for one in (self.app, self.table, self.letters) if one is not None]
        return [*lives, *self.clients, *apps, self.metadata.process, self.loop.world]

    def hosts(self) -> list[str]:
        apps = [one.process.host for one in (self.app, self.table, self.letters) if one is not None]
        return [*self.nodes, "metadata", *(client.host for client in self.clients), *apps]

    async def run_all(self) -> None:
        """The whole run."""
        await self.start()
        self.tell("started")
        await play(self)
        await self.heal()
        await self.settle()
        for consumer in self.consumers:
            if consumer.subscription != AUDIT:
                self.history.recording.drained(consumer.topic, consumer.subscription)
        stop_offloads(self)
        if self.table is not None:
            await self.table.check()
        if self.letters is not None:
            await self.letters.check()
        for of_client in (self.app, self.table, self.letters):
            if of_client is not None:
                await of_client.close()
        if ended := self.metadata.watching.ended:
            self.watching.counts["a lease ran out under a living holder"] = ended
        if self.transactions is not None:
            self.transactions.check()
        await check(self)

    def writers(self) -> list[tuple[Node, LedgerWriter]]:
        """Ledgers that are written without a topic."""
        return []

    async def late_copy(self, rng: Random) -> None:
        """A fault of the world of ledgers."""

    async def late_quorum(self, rng: Random) -> None:
        """A fault of the world of ledgers."""

    # -- phases ----------------------------------------------------------------------------

    async def start(self) -> None:
        """All nodes, the namespace, and every subscription."""
        setup = Process(self.loop, "setup", "setup")
        await setup.start(prepare_cluster(self.metadata), "prepare")
        for node in self.nodes.values():
            node.start()
        rng = self.rng
        for topic in self.plan.topics:
            for name, kind, consumers in topic.subscriptions:
                for _ in range(consumers):
                    self._consume(topic.name, name, kind)
            if topic.audited:
                self._consume(topic.name, AUDIT, 0, acks=False)
        deadline = self.loop.now + START_S_MAX
        for consumer in self.consumers:
            if consumer.kind == 0 and consumer.subscribed.is_set():
                continue
            async with asyncio.timeout(max(deadline - self.loop.now, 0.1)):
                await consumer.subscribed.wait()
        for topic in self.plan.topics:
            for number in range(topic.producers):
                self.produce(topic, f"p{number}", rng)
        if self.transactions is not None:
            await self.transactions.start()
        for of_client in (self.app, self.table, self.letters):
            if of_client is not None:
                await of_client.start()
        self.started_at = self.loop.now
        await start_churn(self)

    def topic_names(self) -> list[str]:
        """All that is produced to."""
        topics = dict.fromkeys(producer.topic for producer in self.producers)
        return [*topics, *(() if self.transactions is None else self.transactions.topics())]

    def hurry_acks(self, topic: str | None, within_s: float) -> None:
        """The topic (or every one) is about to be closed: acks that wait for that are sent."""
        for consumer in self.consumers:
            if topic in (None, consumer.topic):
                consumer.hurry(within_s)

    def provoke(self) -> None:
        """Makes the store fail from now on, so that deletions race with failures."""
        for consumer in self.consumers:
            consumer.provoke()

    def client_of_its_own(self) -> Client:
        """Returns connections that no other client uses."""
        services = [(broker.name, BROKER_PORT) for broker in self.brokers]
        return Client(services, self.rng.randrange)

    def _consume(self, topic: str, name: str, kind: int, *, acks: bool = True) -> None:
        client, rng = self.client_of_its_own(), self.new_rng()
        consumer = Consumer(client, self.history, topic, name, kind, rng, self.habits, acks=acks)
        if self.plan.delays.early_acks and acks:
            self.history.topic(topic).on_delayed.append(consumer.ack_early)
        self.add_consumer(consumer)

    def add_consumer(self, consumer: Consumer) -> None:
        """Has it run in one of the clients' processes."""
        self.consumers.append(consumer)
        process = self.rng.choice(self.clients)
        process.start(consumer.run(), f"consumer {consumer.topic} {consumer.subscription}")

    def produce(self, topic: TopicPlan, name: str, rng: Random) -> None:
        """Has a producer run in one of the clients' processes."""
        producer = Producer(
            self.client_of_its_own(),
            self.history,
            topic.name,
            name,
            self.new_rng(),
            messages=topic.messages,
            pace_s=topic.pace_s,
            size_bytes=topic.size_bytes,
            habits=self.habits,
        )
        self.producers.append(producer)
        rng.choice(self.clients).start(producer.run(), f"producer {topic.name} {name}")

    def new_rng(self) -> Random:
        return Random(self.rng.randrange(1 << 40))

    async def heal(self) -> None:
        """Everything works again."""
        self.tell("heal everything")
        self.network.heal_all()
        self.network.weather.slow_chance = 0.0
        self.metadata.lost_answer_chance = 0.0
        self.metadata.writes = Writes()
        self.metadata.late_to.clear()
        self.metadata.late_from.clear()
        self.habits.calm = True
        if self.metadata.down:
            self.metadata.come_up()
        if self.objects is not None:
            self.objects.heal()
        for node in self.nodes.values():
            node.disk_ms = 0.3
            if node.disk is not None:
                node.disk.capacity = node.capacity
            if not node.alive:
                node.start()
            elif node.process is not None and node.process.paused:
                node.process.resume()
        if self.plan.delays.chance:
            for node in self.brokers:
                node.set_clock()
        self.healed_at = self.loop.now

    async def settle(self) -> None:
        """Waits until the clients have received everything; reports what is missing."""
        if not await self._settled(self._missing):
            return
        self.tell(f"clients are done {self.loop.now - self.healed_at:.2f} s after the heal")
        await asyncio.sleep(QUIET_S)
        if self.plan.hazards.retention_s and (gone := trimmed_early(self)):
            self.history.violated(gone)
        if self.transactions is not None:
            self.transactions.look_again()
        elif not self.plan.churn.reloads:
            return
        # What is only in the brokers' memory shows once they read it back.
        await reload_topics(self)
        if await self._settled(self._missing):
            await self._settled(lambda: disagreement(self) or missing_files(self))

    async def _settled(self, missing: Callable[[], str]) -> bool:
        deadline = self.loop.now + SETTLE_S_MAX
        while lack := missing():
            if self.loop.now > deadline:
                self.history.violated(f"did not settle in {SETTLE_S_MAX:.0f} s: {lack}")
                return False
            await asyncio.sleep(LOOK_S)
        return True

    def _missing(self) -> str:
        for producer in self.producers:
            if not producer.done:
                return f"{producer.topic} {producer.name} still has messages without a receipt"
        for consumer in self.consumers:
            if not consumer.serving:
                return f"{consumer.topic}/{consumer.subscription} has no consumer"
        for topic in self.history.topics.values():
            for subscription in topic.subscriptions.values():
                if subscription.over:
                    continue
                # After a seek of unknown outcome, what it brought back may not come again.
                judged = subscription.judged and subscription.name != AUDIT
                if subscription.held and judged:
                    position = next(iter(subscription.held))
                    return (
                        f"{topic.name}/{subscription.name}: {position} was delivered, was not "
                        f"acked, and did not come again"
                    )
                for key, sent in topic.sent.items():
                    if subscription.wants(sent) and not subscription.delivered.get(key):
                        return (
                            f"{topic.name}/{subscription.name}: {key}, receipted as {sent.receipt} "
                            f"at {sent.receipted_at:.3f}, was not delivered"
                        )
        if outside := self.metadata.watching.outside():
            return outside
        for of_client in (self.app, self.table, self.letters):
            if of_client is not None and (lack := of_client.missing()):
                return lack
        return "" if self.transactions is None else self.transactions.missing()
