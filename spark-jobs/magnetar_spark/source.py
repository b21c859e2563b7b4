"""The data source `pulsar`: what Spark asks, answered from the log.

Spark makes a `PulsarDataSource` of the options, in a Python process of its own; asks it for its
schema; then for a reader, which plans tasks there and is sent, pickled, to where they run. A task
reads its ranges and yields Arrow batches.
"""

import asyncio
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from magnetar.bookie.registration import BookieRegistration
from magnetar.core.ids import EARLIEST, LATEST
from magnetar_spark.decode.chunks import Chunks
from magnetar_spark.decode.entries import EntryDecoder, decoded
from magnetar_spark.decode.rows import Rows
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.ledgers import topic_log
from magnetar_spark.log.planning import Range, Window, ranges_of, tasks_of
from magnetar_spark.log.reading import EntryReader
from magnetar_spark.log.settings import LogSettings
from magnetar_spark.log.topics import resolve
from magnetar_spark.options import ReadOptions
from magnetar_spark.table import raw_schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Plan:
    """What tasks there are, and where the bookies are that they read from."""

    tasks: list[tuple[Range, ...]]
    bookies: tuple[BookieRegistration, ...]


class LogPartition(InputPartition):
    """One task."""

    def __init__(self, ranges: Sequence[Range], bookies: tuple[BookieRegistration, ...]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.bookies = bookies


class PulsarDataSource(DataSource):
    """See the module's text."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._read_options = ReadOptions.parse(dict(options))

    @classmethod
    def name(cls) -> str:
        return "pulsar"

    def schema(self) -> StructType:
        return raw_schema()

    def reader(self, schema: StructType) -> "PulsarReader":
        return PulsarReader(self._read_options, schema)


class PulsarReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        plan = asyncio.run(plan_read(self._options))
        return [LogPartition(ranges, plan.bookies) for ranges in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, LogPartition):
            return iter(())  # Spark's own, where there is no task
        return record_batches(self._options.log, partition, self._schema)


async def plan_read(options: ReadOptions) -> Plan:
    """The tasks of a batch read."""
    starting, ending = options.starting, options.ending
    ranges: list[Range] = []
    async with opened_log(options.log) as log:
        for topic in await resolve(log.store, options.topics, options.pattern):
            window = Window(
                (starting and starting.of(topic)) or EARLIEST,
                (ending and ending.of(topic)) or LATEST,
                starting and starting.time_ms,
                ending and ending.time_ms,
            )
            found = await topic_log(log, topic)
            ranges += ranges_of(found, window, options.partition_bytes)
        bookies = tuple(log.bookies.registrations())
    return Plan(tasks_of(ranges, options.partition_bytes), bookies)


def record_batches(
    settings: LogSettings, partition: LogPartition, schema: StructType
) -> Iterator["pa.RecordBatch"]:
    """The rows of a task."""
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    with EntryReader(settings, partition.bookies) as reader:
        for ranged in partition.ranges:
            rows = Rows(ranged.topic, ranged.partition, schema.names)

            def read_back(entries: int, ranged: Range = ranged):
                return reader.read_back(ranged, entries)

            decoder = EntryDecoder(ranged.ledger_id, rows, Chunks(read_back))
            for _ in decoded(decoder, reader.read(ranged), rows):
                yield rows.take(arrow_schema)
            if rows.count:
                yield rows.take(arrow_schema)
