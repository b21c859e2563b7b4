"""A data source without a cluster: entries in memory, read by the real bounds, plan and decoder.

Spark's workers import this module. Ledgers are newer than their messages, as after an outage of the
producer; some publish times are beyond the year 9999, for which the column is null.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from magnetar.bookie.api import StoredEntry
from magnetar.core.ids import EARLIEST
from magnetar.core.names import parse_topic
from magnetar.jobs.log.ranges import Range, Window, ranges_of
from magnetar.jobs.log.topic_log import LedgerSpan, TopicLog
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.entry import build_entry
from magnetar_spark.decode.chunks import Chunks
from magnetar_spark.decode.entries import EntryDecoder, decoded
from magnetar_spark.decode.rows import Rows
from magnetar_spark.filters import Bounds
from magnetar_spark.source import PulsarReader
from magnetar_spark.table import schema_of
from magnetar_spark.tasks import TIME_ZONE
from magnetar_spark.values import Values

TOPICS: Final = (
    "persistent://a/b/t-partition-0",
    "persistent://a/b/t-partition-1",
    "persistent://a/b/c",
)
YOUNG_MS: Final = 1_700_000_000_000
PUBLISH_MS: Final = {
    3: (0, 1, 2, 3, 1_500, TIME_MS_MAX + 1),
    4: (YOUNG_MS, TIME_MS_MAX, 1, TIME_MS_MAX + 2, 0, YOUNG_MS + 1, 4, 5),
    5: (YOUNG_MS, TIME_MS_MAX, TIME_MS_MAX + 1, 2, 2**64 - 1, 0, 3, TIME_MS_MAX + 1, 1, YOUNG_MS),
    8: (2, YOUNG_MS - 1, 0, 2**63, 7, TIME_MS_MAX - 1, 1, 3, 2, TIME_MS_MAX + 1, 1_500, 0),
}
"""Of each entry of each ledger, in every topic."""
CREATED_MS: Final = 1_600_000_000_000


def log_of(topic: str) -> TopicLog:
    """Returns a log whose ledgers are closed, except the newest."""
    spans = tuple(
        LedgerSpan(
            LedgerMetadata(ledger_id, (), CREATED_MS),
            len(times) - 1,
            100 * len(times),
            CREATED_MS,
            CREATED_MS + 1 if ledger_id != max(PUBLISH_MS) else 0,
        )
        for ledger_id, times in PUBLISH_MS.items()
    )
    return TopicLog(parse_topic(topic), spans, EARLIEST)


class Task(InputPartition):
    """The ranges of one topic."""

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__(None)
        self.ranges = ranges


class SyntheticReader(PulsarReader):
    """Plans and reads as `plan_read` and `record_batches` do, from `log_of`."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        tasks = [
            Task(list(ranges_of(log_of(topic), self._bounds.narrowed(Window()), 200)))
            for topic in TOPICS
            if not self._bounds.excludes(parse_topic(topic))
        ]
        return [task for task in tasks if task.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):
            return
        schema = to_arrow_schema(self._schema, timezone=TIME_ZONE)
        for ranged in partition.ranges:
            rows = Rows(ranged.topic, ranged.partition, schema, Values())
            decoder = EntryDecoder(ranged, rows, Chunks(lambda _: iter(())))
            times = PUBLISH_MS[ranged.ledger_id]
            entries = [
                StoredEntry(number, _entry(times[number]))
                for number in range(ranged.first, ranged.last + 1)
            ]
            for _ in decoded(decoder, [entries], rows):
                yield rows.take()
            if rows.count:
                yield rows.take()


class UnfilteredReader(SyntheticReader):
    """Leaves all filters to Spark."""

    pushFilters = DataSourceReader.pushFilters


class SyntheticSource(DataSource):
    """The source; it has the option `filterPushdown` of the format `pulsar`."""

    @classmethod
    def name(cls) -> str:
        return "synthetic"

    def schema(self) -> StructType:
        return schema_of(Values().spark_fields())

    def reader(self, schema: StructType) -> DataSourceReader:
        pushing = self.options.get("filterPushdown") == "true"
        return (SyntheticReader if pushing else UnfilteredReader)(schema)


def _entry(publish_ms: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_ms)
    return build_entry(metadata, b"x")
