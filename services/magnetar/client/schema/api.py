"""Schemas: how values become the bytes of messages, and the reverse.

A schema of users subclasses `Schema`. The client declares `info` to the broker, calls `encode` for
each value that is sent, and `decode` when a received message's `value` is read. A schema with
`needs_writer` gets the schema with which the message was written (`learn`), before the first
message of each schema version is delivered.
"""

from abc import ABC, abstractmethod
from typing import Generic, Self, TypeVar

from magnetar.client.errors import SchemaFailed
from magnetar.schemas.model import SchemaInfo, SchemaType

T = TypeVar("T")


class Schema(ABC, Generic[T]):
    """Encodes and decodes values of type `T`."""

    needs_writer: bool = False
    """Whether `decode` needs the schema of the writer, by its version."""
    separates_key: bool = False
    """Whether a part of the value is the key of its message: KEY_VALUE with separated keys."""

    def for_topic(self) -> Self:
        """Returns the schema that decodes one topic: versions of two topics are not the same."""
        return self

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

    def key_of(self, value: T) -> bytes | None:
        """Returns the key of a value's message; only if `separates_key`."""
        return None

    def is_null(self, value: T) -> bool:
        """Whether a value has a key but nothing else; only if `separates_key`."""
        return False

    def decode_with_key(self, key: bytes | None, data: bytes | None, version: bytes | None) -> T:
        """Returns the value of a message with its key; only if `separates_key`.

        `data` is None for a null value.
        """
        return self.decode(data or b"", version)

    def learn(self, version: bytes, info: SchemaInfo) -> None:
        """Receives the writer's schema of a version; only if `needs_writer`."""
        raise SchemaFailed(f"{type(self).__name__} does not use schema versions")

    def learn_failure(self, version: bytes, reason: str) -> None:
        """Receives why a version has no usable schema; only if `needs_writer`."""


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


class RawSchema(Schema[bytes]):
    """Declares a schema for bytes that are encoded already."""

    def __init__(self, info: SchemaInfo | None) -> None:
        self._info = info

    @property
    def info(self) -> SchemaInfo | None:
        return self._info

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes, version: bytes | None) -> bytes:
        return data


BYTES = BytesSchema()
"""The schema of producers and consumers without another."""
