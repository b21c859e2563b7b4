"""Values of a fixed width: numbers and times as Pulsar's clients write them, big-endian.

Times of a day stay numbers: TIME in ms, LOCAL_TIME in ns. What is finer than microseconds is cut.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire

US_PER_MS: Final = 1000
US_PER_S: Final = 1_000_000
US_PER_DAY: Final = 86_400 * US_PER_S
MS_PER_DAY: Final = 86_400_000
NS_PER_US: Final = 1000


@dataclass(frozen=True)
class Primitive:
    """`decode` takes values, one behind the other, each of `width` bytes."""

    spark_type: DataType
    width: int
    decode: Callable[[bytes], pa.Array]


def _number(code: str) -> Callable[[bytes], pa.Array]:
    kind = np.dtype(code)
    return lambda raw: pa.array(np.frombuffer(raw, kind).astype(kind.newbyteorder("=")))


def _boolean(raw: bytes) -> pa.Array:
    return pa.array(np.frombuffer(raw, np.uint8) != 0)


def _longs(raw: bytes) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.frombuffer(raw, ">i8").astype(np.int64)


def _timestamp(raw: bytes) -> pa.Array:
    return pa.array(_longs(raw) * US_PER_MS).cast(pa.timestamp("us", tz="UTC"))


def _instant(raw: bytes) -> pa.Array:
    parts = np.frombuffer(raw, np.dtype([("s", ">i8"), ("ns", ">i4")]))
    micros = parts["s"].astype(np.int64) * US_PER_S + parts["ns"].astype(np.int64) // NS_PER_US
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))


def _date(raw: bytes) -> pa.Array:
    return pa.array((_longs(raw) // MS_PER_DAY).astype(np.int32)).cast(pa.date32())


def _local_date(raw: bytes) -> pa.Array:
    return pa.array(_longs(raw).astype(np.int32)).cast(pa.date32())


def _local_date_time(raw: bytes) -> pa.Array:
    pairs = _longs(raw).reshape(-1, 2)
    return pa.array(pairs[:, 0] * US_PER_DAY + pairs[:, 1] // NS_PER_US).cast(pa.timestamp("us"))


PRIMITIVES: Final[dict[int, Primitive]] = {
    Wire.Bool: Primitive(BooleanType(), 1, _boolean),
    Wire.Int8: Primitive(ByteType(), 1, _number(">i1")),
    Wire.Int16: Primitive(ShortType(), 2, _number(">i2")),
    Wire.Int32: Primitive(IntegerType(), 4, _number(">i4")),
    Wire.Int64: Primitive(LongType(), 8, _number(">i8")),
    Wire.Float: Primitive(FloatType(), 4, _number(">f4")),
    Wire.Double: Primitive(DoubleType(), 8, _number(">f8")),
    Wire.Date: Primitive(DateType(), 8, _date),
    Wire.Time: Primitive(LongType(), 8, _number(">i8")),
    Wire.Timestamp: Primitive(TimestampType(), 8, _timestamp),
    Wire.Instant: Primitive(TimestampType(), 12, _instant),
    Wire.LocalDate: Primitive(DateType(), 8, _local_date),
    Wire.LocalTime: Primitive(LongType(), 8, _number(">i8")),
    Wire.LocalDateTime: Primitive(TimestampNTZType(), 16, _local_date_time),
}
