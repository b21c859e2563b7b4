"""Decodes values by their schema: Avro, JSON, Protobuf, primitives, key-value. Arrow in and out.

A null value stays null. A value that contradicts its schema raises PersistenceError: a wrong row is
worse than none, and `allowDifferentTopicSchemas` returns the bytes.
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
from magnetar_spark.decode import avro_schema
from magnetar_spark.decode.avro_types import json_type_of, spark_type_of
from magnetar_spark.decode.avro_values import conversion
from magnetar_spark.decode.builders import Numbers
from magnetar_spark.decode.primitives import PRIMITIVES
from magnetar_spark.decode.protobuf_rows import row_of
from magnetar_spark.decode.protobuf_types import root_message, struct_of
from magnetar_spark.log.schemas import Schema

NO_VERSION: Final = -1
_LENGTH_BYTES: Final = 4

_NAMES: Final[dict[int, str]] = {number: name for name, number in Wire.Type.items()}
_MALFORMED: Final = (EOFError, LookupError, ValueError, TypeError, ArithmeticError)
"""The errors of fastavro for bytes that contradict their schema."""
_TEXT_FOR_BYTES: Final = (
    ": `bytes` and `fixed` are read from base64, as Java's and Go's clients write them. To read "
    "text, register a version of the schema with this field as `string`"
)

Versions = Mapping[int, Schema]


@dataclass(frozen=True, slots=True)
class Stored:
    """Messages to decode: values, keys, and each one's schema version, which is in `schemas`."""

    values: pa.Array
    keys: pa.Array
    versions: Numbers
    schemas: Versions


class Payloads(ABC):
    """A decoder for one schema."""

    spark_type: DataType

    @property
    def arrow_type(self) -> pa.DataType:
        return to_arrow_type(self.spark_type, timezone="UTC")

    @abstractmethod
    def decode(self, stored: Stored) -> pa.Array:
        """The decoded values, as `arrow_type`. Raises PersistenceError."""


def check_kinds(stored: Stored, kind: int) -> None:
    """Raises PersistenceError if a value was written with a schema of another kind.

    For values that do not identify their type: eight bytes may be a long or a double.
    """
    for version in used_versions(stored):
        schema = stored.schemas.get(version)
        if schema is not None and schema.kind != kind:
            raise _other_kind(version, schema, kind)


def used_versions(stored: Stored) -> list[int]:
    """The versions that the values were written with; empty if no version is known."""
    if not stored.schemas:
        return []
    versions: list[int] = np.unique(stored.versions[np.asarray(stored.values.is_valid())]).tolist()
    return versions


def _other_kind(version: int, schema: Schema, kind: int) -> PersistenceError:
    return PersistenceError(
        f"version {version} of the schema is of the type {_NAMES[schema.kind]}, and the columns "
        f"are of {_NAMES[kind]}: set allowDifferentTopicSchemas to true to have the values as "
        "they are"
    )


def _written_by(version: int, schemas: Versions, kind: int) -> Schema:
    """The schema that a message was written with. Raises PersistenceError."""
    schema = schemas.get(version)
    if schema is None:
        raise PersistenceError(f"version {version} of the schema is not in the registry")
    if schema.kind != kind:
        raise _other_kind(version, schema, kind)
    return schema


def _rows(
    stored: Stored, reader_of: Callable[[int, Versions], Callable[[bytes], Any]]
) -> list[Any]:
    """The decoded values; a null value is None. `reader_of` is called once per schema version."""
    rows: list[Any] = []
    readers: dict[int, Callable[[bytes], Any]] = {}
    for data, version in zip(stored.values.to_pylist(), stored.versions.tolist(), strict=True):
        if data is None:
            rows.append(None)
            continue
        read = readers.get(version)
        if read is None:
            read = readers[version] = reader_of(version, stored.schemas)
        rows.append(read(data))
    return rows


def payloads_of(schema: Schema) -> Payloads | None:
    """A decoder for a schema; None if its values stay bytes. Raises PreconditionFailed."""
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
    """Decodes UTF-8 text."""

    spark_type = StringType()

    def decode(self, stored: Stored) -> pa.Array:
        check_kinds(stored, Wire.String)
        try:
            return stored.values.cast(pa.utf8())
        except pa.ArrowInvalid as error:
            raise PersistenceError(f"a value is no UTF-8 text: {error}") from error


class PrimitivePayloads(Payloads):
    """Decodes numbers and times of a fixed width."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._primitive = PRIMITIVES[kind]
        self.spark_type = self._primitive.spark_type

    def decode(self, stored: Stored) -> pa.Array:
        check_kinds(stored, self._kind)
        values, width = stored.values, self._primitive.width
        full = values.drop_null()
        raw = full.to_pylist()
        if any(len(value) != width for value in raw):
            raise PersistenceError(f"a value has not the {width} bytes of {self.spark_type}")
        decoded = self._primitive.decode(b"".join(raw))
        if len(full) < len(values):
            places = np.cumsum(np.asarray(values.is_valid())) - 1
            decoded = decoded.take(pa.array(places, mask=np.asarray(values.is_null())))
        return decoded.cast(self.arrow_type)


class JsonPayloads(Payloads):
    """Decodes JSON documents of a record, whose schema is in Avro's terms.

    Bytes are base64 text, as Java's and Go's clients write them.
    """

    def __init__(self, schema: Schema) -> None:
        node = avro_schema.parse(_definition(schema))
        self.spark_type = spark_type_of(node, logical_types=False)
        self._document = msgspec.json.Decoder(json_type_of(node))

    def decode(self, stored: Stored) -> pa.Array:
        check_kinds(stored, Wire.Json)
        decode = self._document.decode
        try:
            values = stored.values.to_pylist()
            rows = [None if value is None else decode(value) for value in values]
            return pa.array(rows, self.arrow_type)
        except (msgspec.MsgspecError, pa.ArrowException, TypeError, ValueError) as error:
            way_out = _TEXT_FOR_BYTES if "base64" in str(error) else ""
            raise PersistenceError(
                f"a value is not as its JSON schema says: {error}{way_out}; set "
                "allowDifferentTopicSchemas to true to have the values as they are"
            ) from error


class AvroPayloads(Payloads):
    """Decodes Avro records without a header; the message names the version of the schema.

    They are read without logical types, which `avro_values` applies afterwards.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._node = avro_schema.parse(_definition(schema))
        self.spark_type = spark_type_of(self._node)
        self._reader = _parsed(schema)
        self._reads: dict[bytes, Callable[[bytes], Any]] = {}
        """By definition, since version numbers are per topic."""

    def decode(self, stored: Stored) -> pa.Array:
        try:
            return pa.array(_rows(stored, self._read_of), self.arrow_type)
        except (*_MALFORMED, pa.ArrowException) as error:
            raise PersistenceError(f"a value is not as its Avro schema says: {error}") from error
        except fastavro.read.SchemaResolutionError as error:
            raise PersistenceError(
                f"an older version of the Avro schema cannot be read as the newest: {error}; set "
                "allowDifferentTopicSchemas to true to have the values as they are"
            ) from error
        except (PreconditionFailed, fastavro.schema.SchemaParseException) as error:
            raise PersistenceError(f"an Avro schema cannot be used: {error}") from error

    def _read_of(self, version: int, schemas: Versions) -> Callable[[bytes], Any]:
        schemas = {**schemas, NO_VERSION: self._schema}
        schema = _written_by(version, schemas, Wire.Avro)
        read = self._reads.get(schema.data)
        if read is None:
            read = self._reads[schema.data] = self._read_by(schema)
        return read

    def _read_by(self, schema: Schema) -> Callable[[bytes], Any]:
        writer = _parsed(schema)
        reader = None if writer == self._reader else self._reader
        step = conversion(avro_schema.parse(_definition(schema)), self._node)
        plain = fastavro.schemaless_reader
        if step is None:
            return lambda data: plain(BytesIO(data), writer, reader)
        return lambda data: step(plain(BytesIO(data), writer, reader))


class ProtobufPayloads(Payloads):
    """Decodes Protobuf messages whose schema holds file descriptors (PROTOBUF_NATIVE)."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._reader = root_message(schema.data)
        self.spark_type = struct_of(self._reader)
        self._rows: dict[bytes, Callable[[bytes], dict[str, Any]]] = {}
        """By definition, since version numbers are per topic."""

    def __reduce__(self) -> tuple[type["ProtobufPayloads"], tuple[Schema]]:
        """Descriptors are not pickled."""
        return ProtobufPayloads, (self._schema,)

    def decode(self, stored: Stored) -> pa.Array:
        try:
            return pa.array(_rows(stored, self._read_of), self.arrow_type)
        except (DecodeError, ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise PersistenceError(
                f"a value is not as its Protobuf schema says: {error}"
            ) from error
        except PreconditionFailed as error:
            raise PersistenceError(f"a Protobuf schema cannot be used: {error}") from error

    def _read_by(self, writer: Descriptor) -> Callable[[bytes], dict[str, Any]]:
        kind, row = GetMessageClass(writer), row_of(writer, self._reader)

        def read(data: bytes) -> dict[str, Any]:
            message = kind.FromString(data)
            if not message.IsInitialized():
                raise ValueError("a required field is missing")
            return row(message)

        return read

    def _read_of(self, version: int, schemas: Versions) -> Callable[[bytes], dict[str, Any]]:
        schemas = {**schemas, NO_VERSION: self._schema}
        schema = _written_by(version, schemas, Wire.ProtobufNative)
        read = self._rows.get(schema.data)
        if read is None:
            same = schema.data == self._schema.data
            writer = self._reader if same else root_message(schema.data)
            read = self._rows[schema.data] = self._read_by(writer)
        return read


class BytesPayloads(Payloads):
    """Leaves values as bytes."""

    spark_type = BinaryType()

    def decode(self, stored: Stored) -> pa.Array:
        return stored.values


class KeyValuePayloads(Payloads):
    """Decodes pairs: both halves from the value, or the key from the message's (SEPARATED)."""

    def __init__(self, schema: Schema) -> None:
        self._separated = _is_separated(schema)
        key, value = _halves(schema)
        self._key = payloads_of(key) or BytesPayloads()
        self._value = payloads_of(value) or BytesPayloads()
        self.spark_type = StructType(
            [StructField("key", self._key.spark_type), StructField("value", self._value.spark_type)]
        )

    def decode(self, stored: Stored) -> pa.Array:
        check_kinds(stored, Wire.KeyValue)
        values, keys, versions = stored.values, stored.keys, stored.versions
        self._check_encoding(stored)
        if not self._separated:
            pairs = [_split(value) for value in values.to_pylist()]
            keys = pa.array([key for key, _ in pairs], pa.binary())
            values = pa.array([value for _, value in pairs], pa.binary())
        halves = {v: _halves(s) for v, s in stored.schemas.items() if s.kind == Wire.KeyValue}
        of_keys = {version: half[0] for version, half in halves.items()}
        of_values = {version: half[1] for version, half in halves.items()}
        key = self._key.decode(Stored(keys, keys, versions, of_keys))
        value = self._value.decode(Stored(values, keys, versions, of_values))
        return pa.StructArray.from_arrays([key, value], ["key", "value"])

    def _check_encoding(self, stored: Stored) -> None:
        """Raises PersistenceError if a pair was written with the other encoding."""
        for version in used_versions(stored):
            schema = stored.schemas.get(version)
            if schema is not None and _is_separated(schema) != self._separated:
                raise PersistenceError(
                    f"version {version} of the schema has another kv.encoding.type than the "
                    "newest: set allowDifferentTopicSchemas to true to have the values as they are"
                )


def _is_separated(schema: Schema) -> bool:
    return schema.properties.get("kv.encoding.type") == "SEPARATED"


def _split(data: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Splits an INLINE pair: each half follows its length, -1 for null."""
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
    """The schemas of key and value; their types and properties are in the pair's properties."""
    key, rest = _take(schema.data)
    value, _ = _take(rest)
    return _half(schema, "key", key or b""), _half(schema, "value", value or b"")


def _half(schema: Schema, part: str, data: bytes) -> Schema:
    name = schema.properties.get(f"{part}.schema.type", "BYTES").replace("_", "").lower()
    kinds = {label.lower(): number for label, number in Wire.Type.items()}
    return Schema(kinds.get(name, Wire.Type.Value("None")), data)


def _definition(schema: Schema) -> Any:
    try:
        return msgspec.json.decode(schema.data)
    except msgspec.MsgspecError as error:
        raise PreconditionFailed(f"its definition is no JSON: {error}") from error


def _parsed(schema: Schema) -> Any:
    try:
        return fastavro.parse_schema(avro_schema.without_logical_types(_definition(schema)))
    except (fastavro.schema.SchemaParseException, ValueError, KeyError, TypeError) as error:
        raise PreconditionFailed(f"its definition is no Avro schema: {error!r}") from error
