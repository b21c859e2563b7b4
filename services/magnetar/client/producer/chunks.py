"""Step 6, chunking: a message that exceeds the broker's maximum is sent in pieces."""

from collections.abc import Iterator

from magnetar.client.errors import MessageTooBig
from magnetar.client.options import ProducerOptions
from magnetar.client.producer.encode import ChunkPlace
from magnetar.client.producer.outgoing import OutgoingMessage

METADATA_BYTES = 512
"""Room for the metadata of an entry besides the texts of the message."""


METADATA_SHARE_MAX = 0.5
"""Chunks repeat the metadata of their message: it takes at most this share of an entry."""


class Chunker:
    """Splits the messages of one producer."""

    __slots__ = ("_bytes_max", "_enabled", "_name", "_overhead_bytes")

    def __init__(self, name: str, options: ProducerOptions, overhead_bytes: int) -> None:
        """`overhead_bytes`: what encryption adds to each entry."""
        self._name = name
        self._overhead_bytes = overhead_bytes
        self._bytes_max = options.chunk_bytes_max
        self._enabled = options.chunking

    def metadata_bytes(self, message: OutgoingMessage) -> int:
        """The room that a message's metadata takes in its entry; 0 if there is no text."""
        return message.text_bytes + self._overhead_bytes

    def check(
        self, message: OutgoingMessage, payload: bytes, message_bytes_max: int, topic: str
    ) -> None:
        """Raises MessageTooBig if a message that exceeds the maximum is not to be split."""
        metadata_bytes = METADATA_BYTES + self.metadata_bytes(message)
        if self._enabled and metadata_bytes <= message_bytes_max * METADATA_SHARE_MAX:
            return
        texts = message.text_bytes
        and_texts = f" with {texts} bytes of keys and properties" if texts else ""
        raise MessageTooBig(
            f"A message of {len(payload)} bytes{and_texts} exceeds the broker's "
            f"{message_bytes_max} bytes",
            topic=topic,
        )

    def split(
        self, message: OutgoingMessage, payload: bytes, sequence_id: int, message_bytes_max: int
    ) -> Iterator[tuple[ChunkPlace, bytes]]:
        """Yields the place and the bytes of each chunk of a compressed payload."""
        room = message_bytes_max - METADATA_BYTES - self.metadata_bytes(message)
        size = min(self._bytes_max or room, room)
        count = -(-len(payload) // size)
        uuid = f"{self._name}-{sequence_id}"
        for index in range(count):
            place = ChunkPlace(uuid, index, count, len(payload))
            yield place, payload[index * size : (index + 1) * size]
