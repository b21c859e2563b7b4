"""Batches: several messages in one entry, and the messages of any entry.

The payload of a batch, once decompressed, is a run of `size:u32 SingleMessageMetadata payload`.
The entry's metadata has the number of messages; the metadata of a message has its payload's size.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from magnetar.wire._pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.wire.compression import UNCOMPRESSED_BYTES_MAX, decompress
from magnetar.wire.entry import parse_metadata, payload_of
from magnetar.wire.framing import METADATA_SIZE_BYTES, U32, MalformedEntry


class BatchMessage(NamedTuple):
    """A message of an entry; `metadata` is None if the entry is not a batch."""

    metadata: SingleMessageMetadata | None
    payload: bytes


def build_batch(messages: Iterable[tuple[SingleMessageMetadata, bytes]]) -> bytes:
    """Returns the uncompressed payload of a batch; sets the `payload_size` of each metadata."""
    parts: list[bytes] = []
    for metadata, payload in messages:
        metadata.payload_size = len(payload)
        head = metadata.SerializeToString()
        parts += (U32.pack(len(head)), head, payload)
    return b"".join(parts)


def message_at(payload: bytes, at: int) -> tuple[SingleMessageMetadata, int, int]:
    """Parses the message at an offset of an uncompressed batch payload.

    Returns its metadata and the start and end of its own payload; the next message starts at that
    end. Raises MalformedEntry.
    """
    start = at + METADATA_SIZE_BYTES
    end = start + int.from_bytes(payload[at:start])
    if end > len(payload):
        raise MalformedEntry("The batch ends within the metadata of a message")
    try:
        metadata = SingleMessageMetadata.FromString(payload[start:end])
    except DecodeError as error:
        raise MalformedEntry("The metadata of a message cannot be parsed") from error
    after = end + metadata.payload_size
    if not end <= after <= len(payload):
        raise MalformedEntry("The batch ends within a message")
    return metadata, end, after


def iterate_batch(payload: bytes, message_count: int) -> Iterator[BatchMessage]:
    """Yields the messages of an uncompressed batch payload, in order."""
    at = 0
    for _ in range(message_count):
        metadata, start, at = message_at(payload, at)
        yield BatchMessage(metadata, payload[start:at])


def messages_of(
    entry: bytes, size_bytes_max: int = UNCOMPRESSED_BYTES_MAX
) -> tuple[MessageMetadata, list[BatchMessage]]:
    """Returns an entry's metadata and its messages, decompressed.

    An encrypted payload is returned unchanged, as one message: only consumers can decrypt it.
    """
    metadata = parse_metadata(entry)
    payload = payload_of(entry)
    if metadata.encryption_keys:
        return metadata, [BatchMessage(None, payload)]
    plain = decompress(metadata.compression, payload, metadata.uncompressed_size, size_bytes_max)
    if not metadata.HasField("num_messages_in_batch"):
        return metadata, [BatchMessage(None, plain)]
    return metadata, list(iterate_batch(plain, metadata.num_messages_in_batch))
