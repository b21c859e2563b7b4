"""Encodes the value columns of a DataFrame, under a schema of Pulsar. Pure.

| Columns other than Pulsar's metadata | Schema |
|---|---|
| `value` of a binary type | none: the bytes as they are |
| `value` of a number, text, boolean, date or time | the primitive |
| others | AVRO or JSON record |

A null in a single column `value` is a message without a value (a tombstone for compaction).
"""

import base64
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import fastavro
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    TimestampNTZType,
    TimestampType,
)

from magnetar.core.errors import PreconditionFailed
from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar_spark.decode.times import MS_PER_DAY, S_PER_DAY, US_PER_MS, US_PER_S
from magnetar_spark.sink.avro_definition import record_definition
from magnetar_spark.table import VALUE

US_PER_DAY: Final = S_PER_DAY * US_PER_S
NS_PER_US: Final = 1_000

Encode = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """A schema as producers present it to brokers."""

    kind: "Wire.Type.ValueType"
    definition: bytes = b""


@dataclass(frozen=True, slots=True)
class ValueCodec:
    """The schema of the values, and the encoder of one."""

    schema: TopicSchema | None
    """None: the topic gets no schema."""
    single: bool
    """Whether the value is one column; else it is a record of all."""
    encode: Encode
    """Takes the column's value, which is not null, or a dictionary of the columns."""


def value_codec(columns: Sequence[StructField], schema_type: str, record_name: str) -> ValueCodec:
    """Returns the codec of these columns. Raises PreconditionFailed that names the column."""
    if not columns:
        raise PreconditionFailed(
            "the rows have no column for the value of messages: add one (named value, or fields)"
        )
    if len(columns) == 1 and columns[0].name == VALUE:
        kind = columns[0].dataType
        if isinstance(kind, BinaryType):
            return ValueCodec(None, single=True, encode=bytes)
        if (primitive := _primitive(kind)) is not None:
            return ValueCodec(TopicSchema(primitive[0]), single=True, encode=primitive[1])
    avro = schema_type == "avro"
    definition = record_definition(record_name, columns, decimals=avro)
    data = json.dumps(definition, separators=(",", ":")).encode()
    if avro:
        return ValueCodec(TopicSchema(Wire.Avro, data), single=False, encode=_avro(definition))
    return ValueCodec(TopicSchema(Wire.Json, data), single=False, encode=_json)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the Arrow type whose values the encoders take: times are numbers below it."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(plain_type(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def _avro(definition: dict[str, Any]) -> Encode:
    parsed = fastavro.parse_schema(definition)

    def encode(value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return out.getvalue()

    return encode


def _json(value: Any) -> bytes:
    try:
        return json.dumps(
            value, default=_base64, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        ).encode()
    except ValueError as error:
        raise PreconditionFailed(
            f"a value cannot be JSON ({error}): JSON has no NaN and no infinite numbers"
        ) from error


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode()


def _packed(code: str) -> Encode:
    return Struct(code).pack


_LONG: Final = Struct(">q")
_TWO_LONGS: Final = Struct(">qq")


def _date(days: int) -> bytes:
    return _LONG.pack(days * MS_PER_DAY)


def _timestamp(micros: int) -> bytes:
    return _LONG.pack(micros // US_PER_MS)


def _local_date_time(micros: int) -> bytes:
    days, rest = divmod(micros, US_PER_DAY)
    return _TWO_LONGS.pack(days, rest * NS_PER_US)


def _boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


_PRIMITIVES: Final[dict[type[DataType], tuple["Wire.Type.ValueType", Encode]]] = {
    BooleanType: (Wire.Bool, _boolean),
    ByteType: (Wire.Int8, _packed(">b")),
    ShortType: (Wire.Int16, _packed(">h")),
    IntegerType: (Wire.Int32, _packed(">i")),
    LongType: (Wire.Int64, _packed(">q")),
    FloatType: (Wire.Float, _packed(">f")),
    DoubleType: (Wire.Double, _packed(">d")),
    DateType: (Wire.Date, _date),
    TimestampType: (Wire.Timestamp, _timestamp),
    TimestampNTZType: (Wire.LocalDateTime, _local_date_time),
}


def _primitive(kind: DataType) -> tuple["Wire.Type.ValueType", Encode] | None:
    if isinstance(kind, StringType):
        return Wire.String, str.encode
    return _PRIMITIVES.get(type(kind))
