"""Reads the metadata that a dispatcher needs: message count, sticky key, chunk.

An entry whose metadata cannot be read counts as one message without a key. The broker verified its
checksum on arrival, so the producer wrote it that way; the consumer reports it in its ack.
"""

from magnetar.broker.dispatch.chunks import Chunk
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.entry import parse_metadata, sticky_key
from magnetar.wire.framing import MalformedEntry


def message_count(entry: Entry) -> int:
    """The number of messages in the entry: 1 unless it is a batch."""
    try:
        return max(parse_metadata(entry.data).num_messages_in_batch, 1)
    except MalformedEntry:
        return 1


def kept_messages(entry: Entry) -> int | None:
    """The bits of the messages that compaction left in a batch; None if it left all."""
    try:
        metadata = parse_metadata(entry.data)
    except MalformedEntry:
        return None
    count, bits = metadata.num_messages_in_batch, 0
    for index in metadata.compacted_batch_indexes:
        if 0 <= index < count:
            bits |= 1 << index
    return bits or None


def count_and_chunk(entry: Entry) -> tuple[int, Chunk | None]:
    """The number of messages in the entry, and its chunk if it is part of a larger message."""
    try:
        metadata = parse_metadata(entry.data)
    except MalformedEntry:
        return 1, None
    chunks = metadata.num_chunks_from_msg
    if chunks <= 1:
        return max(metadata.num_messages_in_batch, 1), None
    return 1, Chunk(metadata.uuid, metadata.chunk_id >= chunks - 1)


def count_and_key(entry: Entry) -> tuple[int, bytes]:
    """The number of messages in the entry, and the key that decides its Key_Shared consumer.

    An entry without a key gets a key of its own, so that such entries spread over all consumers.
    """
    try:
        metadata = parse_metadata(entry.data)
    except MalformedEntry:
        return 1, b""
    key = sticky_key(metadata)
    if key is None:
        key = f"{metadata.producer_name}-{metadata.sequence_id}".encode()
    return max(metadata.num_messages_in_batch, 1), key


def sticky_key_of(entry: Entry) -> bytes:
    """The key that decides an entry's hash."""
    return count_and_key(entry)[1]


def publish_time_ms(data: bytes) -> int:
    """The publish time of an entry's first message, by its producer's clock; 0 if unreadable."""
    try:
        return parse_metadata(data).publish_time
    except MalformedEntry:
        return 0
