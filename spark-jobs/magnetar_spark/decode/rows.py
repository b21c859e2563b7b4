"""Collects rows for one Arrow batch.

Values that all messages of an entry share are kept once per entry and repeated at the end. Values
of single messages have builders, which are None if their column is not wanted. Runs of messages
with identical layout are collected as tables of bytes (`_AlikeRuns`) and decoded together, so every
other append calls `settle` first. `ready` says whether there is enough for a batch: ROWS_MAX rows,
or BYTES_ENOUGH bytes of values.
"""

import base64
import binascii
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from magnetar.core.errors import PreconditionFailed
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar.wire._pb.PulsarApi_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from magnetar.wire.message_id import signed64
from magnetar_spark.decode.builders import (
    NULL_NUMBER,
    BytesColumn,
    NumberColumn,
    Numbers,
    PropertiesColumn,
    Table,
)
from magnetar_spark.decode.heads import Head, Span
from magnetar_spark.decode.message_ids import message_ids
from magnetar_spark.decode.payloads import NO_VERSION
from magnetar_spark.table import (
    BATCH_INDEX,
    ENCRYPTED,
    ENTRY_ID,
    EVENT_TIME,
    KEY,
    LEDGER_ID,
    MESSAGE_ID,
    ORDERING_KEY,
    PARTITION,
    PRODUCER,
    PROPERTIES,
    PUBLISH_TIME,
    SEQUENCE_ID,
    TOPIC,
    VALUE,
)
from magnetar_spark.values import Values

ROWS_MAX: Final = 64 << 10
BYTES_ENOUGH: Final = 4 << 20
US_PER_MS: Final = 1000
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
NO_BATCH: Final = -1
_OF_METADATA: Final = (KEY, ORDERING_KEY, EVENT_TIME, SEQUENCE_ID, PROPERTIES)
_NO_INDEX: Final[Numbers] = np.empty(0, np.int64)
_LOW_BITS: Final = 0x7F


def key_bytes(key: str | bytes, *, base64_encoded: bool) -> bytes:
    """A partition key as the application set it."""
    # The protobuf runtime returns bytes for text that is not UTF-8.
    data = key.encode() if isinstance(key, str) else bytes(key)
    if base64_encoded:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error:
            return data
    return data


class Rows:
    """The rows of one Arrow batch. Call `begin` for an entry, append its messages, then `end`."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema, values: Values) -> None:
        self._topic, self._partition = topic, partition
        self._schema, self._values = schema, values
        self._decodes = values.wanted_in(schema)
        wanted = {*schema.names, KEY} if self._decodes else set(schema.names)
        self._wanted = frozenset(wanted)
        self.metadata_wanted = not self._wanted.isdisjoint(_OF_METADATA)
        """Whether any column of a message's own metadata is wanted."""
        self._alike = _AlikeRuns()
        self._reset()

    def _reset(self) -> None:
        wanted = self._wanted
        self.value = BytesColumn() if VALUE in wanted or self._decodes else None
        indexed = BATCH_INDEX in wanted or MESSAGE_ID in wanted
        self.batch_index = NumberColumn() if indexed else None
        self.key = BytesColumn() if KEY in wanted else None
        self.ordering_key = BytesColumn() if ORDERING_KEY in wanted else None
        self.event_time = NumberColumn() if EVENT_TIME in wanted else None
        self.sequence = NumberColumn() if SEQUENCE_ID in wanted else None
        self.properties = PropertiesColumn() if PROPERTIES in wanted else None
        self.in_entry = 0
        """Rows of the current entry."""
        self._counts: list[int] = []
        self._ledgers: list[int] = []
        self._entries: list[int] = []
        self._batch_sizes: list[int] = []
        self._publish_times: list[int] = []
        self._versions: list[int] = []
        self._producers: list[str] = []
        self._encrypted: list[bool] = []
        self._first_chunks: list[MessageIdData | None] = []
        self.count = 0
        self.bytes = 0

    @property
    def ready(self) -> bool:
        """Whether there are enough rows for a batch."""
        return self.bytes >= BYTES_ENOUGH or self.count >= ROWS_MAX

    def begin(
        self,
        ledger_id: int,
        entry_id: int,
        metadata: MessageMetadata,
        batch_size: int,
        *,
        encrypted: bool = False,
        first_chunk: MessageIdData | None = None,
    ) -> None:
        """Begins an entry, whose messages follow. `batch_size` is 0 if it is no batch."""
        self._ledgers.append(ledger_id)
        self._entries.append(entry_id)
        self._batch_sizes.append(batch_size)
        self._publish_times.append(_time(metadata.publish_time))
        self._versions.append(
            int.from_bytes(metadata.schema_version) if metadata.schema_version else NO_VERSION
        )
        self._producers.append(metadata.producer_name)
        self._encrypted.append(encrypted)
        self._first_chunks.append(first_chunk)
        self.in_entry = 0

    def end(self, size_bytes: int) -> None:
        """Ends the entry, whose values have `size_bytes`."""
        self._counts.append(self.in_entry)
        self.count += self.in_entry
        self.bytes += size_bytes

    @property
    def alike_head(self) -> Head | None:
        """The head of the last run of alike messages, appended or not."""
        return self._alike.head

    def add_alike(self, head: Head, table: Table, first: int) -> None:
        """Appends messages of a batch that match `head`, one per line; `first` is the index of the
        first one."""
        self._alike.add(self, head, table, first)
        self.in_entry += len(table)

    def settle(self) -> None:
        """Appends the collected alike messages to the builders."""
        self._alike.settle(self)

    def add_message(
        self,
        message: MessageMetadata | SingleMessageMetadata,
        value: bytes | None,
        index: int,
    ) -> None:
        """Appends one message: of a batch, or with the index NO_BATCH the entry's only one."""
        has = message.HasField
        self.settle()
        self.in_entry += 1
        if self.batch_index is not None:
            self.batch_index.add(index)
        if self.value is not None:
            self.value.add(value)
        if self.key is not None:
            self.key.add(
                key_bytes(message.partition_key, base64_encoded=message.partition_key_b64_encoded)
                if has("partition_key")
                else None
            )
        if self.ordering_key is not None:
            self.ordering_key.add(message.ordering_key if has("ordering_key") else None)
        if self.event_time is not None:
            self.event_time.add(_time(message.event_time) or NULL_NUMBER)
        if self.sequence is not None:
            self.sequence.add(signed64(message.sequence_id))
        if self.properties is not None:
            self.properties.add(message.properties)

    def take(self) -> pa.RecordBatch:
        """The rows in the columns of the schema. Clears the rows."""
        self.settle()
        counts = np.array(self._counts, np.int64)
        index = _NO_INDEX if self.batch_index is None else self.batch_index.take()
        decoded = self._decoded(counts) if self._decodes else {}
        columns = []
        for field in self._schema:
            column = decoded.get(field.name)
            if column is None:
                column = self._own(field.name, field.type, index)
            if column is None:
                column = self._repeated(field.name, field.type, counts, index)
            columns.append(column)
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._reset()
        return batch

    def _decoded(self, counts: Numbers) -> dict[str, pa.Array]:
        """The columns that the topic's schema decodes from values and keys."""
        if self.key is None or self.value is None:
            return {}
        keys, versions = self.key.take(pa.binary()), np.repeat(np.array(self._versions), counts)
        values = self.value.take(pa.binary())
        columns = self._values.columns(self._topic, self._schema, values, keys, versions)
        columns[KEY] = keys
        return columns

    def _own(self, name: str, kind: pa.DataType, index: Numbers) -> pa.Array | None:
        """A column with a value per message."""
        if name == VALUE and self.value is not None:
            return self.value.take(kind)
        if name == KEY and self.key is not None:
            return self.key.take(kind)
        if name == ORDERING_KEY and self.ordering_key is not None:
            return self.ordering_key.take(kind)
        if name == PROPERTIES and self.properties is not None:
            return self.properties.take(kind)
        if name == EVENT_TIME and self.event_time is not None:
            return _times(self.event_time.take())
        if name == SEQUENCE_ID and self.sequence is not None:
            return pa.array(self.sequence.take(), kind)
        if name == BATCH_INDEX:
            return pa.array(index.astype(np.int32), kind)
        return None

    def _repeated(self, name: str, kind: pa.DataType, counts: Numbers, index: Numbers) -> pa.Array:
        """A column with a value per entry, or one for the whole range."""

        def repeated(values: list[int]) -> Numbers:
            return np.repeat(np.array(values, np.int64), counts)

        if name == TOPIC:
            return pa.repeat(pa.scalar(self._topic, kind), self.count)
        if name == PARTITION:
            return pa.repeat(pa.scalar(self._partition, kind), self.count)
        if name == PUBLISH_TIME:
            return _times(repeated(self._publish_times))
        if name == LEDGER_ID:
            return pa.array(repeated(self._ledgers), kind)
        if name == ENTRY_ID:
            return pa.array(repeated(self._entries), kind)
        if name == PRODUCER:
            rows = pa.array(np.repeat(np.arange(len(counts)), counts))
            return pa.array(self._producers, kind).take(rows)
        if name == ENCRYPTED:
            return pa.array(np.repeat(np.array(self._encrypted, bool), counts), kind)
        if name == MESSAGE_ID:
            return message_ids(
                self._ledgers,
                self._entries,
                self._batch_sizes,
                self._first_chunks,
                self._partition,
                counts,
                index,
            )
        raise PreconditionFailed(
            f"there is no column '{name}': the columns are those of printSchema() without a schema"
        )


class _AlikeRuns:
    """Runs of messages with identical layout, one table of bytes per entry.

    Numbers and keys of consecutive tables with the same head are decoded together. Values are
    copied once, from the entry to the column (`BytesColumn.tables`), so the entries are kept until
    then: as many as one Arrow batch takes. `head` is that of the tables added last, settled or not.
    """

    __slots__ = ("_firsts", "_tables", "head")

    def __init__(self) -> None:
        self.head: Head | None = None
        self._tables: list[Table] = []
        self._firsts: list[int] = []

    def add(self, rows: Rows, head: Head, table: Table, first: int) -> None:
        """Adds messages of one entry, one per line; `first` is the index of the first one."""
        if head is not self.head:
            self.settle(rows)
            self.head = head
        self._tables.append(table)
        self._firsts.append(first)

    def settle(self, rows: Rows) -> None:
        """Appends the collected messages to the columns of `rows`."""
        tables, firsts, head = self._tables, self._firsts, self.head
        if not tables or head is None:
            return
        self._tables, self._firsts = [], []
        if rows.batch_index is not None:
            counts = [(first, len(table)) for first, table in zip(firsts, tables, strict=True)]
            rows.batch_index.run(
                np.concatenate([np.arange(first, first + n) for first, n in counts])
            )
        if rows.value is not None:
            if head.null_value:
                rows.value.nulls(sum(map(len, tables)))
            else:
                rows.value.tables([table[:, head.size :] for table in tables])
        if rows.metadata_wanted:
            cut = [table[:, : head.size] for table in tables]
            _add_heads(rows, np.concatenate(cut) if len(cut) > 1 else cut[0], head)


def _add_heads(rows: Rows, heads: Table, head: Head) -> None:
    count = len(heads)
    for builder, span in ((rows.key, head.key), (rows.ordering_key, head.ordering_key)):
        if builder is not None:
            if span is None:
                builder.nulls(count)
            else:
                builder.tables([heads[:, span.start : span.end]])
    if rows.event_time is not None:
        rows.event_time.run(_event_times(heads, head.event_time))
    if rows.sequence is not None:
        rows.sequence.run(_numbers(heads, head.sequence))
    if rows.properties is not None:
        _add_properties(rows.properties, heads, head)


def _add_properties(properties: PropertiesColumn, heads: Table, head: Head) -> None:
    count = len(heads)
    if not head.properties:
        properties.empty(count)
        return
    keys = np.concatenate([heads[:, k.start : k.end] for k, _ in head.properties], axis=1)
    values = np.concatenate([heads[:, v.start : v.end] for _, v in head.properties], axis=1)
    key_lengths = np.array([k.end - k.start for k, _ in head.properties], np.int64)
    lengths = np.array([v.end - v.start for _, v in head.properties], np.int64)
    properties.run(
        count,
        keys.tobytes(),
        np.tile(key_lengths, count),
        values.tobytes(),
        np.tile(lengths, count),
    )


def _numbers(heads: NDArray[np.uint8], span: Span | None) -> Numbers:
    """Decodes the varints in these columns of the table; 0 without a span."""
    if span is None:
        return np.zeros(len(heads), np.int64)
    total = (heads[:, span.start] & _LOW_BITS).astype(np.int64)
    for step, column in enumerate(range(span.start + 1, span.end), 1):
        total |= (heads[:, column] & _LOW_BITS).astype(np.int64) << (7 * step)
    return total


def _event_times(heads: NDArray[np.uint8], span: Span | None) -> Numbers:
    if span is None:
        return np.full(len(heads), NULL_NUMBER, np.int64)
    times = _numbers(heads, span)
    return np.where(times == 0, NULL_NUMBER, times)


def _time(milliseconds: int) -> int:
    return milliseconds if milliseconds <= TIME_MS_MAX else NULL_NUMBER


def _times(milliseconds: Numbers) -> pa.Array:
    """Timestamps; null if unset or beyond the year 9999 (such a time may have wrapped)."""
    null = (milliseconds < 0) | (milliseconds > TIME_MS_MAX)
    micros = np.where(null, 0, milliseconds) * US_PER_MS
    return pa.array(micros, pa.int64(), mask=null if null.any() else None).cast(TIMESTAMP)
