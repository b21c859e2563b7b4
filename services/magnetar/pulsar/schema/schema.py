"""How values become bytes, and the reverse, with the official client's classes."""

import json
import logging
from abc import abstractmethod
from copy import copy
from enum import Enum
from typing import Any, Self

from google.protobuf.message import Message as ProtobufMessage

from magnetar.client.errors import SchemaFailed
from magnetar.client.schema import ProtobufNativeSchema as OwnProtobufSchema
from magnetar.client.schema import Schema as OwnSchema
from magnetar.client.schema.avro import AvroCodec
from magnetar.pulsar.checks import check_type
from magnetar.pulsar.enums import SchemaType
from magnetar.pulsar.message import Message
from magnetar.pulsar.schema.definition import STATE, Record
from magnetar.schemas.model import SchemaInfo as OwnSchemaInfo
from magnetar.schemas.model import SchemaType as OwnSchemaType

log = logging.getLogger("magnetar.pulsar")


class SchemaInfo:
    """What a schema declares to the broker."""

    def __init__(self, schema_type: SchemaType, name: str, schema: str) -> None:
        check_type(SchemaType, schema_type, "schema_type")
        kind = OwnSchemaType.__members__.get(schema_type.name)
        if kind is None:
            raise ValueError(f"Argument schema_type must be declared by a schema: {schema_type}")
        self._info = OwnSchemaInfo(kind, schema.encode(), name=name)

    @classmethod
    def wrap(cls, info: OwnSchemaInfo) -> Self:
        """Returns a declaration of `magnetar.client` in this class."""
        return cls(SchemaType[info.type.name], info.name, info.data.decode())

    def schema_type(self) -> SchemaType:
        """The type."""
        return SchemaType[self._info.type.name]

    def name(self) -> str:
        """The name."""
        return self._info.name

    def schema(self) -> str:
        """The definition."""
        return self._info.data.decode()


class Schema:
    """Base of schemas; subclasses encode and decode."""

    needs_writer = False
    """Whether `decode_message` uses the definition with which a message was written."""

    def __init__(
        self, record_cls: Any, schema_type: SchemaType, schema_definition: Any, schema_name: str
    ) -> None:
        # With the official client's layout, the same program declares the same bytes.
        text = "" if schema_definition is None else json.dumps(schema_definition, indent=True)
        self._record_cls = record_cls
        self._schema_info = SchemaInfo(schema_type, schema_name, text)

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Returns the bytes of a value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Returns the value of bytes."""

    def decode_message(self, msg: Message) -> Any:
        """Returns the value of a message."""
        return self.decode(msg.data())

    def schema_info(self) -> SchemaInfo:
        """What is declared to the broker."""
        return self._schema_info

    def attach_client(self, client: Any) -> None:
        """Called when a consumer or producer with the schema is created."""

    def _validate_object_type(self, obj: Any) -> None:
        if not isinstance(obj, self._record_cls):
            raise TypeError(
                f"Invalid record obj of type {type(obj)} - expected type is {self._record_cls}"
            )

    def __str__(self) -> str:
        return type(self).__name__


class BytesSchema(Schema):
    """Bytes, unchanged."""

    def __init__(self) -> None:
        super().__init__(bytes, SchemaType.BYTES, None, "BYTES")

    def encode(self, data: bytes) -> bytes:
        self._validate_object_type(data)
        return data

    def decode(self, data: bytes) -> bytes:
        return data


class StringSchema(Schema):
    """Text in UTF-8."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        text: str = obj
        return text.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class JsonSchema(Schema):
    """Records in JSON."""

    def __init__(self, record_cls: type[Record]) -> None:
        super().__init__(record_cls, SchemaType.JSON, record_cls.schema(), "JSON")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        return json.dumps(_fields_of(obj), default=_json_value, indent=True).encode()

    def decode(self, data: bytes) -> Any:
        return self._record_cls(**json.loads(data))


def _fields_of(record: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in STATE}


def _json_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return value.decode() if isinstance(value, bytes) else _fields_of(value)


class AvroSchema(Schema):
    """Records in Avro's encoding, or dictionaries with a given definition; needs fastavro."""

    needs_writer = True

    def __init__(
        self, record_cls: type[Record] | None, schema_definition: dict[str, Any] | None = None
    ) -> None:
        if record_cls is None and schema_definition is None:
            raise AssertionError("AvroSchema needs record_cls or schema_definition")
        definition = schema_definition if record_cls is None else record_cls.schema()
        super().__init__(record_cls, SchemaType.AVRO, definition, "AVRO")
        self._schema: Any = definition
        self._codec = AvroCodec(self._schema_info._info.data)
        self._codecs: dict[bytes, AvroCodec] = {}

    def encode(self, obj: Any) -> bytes:
        if self._record_cls is not None:
            self._validate_object_type(obj)
        elif not isinstance(obj, dict):
            raise ValueError("With schema_definition, a value is a dictionary")
        try:
            return self._codec.encode(_avro_value(obj))
        except SchemaFailed as error:
            # Programs catch what fastavro raises in the official client.
            kind = TypeError if isinstance(error.__cause__, TypeError) else ValueError
            raise kind(error.message) from error

    def encode_dict(self, d: dict[str, Any]) -> dict[str, Any]:
        """Returns a dictionary with what Avro encodes in the place of records and enumerations."""
        return {name: _avro_value(field) for name, field in d.items()}

    def decode(self, data: bytes) -> Any:
        return self._value(self._codec.decode(data))

    def decode_message(self, msg: Message) -> Any:
        written = msg.writer_schema()
        if written is None or written == self._schema_info._info.data:
            return self.decode(msg.data())
        codec = self._codecs.get(written)
        if codec is None:
            # The names of the records may differ, as in the official client.
            named = {**json.loads(written), "name": self._schema["name"]}
            codec = AvroCodec(json.dumps(named).encode(), reader=self._schema_info._info.data)
            self._codecs[written] = codec
        return self._value(codec.decode(msg.data()))

    def _value(self, plain: Any) -> Any:
        return plain if self._record_cls is None else self._record_cls(**plain)


def _avro_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Record):
        return {name: _avro_value(field) for name, field in _fields_of(value).items()}
    if isinstance(value, dict):
        return {name: _avro_value(field) for name, field in value.items()}
    return [_avro_value(item) for item in value] if isinstance(value, list) else value


class ProtobufNativeSchema(Schema):
    """Messages of a generated protobuf class."""

    def __init__(self, record_cls: type[ProtobufMessage]) -> None:
        if not (isinstance(record_cls, type) and issubclass(record_cls, ProtobufMessage)):
            raise TypeError(f"record_cls must be a class of protobuf messages, not {record_cls!r}")
        super().__init__(record_cls, SchemaType.PROTOBUF_NATIVE, None, "PROTOBUF_NATIVE")
        self._schema_info = SchemaInfo.wrap(OwnProtobufSchema(record_cls).info)

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        data: bytes = obj.SerializeToString()
        return data

    def decode(self, data: bytes) -> Any:
        return self._record_cls.FromString(data)

    def __str__(self) -> str:
        return f"ProtobufNativeSchema({self._record_cls.__name__})"


class Declared(OwnSchema[bytes]):
    """The schema of `magnetar.client` for a schema of this package: declares it, and keeps bytes.

    Messages decode themselves by the official client's methods. For Avro, `writers` has the
    definitions with which messages were written, by version.
    """

    def __init__(self, schema: Schema) -> None:
        info = schema.schema_info()._info
        self._info = None if info.type is OwnSchemaType.BYTES else info
        self.needs_writer = schema.needs_writer
        self.writers: dict[bytes, bytes] = {}

    @property
    def info(self) -> OwnSchemaInfo | None:
        return self._info

    def for_topic(self) -> Self:
        other = copy(self)
        other.writers = {}
        return other

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes, version: bytes | None) -> bytes:
        return data

    def learn(self, version: bytes, info: OwnSchemaInfo) -> None:
        if info.type is OwnSchemaType.AVRO:
            self.writers[version] = info.data
        else:
            self.learn_failure(version, f"its schema is {info.type.name}, not AVRO")

    def learn_failure(self, version: bytes, reason: str) -> None:
        log.warning("The writer's schema is unknown, the own one is used instead: %s", reason)
