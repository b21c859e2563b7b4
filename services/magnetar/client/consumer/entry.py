"""Reading an entry: checksum, metadata, decompression, and its messages.

An entry that cannot be read is a `BadEntry`, with the protocol's name of the fault: the consumer
acknowledges it with that fault, so that it does not come again for ever.
"""

from typing import Any, Final

import msgspec
from google.protobuf.message import DecodeError
from google_crc32c import value

from magnetar.client.errors import MissingExtra
from magnetar.client.message import Message
from magnetar.client.message_id import MessageId
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.client_decoder import Delivery
from magnetar.wire.compression import decompress
from magnetar.wire.framing import (
    BROKER_ENTRY_METADATA_HEADER,
    CHECKSUM_HEADER_BYTES,
    METADATA_SIZE_BYTES,
    MalformedEntry,
)
from magnetar.wire.message_id import ack_set_bits, full_ack_set

_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_BROKER_MAGIC: Final = b"\x0e\x02"
_metadata_from: Final = pb.MessageMetadata.FromString
_single_from: Final = pb.SingleMessageMetadata.FromString

CHECKSUM_MISMATCH: Final = int(pb.CommandAck.ChecksumMismatch)
DECOMPRESSION_ERROR: Final = int(pb.CommandAck.DecompressionError)
DECRYPTION_ERROR: Final = int(pb.CommandAck.DecryptionError)
STAYS_UNREAD: Final = -1
"""Not a fault of the protocol: the entry is not acknowledged."""
BATCH_ERROR: Final = int(pb.CommandAck.BatchDeSerializeError)

SINGLE_BYTES_MIN: Final = 6
"""Of a message in a batch: the size of its metadata, which has at least that of its payload."""


class BadEntry(Exception):
    """An entry that cannot be read."""

    def __init__(self, fault: int, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault


class ReceivedEntry(msgspec.Struct, gc=False, eq=False):
    """An entry as its messages share it."""

    source: Any
    """The consumer of the entry's topic (`consumer.partition.PartitionConsumer`)."""
    ledger_id: int
    entry_id: int
    metadata: pb.MessageMetadata
    broker_metadata: pb.BrokerEntryMetadata | None
    redelivery_count: int
    acks: Any
    """Where its messages are acknowledged (`consumer.acks.Acks`): that of its cluster."""
    batch_size: int = 0
    """The number of messages if the entry is a batch, else 0."""
    unacked: int = 0
    """In a batch: the bits of the messages that are not acknowledged."""
    first_chunk: MessageId | None = None
    chunk_ids: tuple[tuple[int, int], ...] = ()
    """The ledger and entry ids of all chunks of a chunked message."""
    sealed: bool = False
    """Whether it is delivered encrypted, because it could not be decrypted."""
    attachment: int = 0
    """The attachment of the consumer that it came with."""
    seeks: int = 0
    """The seeks of the consumer before it came: a later one has undone its acknowledgments."""

    @property
    def place(self) -> tuple[int, int]:
        """The ledger id and the entry id."""
        return self.ledger_id, self.entry_id


def read_entry(source: Any, delivery: Delivery) -> tuple[ReceivedEntry, bytes]:
    """Returns the entry and its payload as it was sent; raises BadEntry."""
    data = delivery.entry
    broker_metadata = None
    try:
        if data.startswith(_BROKER_MAGIC):
            start = BROKER_ENTRY_METADATA_HEADER.size
            end = start + BROKER_ENTRY_METADATA_HEADER.unpack_from(data)[1]
            broker_metadata = pb.BrokerEntryMetadata.FromString(data[start:end])
            data = data[end:]
        at = 0
        if data.startswith(_CHECKSUM_MAGIC):
            at = CHECKSUM_HEADER_BYTES
            if value(data[at:]) != int.from_bytes(data[2:at]):
                raise BadEntry(CHECKSUM_MISMATCH, "the checksum is wrong")
        start = at + METADATA_SIZE_BYTES
        end = start + int.from_bytes(data[at:start])
        metadata = _metadata_from(data[start:end])
    except (DecodeError, ValueError) as error:
        raise BadEntry(BATCH_ERROR, "its metadata cannot be parsed") from error
    entry = ReceivedEntry(
        source,
        delivery.ledger_id,
        delivery.entry_id,
        metadata,
        broker_metadata,
        delivery.redelivery_count,
        source.acks,
        attachment=source.attachments,
        seeks=source.acks.seeks,
    )
    return entry, data[end:]


def decompressed(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Returns a payload as it was before compression; raises BadEntry or MissingExtra."""
    if not metadata.compression:
        return payload
    try:
        return decompress(metadata.compression, payload, metadata.uncompressed_size)
    except MalformedEntry as error:
        raise BadEntry(DECOMPRESSION_ERROR, str(error)) from error
    except ImportError as error:
        raise MissingExtra(
            f"A message is compressed with {pb.CompressionType.Name(metadata.compression)}, "
            "which needs more libraries: pip install 'magnetar[compression]'"
        ) from error


def split(
    entry: ReceivedEntry, payload: bytes, ack_set: tuple[int, ...]
) -> tuple[list[Message[Any]], int]:
    """Returns the messages of an entry, and how many of it are not to be delivered.

    Those are the messages of a batch that were acknowledged before, or compacted away. Raises
    BadEntry.
    """
    metadata = entry.metadata
    if not metadata.HasField("num_messages_in_batch"):
        return [Message(payload, entry)], 0
    count = metadata.num_messages_in_batch
    if not 0 < count <= len(payload) // SINGLE_BYTES_MIN:
        raise BadEntry(BATCH_ERROR, f"{len(payload)} bytes cannot be a batch of {count} messages")
    entry.batch_size = count
    entry.unacked = full_ack_set(count)
    unread = ack_set_bits(ack_set) & entry.unacked if ack_set else entry.unacked
    if metadata.compacted_batch_indexes:  # compaction has left these messages only
        left = {index for index in metadata.compacted_batch_indexes if 0 <= index < count}
        unread &= sum(1 << index for index in left)
    messages: list[Message[Any]] = []
    add = messages.append
    at = 0
    limit = len(payload)
    everything = unread == entry.unacked
    try:
        for index in range(count):
            start = at + 4
            end = start + int.from_bytes(payload[at:start])
            single = _single_from(payload[start:end])
            at = end + single.payload_size
            if at > limit:
                raise BadEntry(BATCH_ERROR, "the batch ends within a message")
            if everything or unread >> index & 1:
                if single.compacted_out:
                    unread &= ~(1 << index)
                else:
                    add(Message(payload[end:at], entry, single, index))
    except DecodeError as error:
        raise BadEntry(BATCH_ERROR, "the metadata of a message cannot be parsed") from error
    entry.unacked = unread
    return messages, count - len(messages)
