"""Step 1, building: a message to send, with everything that its metadata will have."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from magnetar.client.errors import InvalidConfiguration

_NO_PROPERTIES: Mapping[str, str] = {}
NUMBER_MAX: Final = 2**63 - 1
"""The greatest time in ms, and the greatest sequence id: brokers keep both as signed numbers."""


class OutgoingMessage(msgspec.Struct):
    """A message between `send` and the wire; interceptors may replace its fields."""

    payload: bytes
    key: str | None = None
    key_bytes: bytes | None = None
    """A partition key that is not text; sent in base64."""
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    event_time_ms: int = 0
    sequence_id: int = -1
    """-1: the producer's next."""
    deliver_at_ms: int = 0
    replicate_to: tuple[str, ...] = ()
    """The clusters that get the message; empty for those of the namespace."""
    null_value: bool = False
    """The message has no value: compaction deletes its key."""
    transaction: Any = None

    @property
    def plain(self) -> bool:
        """Whether the message is only a payload."""
        return (
            self.key is None
            and self.key_bytes is None
            and self.ordering_key is None
            and not self.properties
            and not self.event_time_ms
            and not self.null_value
        )

    @property
    def text_bytes(self) -> int:
        """What keys and properties take in the metadata, about."""
        if self.plain:
            return 0
        texts = sum(_size(k) + _size(v) + 16 for k, v in self.properties.items())
        keys = _size(self.key or "") + 2 * len(self.key_bytes or b"")
        return texts + keys + len(self.ordering_key or b"")

    @property
    def batchable(self) -> bool:
        """Whether the message may share an entry: its metadata has nothing of its own entry."""
        return not self.deliver_at_ms and not self.replicate_to


def check_fields(message: OutgoingMessage) -> None:
    """Raises InvalidConfiguration for fields that exclude each other, or cannot be encoded.

    A message that fails later would fail the others of its batch.
    """
    if not isinstance(message.payload, bytes):
        raise InvalidConfiguration(
            f"The schema has encoded a value as {type(message.payload).__name__}, not as bytes"
        )
    if message.sequence_id != -1:
        _check_number("sequence_id", message.sequence_id, 0)
    if message.deliver_at_ms:
        _check_number("deliver_at_ms", message.deliver_at_ms, 0)
    if message.replicate_to:
        if isinstance(message.replicate_to, str):
            raise InvalidConfiguration("replicate_to must be a tuple of names of clusters")
        for cluster in message.replicate_to:
            _check_text("replicate_to", cluster)
    if not message.plain:
        _check_own_fields(message)


def _check_own_fields(message: OutgoingMessage) -> None:
    # On the path of every message with a key: `type` and `isascii` cost a fraction of the rest.
    key, key_bytes, ordering_key = message.key, message.key_bytes, message.ordering_key
    if key is not None:
        if key_bytes is not None:
            raise InvalidConfiguration("A message has `key` or `key_bytes`, not both")
        if type(key) is not str or not key.isascii():
            _check_text("key", key)
    if key_bytes is not None and not isinstance(key_bytes, bytes):
        raise InvalidConfiguration(f"key_bytes must be bytes, not {type(key_bytes).__name__}")
    if ordering_key is not None and not isinstance(ordering_key, bytes):
        raise InvalidConfiguration(f"ordering_key must be bytes, not {type(ordering_key).__name__}")
    if message.event_time_ms:
        _check_number("event_time_ms", message.event_time_ms, 0)
    properties = message.properties
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise InvalidConfiguration(f"properties must be a mapping, not {type(properties).__name__}")
    for name, text in properties.items():
        if type(name) is not str or not name.isascii():
            _check_text("properties", name)
        if type(text) is not str or not text.isascii():
            _check_text("properties", text)


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or not least <= value <= NUMBER_MAX:
        raise InvalidConfiguration(f"{name} must be an integer from {least} on, not {value!r}")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidConfiguration(f"{name} must have text only, not {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidConfiguration(f"{name} has no text in UTF-8: {error}") from None


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def delay_ms(delay_s: float) -> int:
    """Returns a delay in milliseconds; raises InvalidConfiguration."""
    if not math.isfinite(delay_s):
        raise InvalidConfiguration(f"deliver_after_s must be a number of seconds, not {delay_s}")
    return round(delay_s * 1000)


def wire_id_of(transaction: Any) -> tuple[int, int] | None:
    """Returns the id of a transaction, if there is one."""
    wire_id: tuple[int, int] | None = None if transaction is None else transaction.wire_id
    return wire_id
