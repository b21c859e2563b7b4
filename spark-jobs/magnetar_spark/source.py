"""The data source `pulsar`: answers Spark's requests from the log, and writes by brokers (`sink`).

Spark creates a `PulsarDataSource` from the options, in a Python process of its own; asks it for its
schema; then for a reader, which plans tasks there, and is pickled and sent to the executors. A task
reads its ranges and yields Arrow batches (`tasks`).

Filters narrow the plan only with the option `filterPushdown`. Spark (4.3) keeps the narrowed reader
with the relation, so that the next query on the same DataFrame would get the rows of the first. A
separate DataFrame for each query (`load()`) is safe.
"""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from functools import cached_property

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from magnetar.core.errors import PreconditionFailed
from magnetar.jobs.event_loop import run
from magnetar_spark.filters import Bounds
from magnetar_spark.options import ReadOptions
from magnetar_spark.planner import LogPartition, plan_read
from magnetar_spark.sink.options import WriteOptions
from magnetar_spark.sink.writers import PulsarBatchWriter, PulsarStreamWriter
from magnetar_spark.stream import PulsarStreamReader
from magnetar_spark.table import schema_of
from magnetar_spark.tasks import record_batches
from magnetar_spark.values import Values, described_values


class PulsarDataSource(DataSource):
    """Spark's entry point: the schema and the readers of topics."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    @cached_property
    def _read(self) -> ReadOptions:
        """The options of a read. Raises PreconditionFailed."""
        return ReadOptions.parse(self._given)

    def schema(self) -> StructType:
        return schema_of(self._values().spark_fields())

    def reader(self, schema: StructType) -> DataSourceReader:
        kind = PulsarReader if self._read.filter_pushdown else PlainReader
        return kind(self._read, schema, self._values())

    def streamReader(self, schema: StructType) -> PulsarStreamReader:
        """A streaming reader. Raises PreconditionFailed for options of batch reads."""
        if self._read.ending is not None:
            raise PreconditionFailed(
                "endingOffsets and endingTime are options of batch reads: a stream has no end. "
                "Remove them; with the trigger availableNow the query ends where the topics end"
            )
        return PulsarStreamReader(self._read, schema, self._values())

    def writer(self, schema: StructType, overwrite: bool) -> PulsarBatchWriter:
        """A writer of rows. Raises PreconditionFailed for options, columns, and overwrites."""
        if overwrite:
            raise PreconditionFailed(
                "a topic cannot be overwritten: write with the mode append, or delete the topic"
            )
        return PulsarBatchWriter(WriteOptions.parse(self._given, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> PulsarStreamWriter:
        """A writer of micro-batches. Raises PreconditionFailed as `writer`."""
        if overwrite:
            raise PreconditionFailed(
                "a topic cannot be overwritten: use the output mode append or update, not complete"
            )
        return PulsarStreamWriter(WriteOptions.parse(self._given, streaming=True), schema)

    def _values(self) -> Values:
        return run(described_values(self._read))


class PlainReader(DataSourceReader):
    """A batch read without filters."""

    def __init__(self, options: ReadOptions, schema: StructType, values: Values) -> None:
        self._options = options
        self._schema = schema
        self._values = values
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        return run(plan_read(self._options, self._bounds)).partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            return iter(())  # Spark's own partition if there is nothing to read
        return record_batches(self._options.log, partition, self._schema, self._values)


class PulsarReader(PlainReader):
    """A batch read that is narrowed by filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = Bounds(filters)
        return self._bounds.left
