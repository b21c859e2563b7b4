"""Compacts one entry: finds its keys, and removes messages from it. Pure.

As in Pulsar 4.2 (`RawBatchConverter` and the compactors above it):

- the latest value of a key wins, by position; a null or empty value removes the key;
- messages without a key are dropped (`topicCompactionRetainNullKey` is off by default);
- a batch keeps its position and its number of messages: a removed message leaves a `compacted_out`
  placeholder, and `compacted_batch_indexes` names those that stay; a batch without survivors is
  dropped; a compressed batch is compressed again with the same codec;
- markers are dropped; a batch that cannot be decoded stays whole.

Different from Pulsar where Pulsar loses data: an encrypted batch stays whole (its keys are not
visible; Pulsar goes by the first one's), and of a chunked message all chunks stay or none does
(Pulsar keeps only the last chunk, which no client can use).
"""

from collections.abc import Collection, Iterator
from enum import Enum
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.batch import build_batch, message_at
from magnetar.wire.compression import compress, decompress
from magnetar.wire.entry import build_entry, without_broker_entry_metadata
from magnetar.wire.framing import CHECKSUM_HEADER_BYTES, METADATA_SIZE_BYTES, MalformedEntry

UNCOMPRESSED_BYTES_MAX: Final = 512 << 20
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_COMPACTED_OUT: Final = build_batch([(SingleMessageMetadata(compacted_out=True), b"")])
_metadata_from: Final = MessageMetadata.FromString


class Kind(Enum):
    """How compaction treats an entry."""

    SINGLE = "one message"
    BATCH = "a readable batch"
    OPAQUE = "kept whole, regardless of its keys"
    CHUNK = "a chunk, but not the last of its message"
    NOTHING = "dropped"


class Parsed(NamedTuple):
    """An entry's kind, its metadata, and its stored payload."""

    kind: Kind
    metadata: MessageMetadata
    payload: bytes


class KeyedMessage(NamedTuple):
    """A message with a key, by its index in the batch; `alive` if it has a value."""

    at: int
    key: bytes
    alive: bool


def parse(entry: bytes) -> Parsed:
    """Parses an entry. Raises MalformedEntry if its metadata cannot be read."""
    bare = entry if entry.startswith(_CHECKSUM_MAGIC) else without_broker_entry_metadata(entry)
    at = CHECKSUM_HEADER_BYTES if bare.startswith(_CHECKSUM_MAGIC) else 0
    start = at + METADATA_SIZE_BYTES
    end = start + int.from_bytes(bare[at:start])
    if end > len(bare):
        raise MalformedEntry("The entry ends within its message metadata")
    try:
        metadata = _metadata_from(bare[start:end])
    except DecodeError as error:
        raise MalformedEntry("Message metadata cannot be parsed") from error
    return Parsed(_kind(metadata), metadata, bare[end:])


def _kind(metadata: MessageMetadata) -> Kind:
    has = metadata.HasField
    if has("marker_type"):
        return Kind.NOTHING
    if has("num_messages_in_batch"):
        return Kind.OPAQUE if metadata.encryption_keys else Kind.BATCH
    if not has("partition_key"):
        return Kind.NOTHING
    if metadata.num_chunks_from_msg > 1 and metadata.chunk_id + 1 < metadata.num_chunks_from_msg:
        return Kind.CHUNK
    return Kind.SINGLE


def keyed_messages(parsed: Parsed) -> list[KeyedMessage] | None:
    """The messages with keys in a single message or a batch, in order; None if it is OPAQUE."""
    metadata = parsed.metadata
    if parsed.kind is Kind.SINGLE:
        key = _bytes(metadata.partition_key)
        return [KeyedMessage(0, key, _has_value(metadata, parsed.payload))]
    if parsed.kind is not Kind.BATCH:
        return None
    try:
        return list(_keyed_in_batch(metadata, _plain(parsed)))
    except MalformedEntry:
        return None  # as in Pulsar, it stays whole


def _has_value(metadata: MessageMetadata, payload: bytes) -> bool:
    if metadata.null_value:
        return False
    if metadata.num_chunks_from_msg > 1:
        return True  # the size is that of the last chunk, so it does not tell
    has_size = metadata.HasField("uncompressed_size")
    return (metadata.uncompressed_size if has_size else len(payload)) > 0


def _keyed_in_batch(metadata: MessageMetadata, plain: bytes) -> Iterator[KeyedMessage]:
    for index, message, _, _ in _messages(metadata, plain):
        if message.HasField("partition_key") and not message.compacted_out:
            alive = message.payload_size > 0 and not message.null_value
            yield KeyedMessage(index, _bytes(message.partition_key), alive)


def _messages(
    metadata: MessageMetadata, plain: bytes
) -> Iterator[tuple[int, SingleMessageMetadata, int, int]]:
    """Each message's index and metadata, and its start and end."""
    at = 0
    for index in range(metadata.num_messages_in_batch):
        message, _, after = message_at(plain, at)
        yield index, message, at, after
        at = after


def without_others(entry: bytes, survivors: Collection[int]) -> tuple[bytes, int]:
    """The entry with only these of its messages (at least one), and their number.

    An entry that is no batch, and a batch whose messages all survive, is returned unchanged. A
    chunked message counts with its last chunk.
    """
    parsed = parse(entry)
    metadata = parsed.metadata
    if parsed.kind is Kind.CHUNK:
        return entry, 0
    if parsed.kind is not Kind.BATCH:
        return entry, metadata.num_messages_in_batch
    changed = False
    left: list[bytes] = []
    try:
        before = _plain(parsed)
        for index, message, start, end in _messages(metadata, before):
            if index in survivors:
                left.append(before[start:end])
            else:
                changed = changed or not message.compacted_out
                left.append(_COMPACTED_OUT)
    except MalformedEntry:
        return entry, metadata.num_messages_in_batch
    if not changed:
        return entry, len(survivors)
    plain = b"".join(left)
    metadata.uncompressed_size = len(plain)
    del metadata.compacted_batch_indexes[:]
    metadata.compacted_batch_indexes.extend(sorted(survivors))
    bare = without_broker_entry_metadata(entry)
    head = entry[: len(entry) - len(bare)]
    return head + build_entry(metadata, compress(metadata.compression, plain)), len(survivors)


def _plain(parsed: Parsed) -> bytes:
    metadata = parsed.metadata
    return decompress(
        metadata.compression, parsed.payload, metadata.uncompressed_size, UNCOMPRESSED_BYTES_MAX
    )


def _bytes(text: str | bytes) -> bytes:
    """Text as bytes: the protobuf runtime returns bytes if it is not UTF-8."""
    return text.encode() if isinstance(text, str) else bytes(text)
