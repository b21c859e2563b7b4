"""Schemas: how values become the bytes of messages, and the reverse.

A schema of users subclasses `Schema`. The client declares `info` to the broker, calls `encode` for
each value that is sent, and `decode` when a received message's `value` is read. A schema with
`needs_writer` gets the schema with which the message was written (`learn`), before the first
message of each schema version is delivered.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from magnetar.client.errors import SchemaFailed

T = TypeVar("T")


class SchemaType(IntEnum):
    """The protocol's types of schemas."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOL = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema as the broker stores it."""

    type: SchemaType
    data: bytes = b""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


class Schema(ABC, Generic[T]):
    """Encodes and decodes values of type `T`."""

    needs_writer: bool = False
    """Whether `decode` needs the schema of the writer, by its version."""

    @property
    @abstractmethod
    def info(self) -> SchemaInfo | None:
        """The declaration for the broker; None declares no schema."""

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """Returns the bytes of a value; raises SchemaFailed."""

    @abstractmethod
    def decode(self, data: bytes, version: bytes | None) -> T:
        """Returns the value of a message's bytes, written with `version`; raises SchemaFailed."""

    def learn(self, version: bytes, info: SchemaInfo) -> None:
        """Receives the writer's schema of a version; only if `needs_writer`."""
        raise SchemaFailed(f"{type(self).__name__} does not use schema versions")


class BytesSchema(Schema[bytes]):
    """Bytes, unchanged: the default."""

    @property
    def info(self) -> SchemaInfo | None:
        return None

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise SchemaFailed(
                f"A value of type {type(value).__name__} is not bytes: "
                "encode it, or give the producer a schema"
            )
        return bytes(value)

    def decode(self, data: bytes, version: bytes | None) -> bytes:
        return data


class StringSchema(Schema[str]):
    """Text in UTF-8."""

    @property
    def info(self) -> SchemaInfo | None:
        return SchemaInfo(SchemaType.STRING, name="String")

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise SchemaFailed(f"A value of type {type(value).__name__} is not text")
        return value.encode()

    def decode(self, data: bytes, version: bytes | None) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise SchemaFailed(f"The message is not text in UTF-8: {error}") from error


BYTES = BytesSchema()
"""The schema of producers and consumers without another."""
