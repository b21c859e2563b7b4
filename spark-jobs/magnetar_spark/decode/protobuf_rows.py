"""Converts Protobuf messages of one schema version to rows of another. Pure.

As everywhere in Protobuf, fields of two versions are the same if their numbers are; a name may
change. A number may become a wider one, an enum a number or vice versa, text bytes and bytes text,
a single value a list; other changes raise PersistenceError.

A field that a message lacks is null if the field has presence (optional, in a oneof, a message,
proto2), and otherwise the field's default; lists and maps are empty. A field that the writer's
version lacks entirely is treated by the newest version's rules.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from magnetar.core.errors import PersistenceError
from magnetar_spark.decode.protobuf_types import (
    TIMESTAMP,
    is_map,
    is_time,
    map_parts,
    wrapped_in,
)

US_PER_S: Final = 1_000_000
NS_PER_US: Final = 1_000
NS_PER_S: Final = 1_000_000_000
SECONDS_MIN: Final = -62_135_596_800
SECONDS_MAX: Final = 253_402_300_799
"""The years 1 to 9999, the range of a Timestamp."""
DURATION_SECONDS_MAX: Final = 315_576_000_000

Read = Callable[[Any], Any]

_F: Final = FieldDescriptor
_INTEGERS: Final = frozenset(
    {_F.CPPTYPE_INT32, _F.CPPTYPE_INT64, _F.CPPTYPE_UINT32, _F.CPPTYPE_UINT64}
)
_TEXTS: Final = _F.CPPTYPE_STRING
_AS_THEY_ARE: Final = frozenset(
    {
        *((writer, reader) for writer in _INTEGERS for reader in _INTEGERS),
        (_F.CPPTYPE_BOOL, _F.CPPTYPE_BOOL),
        (_F.CPPTYPE_FLOAT, _F.CPPTYPE_FLOAT),
        (_F.CPPTYPE_FLOAT, _F.CPPTYPE_DOUBLE),
        (_F.CPPTYPE_DOUBLE, _F.CPPTYPE_DOUBLE),
        (_F.CPPTYPE_ENUM, _F.CPPTYPE_INT32),
        (_F.CPPTYPE_ENUM, _F.CPPTYPE_INT64),
        (_TEXTS, _TEXTS),
    }
)
"""Pairs of writer and reader types whose values need no conversion. Arrow refuses numbers that are
too large, and bytes that are no text."""


def row_of(writer: Descriptor, reader: Descriptor) -> Callable[[Message], dict[str, Any]]:
    """A function that converts the writer's messages to rows with the reader's fields. Raises
    PersistenceError for fields with incompatible types."""
    absent: dict[str, Any] = {}
    present: dict[int, tuple[str, Read]] = {}
    for field in reader.fields:
        written = writer.fields_by_number.get(field.number)
        if written is not None:
            present[field.number] = field.name, _field(written, field)
        absent[field.name] = _absent(written, field)

    def row(message: Message) -> dict[str, Any]:
        values = dict(absent)
        # Without presence, only values other than the default are listed. Attributes would do as
        # well, except for field names that messages use themselves.
        for field, value in message.ListFields():
            if (entry := present.get(field.number)) is not None and not field.is_extension:
                values[entry[0]] = entry[1](value)
        return values

    return row


def _absent(writer: FieldDescriptor | None, reader: FieldDescriptor) -> Any:
    """The value of a field that a message lacks."""
    if reader.is_repeated:
        return []
    if writer is not None and not writer.has_presence:
        return _single(writer, reader)(writer.default_value)
    return None if reader.has_presence else _single(reader, reader)(reader.default_value)


def _field(writer: FieldDescriptor, reader: FieldDescriptor) -> Read:
    if is_map(writer) != is_map(reader):
        raise _differ(reader)
    if is_map(reader):
        (key_from, value_from), (key_field, value_field) = map_parts(writer), map_parts(reader)
        key, value = _single(key_from, key_field), _single(value_from, value_field)
        return lambda pairs: [(key(item), value(pairs[item])) for item in pairs]
    if writer.is_repeated and not reader.is_repeated:
        raise _differ(reader)
    read = _single(writer, reader)
    if writer.is_repeated:
        return lambda values: [read(item) for item in values]
    return (lambda value: [read(value)]) if reader.is_repeated else read


def _single(writer: FieldDescriptor, reader: FieldDescriptor) -> Read:
    """The conversion of a single value, or of one item of a list."""
    written, wanted = writer.cpp_type, reader.cpp_type
    if writer.message_type is not None and reader.message_type is not None:
        return _message(writer.message_type, reader.message_type, reader)
    enum = writer.enum_type or reader.enum_type
    if (
        enum is not None
        and wanted == _F.CPPTYPE_ENUM
        and (written in _INTEGERS or written == wanted)
    ):
        return _names(enum)
    if (written, wanted) not in _AS_THEY_ARE:
        raise _differ(reader)
    if writer.type == _F.TYPE_STRING and reader.type == _F.TYPE_BYTES:
        return lambda value: value if isinstance(value, bytes) else value.encode()
    return _same


def _same(value: Any) -> Any:
    return value


def _names(enum: EnumDescriptor) -> Read:
    """Converts numbers to names; for an alias, to the first name."""
    names = {value.number: value.name for value in reversed(list(enum.values))}
    return lambda number: names.get(number) or str(number)


def _message(written: Descriptor, wanted: Descriptor, reader: FieldDescriptor) -> Read:
    if is_time(wanted):
        if not is_time(written) or written.full_name != wanted.full_name:
            raise _differ(reader)
        return _timestamp if wanted.full_name == TIMESTAMP else _duration
    inner = wrapped_in(wanted)
    if inner is None:
        return row_of(written, wanted)
    outer = wrapped_in(written)
    if outer is None:
        raise _differ(reader)
    read, name = _single(outer, inner), outer.name
    return lambda wrapper: read(getattr(wrapper, name))


def _timestamp(value: Timestamp) -> int:
    """µs since 1970, truncated."""
    seconds, nanos = value.seconds, value.nanos
    if not (SECONDS_MIN <= seconds <= SECONDS_MAX and 0 <= nanos < NS_PER_S):
        raise PersistenceError(f"{seconds} s and {nanos} ns are no timestamp of Protobuf's")
    return seconds * US_PER_S + nanos // NS_PER_US


def _duration(value: Duration) -> int:
    """µs, truncated."""
    seconds, nanos = value.seconds, value.nanos
    opposed = (seconds < 0 < nanos) or (nanos < 0 < seconds)
    if abs(seconds) > DURATION_SECONDS_MAX or abs(nanos) >= NS_PER_S or opposed:
        raise PersistenceError(f"{seconds} s and {nanos} ns are no duration of Protobuf's")
    return seconds * US_PER_S + (abs(nanos) // NS_PER_US) * (-1 if nanos < 0 else 1)


def _differ(reader: FieldDescriptor) -> PersistenceError:
    return PersistenceError(
        f"field {reader.number} ('{reader.full_name}') had another type when a message was made: "
        "set allowDifferentTopicSchemas to true to have the values as they are"
    )
