"""KEY_VALUE schemas: pairs, whose key is in the payload or is the key of the message.

In the payload, key and value follow their lengths (4 bytes, big-endian; -1: none).
"""

from copy import copy
from typing import Final, Generic, NamedTuple, Self, TypeVar

from magnetar.client.errors import InvalidConfiguration, SchemaFailed
from magnetar.client.schema.api import Schema
from magnetar.schemas.key_value import join_key_value, split_key_value
from magnetar.schemas.model import InvalidSchemaData, SchemaInfo, SchemaType

K = TypeVar("K")
V = TypeVar("V")

_LENGTH_BYTES: Final = 4
_BYTES: Final = SchemaInfo(SchemaType.BYTES, name="Bytes")


class KeyValue(NamedTuple, Generic[K, V]):
    """A key with its value."""

    key: K
    value: V


class KeyValueSchema(Schema[KeyValue[K, V]]):
    """Pairs of two schemas."""

    def __init__(self, key: Schema[K], value: Schema[V], *, separated: bool = False) -> None:
        """`separated`: the key is the key of the message, so it routes and compacts."""
        if key.separates_key or value.separates_key:
            raise InvalidConfiguration("The parts of a KeyValueSchema cannot separate their keys")
        self._key = key
        self._value = value
        self.separates_key = separated
        self.needs_writer = key.needs_writer or value.needs_writer
        self._info = join_key_value(key.info or _BYTES, value.info or _BYTES, separated=separated)

    @property
    def info(self) -> SchemaInfo:
        return self._info

    def for_topic(self) -> Self:
        other = copy(self)
        other._key = self._key.for_topic()
        other._value = self._value.for_topic()
        return other

    def learn(self, version: bytes, info: SchemaInfo) -> None:
        try:
            key, value = split_key_value(info)
        except InvalidSchemaData as error:
            self.learn_failure(version, error.message)
            return
        for schema, part in ((self._key, key), (self._value, value)):
            if schema.needs_writer:
                schema.learn(version, part)

    def learn_failure(self, version: bytes, reason: str) -> None:
        self._key.learn_failure(version, reason)
        self._value.learn_failure(version, reason)

    def key_of(self, value: KeyValue[K, V]) -> bytes | None:
        if not self.separates_key or value.key is None:
            return None
        return self._key.encode(value.key)

    def is_null(self, value: KeyValue[K, V]) -> bool:
        return value.value is None

    def encode(self, value: KeyValue[K, V]) -> bytes:
        if not isinstance(value, KeyValue):
            raise SchemaFailed(f"A value of type {type(value).__name__} is not a KeyValue")
        encoded = None if value.value is None else self._value.encode(value.value)
        if self.separates_key:
            return encoded or b""
        key = None if value.key is None else self._key.encode(value.key)
        return _part(key) + _part(encoded)

    def decode(self, data: bytes, version: bytes | None) -> KeyValue[K, V]:
        key, rest = _take(data)
        value, rest = _take(rest)
        if rest:
            raise SchemaFailed("The message has bytes after its key and value")
        return self._pair(key, value, version)

    def decode_with_key(
        self, key: bytes | None, data: bytes | None, version: bytes | None
    ) -> KeyValue[K, V]:
        return self._pair(key, data, version)

    def _pair(
        self, key: bytes | None, value: bytes | None, version: bytes | None
    ) -> KeyValue[K, V]:
        return KeyValue(
            None if key is None else self._key.decode(key, version),  # type: ignore[arg-type]
            None if value is None else self._value.decode(value, version),  # type: ignore[arg-type]
        )


def _part(data: bytes | None) -> bytes:
    if data is None:
        return (-1).to_bytes(_LENGTH_BYTES, "big", signed=True)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def _take(data: bytes) -> tuple[bytes | None, bytes]:
    length = int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
    rest = data[_LENGTH_BYTES:]
    if length == -1 and len(data) >= _LENGTH_BYTES:
        return None, rest
    if len(data) < _LENGTH_BYTES or not 0 <= length <= len(rest):
        raise SchemaFailed("The message is no key and value with their lengths")
    return rest[:length], rest[length:]
