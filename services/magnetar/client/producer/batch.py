"""Step 7, batching: messages wait together until a limit closes their batch.

Sequence ids are assigned when a batch closes. With key-based batching, the ids of each batch are
therefore consecutive, as deduplication needs; assigned earlier, those of several open batches would
be interleaved, and the broker would take all but one batch for duplicates.
"""

import asyncio
from typing import Any

from magnetar.client.options import Batching
from magnetar.client.producer.outgoing import OutgoingMessage

MessageFuture = asyncio.Future[Any]

ENTRY_OVERHEAD_BYTES = 32
"""What a message adds to a batch besides its payload and text, at most, about."""


def size_in_batch(message: OutgoingMessage) -> int:
    """Returns about the size that a message with metadata of its own adds to a batch."""
    return len(message.payload) + ENTRY_OVERHEAD_BYTES + message.text_bytes


class OpenBatch:
    """Messages that will share an entry."""

    __slots__ = ("by_key", "futures", "messages", "size_bytes", "transaction")

    def __init__(self, transaction: Any, *, by_key: bool) -> None:
        self.messages: list[OutgoingMessage] = []
        self.futures: list[MessageFuture] = []
        self.size_bytes = 0
        self.transaction = transaction
        self.by_key = by_key


class BatchContainer:
    """The open batches of one partition: one, or with `by_key` one per key."""

    __slots__ = ("_batches", "_by_key", "_bytes_max", "_count", "_messages_max", "_size_bytes")

    def __init__(self, batching: Batching, message_bytes_max: int) -> None:
        self._by_key = batching.by_key
        self._messages_max = batching.messages_max
        self._bytes_max = min(batching.bytes_max, message_bytes_max)
        self._batches: dict[object, OpenBatch] = {}
        self._count = 0
        self._size_bytes = 0

    def __len__(self) -> int:
        """The number of messages in all open batches."""
        return self._count

    def must_close_before(self, message: OutgoingMessage, size_bytes: int) -> bool:
        """Whether the message does not fit: by its size, or as of another transaction."""
        if not self._count:
            return False
        if self._size_bytes + size_bytes > self._bytes_max:
            return True
        for batch in self._batches.values():
            return batch.transaction is not message.transaction
        return False

    def add(self, message: OutgoingMessage, future: MessageFuture, size_bytes: int) -> bool:
        """Adds a message; returns whether the batches are full now."""
        key = (message.ordering_key or message.key or message.key_bytes) if self._by_key else None
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = OpenBatch(message.transaction, by_key=self._by_key)
        batch.messages.append(message)
        batch.futures.append(future)
        batch.size_bytes += size_bytes
        self._count += 1
        self._size_bytes += size_bytes
        return self._count >= self._messages_max or self._size_bytes >= self._bytes_max

    def take(self) -> list[OpenBatch]:
        """Removes and returns the open batches, in the order in which they were opened."""
        batches = list(self._batches.values())
        self._batches = {}
        self._count = self._size_bytes = 0
        return batches
