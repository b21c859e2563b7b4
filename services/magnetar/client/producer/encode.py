"""Step 9, encoding: messages, batches and chunks to SEND frames, without protobuf objects.

The bytes are those that protobuf would write. What does not change between two messages of a
producer is encoded once.
"""

import base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from google_crc32c import extend, value

from magnetar.client.producer.outgoing import OutgoingMessage
from magnetar.wire.commands import CommandType
from magnetar.wire.framing import CHECKSUM_HEADER, CHECKSUM_MAGIC, FRAME_HEADER, U32
from magnetar.wire.varint import LOW_BITS, LOW_MASK, split_tables, varint

_SEND_START: Final = bytes((0x08, CommandType.SEND, 0x32))
_NULL_VALUE_SINGLE: Final = b"\x48\x01"
_NULL_VALUE: Final = b"\xc8\x01\x01"
SIZES_CACHED_MAX: Final = 4096


def _text(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return tag + varint(len(data)) + data


@lru_cache(maxsize=SIZES_CACHED_MAX)
def _properties(tag: bytes, pairs: tuple[tuple[str, str], ...]) -> bytes:
    encoded = []
    for name, text in pairs:
        pair = _text(b"\x0a", name) + _text(b"\x12", text)
        encoded.append(tag + varint(len(pair)) + pair)
    return b"".join(encoded)


def _encode_properties(tag: bytes, properties: Mapping[str, str]) -> bytes:
    return _properties(tag, tuple(properties.items())) if properties else b""


def _key_of(message: OutgoingMessage) -> tuple[bytes, bool]:
    """Returns the partition key's bytes on the wire, and whether they are base64."""
    if message.key_bytes is not None:
        return base64.b64encode(message.key_bytes), True
    return (message.key or "").encode(), False


@lru_cache(maxsize=SIZES_CACHED_MAX)
def _payload_size(size_bytes: int) -> bytes:
    return b"\x18" + varint(size_bytes)


def single_head(message: OutgoingMessage, sequence_id: int) -> bytes:
    """The bytes before a message's payload in a batch: size and SingleMessageMetadata."""
    if sequence_id < 1 << 7:
        sequence = b"\x40" + varint(sequence_id)
    else:
        table, rest = split_tables(sequence_id >> LOW_BITS)
        sequence = b"\x40" + table[sequence_id & LOW_MASK] + rest
    size = _payload_size(len(message.payload))
    body = size + sequence if message.plain else _single_fields(message, size, sequence)
    return U32.pack(len(body)) + body


def _single_fields(message: OutgoingMessage, size: bytes, sequence: bytes) -> bytes:
    parts = [_encode_properties(b"\x0a", message.properties)]
    key, is_base64 = b"", False
    if message.key is not None or message.key_bytes is not None:
        key, is_base64 = _key_of(message)
        parts += (b"\x12", varint(len(key)), key)
    parts.append(size)
    if message.event_time_ms:
        parts.append(b"\x28" + varint(message.event_time_ms))
    if is_base64:
        parts.append(b"\x30\x01")
    if message.ordering_key is not None:
        parts.append(b"\x3a" + varint(len(message.ordering_key)) + message.ordering_key)
    parts.append(sequence)
    if message.null_value:
        parts.append(_NULL_VALUE_SINGLE)
    return b"".join(parts)


class FrameEncoder:
    """Encodes the SEND frames of one producer on one topic or partition."""

    __slots__ = ("_command", "_encrypt", "_name", "schema")

    def __init__(
        self,
        producer_id: int,
        name: str,
        schema_version: bytes,
        encrypt: "Callable[[bytes], tuple[bytes, bytes]] | None" = None,
    ) -> None:
        """`encrypt` returns the metadata of encryption, and the encrypted payload."""
        self._encrypt = encrypt
        self._command = b"\x08" + varint(producer_id) + b"\x10"
        self._name = _text(b"\x0a", name) + b"\x10"
        self.schema = (
            b"\x82\x01" + varint(len(schema_version)) + schema_version if schema_version else b""
        )

    def single(
        self,
        message: OutgoingMessage,
        sequence_id: int,
        publish_time_ms: int,
        payload: bytes,
        compression: int,
        transaction: tuple[int, int] | None,
        chunk: "ChunkPlace | None" = None,
    ) -> tuple[bytes, bytes]:
        """The frame of a message of its own or of a chunk, as head and payload."""
        parts = [self._name, varint(sequence_id), b"\x18", varint(publish_time_ms)]
        is_base64 = False
        if message.properties:
            parts.append(_encode_properties(b"\x22", message.properties))
        if message.key is not None or message.key_bytes is not None:
            key, is_base64 = _key_of(message)
            parts += (b"\x32", varint(len(key)), key)
        parts += [_text(b"\x3a", cluster) for cluster in message.replicate_to]
        if compression:
            size_bytes = len(message.payload)
            parts += (b"\x40", varint(compression), b"\x48", varint(size_bytes))
        if message.event_time_ms:
            parts += (b"\x60", varint(message.event_time_ms))
        parts.append(self.schema)
        if is_base64:
            parts.append(b"\x88\x01\x01")
        if message.ordering_key is not None:
            parts += (b"\x92\x01", varint(len(message.ordering_key)), message.ordering_key)
        if message.deliver_at_ms:
            parts += (b"\x98\x01", varint(message.deliver_at_ms))
        if transaction is not None:
            parts += _transaction_metadata(transaction)
        if message.null_value:
            parts.append(_NULL_VALUE)
        if chunk is not None:
            parts.append(chunk.metadata())
        command = varint(sequence_id)
        if transaction is not None:
            command += _transaction_command(transaction)
        if chunk is not None:
            command += b"\x38\x01"
        if self._encrypt is not None:
            fields, payload = self._encrypt(payload)
            parts.append(fields)
        return self._frame(command, b"".join(parts), payload)

    def batch(
        self,
        first: OutgoingMessage | None,
        sequence_id: int,
        highest_sequence_id: int,
        count: int,
        publish_time_ms: int,
        payload: bytes,
        compression: int,
        uncompressed_bytes: int,
        transaction: tuple[int, int] | None,
    ) -> tuple[bytes, bytes]:
        """The frame of a batch; with key-based batching, `first` has the key of all."""
        parts = [self._name, varint(sequence_id), b"\x18", varint(publish_time_ms)]
        is_base64 = False
        if first is not None and (first.key is not None or first.key_bytes is not None):
            key, is_base64 = _key_of(first)
            parts += (b"\x32", varint(len(key)), key)
        if compression:
            parts += (b"\x40", varint(compression))
        parts += (b"\x48", varint(uncompressed_bytes), b"\x58", varint(count), self.schema)
        if is_base64:
            parts.append(b"\x88\x01\x01")
        if first is not None and first.ordering_key is not None:
            parts += (b"\x92\x01", varint(len(first.ordering_key)), first.ordering_key)
        if transaction is not None:
            parts += _transaction_metadata(transaction)
        parts += (b"\xc0\x01", varint(highest_sequence_id))
        command = varint(sequence_id) + b"\x18" + varint(count)
        if transaction is not None:
            command += _transaction_command(transaction)
        command += b"\x30" + varint(highest_sequence_id)
        if self._encrypt is not None:
            fields, payload = self._encrypt(payload)
            parts.append(fields)
        return self._frame(command, b"".join(parts), payload)

    def _frame(self, command: bytes, metadata: bytes, payload: bytes) -> tuple[bytes, bytes]:
        body = self._command + command
        command_bytes = len(body) + 4 if len(body) < 0x80 else len(body) + 5
        checked = U32.pack(len(metadata)) + metadata
        total = 4 + command_bytes + 6 + len(checked) + len(payload)
        head = b"".join(
            (
                FRAME_HEADER.pack(total, command_bytes),
                _SEND_START,
                varint(len(body)),
                body,
                CHECKSUM_HEADER.pack(CHECKSUM_MAGIC, extend(value(checked), payload)),
                checked,
            )
        )
        return head, payload


class ChunkPlace:
    """The place of a chunk in its message."""

    __slots__ = ("chunk_id", "chunks", "total_bytes", "uuid")

    def __init__(self, uuid: str, chunk_id: int, chunks: int, total_bytes: int) -> None:
        self.uuid = uuid
        self.chunk_id = chunk_id
        self.chunks = chunks
        self.total_bytes = total_bytes

    @property
    def is_last(self) -> bool:
        """Whether the chunk completes its message."""
        return self.chunk_id == self.chunks - 1

    def metadata(self) -> bytes:
        """The fields of MessageMetadata that only chunks have."""
        return b"".join(
            (
                _text(b"\xd2\x01", self.uuid),
                b"\xd8\x01" + varint(self.chunks),
                b"\xe0\x01" + varint(self.total_bytes),
                b"\xe8\x01" + varint(self.chunk_id),
            )
        )


def _transaction_metadata(transaction: tuple[int, int]) -> tuple[bytes, ...]:
    most, least = transaction
    return b"\xb0\x01", varint(least), b"\xb8\x01", varint(most)


def _transaction_command(transaction: tuple[int, int]) -> bytes:
    most, least = transaction
    return b"\x20" + varint(least) + b"\x28" + varint(most)
