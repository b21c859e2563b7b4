"""Reads messages of any schema, by the schema with which each was written."""

from copy import copy
from typing import Any, Self

import msgspec

from magnetar.client.errors import MissingExtra, SchemaFailed
from magnetar.client.schema.api import BYTES, Schema
from magnetar.client.schema.avro import AvroCodec
from magnetar.client.schema.key_value import KeyValueSchema
from magnetar.client.schema.primitives import PRIMITIVES
from magnetar.schemas.key_value import ENCODING, SEPARATED, split_key_value
from magnetar.schemas.model import InvalidSchemaData, SchemaInfo, SchemaType


class AutoConsumeSchema(Schema[Any]):
    """Only for consumers and readers: values have the types of their writers' schemas.

    Records are dictionaries, of JSON and Avro alike; protobuf messages are of classes that are made
    of their descriptors. A message without a schema is bytes.
    """

    needs_writer = True
    separates_key = True

    def __init__(self) -> None:
        self._writers: dict[bytes, Schema[Any] | str] = {}

    @property
    def info(self) -> None:
        return None

    def for_topic(self) -> Self:
        other = copy(self)
        other._writers = {}
        return other

    def learn(self, version: bytes, info: SchemaInfo) -> None:
        try:
            self._writers[version] = schema_of(info)
        except (SchemaFailed, InvalidSchemaData, MissingExtra) as error:
            self._writers[version] = error.message

    def learn_failure(self, version: bytes, reason: str) -> None:
        self._writers[version] = reason

    def encode(self, value: Any) -> bytes:
        raise SchemaFailed("AutoConsumeSchema only reads: give the producer the topic's schema")

    def decode(self, data: bytes, version: bytes | None) -> Any:
        return self._writer(version).decode(data, version)

    def decode_with_key(self, key: bytes | None, data: bytes | None, version: bytes | None) -> Any:
        writer = self._writer(version)
        if writer.separates_key:
            return writer.decode_with_key(key, data, version)
        return None if data is None else writer.decode(data, version)

    def _writer(self, version: bytes | None) -> Schema[Any]:
        if not version:
            return BYTES
        writer = self._writers.get(version, "its schema is not known")
        if isinstance(writer, str):
            raise SchemaFailed(f"The message cannot be read: {writer}")
        return writer


def schema_of(info: SchemaInfo) -> Schema[Any]:
    """Returns the schema that reads what was written with `info`."""
    kind = PRIMITIVES.get(info.type)
    if kind is not None:
        return kind()
    match info.type:
        case SchemaType.JSON:
            return _Json(info)
        case SchemaType.AVRO:
            return _Avro(info)
        case SchemaType.PROTOBUF_NATIVE:
            return _Protobuf(info)
        case SchemaType.KEY_VALUE:
            key, value = split_key_value(info)
            separated = info.properties.get(ENCODING) == SEPARATED
            return KeyValueSchema(schema_of(key), schema_of(value), separated=separated)
    raise SchemaFailed(f"AutoConsumeSchema cannot read schemas of type {info.type.name}")


class _Reads(Schema[Any]):
    """A schema that only decodes."""

    def __init__(self, info: SchemaInfo) -> None:
        self._info = info

    @property
    def info(self) -> SchemaInfo:
        return self._info

    def encode(self, value: Any) -> bytes:
        raise SchemaFailed("This schema only reads")


class _Json(_Reads):
    def decode(self, data: bytes, version: bytes | None) -> Any:
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SchemaFailed(f"The message is not JSON: {error}") from error


class _Avro(_Reads):
    def __init__(self, info: SchemaInfo) -> None:
        super().__init__(info)
        self._codec = AvroCodec(info.data)

    def decode(self, data: bytes, version: bytes | None) -> Any:
        return self._codec.decode(data)


class _Protobuf(_Reads):
    def __init__(self, info: SchemaInfo) -> None:
        from magnetar.client.schema.protobuf import message_class

        super().__init__(info)
        self._kind = message_class(info.data)

    def decode(self, data: bytes, version: bytes | None) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return self._kind.FromString(data)
        except DecodeError as error:
            raise SchemaFailed(f"The message cannot be read: {error}") from error
