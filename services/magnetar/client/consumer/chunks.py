"""Assembly of chunked messages: pieces arrive as entries of their own, in order.

At most `pending_max` messages are incomplete at a time, each for at most `expiry_s`. A message that
is discarded for either reason, or because a chunk is missing, is redelivered later, or acknowledged
if the options say so. How often is counted for each message, so that it comes ever more rarely: its
producer may have died. A chunk of a message whose beginning never came is an orphan.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from magnetar.client.consumer.entry import BATCH_ERROR, BadEntry
from magnetar.wire._pb import PulsarApi_pb2 as pb

Place = tuple[int, int]

CHUNKED_BYTES_MAX: Final = 1024 * 1024 * 1024
"""A chunked message that claims to be larger is refused."""
DISCARDED_KEPT_MAX: Final = 1_000
"""Messages whose discards are counted; the oldest is forgotten beyond that."""


class _Incomplete(msgspec.Struct):
    total: int
    total_bytes: int
    pieces: list[bytes]
    places: list[Place]
    expires_at: float
    size_bytes: int = 0


class Assembled(msgspec.Struct):
    """A complete message: its payload, and the places of its chunks."""

    payload: bytes
    places: tuple[Place, ...]


class ChunkAssembler:
    """The incomplete messages of one topic or partition."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pending_max: int,
        expiry_s: float,
        discard: Callable[[list[Place], int], None],
        orphan: Callable[[Place], bool],
    ) -> None:
        """`discard` gets chunks, and how often their message was discarded.

        `orphan` says whether it has acknowledged a chunk without a beginning.
        """
        self._loop = loop
        self._pending_max = pending_max
        self._expiry_s = expiry_s
        self._discard = discard
        self._orphan = orphan
        self._discarded: dict[str, int] = {}
        self._incomplete: dict[str, _Incomplete] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._incomplete)

    def add(self, metadata: pb.MessageMetadata, payload: bytes, place: Place) -> Assembled | None:
        """Adds a chunk; returns the message if it is complete now. Raises BadEntry."""
        uuid, chunk_id = metadata.uuid, metadata.chunk_id
        message = self._incomplete.get(uuid)
        if chunk_id == 0:
            if message is not None:
                # The producer sent the message again: its first chunks come twice.
                self._drop(uuid)
            message = self._begin(metadata)
        if message is None:
            if uuid in self._discarded or not self._orphan(place):
                self._discard([place], self._discarded.get(uuid) or self._count(uuid))
            return None
        if chunk_id > len(message.pieces):
            message.places.append(place)
            self._drop(uuid)
            return None
        if chunk_id < len(message.pieces):
            message.places.append(place)  # a repeated chunk: acknowledged with the others
            return None
        message.pieces.append(payload)
        message.places.append(place)
        message.size_bytes += len(payload)
        if len(message.pieces) < message.total:
            return None
        del self._incomplete[uuid]
        if message.size_bytes != message.total_bytes:
            self._discard(message.places, self._count(uuid))
            return None
        self._discarded.pop(uuid, None)
        return Assembled(b"".join(message.pieces), tuple(message.places))

    def _begin(self, metadata: pb.MessageMetadata) -> _Incomplete:
        total, total_bytes = metadata.num_chunks_from_msg, metadata.total_chunk_msg_size
        if not (total > 0 and 0 <= total_bytes <= CHUNKED_BYTES_MAX):
            raise BadEntry(BATCH_ERROR, f"{total} chunks cannot be {total_bytes} bytes")
        if len(self._incomplete) >= self._pending_max:
            self._drop(next(iter(self._incomplete)))
        message = _Incomplete(total, total_bytes, [], [], self._loop.time() + self._expiry_s)
        self._incomplete[metadata.uuid] = message
        if self._timer is None:
            self._timer = self._loop.call_at(message.expires_at, self._expire)
        return message

    def _drop(self, uuid: str) -> None:
        message = self._incomplete.pop(uuid)
        self._discard(message.places, self._count(uuid))

    def _count(self, uuid: str) -> int:
        count = self._discarded.pop(uuid, 0) + 1
        self._discarded[uuid] = count
        if len(self._discarded) > DISCARDED_KEPT_MAX:
            del self._discarded[next(iter(self._discarded))]
        return count

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for uuid in [u for u, m in self._incomplete.items() if m.expires_at <= now]:
            self._drop(uuid)
        if self._incomplete:
            oldest = next(iter(self._incomplete.values()))
            self._timer = self._loop.call_at(oldest.expires_at, self._expire)

    def clear(self) -> None:
        """Forgets all incomplete messages: the broker delivers their chunks again."""
        self._incomplete.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
