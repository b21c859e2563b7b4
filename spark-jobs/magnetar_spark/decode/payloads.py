"""Values as their schema says: Avro, JSON, Protobuf, primitives, key-value. Arrow arrays in and
out.

A null value stays null. A value that is not what its schema says raises PersistenceError: a wrong
row is worse than none, and `allowDifferentTopicSchemas` gives the bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import fastavro
import msgspec
import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from magnetar.core.errors import PersistenceError, PreconditionFailed
from magnetar.wire._pb.PulsarApi_pb2 import Schema as Wire
from magnetar_spark.decode.avro_types import spark_type_of, without_unknown_logical_types
from magnetar_spark.decode.builders import Numbers
from magnetar_spark.decode.primitives import PRIMITIVES
from magnetar_spark.decode.protobuf_rows import row_of
from magnetar_spark.decode.protobuf_types import root_message, struct_of
from magnetar_spark.log.schemas import Schema

NO_VERSION: Final = -1
_LENGTH_BYTES: Final = 4

Versions = Mapping[int, Schema]


@dataclass(frozen=True, slots=True)
class Stored:
    """Messages: their values, their keys, and by which version of which schemas they were made."""

    values: pa.Array
    keys: pa.Array
    versions: Numbers
    known: Versions


class Payloads(ABC):
    """One kind of value."""

    spark_type: DataType

    @property
    def arrow_type(self) -> pa.DataType:
        return to_arrow_type(self.spark_type, timezone="UTC")

    @abstractmethod
    def decode(self, stored: Stored) -> pa.Array:
        """An array of `arrow_type`; raises PersistenceError."""


def payloads_of(schema: Schema) -> Payloads | None:
    """None where values of this schema are left as they are; raises PreconditionFailed."""
    kind = schema.kind
    if kind == Wire.Avro:
        return AvroPayloads(schema)
    if kind == Wire.Json:
        return JsonPayloads(schema)
    if kind == Wire.ProtobufNative:
        return ProtobufPayloads(schema)
    if kind == Wire.KeyValue:
        return KeyValuePayloads(schema)
    if kind == Wire.String:
        return TextPayloads()
    if kind in PRIMITIVES:
        return PrimitivePayloads(kind)
    return None


class TextPayloads(Payloads):
    """UTF-8."""

    spark_type = StringType()

    def decode(self, stored: Stored) -> pa.Array:
        try:
            return stored.values.cast(pa.utf8())
        except pa.ArrowInvalid as error:
            raise PersistenceError(f"a value is no UTF-8 text: {error}") from error


class PrimitivePayloads(Payloads):
    """Numbers and times of a fixed width."""

    def __init__(self, kind: int) -> None:
        self._primitive = PRIMITIVES[kind]
        self.spark_type = self._primitive.spark_type

    def decode(self, stored: Stored) -> pa.Array:
        values, width = stored.values, self._primitive.width
        full = values.drop_null()
        raw = full.to_pylist()
        if any(len(each) != width for each in raw):
            raise PersistenceError(f"a value has not the {width} bytes of {self.spark_type}")
        made = self._primitive.decode(b"".join(raw))
        if len(full) < len(values):
            places = np.cumsum(np.asarray(values.is_valid())) - 1
            made = made.take(pa.array(places, mask=np.asarray(values.is_null())))
        return made.cast(self.arrow_type)


class JsonPayloads(Payloads):
    """JSON documents of a record, which Pulsar describes in Avro's words."""

    def __init__(self, schema: Schema) -> None:
        definition = without_unknown_logical_types(_definition(schema), all_of_them=True)
        self.spark_type = spark_type_of(definition)

    def decode(self, stored: Stored) -> pa.Array:
        decode = msgspec.json.decode
        try:
            rows = [None if each is None else decode(each) for each in stored.values.to_pylist()]
            return pa.array(rows, self.arrow_type)
        except (msgspec.MsgspecError, pa.ArrowException, TypeError, ValueError) as error:
            raise PersistenceError(f"a value is not as its JSON schema says: {error}") from error


class AvroPayloads(Payloads):
    """Avro records without a header: the message says the version of the schema."""

    def __init__(self, schema: Schema) -> None:
        self._reader = _parsed(schema)
        self.spark_type = spark_type_of(_definition(schema))
        self._writers: dict[int, Any] = {NO_VERSION: self._reader}

    def decode(self, stored: Stored) -> pa.Array:
        rows: list[Any] = []
        values, versions, known = stored.values, stored.versions, stored.known
        read = fastavro.schemaless_reader
        try:
            for data, version in zip(values.to_pylist(), versions.tolist(), strict=True):
                if data is None:
                    rows.append(None)
                    continue
                writer = self._writers.get(version)
                if writer is None:
                    writer = self._writers[version] = self._writer(version, known)
                same = writer is self._reader
                rows.append(read(BytesIO(data), writer, None if same else self._reader))
            return pa.array(rows, self.arrow_type)
        except (EOFError, ValueError, TypeError, IndexError, pa.ArrowException) as error:
            raise PersistenceError(f"a value is not as its Avro schema says: {error}") from error
        except fastavro.schema.SchemaParseException as error:
            raise PersistenceError(f"an Avro schema cannot be used: {error}") from error

    def _writer(self, version: int, known: Versions) -> Any:
        schema = known.get(version)
        if schema is None or schema.kind != Wire.Avro:
            raise PersistenceError(f"version {version} of the schema is not in the registry")
        writer = _parsed(schema)
        return self._reader if writer == self._reader else writer


class ProtobufPayloads(Payloads):
    """Protobuf messages, whose schema is the descriptors of their files (PROTOBUF_NATIVE)."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._reader = root_message(schema.data)
        self.spark_type = struct_of(self._reader)
        self._rows = {NO_VERSION: self._read_by(self._reader)}

    def __reduce__(self) -> tuple[type["ProtobufPayloads"], tuple[Schema]]:
        """Descriptors stay in their process."""
        return ProtobufPayloads, (self._schema,)

    def decode(self, stored: Stored) -> pa.Array:
        rows: list[Any] = []
        values, versions, known = stored.values, stored.versions, stored.known
        try:
            for data, version in zip(values.to_pylist(), versions.tolist(), strict=True):
                if data is None:
                    rows.append(None)
                    continue
                read = self._rows.get(version)
                if read is None:
                    read = self._rows[version] = self._read_by(self._writer(version, known))
                rows.append(read(data))
            return pa.array(rows, self.arrow_type)
        except (DecodeError, ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise PersistenceError(
                f"a value is not as its Protobuf schema says: {error}"
            ) from error
        except PreconditionFailed as error:
            raise PersistenceError(f"a Protobuf schema cannot be used: {error}") from error

    def _read_by(self, writer: Descriptor) -> Callable[[bytes], dict[str, Any]]:
        made, row = GetMessageClass(writer), row_of(writer, self._reader)

        def read(data: bytes) -> dict[str, Any]:
            message = made.FromString(data)
            if not message.IsInitialized():
                raise ValueError("a required field is missing")
            return row(message)

        return read

    def _writer(self, version: int, known: Versions) -> Descriptor:
        schema = known.get(version)
        if schema is None or schema.kind != Wire.ProtobufNative:
            raise PersistenceError(f"version {version} of the schema is not in the registry")
        return self._reader if schema == self._schema else root_message(schema.data)


class BytesPayloads(Payloads):
    """As they are."""

    spark_type = BinaryType()

    def decode(self, stored: Stored) -> pa.Array:
        return stored.values


class KeyValuePayloads(Payloads):
    """Two values in one, `key` and `value`; or the key is the message's own (SEPARATED)."""

    def __init__(self, schema: Schema) -> None:
        self._separated = schema.properties.get("kv.encoding.type") == "SEPARATED"
        key, value = _halves(schema)
        self._key = payloads_of(key) or BytesPayloads()
        self._value = payloads_of(value) or BytesPayloads()
        self.spark_type = StructType(
            [StructField("key", self._key.spark_type), StructField("value", self._value.spark_type)]
        )

    def decode(self, stored: Stored) -> pa.Array:
        values, keys, versions = stored.values, stored.keys, stored.versions
        if not self._separated:
            pairs = [_split(each) for each in values.to_pylist()]
            keys = pa.array([key for key, _ in pairs], pa.binary())
            values = pa.array([value for _, value in pairs], pa.binary())
        halves = {v: _halves(s) for v, s in stored.known.items() if s.kind == Wire.KeyValue}
        of_keys = {version: half[0] for version, half in halves.items()}
        of_values = {version: half[1] for version, half in halves.items()}
        key = self._key.decode(Stored(keys, keys, versions, of_keys))
        value = self._value.decode(Stored(values, keys, versions, of_values))
        return pa.StructArray.from_arrays([key, value], ["key", "value"])


def _split(data: bytes | None) -> tuple[bytes | None, bytes | None]:
    """An INLINE pair: each half after its length, -1 for null."""
    if data is None:
        return None, None
    key, rest = _take(data)
    value, rest = _take(rest)
    if rest:
        raise PersistenceError("a key-value pair is longer than it says")
    return key, value


def _take(data: bytes) -> tuple[bytes | None, bytes]:
    length = int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
    rest = data[_LENGTH_BYTES:]
    if len(data) < _LENGTH_BYTES or length > len(rest):
        raise PersistenceError("a key-value pair is shorter than it says")
    return (None, rest) if length < 0 else (rest[:length], rest[length:])


def _halves(schema: Schema) -> tuple[Schema, Schema]:
    """The schemas of key and value; their types and properties stand in the pair's."""
    key, rest = _take(schema.data)
    value, _ = _take(rest)
    return _half(schema, "key", key or b""), _half(schema, "value", value or b"")


def _half(schema: Schema, part: str, data: bytes) -> Schema:
    name = schema.properties.get(f"{part}.schema.type", "BYTES").replace("_", "").lower()
    kinds = {known.lower(): number for known, number in Wire.Type.items()}
    return Schema(kinds.get(name, Wire.Type.Value("None")), data)


def _definition(schema: Schema) -> Any:
    try:
        return msgspec.json.decode(schema.data)
    except msgspec.MsgspecError as error:
        raise PreconditionFailed(f"its definition is no JSON: {error}") from error


def _parsed(schema: Schema) -> Any:
    try:
        return fastavro.parse_schema(without_unknown_logical_types(_definition(schema)))
    except (fastavro.schema.SchemaParseException, ValueError, KeyError, TypeError) as error:
        raise PreconditionFailed(f"its definition is no Avro schema: {error!r}") from error
