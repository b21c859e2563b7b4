"""Protobuf messages as rows: read by the version they were made by, for columns of another. Pure.

Fields of two versions are the same where their numbers are, as everywhere in Protobuf: a name may
change. A number may become a wider one, an enum a number or the other way round, text bytes and
bytes text, one value a list of it; other changes raise PersistenceError.

What a message does not have is null if its field says whether it is there (optional, of a oneof, a
message, proto2), and the field's default otherwise; lists and maps are empty. Where a version does
not have a field at all, the newest one says so in its place.
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
"""The years 1 to 9999, all that a Timestamp may be."""
DURATION_SECONDS_MAX: Final = 315_576_000_000

Read = Callable[[Any], Any]

_F: Final = FieldDescriptor
_INTEGERS: Final = frozenset(
    {_F.CPPTYPE_INT32, _F.CPPTYPE_INT64, _F.CPPTYPE_UINT32, _F.CPPTYPE_UINT64}
)
_TEXTS: Final = _F.CPPTYPE_STRING
_AS_THEY_ARE: Final = frozenset(
    {
        *((one, other) for one in _INTEGERS for other in _INTEGERS),
        (_F.CPPTYPE_BOOL, _F.CPPTYPE_BOOL),
        (_F.CPPTYPE_FLOAT, _F.CPPTYPE_FLOAT),
        (_F.CPPTYPE_FLOAT, _F.CPPTYPE_DOUBLE),
        (_F.CPPTYPE_DOUBLE, _F.CPPTYPE_DOUBLE),
        (_F.CPPTYPE_ENUM, _F.CPPTYPE_INT32),
        (_F.CPPTYPE_ENUM, _F.CPPTYPE_INT64),
        (_TEXTS, _TEXTS),
    }
)
"""Of the writer, of the reader; Arrow refuses a number that is too large, and bytes that are no
text."""


def row_of(writer: Descriptor, reader: Descriptor) -> Callable[[Message], dict[str, Any]]:
    """What makes rows with the reader's fields of the writer's messages; raises PersistenceError
    where a field of one cannot be one of the other."""
    absent: dict[str, Any] = {}
    present: dict[int, tuple[str, Read]] = {}
    for field in reader.fields:
        made = writer.fields_by_number.get(field.number)
        if made is not None:
            present[field.number] = field.name, _field(made, field)
        absent[field.name] = _absent(made, field)

    def row(message: Message) -> dict[str, Any]:
        values = dict(absent)
        # Of fields without presence, those that are not their default. Attributes would do as well,
        # but for names that messages have themselves.
        for field, value in message.ListFields():
            if (found := present.get(field.number)) is not None and not field.is_extension:
                values[found[0]] = found[1](value)
        return values

    return row


def _absent(writer: FieldDescriptor | None, reader: FieldDescriptor) -> Any:
    """What the field is where a message does not have it."""
    if reader.is_repeated:
        return []
    if writer is not None and not writer.has_presence:
        return _single(writer, reader)(writer.default_value)
    return None if reader.has_presence else _single(reader, reader)(reader.default_value)


def _field(writer: FieldDescriptor, reader: FieldDescriptor) -> Read:
    if is_map(writer) != is_map(reader):
        raise _differ(reader)
    if is_map(reader):
        (made_key, made_value), (key_field, value_field) = map_parts(writer), map_parts(reader)
        key, value = _single(made_key, key_field), _single(made_value, value_field)
        return lambda found: [(key(each), value(found[each])) for each in found]
    if writer.is_repeated and not reader.is_repeated:
        raise _differ(reader)
    one = _single(writer, reader)
    if writer.is_repeated:
        return lambda found: [one(each) for each in found]
    return (lambda found: [one(found)]) if reader.is_repeated else one


def _single(writer: FieldDescriptor, reader: FieldDescriptor) -> Read:
    """Of one value, not of all that a list has."""
    made, wanted = writer.cpp_type, reader.cpp_type
    if writer.message_type is not None and reader.message_type is not None:
        return _message(writer.message_type, reader.message_type, reader)
    enum = writer.enum_type or reader.enum_type
    if enum is not None and wanted == _F.CPPTYPE_ENUM and (made in _INTEGERS or made == wanted):
        return _names(enum)
    if (made, wanted) not in _AS_THEY_ARE:
        raise _differ(reader)
    if writer.type == _F.TYPE_STRING and reader.type == _F.TYPE_BYTES:
        return lambda found: found if isinstance(found, bytes) else found.encode()
    return _same


def _same(value: Any) -> Any:
    return value


def _names(enum: EnumDescriptor) -> Read:
    """The name of a number; of an alias the first one."""
    names = {each.number: each.name for each in reversed(list(enum.values))}
    return lambda number: names.get(number) or str(number)


def _message(made: Descriptor, wanted: Descriptor, reader: FieldDescriptor) -> Read:
    if is_time(wanted):
        if not is_time(made) or made.full_name != wanted.full_name:
            raise _differ(reader)
        return _timestamp if wanted.full_name == TIMESTAMP else _duration
    inner = wrapped_in(wanted)
    if inner is None:
        return row_of(made, wanted)
    outer = wrapped_in(made)
    if outer is None:
        raise _differ(reader)
    read, name = _single(outer, inner), outer.name
    return lambda found: read(getattr(found, name))


def _timestamp(found: Timestamp) -> int:
    """In µs since 1970; what is finer is cut off."""
    seconds, nanos = found.seconds, found.nanos
    if not (SECONDS_MIN <= seconds <= SECONDS_MAX and 0 <= nanos < NS_PER_S):
        raise PersistenceError(f"{seconds} s and {nanos} ns are no timestamp of Protobuf's")
    return seconds * US_PER_S + nanos // NS_PER_US


def _duration(found: Duration) -> int:
    """In µs; what is finer is cut off."""
    seconds, nanos = found.seconds, found.nanos
    opposed = (seconds < 0 < nanos) or (nanos < 0 < seconds)
    if abs(seconds) > DURATION_SECONDS_MAX or abs(nanos) >= NS_PER_S or opposed:
        raise PersistenceError(f"{seconds} s and {nanos} ns are no duration of Protobuf's")
    return seconds * US_PER_S + (abs(nanos) // NS_PER_US) * (-1 if nanos < 0 else 1)


def _differ(reader: FieldDescriptor) -> PersistenceError:
    return PersistenceError(
        f"field {reader.number} ('{reader.full_name}') had another type when a message was made: "
        "set allowDifferentTopicSchemas to true to have the values as they are"
    )
