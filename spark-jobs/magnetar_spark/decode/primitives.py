"""Decodes values of a fixed width: numbers and times as Pulsar's clients write them, big-endian.

Times of day stay numbers: TIME in ms, LOCAL_TIME in ns. Fractions of a microsecond are truncated. A
time beyond the years 1 to 9999 raises PersistenceError.
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

from magnetar.core.errors import PersistenceError
from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar_spark.decode.builders import Numbers
from magnetar_spark.decode.times import (
    DAYS_MAX,
    DAYS_MIN,
    MS_PER_DAY,
    S_PER_DAY,
    US_MAX,
    US_MIN,
    US_PER_MS,
    US_PER_S,
    within,
)

US_PER_DAY: Final = S_PER_DAY * US_PER_S
NS_PER_US: Final = 1_000
NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True)
class Primitive:
    """A type of fixed width. `decode` takes concatenated values of `width` bytes each."""

    spark_type: DataType
    width: int
    decode: Callable[[bytes], pa.Array]


def _number(code: str) -> Callable[[bytes], pa.Array]:
    kind = np.dtype(code)
    return lambda raw: pa.array(np.frombuffer(raw, kind).astype(kind.newbyteorder("=")))


def _boolean(raw: bytes) -> pa.Array:
    return pa.array(np.frombuffer(raw, np.uint8) != 0)


def _longs(raw: bytes) -> Numbers:
    return np.frombuffer(raw, ">i8").astype(np.int64)


def _timestamp(raw: bytes) -> pa.Array:
    values = within(_longs(raw), US_MIN // US_PER_MS, US_MAX // US_PER_MS, "ms")
    return pa.array(values * US_PER_MS).cast(pa.timestamp("us", tz="UTC"))


def _instant(raw: bytes) -> pa.Array:
    parts = np.frombuffer(raw, np.dtype([("s", ">i8"), ("ns", ">i4")]))
    seconds = within(parts["s"].astype(np.int64), US_MIN // US_PER_S, US_MAX // US_PER_S, "s")
    nanos = _nanos(parts["ns"].astype(np.int64), NS_PER_S)
    micros = seconds * US_PER_S + nanos // NS_PER_US
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))


def _date(raw: bytes) -> pa.Array:
    return _days(_longs(raw) // MS_PER_DAY)


def _local_date(raw: bytes) -> pa.Array:
    return _days(_longs(raw))


def _days(values: Numbers) -> pa.Array:
    return pa.array(within(values, DAYS_MIN, DAYS_MAX, "days").astype(np.int32)).cast(pa.date32())


def _local_date_time(raw: bytes) -> pa.Array:
    pairs = _longs(raw).reshape(-1, 2)
    days = within(pairs[:, 0], DAYS_MIN, DAYS_MAX, "days")
    nanos = _nanos(pairs[:, 1], NS_PER_S * S_PER_DAY)
    return pa.array(days * US_PER_DAY + nanos // NS_PER_US).cast(pa.timestamp("us"))


def _nanos(values: Numbers, end: int) -> Numbers:
    """Checks nanoseconds of a second or a day. Raises PersistenceError."""
    if ((values < 0) | (values >= end)).any():
        raise PersistenceError(f"a time has nanoseconds that are not from 0 to {end - 1}")
    return values


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
