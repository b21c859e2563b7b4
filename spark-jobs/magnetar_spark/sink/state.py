"""Reads and writes the journal of a sink, and settles the transactions of its earlier runs.

Rules: `docs/understand/transactions.md`. The order of records in the journal decides which of two
executions is newer: the one whose first record is later.
"""

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.core.ids import Position
from magnetar.core.log import get_logger
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar_spark.sink.batches import Batch
from magnetar_spark.sink.client.brokers import Brokers
from magnetar_spark.sink.client.errors import Unavailable
from magnetar_spark.sink.client.producer import Producer, Txn
from magnetar_spark.sink.client.reader import Reader, keep_messages
from magnetar_spark.sink.client.transactions import Coordinator, Ended
from magnetar_spark.sink.journal import (
    SUBSCRIPTION,
    Base,
    JournalRecord,
    Kind,
    base_of,
    decode_record,
    encode_record,
)
from magnetar_spark.sink.settings import SEGMENT_BYTES_MAX, TRANSACTIONS_MAX

POLL_S: Final = 0.2
SETTLE_TIMEOUT_S: Final = 120.0
"""How long the ends of earlier runs' transactions may take."""
ABORTS_AT_ONCE: Final = 32
ABORTED: Final = "the batch was aborted before this task began to write"
TOO_MANY: Final = (
    f"a batch with exactlyOnce has at most {TRANSACTIONS_MAX} transactions, one for each task and "
    f"for each {SEGMENT_BYTES_MAX >> 20} MiB that a task writes, and this one has begun more. "
    "Write less per batch: set maxBytesPerTrigger (or the option of the query's source), divide a "
    "batch write, or coalesce small partitions. Or write without exactlyOnce"
)

log = get_logger("magnetar.spark.sink")


class Superseded(MagnetarError):
    """A newer run of the query writes: this one must not commit."""


@dataclass(slots=True)
class Findings:
    """What a read of the journal has found."""

    committed: int
    records: list[tuple[Position, JournalRecord]] = field(default_factory=list)

    def transactions(self, executions: Collection[str]) -> list[Txn]:
        """Returns the tasks' transactions of these executions."""
        return [
            record.txn
            for _, record in self.records
            if record.kind is Kind.TASK and record.execution in executions
        ]

    def first_of(self) -> dict[str, Position]:
        """Returns the position of each execution's first record."""
        first: dict[str, Position] = {}
        for position, record in self.records:
            if record.kind is not Kind.ABORTED:  # of a run that may have begun long before
                first.setdefault(record.execution, position)
        return first

    def aborted(self, execution: str, until: Position) -> bool:
        """Returns whether an execution was aborted before `until`."""
        return any(
            record.kind is Kind.ABORTED and record.execution == execution and position < until
            for position, record in self.records
        )


class Journal:
    """One sink's journal."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._producer: Producer | None = None

    async def base(self) -> Base | None:
        """Returns what is known of earlier batches, None if the journal is empty.

        Creates the journal.
        """

        async def once() -> Base | None:
            await keep_messages(self._brokers, self._topic, SUBSCRIPTION, None)
            reader = await Reader.open(self._brokers, self._topic, None)
            try:
                last = await reader.last()
            finally:
                await reader.close()
            if last is None:
                return None
            reader = await Reader.open(self._brokers, self._topic, last)
            try:
                read = await reader.next(self._brokers.settings.operation_timeout_s)
            finally:
                await reader.close()
            if read is None:
                raise Unavailable(f"the last record of {self._topic} could not be read in time")
            return base_of(decode_record(read.value))

        return await self._brokers.repeated(once)

    async def append(self, record: JournalRecord, *, txn: Txn | None = None) -> Position:
        """Appends a record; returns its position. It may be there twice."""

        async def once() -> Position:
            if self._producer is None or self._producer.lost is not None:
                self._producer = await Producer.attach(
                    self._brokers, self._topic, None, transactional=txn is not None
                )
            head = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0)
            value = encode_record(record)
            head.uncompressed_size = len(value)
            receipt = await self._producer.send(Batch(self._topic, head, value, 1), txn)
            return Position(*(await receipt))

        return await self._brokers.repeated(once)

    async def settle(
        self, coordinator: Coordinator, execution: str, base: Base, last: Position
    ) -> Findings:
        """Reads the journal up to `last` at least, and ends the transactions of older executions.

        On return, each leading transaction of another execution that was recorded before `last`
        has ended, and `committed` counts those that committed. Raises Superseded if there is a
        newer execution, PreconditionFailed if one of these transactions belongs to another role,
        and Unavailable.
        """
        until = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            try:
                return await self._settled(coordinator, execution, base, last, until)
            except Unavailable:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(POLL_S)

    async def _settled(
        self, coordinator: Coordinator, execution: str, base: Base, last: Position, until: float
    ) -> Findings:
        findings = Findings(base.committed)
        committing: set[str] = set()
        """Other executions whose leading transaction commits: their DONE must come."""
        foreign: dict[str, Txn] = {}
        """Leading transactions of another role, which cannot be ended, unless their DONE comes."""
        reader = await Reader.open(self._brokers, self._topic, base.since)
        try:
            reached = last
            end_known = False
            while True:
                position = findings.records[-1][0] if findings.records else None
                if position is not None and position >= reached and not committing:
                    if end_known:
                        break
                    # A leading transaction that has ended meanwhile may have left a later DONE.
                    reached, end_known = max(last, await reader.last() or last), True
                    continue
                read = await reader.next(POLL_S)
                if read is None:
                    if time.monotonic() > until:
                        raise Unavailable(
                            f"{self._topic} is not readable to its end in {SETTLE_TIMEOUT_S:g} s: "
                            "an earlier transaction of the sink has not ended"
                        )
                    continue
                if read.position == base.since:
                    findings.records.append((read.position, decode_record(read.value)))
                    continue
                record = decode_record(read.value)
                findings.records.append((read.position, record))
                if record.kind is Kind.DONE:
                    committing.discard(record.execution)
                    foreign.pop(record.execution, None)
                    findings.committed = max(findings.committed, record.batch)
                elif record.kind is Kind.LEAD and record.execution != execution:
                    self._check_order(findings, execution)
                    ended = await coordinator.abort(record.txn)
                    if ended is Ended.FOREIGN:
                        foreign[record.execution] = record.txn
                    elif ended is Ended.COMMITTED:
                        committing.add(record.execution)
                        end_known = False
            self._check_order(findings, execution)
            for txn in foreign.values():
                raise PreconditionFailed(
                    f"the transaction {txn} of an earlier run of the batch belongs to another role "
                    "and may still be committed. Run the query as that role, or again after "
                    "transactionTimeoutMs and the brokers' transaction_outcome_retention_s"
                )
            return findings
        finally:
            await _closed(reader)

    def _check_order(self, findings: Findings, execution: str) -> None:
        """Raises Superseded if another execution began after this one."""
        first = findings.first_of()
        own = first.get(execution)
        if own is None:
            return
        for other, position in first.items():
            if position > own and not self._is_done(findings, other):
                raise Superseded(
                    "another run of the query writes to the same sink: this run stops. If two "
                    "queries write, give each its own sinkId"
                )

    @staticmethod
    def _is_done(findings: Findings, execution: str) -> bool:
        return any(
            record.kind is Kind.DONE and record.execution == execution
            for _, record in findings.records
        )

    async def transactions(self, execution: str, base: Base) -> list[Txn]:
        """Returns the recorded transactions of an execution's tasks. Raises Unavailable.

        Ends at the last readable record.
        """
        return (await self._read(base, None)).transactions([execution])

    async def check_open(self, execution: str, base: Base, position: Position) -> None:
        """Checks that a task may write in the transaction of its record at `position`.

        Raises Superseded if the execution was aborted before that record. The driver that aborts
        reads the journal after its record, so it ends the transactions of earlier ones. Spark does
        not wait for the tasks that it kills before it aborts a batch.

        Raises PreconditionFailed if the execution has begun too many transactions: otherwise the
        batch would be written as a whole before its commit is refused.
        """
        findings = await self._read(base, position)
        if findings.aborted(execution, position):
            raise Superseded(ABORTED)
        # A record may be there twice.
        if len(set(findings.transactions([execution]))) > TRANSACTIONS_MAX:
            raise PreconditionFailed(TOO_MANY)

    async def _read(self, base: Base, last: Position | None) -> Findings:
        """Reads the records from the base to `last`; None: to the last readable one."""
        findings = Findings(base.committed)
        reader = await Reader.open(self._brokers, self._topic, base.since)
        try:
            end = last or await reader.last()
            while end is not None:
                read = await reader.next(self._brokers.settings.operation_timeout_s)
                if read is None:
                    break
                findings.records.append((read.position, decode_record(read.value)))
                if read.position >= end:
                    break
        finally:
            await _closed(reader)
        return findings

    async def forget(self, done: Position) -> None:
        """Lets the topic delete the records up to `done`; a failure only keeps them longer."""
        try:
            async with asyncio.timeout(self._brokers.settings.connect_timeout_s):
                await keep_messages(self._brokers, self._topic, SUBSCRIPTION, done)
        except (MagnetarError, TimeoutError) as error:
            log.info("records of the sink are kept longer", topic=self._topic, error=str(error))

    async def close(self) -> None:
        """Closes the producer."""
        if self._producer is not None:
            try:
                async with asyncio.timeout(self._brokers.settings.connect_timeout_s):
                    await self._producer.close()
            except (MagnetarError, TimeoutError) as error:
                log.info("producer not closed", topic=self._topic, error=str(error))

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._topic


async def abort_all(coordinator: Coordinator, txns: Collection[Txn]) -> None:
    """Aborts transactions unless they have ended; logs those that are left to their timeout."""
    slots = asyncio.Semaphore(ABORTS_AT_ONCE)

    async def abort(txn: Txn) -> None:
        async with slots:
            try:
                await coordinator.abort(txn)
            except MagnetarError as error:
                log.warning("transaction left to its timeout", txn=str(txn), error=str(error))

    async with asyncio.TaskGroup() as group:
        for txn in txns:
            group.create_task(abort(txn), name=f"abort {txn}")


async def _closed(reader: Reader) -> None:
    try:
        await reader.close()
    except MagnetarError as error:
        log.info("reader not closed", error=str(error))


def check_start(base: Base | None, batch: int, *, named: bool) -> Base:
    """Returns the base of a batch; raises PreconditionFailed if the journal should have records.

    A sink with a name may begin with any batch.
    """
    if base is not None:
        return base
    if batch > 0 and not named:
        raise PreconditionFailed(
            f"the sink has no record of batches before {batch}: the query began without "
            "exactlyOnce, or the records were deleted (by a TTL of the namespace, for example). "
            "Set sinkId to a new name to begin with this batch"
        )
    return Base()
