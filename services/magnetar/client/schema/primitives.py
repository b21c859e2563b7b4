"""Schemas of single values, in the bytes of Java's client: big-endian, times since 1970 in UTC."""

import struct
from abc import abstractmethod
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, TypeVar

from magnetar.client.errors import SchemaFailed
from magnetar.client.schema.api import BytesSchema, Schema, StringSchema
from magnetar.schemas.model import SchemaInfo, SchemaType

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_SECOND: Final = timedelta(seconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DAY_S: Final = 24 * 60 * 60


class _Packed(Schema[T]):
    """A value of fixed size."""

    _type: SchemaType
    _name: str
    _layout: struct.Struct

    @property
    def info(self) -> SchemaInfo:
        return SchemaInfo(self._type, name=self._name)

    def encode(self, value: T) -> bytes:
        try:
            return self._layout.pack(*self._numbers(value))
        except (struct.error, OverflowError) as error:
            raise SchemaFailed(f"{value!r} does not fit into {self._name}: {error}") from error

    def decode(self, data: bytes, version: bytes | None) -> T:
        if len(data) != self._layout.size:
            raise SchemaFailed(
                f"A message of {len(data)} bytes is no {self._name}, which has {self._layout.size}"
            )
        try:
            return self._value(*self._layout.unpack(data))
        except (ValueError, OverflowError) as error:
            raise SchemaFailed(f"The message is no {self._name}: {error}") from error

    @abstractmethod
    def _numbers(self, value: T) -> tuple[object, ...]:
        """Returns what the layout packs; raises SchemaFailed."""

    @abstractmethod
    def _value(self, *numbers: Any) -> T:
        """Returns the value of what was packed."""

    def _refused(self, value: object, wanted: str) -> SchemaFailed:
        return SchemaFailed(f"{value!r} is not {wanted}, as {self._name} needs")


class BooleanSchema(_Packed[bool]):
    """True or false, in one byte."""

    _type, _name, _layout = SchemaType.BOOLEAN, "Boolean", struct.Struct("?")

    def _numbers(self, value: bool) -> tuple[object, ...]:
        if not isinstance(value, bool):
            raise self._refused(value, "a bool")
        return (value,)

    def _value(self, *numbers: Any) -> bool:
        return bool(numbers[0])


class _Integer(_Packed[int]):
    def _numbers(self, value: int) -> tuple[object, ...]:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._refused(value, "an int")
        return (value,)

    def _value(self, *numbers: Any) -> int:
        return int(numbers[0])


class Int8Schema(_Integer):
    """A whole number of 8 bits."""

    _type, _name, _layout = SchemaType.INT8, "INT8", struct.Struct(">b")


class Int16Schema(_Integer):
    """A whole number of 16 bits."""

    _type, _name, _layout = SchemaType.INT16, "INT16", struct.Struct(">h")


class Int32Schema(_Integer):
    """A whole number of 32 bits."""

    _type, _name, _layout = SchemaType.INT32, "INT32", struct.Struct(">i")


class Int64Schema(_Integer):
    """A whole number of 64 bits."""

    _type, _name, _layout = SchemaType.INT64, "INT64", struct.Struct(">q")


class _Real(_Packed[float]):
    def _numbers(self, value: float) -> tuple[object, ...]:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._refused(value, "a float")
        return (value,)

    def _value(self, *numbers: Any) -> float:
        return float(numbers[0])


class FloatSchema(_Real):
    """A number of 32 bits."""

    _type, _name, _layout = SchemaType.FLOAT, "Float", struct.Struct(">f")


class DoubleSchema(_Real):
    """A number of 64 bits."""

    _type, _name, _layout = SchemaType.DOUBLE, "Double", struct.Struct(">d")


class _Milliseconds(_Packed[datetime]):
    """A point in time, in ms since 1970."""

    def _numbers(self, value: datetime) -> tuple[object, ...]:
        return ((_aware(value, self._name) - _EPOCH) // _MILLISECOND,)

    def _value(self, *numbers: Any) -> datetime:
        return _EPOCH + timedelta(milliseconds=numbers[0])


class DateSchema(_Milliseconds):
    """Java's `java.util.Date`: a point in time, in ms."""

    _type, _name, _layout = SchemaType.DATE, "Date", struct.Struct(">q")


class TimestampSchema(_Milliseconds):
    """Java's `java.sql.Timestamp`: a point in time, in ms."""

    _type, _name, _layout = SchemaType.TIMESTAMP, "Timestamp", struct.Struct(">q")


class TimeSchema(_Milliseconds):
    """Java's `java.sql.Time`: a point in time, in ms."""

    _type, _name, _layout = SchemaType.TIME, "Time", struct.Struct(">q")


class InstantSchema(_Packed[datetime]):
    """A point in time, in ns; Python keeps µs."""

    _type, _name, _layout = SchemaType.INSTANT, "Instant", struct.Struct(">qi")

    def _numbers(self, value: datetime) -> tuple[object, ...]:
        seconds, rest = divmod(_aware(value, self._name) - _EPOCH, _SECOND)
        return seconds, rest.microseconds * 1000

    def _value(self, *numbers: Any) -> datetime:
        seconds, nanoseconds = numbers
        return _EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)


class LocalDateSchema(_Packed[date]):
    """A day."""

    _type, _name, _layout = SchemaType.LOCAL_DATE, "LocalDate", struct.Struct(">q")

    def _numbers(self, value: date) -> tuple[object, ...]:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self._refused(value, "a date")
        return (value.toordinal() - _EPOCH_DAY,)

    def _value(self, *numbers: Any) -> date:
        return date.fromordinal(numbers[0] + _EPOCH_DAY)


class LocalTimeSchema(_Packed[time]):
    """A time of the day, in ns; Python keeps µs."""

    _type, _name, _layout = SchemaType.LOCAL_TIME, "LocalTime", struct.Struct(">q")

    def _numbers(self, value: time) -> tuple[object, ...]:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise self._refused(value, "a time without tzinfo")
        return (_nanoseconds(value),)

    def _value(self, *numbers: Any) -> time:
        return _time_of(numbers[0])


class LocalDateTimeSchema(_Packed[datetime]):
    """A day and a time without a zone, in ns; Python keeps µs."""

    _type, _name, _layout = SchemaType.LOCAL_DATE_TIME, "LocalDateTime", struct.Struct(">qq")

    def _numbers(self, value: datetime) -> tuple[object, ...]:
        if not isinstance(value, datetime) or value.tzinfo is not None:
            raise self._refused(value, "a datetime without tzinfo")
        return value.toordinal() - _EPOCH_DAY, _nanoseconds(value.time())

    def _value(self, *numbers: Any) -> datetime:
        days, nanoseconds = numbers
        return datetime.combine(date.fromordinal(days + _EPOCH_DAY), _time_of(nanoseconds))


PRIMITIVES: Final[dict[SchemaType, type[Schema[Any]]]] = {
    SchemaType.BYTES: BytesSchema,
    SchemaType.NONE: BytesSchema,
    SchemaType.STRING: StringSchema,
    SchemaType.BOOLEAN: BooleanSchema,
    SchemaType.INT8: Int8Schema,
    SchemaType.INT16: Int16Schema,
    SchemaType.INT32: Int32Schema,
    SchemaType.INT64: Int64Schema,
    SchemaType.FLOAT: FloatSchema,
    SchemaType.DOUBLE: DoubleSchema,
    SchemaType.DATE: DateSchema,
    SchemaType.TIME: TimeSchema,
    SchemaType.TIMESTAMP: TimestampSchema,
    SchemaType.INSTANT: InstantSchema,
    SchemaType.LOCAL_DATE: LocalDateSchema,
    SchemaType.LOCAL_TIME: LocalTimeSchema,
    SchemaType.LOCAL_DATE_TIME: LocalDateTimeSchema,
}


def _aware(value: datetime, name: str) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise SchemaFailed(f"{value!r} is not a datetime with tzinfo, as {name} needs")
    return value


def _nanoseconds(value: time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * 1000


def _time_of(nanoseconds: int) -> time:
    if not 0 <= nanoseconds < _DAY_S * 1_000_000_000:
        raise ValueError(f"{nanoseconds} ns are no time of a day")
    seconds, rest = divmod(nanoseconds // 1000, 1_000_000)
    return time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)
