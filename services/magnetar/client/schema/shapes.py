"""Shapes: how values of Python types become values of Avro types, and the reverse.

A shape has the Avro definition of its type. `plain` returns what JSON and Avro encoders take:
numbers, text, bytes, lists and dictionaries; `value` accepts what decoders return, also if it was
written with another version of the type. Both name the field of a value that does not fit.
"""

import base64
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from magnetar.client.errors import SchemaFailed
from magnetar.schemas.avro_parse import Json

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_BITS: Final = {"int": 31, "long": 63}


class Mismatch(SchemaFailed):
    """A value does not fit its field."""

    def __init__(self, path: str, value: object, wanted: str) -> None:
        super().__init__(f"{path}: {_short(value)} is not {wanted}")


def _short(value: object) -> str:
    text = repr(value)
    return f"{text[:60]}... ({type(value).__name__})" if len(text) > 60 else text


class Shape(ABC):
    """The shape of one type."""

    natural: tuple[type, ...] = ()
    """Types that belong to this branch of a union, although another could convert them."""

    @abstractmethod
    def definition(self, defined: set[str]) -> Json:
        """Returns the Avro definition; types in `defined` are named only."""

    @abstractmethod
    def plain(self, value: Any, path: str) -> Any:
        """Returns the value for encoders; raises Mismatch."""

    @abstractmethod
    def value(self, plain: Any, path: str) -> Any:
        """Returns the value of decoders' output; raises Mismatch."""


class NullShape(Shape):
    """None."""

    def definition(self, defined: set[str]) -> Json:
        return "null"

    def plain(self, value: Any, path: str) -> Any:
        if value is not None:
            raise Mismatch(path, value, "None")
        return None

    def value(self, plain: Any, path: str) -> Any:
        return self.plain(plain, path)


class BooleanShape(Shape):
    """True or false."""

    natural = (bool,)

    def definition(self, defined: set[str]) -> Json:
        return "boolean"

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, bool):
            raise Mismatch(path, value, "a bool")
        return value

    def value(self, plain: Any, path: str) -> Any:
        return self.plain(plain, path)


class IntegerShape(Shape):
    """A whole number: `int` or `long`."""

    natural = (int,)

    def __init__(self, name: str) -> None:
        self._name = name
        self._bits = _BITS[name]

    def definition(self, defined: set[str]) -> Json:
        return self._name

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Mismatch(path, value, "an int")
        if value.bit_length() > self._bits and value != -1 << self._bits:
            raise Mismatch(path, value, f"an int of {self._bits + 1} bits")
        return value

    def value(self, plain: Any, path: str) -> Any:
        return self.plain(plain, path)


class RealShape(Shape):
    """A number: `float` or `double`."""

    natural = (float,)

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name = name
        self._as_json = as_json

    def definition(self, defined: set[str]) -> Json:
        return self._name

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Mismatch(path, value, "a float")
        try:
            number = float(value)
        except OverflowError:
            raise Mismatch(path, value, "a float") from None
        if self._as_json and not math.isfinite(number):
            raise Mismatch(path, value, "a number that JSON has")
        return number

    def value(self, plain: Any, path: str) -> Any:
        return self.plain(plain, path)


class TextShape(Shape):
    """Text."""

    natural = (str,)

    def definition(self, defined: set[str]) -> Json:
        return "string"

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            raise Mismatch(path, value, "a str")
        return value

    def value(self, plain: Any, path: str) -> Any:
        if isinstance(plain, bytes):  # Avro reads bytes as a string
            try:
                return plain.decode()
            except UnicodeDecodeError:
                raise Mismatch(path, plain, "text in UTF-8") from None
        return self.plain(plain, path)


class BytesShape(Shape):
    """Bytes; base64 in JSON, as Java's client writes them."""

    natural = (bytes,)

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def definition(self, defined: set[str]) -> Json:
        return "bytes"

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, bytes | bytearray):
            raise Mismatch(path, value, "bytes")
        return base64.b64encode(value).decode() if self._as_json else bytes(value)

    def value(self, plain: Any, path: str) -> Any:
        if isinstance(plain, str):
            if not self._as_json:  # Avro reads a string as bytes
                return plain.encode()
            try:
                return base64.b64decode(plain, validate=True)
            except ValueError:
                raise Mismatch(path, plain, "base64") from None
        if not isinstance(plain, bytes):
            raise Mismatch(path, plain, "bytes")
        return plain


class TimestampShape(Shape):
    """A point in time, in µs since 1970."""

    def definition(self, defined: set[str]) -> Json:
        return {"type": "long", "logicalType": "timestamp-micros"}

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise Mismatch(path, value, "a datetime with tzinfo")
        return (value - EPOCH) // _MICROSECOND

    def value(self, plain: Any, path: str) -> Any:
        if isinstance(plain, datetime):
            return plain if plain.tzinfo is not None else plain.replace(tzinfo=UTC)
        return _moved(EPOCH, plain, path, "µs since 1970")


class DayShape(Shape):
    """A day, by its number since 1970."""

    def definition(self, defined: set[str]) -> Json:
        return {"type": "int", "logicalType": "date"}

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise Mismatch(path, value, "a date")
        return value.toordinal() - EPOCH.toordinal()

    def value(self, plain: Any, path: str) -> Any:
        if isinstance(plain, date):
            return plain
        try:
            return date.fromordinal(plain + EPOCH.toordinal())
        except (TypeError, ValueError, OverflowError):
            raise Mismatch(path, plain, "a number of days since 1970") from None


class TimeShape(Shape):
    """A time of the day, in µs."""

    def definition(self, defined: set[str]) -> Json:
        return {"type": "long", "logicalType": "time-micros"}

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise Mismatch(path, value, "a time without tzinfo")
        midnight = datetime.combine(EPOCH.date(), time.min)
        return (datetime.combine(midnight, value) - midnight) // _MICROSECOND

    def value(self, plain: Any, path: str) -> Any:
        if isinstance(plain, time):
            return plain
        moment = _moved(EPOCH, plain, path, "µs of a day")
        if moment.date() != EPOCH.date():
            raise Mismatch(path, plain, "a number of µs of a day")
        return moment.time()


def _moved(start: datetime, microseconds: Any, path: str, unit: str) -> datetime:
    if not isinstance(microseconds, int) or isinstance(microseconds, bool):
        raise Mismatch(path, microseconds, f"a number of {unit}")
    try:
        return start + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Mismatch(
            path, microseconds, f"a number of {unit} that Python can represent"
        ) from None


class UuidShape(Shape):
    """A UUID, as text."""

    def definition(self, defined: set[str]) -> Json:
        return {"type": "string", "logicalType": "uuid"}

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, UUID):
            raise Mismatch(path, value, "a UUID")
        return str(value)

    def value(self, plain: Any, path: str) -> Any:
        if isinstance(plain, UUID):
            return plain
        try:
            return UUID(plain)
        except (TypeError, ValueError, AttributeError):
            raise Mismatch(path, plain, "a UUID") from None


class EnumShape(Shape):
    """A member of an Enum, by its name."""

    def __init__(self, kind: type[Enum], namespace: str) -> None:
        self._kind = kind
        self._namespace = namespace

    def definition(self, defined: set[str]) -> Json:
        name = self._kind.__name__
        full = f"{self._namespace}.{name}" if self._namespace else name
        if full in defined:
            return full
        defined.add(full)
        symbols: list[Json] = [*self._kind.__members__]
        return {"type": "enum", "name": name, "symbols": symbols}

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, self._kind):
            raise Mismatch(path, value, f"a {self._kind.__name__}")
        return value.name

    def value(self, plain: Any, path: str) -> Any:
        if isinstance(plain, str) and plain in self._kind.__members__:
            return self._kind[plain]
        try:
            return self._kind(plain)  # the official Python client writes values into JSON
        except ValueError:
            raise Mismatch(path, plain, f"a member of {self._kind.__name__}") from None


class ArrayShape(Shape):
    """A list, tuple or set of elements of one type."""

    def __init__(self, element: Shape, build: Callable[[list[Any]], Any], kind: type[Any]) -> None:
        self._element = element
        self._build = build
        self._kind = kind

    def definition(self, defined: set[str]) -> Json:
        return {"type": "array", "items": self._element.definition(defined)}

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, self._kind):
            raise Mismatch(path, value, f"a {self._kind.__name__}")
        items: Iterable[Any] = value
        plain = self._element.plain
        return [plain(item, f"{path}[{index}]") for index, item in enumerate(items)]

    def value(self, plain: Any, path: str) -> Any:
        if not isinstance(plain, list):
            raise Mismatch(path, plain, "a list")
        value = self._element.value
        return self._build([value(item, f"{path}[{index}]") for index, item in enumerate(plain)])


class MapShape(Shape):
    """A dictionary with text as keys."""

    def __init__(self, element: Shape) -> None:
        self._element = element

    def definition(self, defined: set[str]) -> Json:
        return {"type": "map", "values": self._element.definition(defined)}

    def plain(self, value: Any, path: str) -> Any:
        return self._converted(value, path, self._element.plain)

    def value(self, plain: Any, path: str) -> Any:
        return self._converted(plain, path, self._element.value)

    def _converted(
        self, pairs: Any, path: str, convert: Callable[[Any, str], Any]
    ) -> dict[str, Any]:
        if not isinstance(pairs, dict):
            raise Mismatch(path, pairs, "a dict")
        converted = {}
        for key, item in pairs.items():
            if not isinstance(key, str):
                raise Mismatch(path, key, "a str, as the keys of a map are")
            converted[key] = convert(item, f"{path}[{key!r}]")
        return converted


class UnionShape(Shape):
    """One of several types; the first that fits."""

    def __init__(self, branches: Sequence[Shape]) -> None:
        self.branches = branches

    def definition(self, defined: set[str]) -> Json:
        return [branch.definition(defined) for branch in self.branches]

    def starting_with(self, value: Any) -> "UnionShape":
        """Returns the union with the branch of a default first, as Avro demands, or with null."""
        candidates = [(branch, value) for branch in self.branches]
        candidates += [(branch, None) for branch in self.branches]
        for branch, default in candidates:
            try:
                branch.plain(default, "")
            except Mismatch:
                continue
            return UnionShape([branch, *(other for other in self.branches if other is not branch)])
        return self

    def plain(self, value: Any, path: str) -> Any:
        plain = self._first(value, path, [branch.plain for branch in self.branches])
        if type(plain) is int and any(isinstance(branch, RealShape) for branch in self.branches):
            return "long", plain  # fastavro would write it as the double
        return plain

    def value(self, plain: Any, path: str) -> Any:
        return self._first(plain, path, [branch.value for branch in self.branches])

    def _first(self, value: Any, path: str, converts: list[Callable[[Any, str], Any]]) -> Any:
        failures = []
        ordered = sorted(
            zip(self.branches, converts, strict=True), key=lambda b: type(value) not in b[0].natural
        )
        for branch, convert in ordered:
            if isinstance(branch, NullShape):
                if value is None:
                    return None
                continue
            try:
                return convert(value, path)
            except Mismatch as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise Mismatch(path, value, "of any of the field's types")
