"""Rows that are being gathered for one Arrow batch.

What is the same for all messages of an entry is kept once per entry and repeated at the end; what
differs has a builder of its own, which is None where the column is not wanted. Messages that are
alike wait to be taken apart together (`Alike`), so whoever appends to a builder calls `settle`
first. `ready` says when there is enough for a batch: ROWS_MAX rows, or BYTES_ENOUGH bytes of
values.
"""

import base64
import binascii
from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.core.errors import PreconditionFailed
from magnetar.offload.file_layout import TIME_MS_MAX
from magnetar.wire._pb.PulsarApi_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from magnetar.wire.message_id import signed64
from magnetar_spark.decode.alike import Alike
from magnetar_spark.decode.builders import (
    NULL_NUMBER,
    BytesColumn,
    NumberColumn,
    Numbers,
    PropertiesColumn,
    Table,
)
from magnetar_spark.decode.heads import Head
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


def key_bytes(key: str | bytes, *, base64_encoded: bool) -> bytes:
    """A partition key as the application gave it."""
    # The runtime hands out bytes for text that is not UTF-8.
    data = key.encode() if isinstance(key, str) else bytes(key)
    if base64_encoded:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error:
            return data
    return data


class Rows:
    """See the module's text. `begin` an entry, append its messages, then `end` it."""

    def __init__(self, topic: str, partition: int, schema: pa.Schema, values: Values) -> None:
        self._topic, self._partition = topic, partition
        self._schema, self._values = schema, values
        self._decodes = values.wanted_in(schema)
        wanted = {*schema.names, KEY} if self._decodes else set(schema.names)
        self._wanted = frozenset(wanted)
        self.metadata_wanted = not self._wanted.isdisjoint(_OF_METADATA)
        """Whether anything of a message's own metadata is."""
        self.alike = Alike()
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
        """Rows of the entry that was begun last."""
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
        """Whether there is enough for a batch."""
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
        """An entry whose messages follow. `batch_size` is 0 where it is no batch."""
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
        """The entry is complete; its values have so many bytes."""
        self._counts.append(self.in_entry)
        self.count += self.in_entry
        self.bytes += size_bytes

    def add_alike(self, head: Head, table: Table, first: int) -> None:
        """Messages of a batch, one to a line, that are as `head` says; `first` is the first one's
        index."""
        self.alike.add(self, head, table, first)
        self.in_entry += len(table)

    def settle(self) -> None:
        """Appends the messages that were alike to the builders."""
        self.alike.settle(self)

    def add_message(
        self,
        message: MessageMetadata | SingleMessageMetadata,
        value: bytes | None,
        index: int,
    ) -> None:
        """One message: of a batch, or, with the index NO_BATCH, the entry's only one."""
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
        """The rows, in the columns of the schema; there are none then."""
        self.settle()
        counts = np.array(self._counts, np.int64)
        index = _NO_INDEX if self.batch_index is None else self.batch_index.take()
        made = self._decoded(counts) if self._decodes else {}
        columns = []
        for field in self._schema:
            column = made.get(field.name)
            if column is None:
                column = self._own(field.name, field.type, index)
            if column is None:
                column = self._repeated(field.name, field.type, counts, index)
            columns.append(column)
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._reset()
        return batch

    def _decoded(self, counts: Numbers) -> dict[str, pa.Array]:
        """The columns that the topic's schema makes of values and keys."""
        if self.key is None or self.value is None:
            return {}
        keys, versions = self.key.take(pa.binary()), np.repeat(np.array(self._versions), counts)
        values = self.value.take(pa.binary())
        made = self._values.columns(self._topic, self._schema, values, keys, versions)
        made[KEY] = keys
        return made

    def _own(self, name: str, kind: pa.DataType, index: Numbers) -> pa.Array | None:
        """A column that has a value of its own in every message."""
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
        """A column whose value is the entry's, or the range's."""

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


def _time(milliseconds: int) -> int:
    return milliseconds if milliseconds <= TIME_MS_MAX else NULL_NUMBER


def _times(milliseconds: Numbers) -> pa.Array:
    """Null where there is none, or what was set is behind all times; `alike` has those wrapped."""
    null = (milliseconds < 0) | (milliseconds > TIME_MS_MAX)
    micros = np.where(null, 0, milliseconds) * US_PER_MS
    return pa.array(micros, pa.int64(), mask=null if null.any() else None).cast(TIMESTAMP)
