"""Sends the batches of a task: receipts, lost connections, transactions.

The batches that were sent since the last flush are a segment. If its connection is lost, or a topic
moves, nobody knows which batches without a receipt were stored:

- Without transactions, these batches are sent again: every message is stored at least once.
- With transactions, the segment's transaction is aborted, and the whole segment is sent again in a
  new one. So a committed transaction has every message once, whether or not topics deduplicate.

A segment ends with `flush`, or after SEGMENT_BYTES_MAX.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.core.backoff import Backoff
from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.core.log import get_logger
from magnetar_spark.sink.batches import Batch
from magnetar_spark.sink.client.brokers import Brokers
from magnetar_spark.sink.client.errors import Unavailable, passes
from magnetar_spark.sink.client.producer import Producer, Txn
from magnetar_spark.sink.settings import SEGMENT_BYTES_MAX, TOPICS_MAX, ProducerSettings
from magnetar_spark.sink.values import TopicSchema

RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 2.0

log = get_logger("magnetar.spark.sink")


class Transacting(Protocol):
    """Transactions for the segments of a task."""

    async def begin(self) -> Txn:
        """Begins and records a transaction."""

    async def add(self, txn: Txn, *topics: str) -> None:
        """Adds topics to it."""

    async def abort(self, txn: Txn) -> object:
        """Aborts it."""


@dataclass(slots=True, eq=False)
class _Sent:
    batch: Batch
    receipt: "asyncio.Future[tuple[int, int]] | None" = None
    pending: bool = True
    """Whether it counts among the pending messages: a receipt is noticed later than it comes."""

    @property
    def stored(self) -> bool:
        receipt = self.receipt
        return receipt is not None and receipt.done() and receipt.exception() is None


class Sender:
    """The producers of one task."""

    def __init__(
        self,
        brokers: Brokers,
        settings: ProducerSettings,
        schema: TopicSchema | None,
        transactions: Transacting | None,
    ) -> None:
        self.finished: list[Txn] = []
        """The transactions of finished segments, to be committed."""
        self._brokers = brokers
        self._settings = settings
        self._schema = schema
        self._transactions = transactions
        self._producers: dict[str, Producer] = {}
        self._segment: deque[_Sent] = deque()
        self._segment_bytes = 0
        self._pending = 0
        self._txn: Txn | None = None
        self._in_txn: set[str] = set()
        self._progress = asyncio.Event()
        """Set when a receipt comes, or an error."""

    async def send(self, batch: Batch) -> None:
        """Sends a batch, and returns when there is room for the next one.

        Raises MagnetarError if a topic refuses a message or its schema, or for lack of receipts.
        """
        size = len(batch.payload)
        if self._segment and self._segment_bytes + size > SEGMENT_BYTES_MAX:
            await self.flush()
        sent = _Sent(batch)
        self._segment.append(sent)
        self._segment_bytes += size
        self._pending += batch.count
        try:
            await self._put(sent)
        except MagnetarError as error:
            await self._recovered(error)
        await self._until(lambda: self._pending <= self._settings.pending_messages)

    async def flush(self) -> None:
        """Returns when every message has its receipt; raises as `send`."""
        await self._until(lambda: not self._pending)
        if self._txn is not None:
            self.finished.append(self._txn)
        self._txn = None
        self._in_txn.clear()
        self._segment.clear()
        self._segment_bytes = 0

    async def abort(self) -> None:
        """Aborts all transactions of the task, as far as brokers are available."""
        if self._transactions is None:
            return
        txns = [*self.finished, *(() if self._txn is None else (self._txn,))]
        for txn in txns:
            try:
                await self._transactions.abort(txn)
            except MagnetarError as error:
                log.warning("transaction left to its timeout", txn=str(txn), error=str(error))
        self.finished.clear()
        self._txn = None

    async def close(self) -> None:
        """Closes the producers, without waiting for receipts."""
        for producer in self._producers.values():
            with suppress(MagnetarError, TimeoutError):
                async with asyncio.timeout(self._brokers.settings.connect_timeout_s):
                    await producer.close()
        self._producers.clear()

    async def _put(self, sent: _Sent) -> None:
        """Sends one batch; raises if it cannot be sent now."""
        topic = sent.batch.topic
        producer = await self._producer(topic)
        txn = await self._joined(topic)
        receipt = await producer.send(sent.batch, txn)
        receipt.add_done_callback(lambda done: self._settled(sent, done))
        sent.receipt = receipt

    def _settled(self, sent: _Sent, receipt: "asyncio.Future[tuple[int, int]]") -> None:
        if receipt.cancelled() or receipt.exception() is not None:
            self._progress.set()
            return
        if sent.pending:
            sent.pending = False
            self._pending -= sent.batch.count
        if self._transactions is None:
            # Only batches without a receipt are ever sent again.
            while self._segment and self._segment[0].stored:
                self._segment_bytes -= len(self._segment.popleft().batch.payload)
        self._progress.set()

    async def _producer(self, topic: str) -> Producer:
        producer = self._producers.get(topic)
        if producer is not None and producer.lost is not None:
            raise producer.lost
        if producer is None:
            if len(self._producers) >= TOPICS_MAX:
                raise PreconditionFailed(
                    f"a task writes to more than {TOPICS_MAX} topics and partitions: repartition "
                    "the rows by __topic, or split the write"
                )
            producer = self._producers[topic] = await Producer.attach(
                self._brokers, topic, self._schema, transactional=self._transactions is not None
            )
        return producer

    async def _joined(self, topic: str) -> Txn | None:
        if self._transactions is None:
            return None
        if self._txn is None:
            self._txn = await self._transactions.begin()
        if topic not in self._in_txn:
            await self._transactions.add(self._txn, topic)
            self._in_txn.add(topic)
        return self._txn

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Waits for receipts, and recovers from lost connections. Raises Unavailable too late."""
        timeout_s = self._settings.send_timeout_s or None
        until = time.monotonic() + (timeout_s or 0)
        while not reached():
            if (error := self._lost()) is not None:
                await self._recovered(error)
                continue
            self._progress.clear()
            left_s = None if timeout_s is None else until - time.monotonic()
            before = self._pending
            try:
                async with asyncio.timeout(left_s):
                    await self._progress.wait()
            except TimeoutError:
                raise Unavailable(
                    f"{self._pending} messages have no receipt after {timeout_s:g} s "
                    "(pulsar.producer.sendTimeoutMs)"
                ) from None
            if self._pending < before:
                until = time.monotonic() + (timeout_s or 0)

    def _lost(self) -> MagnetarError | None:
        for producer in self._producers.values():
            if producer.lost is not None:
                return producer.lost
        return None

    async def _recovered(self, error: MagnetarError) -> None:
        """Sends again what may be lost. Raises the last error after the send timeout."""
        timeout_s = self._settings.send_timeout_s
        until = time.monotonic() + timeout_s
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, random.Random())
        while True:
            if not passes(error):
                raise error
            pause_s = backoff.failed_s()
            if timeout_s and time.monotonic() + pause_s > until:
                raise error
            log.info("batches are sent again", error=str(error), batches=len(self._segment))
            await asyncio.sleep(pause_s)
            try:
                await self._begin_again()
                return
            except MagnetarError as next_error:
                error = next_error

    async def _begin_again(self) -> None:
        transactions, txn = self._transactions, self._txn
        if transactions is not None:
            # New sequence ids: topics that deduplicate have seen those of the aborted messages.
            await self.close()
            if txn is not None:
                await transactions.abort(txn)
            self._txn = None
            self._in_txn.clear()
            for sent in self._segment:
                sent.receipt = None
        else:
            for topic in [name for name, each in self._producers.items() if each.lost is not None]:
                del self._producers[topic]
        again = [sent for sent in self._segment if not _under_way(sent)]
        for sent in self._segment:
            sent.pending = not sent.stored
        self._pending = sum(sent.batch.count for sent in self._segment if sent.pending)
        for sent in again:
            sent.receipt = None
            await self._put(sent)


def _under_way(sent: _Sent) -> bool:
    """Whether a batch is stored, or its receipt may still come."""
    return sent.stored or (sent.receipt is not None and not sent.receipt.done())
