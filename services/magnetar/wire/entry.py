"""A stored entry: its parts, its metadata, and the few facts that dispatchers need.

    [0x0e02 size:u32 BrokerEntryMetadata]
    [0x0e01 crc32c:u32] metadata_size:u32 MessageMetadata payload

Entries are immutable bytes. Functions that read an entry raise `MalformedEntry` if it does not have
this layout. None of them verifies the checksum: the decoder does so when the entry arrives.
"""

import base64
import binascii
from typing import Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from magnetar.wire._pb.PulsarApi_pb2 import BrokerEntryMetadata, MessageMetadata
from magnetar.wire.checksum import with_checksum
from magnetar.wire.framing import (
    BROKER_ENTRY_METADATA_HEADER,
    BROKER_ENTRY_METADATA_MAGIC,
    CHECKSUM_HEADER_BYTES,
    METADATA_SIZE_BYTES,
    U32,
    MalformedEntry,
)

_BROKER_HEADER_BYTES: Final = BROKER_ENTRY_METADATA_HEADER.size
_BROKER_MAGIC: Final = BROKER_ENTRY_METADATA_MAGIC.to_bytes(2)
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_CHECKED_METADATA_AT: Final = CHECKSUM_HEADER_BYTES + METADATA_SIZE_BYTES
_metadata_from: Final = MessageMetadata.FromString


class EntryParts(NamedTuple):
    """The broker's metadata of an entry, and the offsets of its other parts."""

    broker_entry_metadata: BrokerEntryMetadata | None
    metadata_start: int
    payload_start: int


class EntryFacts(msgspec.Struct, gc=False):
    """The facts in an entry's metadata that a dispatcher needs.

    `sticky_key` is the ordering key, else the partition key as bytes (decoded if it is sent in
    base64), else None. Times are in ms since 1970; `deliver_at_ms` is 0 if the entry has none.
    """

    message_count: int
    is_batch: bool
    publish_time_ms: int
    sticky_key: bytes | None
    deliver_at_ms: int
    marker_type: int | None
    in_transaction: bool


def split_entry(entry: bytes) -> EntryParts:
    """Returns the broker's metadata, if any, and the offsets of message metadata and payload."""
    broker_entry_metadata = None
    start = _broker_part_bytes(entry)
    if start:
        try:
            broker_entry_metadata = BrokerEntryMetadata.FromString(
                entry[_BROKER_HEADER_BYTES:start]
            )
        except DecodeError as error:
            raise MalformedEntry("Broker entry metadata cannot be parsed") from error
    return EntryParts(broker_entry_metadata, *_metadata_range(entry, start))


def parse_metadata(entry: bytes) -> MessageMetadata:
    """Returns the message metadata of an entry."""
    if entry[:2] == _CHECKSUM_MAGIC:  # the fast path: nearly all entries begin with a checksum
        start = _CHECKED_METADATA_AT
        end = start + int.from_bytes(entry[CHECKSUM_HEADER_BYTES:start])
        if end > len(entry):
            raise MalformedEntry("The entry ends within its message metadata")
    else:
        start, end = _metadata_range(entry, _broker_part_bytes(entry))
    try:
        return _metadata_from(entry[start:end])
    except DecodeError as error:
        raise MalformedEntry("Message metadata cannot be parsed") from error


def payload_of(entry: bytes) -> bytes:
    """Returns the payload as the producer sent it, compressed and encrypted."""
    return entry[_metadata_range(entry, _broker_part_bytes(entry))[1] :]


def peek(entry: bytes) -> EntryFacts:
    """Returns the facts of an entry; parses its metadata once and does not keep it."""
    metadata = parse_metadata(entry)
    has = metadata.HasField
    return EntryFacts(
        metadata.num_messages_in_batch,
        has("num_messages_in_batch"),
        metadata.publish_time,
        sticky_key(metadata),
        metadata.deliver_at_time,
        metadata.marker_type if has("marker_type") else None,
        has("txnid_most_bits"),
    )


def sticky_key(metadata: MessageMetadata) -> bytes | None:
    """Returns the key for Key_Shared: the ordering key, else the partition key, else None."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return None
    key = metadata.partition_key
    # protobuf's runtime returns bytes for text that is not UTF-8.
    data = key.encode() if isinstance(key, str) else bytes(key)
    if metadata.partition_key_b64_encoded:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error:
            return data
    return data


def build_entry(metadata: MessageMetadata, payload: bytes, *, checksum: bool = True) -> bytes:
    """Builds the entry that a producer sends: checksum, metadata and payload."""
    head = metadata.SerializeToString()
    rest = b"".join((U32.pack(len(head)), head, payload))
    return with_checksum(rest) if checksum else rest


def in_transaction(entry: bytes, metadata: MessageMetadata, most: int, least: int) -> bytes:
    """Returns a producer's entry with the transaction in its metadata.

    Clients name the transaction in SEND; not all of them name it in the metadata, which is stored.
    Raises MalformedEntry if the metadata names another one or lacks a required field.
    """
    if metadata.HasField("txnid_most_bits") or metadata.HasField("txnid_least_bits"):
        if (metadata.txnid_most_bits, metadata.txnid_least_bits) != (most, least):
            raise MalformedEntry("The metadata names another transaction than SEND")
        return entry
    if not metadata.IsInitialized():  # parsing accepts it, serialization raises
        raise MalformedEntry("The metadata lacks producer_name, sequence_id or publish_time")
    metadata.txnid_most_bits, metadata.txnid_least_bits = most, least
    return build_entry(metadata, payload_of(entry), checksum=entry[:2] == _CHECKSUM_MAGIC)


def with_broker_entry_metadata(
    entry: bytes, timestamp_ms: int | None, index: int | None = None
) -> bytes:
    """Returns the entry with the broker's metadata in front of it, otherwise unchanged."""
    part = BrokerEntryMetadata(broker_timestamp=timestamp_ms, index=index).SerializeToString()
    return BROKER_ENTRY_METADATA_HEADER.pack(BROKER_ENTRY_METADATA_MAGIC, len(part)) + part + entry


def without_broker_entry_metadata(entry: bytes) -> bytes:
    """Returns the entry as its producer sent it; the same object if the broker added nothing."""
    start = _broker_part_bytes(entry)
    return entry[start:] if start else entry


def _broker_part_bytes(entry: bytes) -> int:
    """Returns the size of the broker's metadata in front of an entry, 0 for none."""
    if not entry.startswith(_BROKER_MAGIC):
        return 0
    if len(entry) < _BROKER_HEADER_BYTES:
        raise MalformedEntry("The entry ends within its broker entry metadata")
    start = _BROKER_HEADER_BYTES + int.from_bytes(entry[2:_BROKER_HEADER_BYTES])
    if start > len(entry):
        raise MalformedEntry("The entry ends within its broker entry metadata")
    return start


def _metadata_range(entry: bytes, at: int) -> tuple[int, int]:
    """Returns where the message metadata starts and ends, for an entry that begins at `at`."""
    if entry.startswith(_CHECKSUM_MAGIC, at):
        at += CHECKSUM_HEADER_BYTES
    start = at + METADATA_SIZE_BYTES
    end = start + int.from_bytes(entry[at:start])
    if start > len(entry) or end > len(entry):
        raise MalformedEntry("The entry ends within its message metadata")
    return start, end
