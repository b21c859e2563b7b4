"""The messages of a dead letter topic's entries, and what each becomes at its origin. Pure.

The names of the properties are those that Pulsar's clients set on retry letters and dead letters.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from magnetar.core.ids import Position
from magnetar.policies.selector import Message
from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import messages_of
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

ORIGIN: Final = "REAL_TOPIC"
REDRIVES: Final = "REDRIVES"
"""How often the message was moved back."""
SYSTEM_PROPERTIES: Final = frozenset(
    {
        ORIGIN,
        "REAL_SUBSCRIPTION",
        "ORIGIN_MESSAGE_ID",
        "ORIGIN_MESSAGE_IDY_TIME",
        "RECONSUMETIMES",
        "DELAY_TIME",
    }
)
"""The properties of letters. With them, a consumer would count the earlier attempts again."""


class Skip(StrEnum):
    """Why a matching message stays in the dead letter topic."""

    ENCRYPTED = "encrypted"
    CHUNKED = "chunked"
    UNREADABLE = "unreadable"
    NULL_KEY = "null_key"
    NO_ORIGIN = "no_origin"
    TARGET_MISSING = "target_missing"
    TARGET_IS_SOURCE = "target_is_source"
    NO_RIGHT = "no_right"
    NO_SCHEMA = "no_schema"
    REFUSED = "refused_by_target"
    HELD = "held_by_consumer"
    IN_TRANSACTION = "in_transaction"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message of a dead letter topic."""

    position: Position
    index: int
    """In its batch."""
    batch_size: int
    """The number of messages of its entry."""
    payload: bytes
    null_value: bool
    key: str | None
    key_bytes: bytes | None
    ordering_key: bytes | None
    properties: Mapping[str, str]
    event_time_ms: int
    schema_version: bytes

    @property
    def seen(self) -> Message:
        """What a filter sees of it."""
        return Message(self.properties, self.key)

    @property
    def left(self) -> int:
        """The bits of the entry's other messages; 0 if it is the only one."""
        return ((1 << self.batch_size) - 1) & ~(1 << self.index)


def letters_of(entry: bytes, position: Position) -> list[Letter] | Skip | None:
    """Returns an entry's messages, or why none can be moved; None for a marker of the broker."""
    try:
        metadata = parse_metadata(entry)
        if metadata.HasField("marker_type"):
            return None
        if metadata.encryption_keys:
            return Skip.ENCRYPTED
        if metadata.num_chunks_from_msg > 1:
            return Skip.CHUNKED
        _, messages = messages_of(entry)
    except MalformedEntry:
        return Skip.UNREADABLE
    count = len(messages)
    letters = []
    for index, message in enumerate(messages):
        own = metadata if message.metadata is None else message.metadata
        if own.null_partition_key:
            return Skip.NULL_KEY
        letters.append(
            _letter(position, index, count, own, message.payload, metadata.schema_version)
        )
    return letters


def _letter(
    position: Position,
    index: int,
    count: int,
    metadata: MessageMetadata | SingleMessageMetadata,
    payload: bytes,
    schema_version: bytes,
) -> Letter:
    key, key_bytes = None, None
    if metadata.HasField("partition_key"):
        key, key_bytes = _key(metadata.partition_key, metadata.partition_key_b64_encoded)
    return Letter(
        position, index, count, payload, metadata.null_value, key, key_bytes,
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
        {item.key: item.value for item in metadata.properties},
        metadata.event_time, schema_version,
    )  # fmt: skip


def _key(text: str, encoded: bool) -> tuple[str | None, bytes | None]:
    """Returns the key as text, or as bytes if the producer has sent bytes."""
    if not encoded:
        return text, None
    try:
        return None, base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text, None


def properties_at_origin(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns a moved message's properties: those of the application, and the redrives' count."""
    kept = {key: value for key, value in properties.items() if key not in SYSTEM_PROPERTIES}
    kept[REDRIVES] = str(_count(properties.get(REDRIVES, "")) + 1)
    return kept


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
