"""What a dispatcher needs to know of an entry: its number of messages, and its sticky key.

An entry whose metadata cannot be read counts as one message without a key: it was checked when it
arrived, so this is a client's own fault, and the client that gets it will say so in its ack.
"""

from magnetar.broker.dispatch.chunks import Chunk
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.entry import parse_metadata, sticky_key
from magnetar.wire.framing import MalformedEntry


def message_count(entry: Entry) -> int:
    """Messages in the entry: 1 unless it is a batch."""
    try:
        return max(parse_metadata(entry.data).num_messages_in_batch, 1)
    except MalformedEntry:
        return 1


def kept_messages(entry: Entry) -> int | None:
    """Of a batch that a compaction took messages out of, the bits of those that stay. None: all."""
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
    """Messages in the entry, and which part of a larger message it is, where it is one."""
    try:
        metadata = parse_metadata(entry.data)
    except MalformedEntry:
        return 1, None
    chunks = metadata.num_chunks_from_msg
    if chunks <= 1:
        return max(metadata.num_messages_in_batch, 1), None
    return 1, Chunk(metadata.uuid, metadata.chunk_id >= chunks - 1)


def count_and_key(entry: Entry) -> tuple[int, bytes]:
    """Messages in the entry, and the key that decides its Key_Shared consumer.

    An entry without a key has one of its own, so that such entries spread over all consumers.
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
    """When the (first) message of an entry's bytes was published, by its producer's clock."""
    try:
        return parse_metadata(data).publish_time
    except MalformedEntry:
        return 0
