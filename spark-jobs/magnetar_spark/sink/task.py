"""The body of a writing task: rows to batches, batches to brokers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from magnetar.core.ids import Position
from magnetar_spark.sink.batches import Batch, OpenBatch
from magnetar_spark.sink.client.brokers import Brokers, full_name
from magnetar_spark.sink.client.producer import Txn
from magnetar_spark.sink.client.transactions import Coordinator
from magnetar_spark.sink.identity import Identity, TaskDone
from magnetar_spark.sink.journal import Base, Kind
from magnetar_spark.sink.loop_thread import LoopThread
from magnetar_spark.sink.options import WriteOptions
from magnetar_spark.sink.routing import Router
from magnetar_spark.sink.rows import Message, RowCodec
from magnetar_spark.sink.sender import Sender
from magnetar_spark.sink.state import ABORTED, Journal, Superseded, abort_all, check_start
from magnetar_spark.worker import keep_imports

FIRST_TASK: Final = 0


class RecordedTransactions:
    """Transactions of a task, each in the journal before it is used (`Transacting`)."""

    def __init__(
        self, coordinator: Coordinator, journal: Journal, identity: Identity, base: Base
    ) -> None:
        self._coordinator = coordinator
        self._journal = journal
        self._identity = identity
        self._base = base
        self._prepared: Txn | None = None

    async def begin(self) -> Txn:
        """See `Transacting`.

        Raises Superseded if the batch was aborted, PreconditionFailed if it is too large.
        """
        if (txn := self._prepared) is not None:
            self._prepared = None
            return txn
        txn, position = await self._begun()
        try:
            await self._journal.check_open(self._identity.execution, self._base, position)
        except BaseException:
            await abort_all(self._coordinator, [txn])
            raise
        return txn

    async def settle_earlier(self) -> None:
        """Aborts what earlier runs of the batch have left open: it holds topics back.

        Raises Superseded, Unavailable.
        """
        self._prepared, last = await self._begun()
        own = self._identity.execution
        findings = await self._journal.settle(self._coordinator, own, self._base, last)
        if findings.aborted(own, last):
            raise Superseded(ABORTED)
        others = {record.execution for _, record in findings.records} - {own}
        await abort_all(self._coordinator, findings.transactions(others))

    async def close(self) -> None:
        """Aborts a transaction that was not used."""
        if self._prepared is not None:
            await abort_all(self._coordinator, [self._prepared])

    async def _begun(self) -> tuple[Txn, Position]:
        """Begins a transaction; returns it with the position of its record."""
        txn = await self._coordinator.begin()
        try:
            record = self._identity.record(Kind.TASK, txn, self._base)
            return txn, await self._journal.append(record)
        except BaseException:
            await abort_all(self._coordinator, [txn])
            raise

    async def add(self, txn: Txn, *topics: str) -> None:
        """See `Transacting`."""
        await self._coordinator.add(txn, *topics)

    async def abort(self, txn: Txn) -> object:
        """See `Transacting`."""
        return await self._coordinator.abort(txn)


@dataclass(slots=True)
class _Open:
    """What an open task holds."""

    brokers: Brokers
    sender: Sender
    journal: Journal | None = None
    transactions: RecordedTransactions | None = None
    skipped: bool = False


async def _opened(
    options: WriteOptions, codec: RowCodec, identity: Identity | None, number: int
) -> _Open:
    """Opens a task; with a journal, first looks whether the batch is committed."""
    brokers = Brokers(options.client)
    schema = codec.codec.schema
    once = options.exactly_once
    try:
        if identity is None or once is None:
            return _Open(brokers, Sender(brokers, options.producer, schema, None))
        coordinator = await Coordinator.choose(brokers, identity.seed, once.transaction_timeout_ms)
        journal, base = Journal(brokers, identity.journal), Base()
        if identity.sink_id is not None:
            base = check_start(await journal.base(), identity.batch, named=identity.named)
            if base.committed >= identity.batch:
                sender = Sender(brokers, options.producer, schema, None)
                return _Open(brokers, sender, journal, skipped=True)
        transactions = RecordedTransactions(coordinator, journal, identity, base)
        if identity.sink_id is not None and number == FIRST_TASK:
            try:
                await transactions.settle_earlier()
            except BaseException:
                await transactions.close()
                raise
        sender = Sender(brokers, options.producer, schema, transactions)
        return _Open(brokers, sender, journal, transactions)
    except BaseException:
        await brokers.__aexit__(None, None, None)
        raise


def write_rows(
    options: WriteOptions,
    schema: StructType,
    batches: Iterator[pa.RecordBatch],
    identity: Identity | None,
    number: int,
) -> TaskDone:
    """Writes the rows of a task; `number` is that of its partition.

    On return, every message has its receipt. Raises MagnetarError, after its transactions were
    aborted.
    """
    keep_imports()
    codec = RowCodec(schema, options.topic, options.schema_type, options.record_name)
    with LoopThread() as loop:
        opened = loop.run(_opened(options, codec, identity, number))
        try:
            if opened.skipped:
                for _ in batches:
                    pass
                return TaskDone(identity, skipped=True)
            batcher = _Batcher(options, loop, opened, number)
            try:
                for arrow in batches:
                    for message in codec.messages(arrow):
                        batcher.add(message)
                batcher.flush()
                loop.run(opened.sender.flush())
            except BaseException:
                loop.run(opened.sender.abort())
                raise
            return TaskDone(identity, opened.sender.finished)
        finally:
            loop.run(_close(opened))


async def _close(opened: _Open) -> None:
    await opened.sender.close()
    if opened.transactions is not None:
        await opened.transactions.close()
    if opened.journal is not None:
        await opened.journal.close()
    await opened.brokers.__aexit__(None, None, None)


class _Batcher:
    """Collects the messages of a task by partition."""

    def __init__(self, options: WriteOptions, loop: LoopThread, opened: _Open, number: int) -> None:
        self._settings = options.producer
        self._loop = loop
        self._opened = opened
        self._router = Router(options.producer, number)
        self._partitions: dict[str, tuple[str, int]] = {}
        """Full name and partitions of each topic, as rows name it."""
        self._open: dict[str, OpenBatch] = {}

    def add(self, message: Message) -> None:
        topic, partitions = self._topic(message.topic)
        if partitions:
            topic = f"{topic}-partition-{self._router.partition(message, partitions)}"
        batch = self._open.get(topic)
        if batch is None:
            batch = self._open[topic] = OpenBatch(topic, self._settings)
        if batch.add(message):
            del self._open[topic]
            self._send(batch.built())
            if partitions:
                self._router.sent(message.topic)

    def flush(self) -> None:
        for batch in self._open.values():
            self._send(batch.built())
        self._open.clear()

    def _topic(self, name: str) -> tuple[str, int]:
        resolved = self._partitions.get(name)
        if resolved is None:
            topic = full_name(name)
            partitions = self._loop.run(self._opened.brokers.partitions(topic))
            resolved = self._partitions[name] = topic, partitions
        return resolved

    def _send(self, batch: Batch) -> None:
        self._loop.run(self._opened.sender.send(batch))
