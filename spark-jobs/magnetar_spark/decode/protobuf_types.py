"""Loads the messages of PROTOBUF_NATIVE schemas, and maps their fields to Spark types. Pure.

The definition is Pulsar's: file descriptors in a JSON envelope. Each is loaded into a pool of its
own, so that versions of one message do not conflict.

Numbers get the smallest Spark type that holds them all: uint32 is a long, uint64 a decimal(20,0).
An enum is its value's name. `google.protobuf.Timestamp` and `Duration` become a timestamp and an
interval, the wrappers (`Int64Value`, …) their values, except as the root message. Extensions and
recursive types have no column.
"""

import binascii
from base64 import b64decode
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.core.errors import PreconditionFailed

FILES_MAX: Final = 1_000
FIELDS_MAX: Final = 10_000
"""Fields of all nested messages; every use of a message counts."""
DEPTH_MAX: Final = 100
"""Nesting of messages; Protobuf itself reads no deeper."""

SCALARS: Final[Mapping[int, DataType]] = {
    FieldDescriptor.TYPE_BOOL: BooleanType(),
    FieldDescriptor.TYPE_INT32: IntegerType(),
    FieldDescriptor.TYPE_SINT32: IntegerType(),
    FieldDescriptor.TYPE_SFIXED32: IntegerType(),
    FieldDescriptor.TYPE_UINT32: LongType(),
    FieldDescriptor.TYPE_FIXED32: LongType(),
    FieldDescriptor.TYPE_INT64: LongType(),
    FieldDescriptor.TYPE_SINT64: LongType(),
    FieldDescriptor.TYPE_SFIXED64: LongType(),
    FieldDescriptor.TYPE_UINT64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: DecimalType(20, 0),
    FieldDescriptor.TYPE_FLOAT: FloatType(),
    FieldDescriptor.TYPE_DOUBLE: DoubleType(),
    FieldDescriptor.TYPE_STRING: StringType(),
    FieldDescriptor.TYPE_BYTES: BinaryType(),
    FieldDescriptor.TYPE_ENUM: StringType(),
}
TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
TIMES: Final[Mapping[str, DataType]] = {
    TIMESTAMP: TimestampType(),
    DURATION: DayTimeIntervalType(),
}
_TIMES_FIELDS: Final = {
    ("seconds", 1, FieldDescriptor.TYPE_INT64),
    ("nanos", 2, FieldDescriptor.TYPE_INT32),
}
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class _Envelope(msgspec.Struct, rename="camel", frozen=True):
    file_descriptor_set: str
    root_message_type_name: str
    root_file_descriptor_name: str


def root_message(definition: bytes) -> Descriptor:
    """The message that a definition describes. Raises PreconditionFailed."""
    try:
        envelope = msgspec.json.decode(definition, type=_Envelope)
        files = FileDescriptorSet.FromString(b64decode(envelope.file_descriptor_set))
    except (msgspec.MsgspecError, binascii.Error, DecodeError, UnicodeDecodeError) as error:
        raise PreconditionFailed(f"its definition holds no file descriptors: {error}") from error
    by_name = {file.name: file for file in files.file}
    if len(by_name) > FILES_MAX:
        raise PreconditionFailed(f"its definition has more than {FILES_MAX} files")
    pool = DescriptorPool()
    root = envelope.root_file_descriptor_name
    try:
        for file in _imported_first(by_name, root):
            pool.Add(file)
        package = by_name[root].package
        name = envelope.root_message_type_name
        if package and not name.startswith(f"{package}."):
            name = f"{package}.{name}"
        return pool.FindMessageTypeByName(name)
    except (KeyError, TypeError, CycleError) as error:
        raise PreconditionFailed(f"its file descriptors cannot be used: {error!r}") from error


def _imported_first(
    by_name: Mapping[str, FileDescriptorProto], root: str
) -> list[FileDescriptorProto]:
    """The root's file and all its imports, imports first. Raises KeyError, CycleError."""
    imports: dict[str, list[str]] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name not in imports:
            imports[name] = list(by_name[name].dependency)
            waiting += imports[name]
    return [by_name[name] for name in TopologicalSorter(imports).static_order()]


def struct_of(message: Descriptor) -> StructType:
    """The Spark type of a message. Raises PreconditionFailed naming a type that Spark lacks."""
    return _Types().struct(message)


def is_time(message: Descriptor) -> bool:
    """Whether it is a Timestamp or a Duration with the standard fields."""
    fields = {(field.name, field.number, field.type) for field in message.fields}
    return message.full_name in TIMES and fields == _TIMES_FIELDS


def wrapped_in(message: Descriptor) -> FieldDescriptor | None:
    """The only field of a wrapper; None for other messages."""
    fields = message.fields
    fits = message.full_name in WRAPPERS and len(fields) == 1 and not fields[0].is_repeated
    return fields[0] if fits and fields[0].message_type is None else None


def is_map(field: FieldDescriptor) -> bool:
    """Whether the field is a map, which Protobuf represents as a list of pairs."""
    entry = field.message_type
    return entry is not None and entry.GetOptions().map_entry


def map_parts(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """The key and the value of a map field."""
    entry = field.message_type
    if entry is None:
        raise PreconditionFailed(f"the field '{field.full_name}' is no map")
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


class _Types:
    """One conversion; tracks the enclosing messages and counts fields."""

    def __init__(self) -> None:
        self._within: list[str] = []
        self._fields = 0

    def struct(self, message: Descriptor) -> StructType:
        name = message.full_name
        if name in self._within:
            raise PreconditionFailed(f"the type '{name}' contains itself")
        self._fields += len(message.fields)
        if self._fields > FIELDS_MAX or len(self._within) >= DEPTH_MAX:
            raise PreconditionFailed(
                f"it has more than {FIELDS_MAX} fields, or messages {DEPTH_MAX} deep"
            )
        self._within.append(name)
        struct = StructType(
            [StructField(field.name, self._field(field)) for field in message.fields]
        )
        self._within.pop()
        return struct

    def _field(self, field: FieldDescriptor) -> DataType:
        if is_map(field):
            key, value = map_parts(field)
            return MapType(self._single(key), self._single(value))
        return ArrayType(self._single(field)) if field.is_repeated else self._single(field)

    def _single(self, field: FieldDescriptor) -> DataType:
        message = field.message_type
        if message is None:
            return SCALARS[field.type]
        if is_time(message):
            return TIMES[message.full_name]
        inner = wrapped_in(message)
        return self.struct(message) if inner is None else SCALARS[inner.type]
