"""The body of a Spark task: reads its ranges, decodes them, yields Arrow batches."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from magnetar_spark.decode.chunks import Chunks
from magnetar_spark.decode.entries import EntryDecoder, decoded
from magnetar_spark.decode.rows import Rows
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.schemas import unpacked
from magnetar_spark.log.settings import LogSettings
from magnetar_spark.planner import LogPartition
from magnetar_spark.values import Values
from magnetar_spark.worker import keep_imports

TIME_ZONE = "UTC"
"""The zone in which Spark expects workers' timestamps, whatever the session displays."""


def record_batches(
    settings: LogSettings, partition: LogPartition, schema: StructType, values: Values
) -> Iterator[pa.RecordBatch]:
    """Reads and decodes all ranges of a task."""
    keep_imports()
    arrow_schema = to_arrow_schema(schema, timezone=TIME_ZONE)
    versions = {name: unpacked(data) for name, data in partition.schemas.items()}
    values = replace(values, by_topic=versions)
    with EntryReader(settings, partition.bookies) as reader:
        for planned in partition.ranges:
            ranged = reader.narrowed(planned)
            if ranged is None:
                continue
            rows = Rows(ranged.topic, ranged.partition, arrow_schema, values)
            decoder = EntryDecoder(ranged, rows, Chunks(partial(reader.read_back, ranged)))
            for _ in decoded(decoder, reader.read(ranged), rows):
                yield rows.take()
            if rows.count:
                yield rows.take()
