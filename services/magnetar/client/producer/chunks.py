"""Step 6, chunking: a message that exceeds the broker's maximum is sent in pieces."""

from collections.abc import Iterator

from magnetar.client.options import ProducerOptions
from magnetar.client.producer.encode import ChunkPlace
from magnetar.client.producer.outgoing import OutgoingMessage
from magnetar.client.producer.pending import ChunkedMessage

METADATA_BYTES = 512
"""Room for the metadata of an entry besides the texts of the message."""


class Chunker:
    """Splits the messages of one producer."""

    __slots__ = ("_bytes_max", "_name", "_overhead_bytes")

    def __init__(self, name: str, options: ProducerOptions, overhead_bytes: int) -> None:
        """`overhead_bytes`: what encryption adds to each entry."""
        self._name = name
        self._overhead_bytes = overhead_bytes
        self._bytes_max = options.chunk_bytes_max

    def metadata_bytes(self, message: OutgoingMessage) -> int:
        """The room that a message's metadata takes in its entry; 0 if there is no text."""
        if message.plain and not message.replicate_to:
            return self._overhead_bytes
        texts = sum(4 * (len(k) + len(v)) + 16 for k, v in message.properties.items())
        keys = 4 * len(message.key or "") + 2 * len(message.key_bytes or b"")
        return texts + keys + len(message.ordering_key or b"") + self._overhead_bytes

    def shared(self) -> ChunkedMessage:
        """Returns the state that the chunks of a message share."""
        return ChunkedMessage()

    def split(
        self, message: OutgoingMessage, payload: bytes, sequence_id: int, message_bytes_max: int
    ) -> Iterator[tuple[ChunkPlace, bytes]]:
        """Yields the place and the bytes of each chunk of a compressed payload."""
        room = max(message_bytes_max - METADATA_BYTES - self.metadata_bytes(message), 1)
        size = min(self._bytes_max or room, room)
        count = -(-len(payload) // size)
        uuid = f"{self._name}-{sequence_id}"
        for index in range(count):
            place = ChunkPlace(uuid, index, count, len(payload))
            yield place, payload[index * size : (index + 1) * size]
