"""A topic whose transactions have records in memory, and clients that use them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
from tests.unit.broker.subscription.conftest import entry_bytes
from tests.unit.broker.topic.stage import ProducerSink, Stage, stage
from tests.unit.ledger.stage import turns

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.producer import Producer
from magnetar.core.errors import MetadataError
from magnetar.core.names import parse_topic
from magnetar.transactions.model import SubscriptionInTxn, TransactionRecord, TxnId, TxnState
from magnetar.wire.entry import in_transaction, parse_metadata
from magnetar.wire.events import SendRun

T1, T2, T3 = TxnId(0, 1), TxnId(0, 2), TxnId(1, 1)
DEADLINE_MS = 1 << 50


class Records:
    """The records, and the reads of them, which a test may hold or fail."""

    def __init__(self) -> None:
        self.by_id: dict[TxnId, TransactionRecord] = {}
        self.asked: list[TxnId] = []
        self.go = asyncio.Event()
        self.go.set()
        self.failing = False
        self.enabled = True
        self.immediate = False
        """Whether a read needs no wait, as in a standalone."""

    def record_at_once(self, txn: TxnId) -> TransactionRecord | None:
        self.asked.append(txn)
        if self.failing:
            raise MetadataError("no answer")
        return self.by_id.get(txn)

    async def record(self, txn: TxnId) -> TransactionRecord | None:
        self.asked.append(txn)
        record = self.by_id.get(txn)
        await self.go.wait()
        if self.failing:
            raise MetadataError("no answer")
        return record

    def open(
        self,
        txn: TxnId,
        *topics: PersistentTopic,
        subscriptions: tuple[str, ...] = ("s",),
        deadline_ms: int = DEADLINE_MS,
    ) -> None:
        names = tuple(str(topic.name) for topic in topics)
        added = tuple(SubscriptionInTxn(name, each) for name in names for each in subscriptions)
        self.by_id[txn] = TransactionRecord(
            state=TxnState.OPEN,
            opened_ms=1,
            deadline_ms=deadline_ms,
            topics=names,
            subscriptions=added,
        )

    def set(self, txn: TxnId, state: TxnState) -> None:
        self.by_id[txn] = msgspec.structs.replace(self.by_id[txn], state=state)


class TxnStage:
    """A stage whose broker reads `records`."""

    def __init__(self, s: Stage) -> None:
        self.s = s
        self.records = Records()
        topics: Any = s.service.topics
        topics._context = replace(topics._context, transactions=self.records)

    def off(self) -> None:
        """Turns transactions off."""
        self.records.enabled = False

    async def topic(self, local: str = "t") -> PersistentTopic:
        return await self.s.topic(local)

    async def reopened(self, topic: PersistentTopic, *, crash: bool = False) -> PersistentTopic:
        """The topic as its next owner opens it, after a clean end or a crash."""
        registry = self.s.service.topics
        if crash:
            self.s.service.open_topics.abandon(lambda _topic: True)
        else:
            await registry.unload(topic.name)
        opened = await registry.get_or_open(parse_topic(topic.full_name), create=False)
        assert isinstance(opened, PersistentTopic)
        return opened

    async def send(
        self, topic: PersistentTopic, producer: Producer, txn: TxnId | None, *texts: str
    ) -> None:
        """Sends each text as the session does."""
        for text in texts:
            entry = entry_bytes(text)
            if txn is not None:
                entry = in_transaction(entry, parse_metadata(entry), *txn)
            run = SendRun(producer.producer_id, [1], [1], [1], [entry], len(entry), txn)
            gate = topic.gate if run.txn is None else topic.gate_of(run)
            if gate is None:
                topic.publish(producer, run)
            else:
                gate.publish(producer, run)

    async def sent(self, topic: PersistentTopic, txn: TxnId | None, *texts: str) -> None:
        """Sends the texts, and waits for their receipts."""
        producer, sink = await self.s.producer(topic)
        await self.send(topic, producer, txn, *texts)
        await told(sink, len(texts))
        topic.remove_producer(producer)
        assert not sink.errors, sink.errors


async def told(sink: ProducerSink, answers: int) -> None:
    for _ in range(2_000):
        if len(sink.told) >= answers:
            return
        await turns(1)
    raise AssertionError(f"{answers} answers did not come: {sink.told}")


@asynccontextmanager
async def txn_stage(**settings: Any) -> AsyncIterator[TxnStage]:
    async with stage(**{"failover_delay_ms": 0, **settings}) as s:
        yield TxnStage(s)
