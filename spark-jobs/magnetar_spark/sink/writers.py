"""The writers that Spark asks for: one for batch writes, one for micro-batches.

Where Spark calls what:

- `writer` / `streamWriter`, in a process of the driver, for each write and each micro-batch. The
  writer is pickled for the tasks. The constructor of a streaming writer is also called before
  `commit` and `abort`, with the same options, but with no other state: its tasks' messages have all
  that it needs.
- `write`, in a worker of an executor, for each attempt of each task, also for speculative ones.
- `commit` with the message of one successful attempt of each task, or `abort` with those that there
  are, in a process of the driver. A batch writer is the one that was pickled.
"""

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from magnetar.core.errors import PersistenceError
from magnetar.jobs.event_loop import run
from magnetar_spark.sink.commit import abort_batch, commit_batch
from magnetar_spark.sink.identity import Identity, TaskDone, of_batch, of_task
from magnetar_spark.sink.options import WriteOptions
from magnetar_spark.sink.rows import RowCodec
from magnetar_spark.sink.task import write_rows


class PulsarBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises PreconditionFailed for columns that cannot be written."""
        _check_columns(options, schema)
        self._options = options
        self._schema = schema
        once = options.exactly_once
        self._identity: Identity | None = None if once is None else of_batch(once, uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, self._schema, iterator, self._identity, _partition())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        run(commit_batch(self._options, _done(messages), self._identity))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        run(abort_batch(self._options, _done(messages), self._identity))


class PulsarStreamWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises PreconditionFailed for columns that cannot be written."""
        _check_columns(options, schema)
        self._options = options
        self._schema = schema
        self._execution = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        once = self._options.exactly_once
        identity = None if once is None else of_task(once, self._execution)
        return write_rows(self._options, self._schema, iterator, identity, _partition())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        run(commit_batch(self._options, _of(batchId, messages)))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        run(abort_batch(self._options, _of(batchId, messages)))


def _check_columns(options: WriteOptions, schema: StructType) -> None:
    RowCodec(schema, options.topic, options.schema_type, options.record_name)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone | None]:
    return [message if isinstance(message, TaskDone) else None for message in messages]


def _of(batch: int, messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone | None]:
    """Returns the messages; raises PersistenceError if they are of another micro-batch."""
    done = _done(messages)
    for message in done:
        if message is not None and message.identity and message.identity.batch != batch:
            raise PersistenceError(
                f"a task has written batch {message.identity.batch}, but Spark ends batch {batch}"
            )
    return done


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
