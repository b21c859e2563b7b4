"""Which batch of which sink a task writes. Pure, but for Spark's task context."""

import zlib
from dataclasses import dataclass, field
from typing import Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from magnetar.core.errors import PreconditionFailed
from magnetar_spark.sink.client.producer import Txn
from magnetar_spark.sink.journal import Base, JournalRecord, Kind, journal_topic
from magnetar_spark.sink.settings import ExactlyOnce

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of the jobs of a streaming query, which Spark sets."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One run of one batch of a sink."""

    execution: str
    """Unique: a batch that is run again has another one."""
    sink_id: str | None
    """None: a batch write without a name, whose journal is soon deleted as inactive."""
    batch: int
    namespace: str
    named: bool = False
    """Whether the user chose the id."""

    @property
    def journal(self) -> str:
        """The topic of the journal."""
        return journal_topic(self.namespace, self.sink_id or self.execution)

    @property
    def seed(self) -> int:
        """The number that chooses the coordinator, the same for all tasks."""
        return zlib.crc32(self.execution.encode())

    def record(self, kind: Kind, txn: Txn, base: Base) -> JournalRecord:
        """Returns a record of the journal."""
        since = base.since
        return JournalRecord(
            kind=kind,
            execution=self.execution,
            batch=self.batch,
            txn=txn,
            committed=base.committed,
            since=None if since is None else (since.ledger_id, since.entry_id),
        )


@dataclass
class TaskDone(WriterCommitMessage):
    """What a task tells the driver. Without exactlyOnce there is nothing to tell."""

    identity: Identity | None = None
    txns: list[Txn] = field(default_factory=list)
    """The task's transactions, still open."""
    skipped: bool = False
    """Whether the batch was committed before."""


def of_batch(options: ExactlyOnce, execution: str) -> Identity:
    """Returns the identity of a batch write."""
    if options.sink_id is None or options.batch_id is None:
        return Identity(execution, None, 0, options.state_namespace)
    return Identity(
        execution, options.sink_id, options.batch_id, options.state_namespace, named=True
    )


def of_task(options: ExactlyOnce, execution: str) -> Identity:
    """Returns the identity of the micro-batch that the current task belongs to.

    Raises PreconditionFailed if Spark does not tell the query and the batch.
    """
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    batch = None if context is None else context.getLocalProperty(BATCH_ID)
    if not query or not batch:
        raise PreconditionFailed(
            f"Spark gives the task neither {QUERY_ID} nor {BATCH_ID}: exactlyOnce needs both"
        )
    return Identity(
        execution,
        options.sink_id or query,
        int(batch),
        options.state_namespace,
        named=options.sink_id is not None,
    )
