"""Turns Arrow batches of a DataFrame into messages. Pure.

Columns of Pulsar's metadata have the names and types that the source gives them, so rows that were
read can be written. `__key`, `__topic`, `__eventTime`, `__messageProperties` and `__orderingKey`
are written; keys may also be text, and event times numbers of ms. The others are the broker's, such
as `__messageId`: they are not written. An encrypted payload is refused.
"""

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.core.errors import PreconditionFailed
from magnetar_spark.decode.times import US_PER_MS
from magnetar_spark.sink.values import ValueCodec, plain_type, value_codec
from magnetar_spark.table import (
    ENCRYPTED,
    EVENT_TIME,
    KEY,
    METADATA_TYPES,
    ORDERING_KEY,
    PROPERTIES,
    TOPIC,
)

_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    KEY: (StringType, BinaryType),
    TOPIC: (StringType,),
    EVENT_TIME: (TimestampType, LongType),
    PROPERTIES: (MapType,),
    ORDERING_KEY: (BinaryType, StringType),
    ENCRYPTED: (BooleanType,),
}
"""The columns that the sink reads, and the types that they may have."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message before its batch."""

    topic: str
    value: bytes | None
    """None: a message without a value."""
    key: str | None
    key_is_base64: bool
    ordering_key: bytes | None
    event_time_ms: int
    properties: Sequence[tuple[str, str]]

    @property
    def size_bytes(self) -> int:
        """The approximate size."""
        size = len(self.value or b"") + len(self.key or "") + len(self.ordering_key or b"")
        return size + sum(len(name) + len(value) for name, value in self.properties)


class RowCodec:
    """The messages of one DataFrame's rows."""

    def __init__(
        self, schema: StructType, topic: str | None, schema_type: str, record_name: str
    ) -> None:
        """Raises PreconditionFailed that names the column."""
        by_name = {field.name: field for field in schema.fields}
        if len(by_name) < len(schema.fields):
            raise PreconditionFailed("two columns of the rows have the same name: rename one")
        self._topic = topic
        self._columns = _checked(by_name)
        if topic is None and TOPIC not in self._columns:
            raise PreconditionFailed(
                "set the option topic, or add a column __topic: the rows name no topic"
            )
        if topic is not None:
            self._columns.discard(TOPIC)
        self._values = [field for field in schema.fields if field.name not in METADATA_TYPES]
        self._event_divisor = 1
        if EVENT_TIME in self._columns and isinstance(by_name[EVENT_TIME].dataType, TimestampType):
            self._event_divisor = US_PER_MS
        self.codec: ValueCodec = value_codec(self._values, schema_type, record_name)

    def messages(self, batch: pa.RecordBatch) -> Iterator[Message]:
        """Yields a message for each row. Raises PreconditionFailed."""
        names = [field.name for field in self._values]
        values = self._encoded(batch, names)
        topics = self._column(batch, TOPIC) or [self._topic] * batch.num_rows
        keys = self._column(batch, KEY)
        ordering_keys = self._column(batch, ORDERING_KEY)
        times = self._column(batch, EVENT_TIME)
        properties = self._column(batch, PROPERTIES)
        if any(self._column(batch, ENCRYPTED) or ()):
            raise PreconditionFailed(
                "a row has an encrypted payload (__encrypted is true), which only a consumer with "
                "the key can decrypt: leave such rows out"
            )
        for row, value in enumerate(values):
            topic = topics[row]
            if topic is None:
                raise PreconditionFailed("a row has null in the column __topic")
            key, is_base64 = _key(keys[row]) if keys else (None, False)
            ordering_key = ordering_keys[row] if ordering_keys else None
            if isinstance(ordering_key, str):
                ordering_key = ordering_key.encode()
            time = times[row] if times else None
            if time is not None and time < 0:
                raise PreconditionFailed("a row has an event time before 1970")
            yield Message(
                topic=topic,
                value=value,
                key=key,
                key_is_base64=is_base64,
                ordering_key=ordering_key,
                event_time_ms=0 if time is None else time // self._event_divisor,
                properties=_properties(properties[row]) if properties else (),
            )

    def _encoded(self, batch: pa.RecordBatch, names: list[str]) -> Iterator[bytes | None]:
        encode: Callable[[Any], bytes] = self.codec.encode
        if self.codec.single:
            for value in _plain(batch.column(names[0])).to_pylist():
                yield None if value is None else encode(value)
            return
        columns = [_plain(batch.column(name)).to_pylist(maps_as_pydicts="strict") for name in names]
        for row in zip(*columns, strict=True):
            yield encode(dict(zip(names, row, strict=True)))

    def _column(self, batch: pa.RecordBatch, name: str) -> list[Any] | None:
        if name not in self._columns:
            return None
        column: list[Any] = _plain(batch.column(name)).to_pylist()
        return column


def _checked(by_name: dict[str, StructField]) -> set[str]:
    present = set()
    for name, kinds in _TYPES.items():
        if name not in by_name:
            continue
        kind = by_name[name].dataType
        if not isinstance(kind, kinds) or (
            isinstance(kind, MapType)
            and not (
                isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
            )
        ):
            wanted = "map<string,string>" if name == PROPERTIES else kinds[0]().simpleString()
            raise PreconditionFailed(
                f"column {name} has the type {kind.simpleString()}: cast it to {wanted}"
            )
        present.add(name)
    for name in by_name:
        if name.startswith("__") and name not in METADATA_TYPES:
            raise PreconditionFailed(
                f"column {name} is none of Pulsar's metadata: rename it, since names of columns of "
                "the value do not begin with two underscores"
            )
    return present


def _plain(column: pa.Array) -> pa.Array:
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _key(key: str | bytes | None) -> tuple[str | None, bool]:
    """A key of bytes that are text is sent as that text, as clients send keys; else in base64."""
    if key is None or isinstance(key, str):
        return key, False
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(key).decode(), True


def _properties(pairs: list[tuple[str, str | None]] | None) -> list[tuple[str, str]]:
    if not pairs:
        return []
    for name, value in pairs:
        if value is None:
            raise PreconditionFailed(f"the property '{name}' of a row is null")
    return [(name, value) for name, value in pairs if value is not None]
