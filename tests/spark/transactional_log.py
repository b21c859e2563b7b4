"""A real broker in memory whose topic has transactions, and reads of its log without the broker.

`World.some` runs steps of the broker between two requests of a reader, so reads meet every state.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pyroaring import BitMap
from tests.unit.broker.topic.txn_stage import TxnStage, told, txn_stage

from magnetar.bookie.api import BookieIdentity, LedgerEnd, StoredEntry
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.clock import SystemClock
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import TopicName
from magnetar.jobs.log.ledgers import topic_end, topic_log
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.ranges import Window, ranges_of
from magnetar.jobs.log.topic_log import TopicLog
from magnetar.jobs.log.transactions.visible import Settled
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.store import Record
from magnetar.policies.lifecycle import RETENTION
from magnetar.transactions.model import Outcome, TransactionRecord, TxnId, TxnState
from magnetar.transactions.records import StoredRecords, encode_record, record_key
from magnetar_spark.log.losses import losses
from magnetar_spark.planner import behind

DEADLINE_MS = 1 << 50
ENDING = {Outcome.COMMIT: TxnState.COMMITTING, Outcome.ABORT: TxnState.ABORTING}
ENDED = {Outcome.COMMIT: TxnState.COMMITTED, Outcome.ABORT: TxnState.ABORTED}


@dataclass
class Txn:
    """A transaction as its coordinator knows it."""

    id: TxnId
    outcome: Outcome | None = None
    applied: bool = False


@dataclass
class World:
    """A topic, its coordinator, and what was written."""

    t: TxnStage
    topic: PersistentTopic
    txns: dict[int, Txn] = field(default_factory=dict)
    written: list[tuple[Position, int | None]] = field(default_factory=list)
    steps: Iterator[tuple[str, int]] = field(default_factory=lambda: iter(()))
    pace: Callable[[], int] = lambda: 0
    before: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """Steps that run before the reader's first request whose key has this text."""
    trimmable: Position = EARLIEST
    """The topic may be trimmed up to here."""
    _next_id: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def store(self) -> Any:
        return self.t.s.store

    async def some(self, key: str) -> None:
        """Runs the steps of this key, and the next of all steps, as many as `pace` says."""
        async with self._turn:
            for text in [text for text in self.before if text in key]:
                for step in self.before.pop(text):
                    await self.do(*step)
            for _ in range(self.pace()):
                if (following := next(self.steps, None)) is not None:
                    await self.do(*following)

    async def rest(self) -> None:
        """Runs all remaining steps."""
        for step in self.steps:
            await self.do(*step)

    async def do(self, what: str, number: int) -> None:
        """Runs one step; one that is not possible now does nothing."""
        await getattr(self, f"_{what}")(number)

    async def _plain(self, _: int) -> None:
        await self._send(None, None)

    async def _send_in(self, slot: int) -> None:
        txn = self.txns.get(slot)
        if txn is None:
            self._next_id += 1
            txn = self.txns[slot] = Txn(TxnId(0, self._next_id))
            await self._put(txn, TxnState.OPEN)
        if txn.outcome is None:
            await self._send(txn.id, txn.id.least)

    async def _send(self, txn: TxnId | None, number: int | None) -> None:
        producer, sink = await self.t.s.producer(self.topic)
        await self.t.send(self.topic, producer, txn, "x")
        await told(sink, 1)
        assert not sink.errors, sink.errors
        ((_, ledger_id, entry_id),) = sink.receipts
        self.written.append((Position(ledger_id, entry_id), number))
        self.topic.remove_producer(producer)

    async def _put(self, txn: Txn, state: TxnState) -> None:
        record = TransactionRecord(
            state=state, opened_ms=1, deadline_ms=DEADLINE_MS, topics=(str(self.topic.name),)
        )
        await self.store.put(record_key(txn.id), encode_record(record))

    async def _commit(self, slot: int) -> None:
        await self._decide(slot, Outcome.COMMIT)

    async def _abort(self, slot: int) -> None:
        await self._decide(slot, Outcome.ABORT)

    async def _decide(self, slot: int, outcome: Outcome) -> None:
        txn = self.txns.get(slot)
        if txn is not None and txn.outcome is None:
            txn.outcome = outcome
            await self._put(txn, ENDING[outcome])

    async def _apply(self, slot: int) -> None:
        txn = self.txns.get(slot)
        if txn is not None and txn.outcome is not None:
            await self.topic.transactions.end_transaction(txn.id, txn.outcome)
            txn.applied = True
            await self._put(txn, ENDED[txn.outcome])

    async def _forget(self, slot: int) -> None:
        txn = self.txns.get(slot)
        if txn is not None and txn.applied:
            await self.store.delete(record_key(txn.id))
            self.ended[txn.id.least] = txn
            del self.txns[slot]

    ended: dict[int, Txn] = field(default_factory=dict)

    async def _watermark(self, _: int) -> None:
        watermark: Any = self.topic.transactions._watermark
        if watermark._stored is not None:
            await watermark._advance()

    async def _move(self, crash: int) -> None:
        self.topic = await self.t.reopened(self.topic, crash=bool(crash))

    async def _roll(self, _: int) -> None:
        await self.topic.managed_ledger.roll_over()

    async def _roll_set(self, _: int) -> None:
        """Replaces the ledger of the aborted set, as it does once it has grown."""
        aborted: Any = self.topic.managed_ledger.aborted
        if aborted is not None and aborted.log is not None:
            await aborted.log.roll(aborted)

    async def _trim(self, _: int) -> None:
        subscription = self.topic.subscriptions["keeps"]
        ledger = self.topic.managed_ledger
        mark = min(self.trimmable, ledger.last_visible)
        if mark > EARLIEST:
            subscription.cursor.ack_cumulative(ledger.index.floor(*mark))
        # Aborted entries are acked on the cursor, too, whether or not they were read.
        if subscription.cursor.mark_delete <= self.trimmable:
            await self.keep(forever=False)
            await ledger.trim()
            await self.keep(forever=True)

    async def keep(self, *, forever: bool) -> None:
        """Sets retention: all ledgers, or those that the subscription has not consumed."""
        limit = -1 if forever else 0
        kept = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
        await self.t.s.set(RETENTION, kept, self.topic)

    async def _delete(self, _: int) -> None:
        await self.t.s.service.topics.delete(self.topic.name, force=True)

    def outcome(self, number: int | None) -> Outcome | None:
        """The outcome of a message, by the number of its transaction."""
        if number is None:
            return Outcome.COMMIT
        known = {txn.id.least: txn for txn in [*self.txns.values(), *self.ended.values()]}
        return known[number].outcome

    def visible(self) -> list[Position]:
        """What a reader may get by now, and nothing else: in order, before the horizon."""
        positions = []
        for position, number in sorted(self.written):
            outcome = self.outcome(number)
            if outcome is None:
                break
            if outcome is Outcome.COMMIT:
                positions.append(position)
        return positions


class SteppedStore:
    """The reader's metadata store."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def get(self, key: str) -> Record | None:
        await self._world.some(key)
        record: Record | None = await self._world.store.get(key)
        return record

    async def list(self, prefix: str) -> list[Record]:
        await self._world.some(prefix)
        records: list[Record] = await self._world.store.list(prefix)
        return records


class SteppedBookie:
    """The reader's bookie."""

    writable = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._bookie = world.t.s.bookie

    @property
    def identity(self) -> BookieIdentity:
        return self._bookie.identity

    async def read_entries(
        self, ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        assert not fence
        await self._world.some(f"entries of {ledger_id}")
        return await self._bookie.read_entries(ledger_id, first, last, bytes_max=bytes_max)

    async def ledger_end(self, ledger_id: int, *, fence: bool = False) -> LedgerEnd:
        assert not fence
        await self._world.some(f"end of {ledger_id}")
        return await self._bookie.ledger_end(ledger_id)


def reader_of(world: World, settled: dict[TopicName, Settled] | None = None) -> Log:
    """What a planner opens, on the world's store and bookie."""
    store: Any = SteppedStore(world)
    bookies: Any = LocalBookies([SteppedBookie(world)])  # type: ignore[list-item]
    context = LedgerContext(store, bookies, SystemClock(), SINGLE, Random(7))
    log = Log(store, bookies, context, None)
    return log if settled is None else replace(log, settled=settled)


def rows(log: TopicLog, start: Position, end: Position) -> list[Position]:
    """The positions that tasks read between two offsets."""
    window = Window(behind(start), end)
    found = []
    for ranged in ranges_of(log, window, 150):
        aborted = BitMap.deserialize(ranged.aborted) if ranged.aborted else BitMap()
        ids = (entry for entry in range(ranged.first, ranged.last + 1) if entry not in aborted)
        found += [Position(ranged.ledger_id, entry) for entry in ids]
    return found


class Stream:
    """The offsets of a streaming query, and the rows of its micro-batches."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.settled: dict[TopicName, Settled] = {}
        self.offset = EARLIEST
        self.rows: list[Position] = []
        self.batches: list[tuple[Position, Position, list[Position]]] = []

    async def trigger(self) -> None:
        """Plans a micro-batch up to the newest offset, as `PulsarStreamReader` does."""
        name = self.world.topic.name
        end = max(self.offset, await topic_end(reader_of(self.world, self.settled), name))
        if end > self.offset:
            found = await self.planned(self.offset, end, self.settled)
            self.rows += found
            self.batches.append((self.offset, end, found))
            self.offset = end
            self.world.trimmable = end

    async def planned(
        self, start: Position, end: Position, settled: dict[TopicName, Settled] | None = None
    ) -> list[Position]:
        """The rows of the micro-batch between two offsets."""
        log = await topic_log(reader_of(self.world, settled), self.world.topic.name, end)
        assert not list(losses(log, start, end))
        assert log.horizon is None or log.horizon > end, (log.horizon, end)
        return rows(log, start, end)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """A topic with one subscription, which keeps its entries."""
    async with txn_stage() as t:
        topics: Any = t.s.service.topics
        records = StoredRecords(t.s.store, enabled=True)
        topics._context = replace(topics._context, transactions=records)
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        made = World(t, topic)
        await made.keep(forever=True)
        yield made
