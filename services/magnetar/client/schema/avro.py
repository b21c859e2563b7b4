"""Avro schemas: records in Avro's binary encoding, read with the schema of their writer.

fastavro decodes with the writer's schema; the record's shape then resolves the result against the
reader's type, so names of records may differ, as in Avro's Java library.
"""

from copy import copy
from io import BytesIO
from typing import Any, Self, TypeVar

import msgspec

from magnetar.client.errors import InvalidConfiguration, MissingExtra, SchemaFailed
from magnetar.client.schema.api import Schema
from magnetar.client.schema.derive import definition_of, derive
from magnetar.schemas.avro_parse import AvroParseError, parse_avro
from magnetar.schemas.model import SchemaInfo, SchemaType, version_from_bytes

T = TypeVar("T")


class AvroSchema(Schema[T]):
    """Records of a dataclass, msgspec struct or pydantic model, in Avro's encoding."""

    needs_writer = True

    def __init__(
        self, kind: type[T], *, name: str = "", namespace: str = "", definition: str | bytes = b""
    ) -> None:
        """`name` and `namespace` are those of the definition; the default name is the type's.

        `definition` is Avro's JSON of a schema that others use; the type must fit it.
        """
        self._shape = derive(kind, name=name, namespace=namespace, as_json=False)
        self._path = name or kind.__name__
        text = definition.encode() if isinstance(definition, str) else definition
        self._info = SchemaInfo(SchemaType.AVRO, text or definition_of(self._shape), name="AVRO")
        try:
            self._own = AvroCodec(self._info.data)
        except SchemaFailed as error:
            raise InvalidConfiguration(f"{self._path}: {error.message}") from error
        self._writers: dict[bytes, AvroCodec | str] = {}

    @property
    def info(self) -> SchemaInfo:
        return self._info

    def for_topic(self) -> Self:
        other = copy(self)
        other._writers = {}
        return other

    def learn(self, version: bytes, info: SchemaInfo) -> None:
        if info.type != SchemaType.AVRO:
            self.learn_failure(version, f"its schema is {info.type.name}, not AVRO")
            return
        try:
            same = info.data == self._info.data
            self._writers[version] = self._own if same else AvroCodec(info.data)
        except SchemaFailed as error:
            self.learn_failure(version, error.message)

    def learn_failure(self, version: bytes, reason: str) -> None:
        self._writers[version] = reason

    def encode(self, value: T) -> bytes:
        return self._own.encode(self._shape.plain(value, self._path))

    def decode(self, data: bytes, version: bytes | None) -> T:
        unknown = "the schema of its writer is not known here"
        codec = self._writers.get(version, unknown) if version else self._own
        number = version_from_bytes(version) if version else None
        where = "" if number is None else f" (written with version {number} of the topic's schema)"
        if isinstance(codec, str):
            raise SchemaFailed(f"The message cannot be read: {codec}{where}")
        try:
            value: T = self._shape.value(codec.decode(data), self._path)
        except SchemaFailed as error:
            raise SchemaFailed(f"{error.message}{where}") from error
        return value


class AvroCodec:
    """Encodes and decodes with one definition; needs fastavro."""

    def __init__(self, definition: bytes, *, reader: bytes | None = None) -> None:
        """Raises SchemaFailed, and MissingExtra without fastavro.

        `definition` is the one of the writer. With `reader`, decoded values have that definition,
        by Avro's rules of resolution.
        """
        try:
            import fastavro
            from fastavro.schema import SchemaParseException, UnknownType
        except ImportError as error:
            raise MissingExtra(
                "Avro schemas need more libraries: pip install 'magnetar[avro]'"
            ) from error
        self._fastavro = fastavro
        try:
            parse_avro(definition)  # bounds the nesting, and gives better errors
            self._schema = fastavro.parse_schema(msgspec.json.decode(definition))
            self._reader = None
            if reader is not None:
                self._reader = fastavro.parse_schema(msgspec.json.decode(reader))
        except (AvroParseError, SchemaParseException, UnknownType, msgspec.MsgspecError) as error:
            raise SchemaFailed(f"The definition is no Avro schema: {error}") from error

    def encode(self, plain: Any) -> bytes:
        """Returns the bytes of a value; raises SchemaFailed."""
        out = BytesIO()
        try:
            self._fastavro.schemaless_writer(out, self._schema, plain)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise SchemaFailed(f"The value does not fit its Avro schema: {error}") from error
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        """Returns the value of bytes; raises SchemaFailed."""
        source = BytesIO(data)
        try:
            plain = self._fastavro.schemaless_reader(source, self._schema, self._reader)
        except Exception as error:  # fastavro raises what it meets in damaged bytes
            raise SchemaFailed(f"The message is not Avro of its schema: {error!r}") from error
        if source.read(1):
            raise SchemaFailed("The message has bytes after the value of its Avro schema")
        return plain
