"""Compacted reads beside aborts, compactions, trims, seeks and restarts, against a model.

Every consumer gets committed messages only, in the order of their positions. In the end, each has
got the last value of every key, whatever the raw log still has of it.
"""

import random
from pathlib import Path

import pytest
from tests.unit.broker.topic.stage import Sink, request
from tests.unit.broker.topic.txn_stage import TxnStage, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.compaction.records import CompactedFile, CompactionRecord, compaction_key
from magnetar.core.ids import EARLIEST, Position
from magnetar.metadata.records import encode
from magnetar.offload.file_format import EntryFileWriter
from magnetar.offload.stores import StoreSpec
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD
from magnetar.transactions.model import Outcome, TxnId, TxnState

TEST_TIMEOUT_S = 180
SEEDS = 5
RUNS_PER_SEED = 6
STEPS = 80
ENDED = {Outcome.COMMIT: TxnState.COMMITTED, Outcome.ABORT: TxnState.ABORTED}

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


class Table:
    """The topic, what was sent to it, and how the transactions ended."""

    def __init__(self, t: TxnStage, topic: PersistentTopic, rng: random.Random, folder: Path):
        self.t, self.topic, self.rng, self.folder = t, topic, rng, folder
        self.sent: dict[Position, tuple[str, int, TxnId | None]] = {}
        self.entries: dict[Position, bytes] = {}
        self.outcomes: dict[TxnId, Outcome | None] = {}
        self._horizon = EARLIEST

    @property
    def open(self) -> list[TxnId]:
        return [txn for txn, outcome in self.outcomes.items() if outcome is None]

    def committed(self, position: Position) -> bool:
        txn = self.sent[position][2]
        return txn is None or self.outcomes[txn] is Outcome.COMMIT

    def latest(self, upto: Position) -> dict[str, Position]:
        """The last committed message of each key."""
        return {
            self.sent[position][0]: position
            for position in sorted(self.sent)
            if position <= upto and self.committed(position)
        }

    async def publish(self, txn: TxnId | None = None) -> None:
        key, number, ledger = self.rng.choice("abc"), len(self.sent), self.topic.managed_ledger
        await self.t.sent(self.topic, txn, f"{key}:{number}")
        position = ledger.last_confirmed
        self.sent[position] = key, number, txn
        self.entries[position] = (await ledger.read_entry(position)).data

    async def publish_in_transaction(self) -> None:
        txn = self.rng.choice([*self.open, TxnId(0, len(self.outcomes))][:2])
        if txn not in self.outcomes:
            self.t.records.open(txn, self.topic)
            self.outcomes[txn] = None
        await self.publish(txn)

    async def end(self) -> None:
        if self.open:
            txn, outcome = self.rng.choice(self.open), self.rng.choice([*Outcome, Outcome.ABORT])
            self.outcomes[txn] = outcome
            self.t.records.set(txn, ENDED[outcome])
            await self.topic.transactions.end_transaction(txn, outcome)

    async def compact(self) -> None:
        """Makes an artifact live, as a job does that has read the log up to some place."""
        ledger = self.topic.managed_ledger
        after = max(self._horizon, ledger.trimmed_to)
        upto = [position for position in self.sent if after < position <= ledger.last_visible]
        if upto:
            self._horizon = self.rng.choice(upto)
            record = CompactionRecord(
                horizon=self._horizon,
                log_created_ms=ledger.created_ms,
                attempt=str(self._horizon),
                store=StoreSpec("filesystem", str(self.folder)),
                compacted_ms=1,
                files=self._written(sorted(self.latest(self._horizon).values())),
            )
            await self.t.s.store.put(compaction_key(ledger.name), encode(record))

    def _written(self, left: list[Position]) -> tuple[CompactedFile, ...]:
        if not left:
            return ()
        path = f"{self._horizon.ledger_id}-{self._horizon.entry_id}.parquet"
        with (self.folder / path).open("wb") as sink:
            name = self.topic.managed_ledger.name
            writer = EntryFileWriter(sink, managed_ledger=name, group_bytes=40)
            for position in left:
                writer.add(*position, self.entries[position])
            made = writer.close()
        return (
            CompactedFile(
                path=path,
                file_bytes=made.file_bytes,
                checksum=made.checksum,
                first=made.first,
                last=made.last,
                entries=made.entries,
                messages=made.entries,
                length_bytes=made.length_bytes,
            ),
        )

    async def trim(self) -> None:
        ledger = self.topic.managed_ledger
        await ledger.roll_over()
        ledger.set_retention(0, 0)
        await ledger.trim()

    async def reopen(self) -> None:
        self.topic = await self.t.reopened(self.topic, crash=self.rng.random() < 0.5)


class Client:
    """A reader, or a consumer of a durable subscription."""

    def __init__(self, table: Table, name: str, *, durable: bool) -> None:
        self._table, self._name, self._durable = table, name, durable
        self._subscription: PersistentSubscription | None = None
        self._here: list[Position] = []
        """What came since it attached, or got everything again."""
        self._last: Position | None = None
        self.best: dict[str, int] = {}

    async def attach(self) -> PersistentSubscription:
        if (subscription := self._subscription) is not None and not subscription.closed:
            return subscription
        topic, start = self._table.topic, None
        if not self._durable and self._last is not None:
            start = Position(self._last.ledger_id, self._last.entry_id + 1)
        asked = request(
            *(self._name, "c", SubType.Exclusive),
            read_compacted=True, durable=self._durable, start=start,
        )  # fmt: skip
        self._sink = Sink()
        self._consumer = Consumer(asked.spec, self._sink, self._table.t.s.clock)
        self._consumer.compacted = await self._table.t.s.service.compaction.log_of(topic)
        self._subscription = await topic.subscribe(asked, self._consumer)
        self._here = []
        return self._subscription

    def receive(self) -> None:
        table = self._table
        for text, at in zip(self._sink.texts, self._sink.positions, strict=True):
            position = Position(*at)
            key, number, _ = table.sent[position]
            assert text == f"{key}:{number}"
            assert table.committed(position)
            assert not self._here or self._here[-1] < position
            self._here.append(position)
            self._last, self.best[key] = position, max(number, self.best.get(key, 0))
        self._sink.take()

    async def step(self) -> None:
        rng, subscription = self._table.rng, await self.attach()
        self.receive()
        action = rng.choice(["flow", "flow", "flow", "ack", "ack", "ack", "leave", "again", "seek"])
        if action == "flow":
            subscription.flow(self._consumer, rng.randint(1, 4))
            await turns(rng.randint(0, 30))
        elif action == "ack" and self._here:
            acked = (*rng.choice(self._here[-2:]), None, 0)
            subscription.ack(self._consumer, [acked], cumulative=True)
        elif action == "leave":
            self._table.topic.remove_consumer(subscription, self._consumer)
            self._subscription = None
        elif action == "again":
            self._here = []
            subscription.redeliver(self._consumer)
        elif action == "seek" and rng.random() < 0.3:
            await subscription.seek(EARLIEST)
            self._subscription, self._last, self.best = None, None, {}

    async def drain(self) -> None:
        subscription = await self.attach()
        for _ in range(4):
            subscription.flow(self._consumer, 1_000)
            assert subscription.dispatcher is not None
            while subscription.dispatcher.reader.reading:
                await turns(1)
            await turns(20)
        self.receive()


async def run(rng: random.Random, folder: Path) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await t.s.set(COMPACTION_THRESHOLD, 1 << 40, topic)
        table = Table(t, topic, rng, folder)
        clients = [Client(table, "reader", durable=False), Client(table, "sub", durable=True)]
        for client in clients:
            await client.attach()
        actions = [
            (4, table.publish), (3, table.publish_in_transaction), (3, table.end),
            (3, table.compact), (3, table.trim), (1, table.reopen),
            *((6, client.step) for client in clients),
        ]  # fmt: skip
        weights = [weight for weight, _ in actions]
        for _ in range(STEPS):
            ((_, action),) = rng.choices(actions, weights)
            await action()
        while table.open:
            await table.end()
        for client in [*clients, Client(table, "late", durable=False)]:
            await client.drain()
            latest = table.latest(table.topic.managed_ledger.last_confirmed)
            assert client.best == {key: table.sent[at][1] for key, at in latest.items()}


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_compacted_read_misses_no_value(seed: int, tmp_path: Path) -> None:
    for number in range(RUNS_PER_SEED):
        folder = tmp_path / str(number)
        folder.mkdir()
        await run(random.Random(seed * RUNS_PER_SEED + number), folder)
