"""Step 10, pending entries: what was sent and not answered, in order, kept for resending.

A broker answers the entries of a producer in the order in which they were sent, so a receipt
belongs to the oldest one. After a reconnect all of them are sent again, in the same order.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from magnetar.client.message_id import MessageId
from magnetar.client.producer.batch import MessageFuture


class ChunkedMessage(msgspec.Struct):
    """What the chunks of one message share."""

    first: MessageId | None = None


class PendingEntry(msgspec.Struct):
    """An entry that waits for its receipt."""

    sequence_id: int
    highest_sequence_id: int
    frame: tuple[bytes, bytes]
    futures: list[MessageFuture]
    """Of its messages, in order; empty for all chunks of a message but the last."""
    is_batch: bool
    size_bytes: int
    """What its messages hold of the client's memory limit."""
    permits: int
    """How many messages it counts for."""
    deadline: float
    """On the loop's clock; 0 for none."""
    chunked: ChunkedMessage | None = None
    attempts: int = 0
    """How often the broker received other bytes than these."""
    created_at: float = 0.0
    flushes: list[asyncio.Future[None]] | None = None
    """Callers of `flush` that wait for this entry and all before it."""
    transactional: bool = False
    """Whether its messages belong to a transaction, and so to one cluster."""


class PendingEntries:
    """The pending entries of one partition."""

    __slots__ = ("_entries", "messages", "size_bytes")

    def __init__(self) -> None:
        self._entries: deque[PendingEntry] = deque()
        self.messages = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PendingEntry]:
        return iter(self._entries)

    def append(self, entry: PendingEntry) -> None:
        """Adds an entry that is sent now."""
        self._entries.append(entry)
        self.messages += entry.permits
        self.size_bytes += entry.size_bytes

    @property
    def oldest(self) -> PendingEntry | None:
        """The entry that the next receipt is for."""
        return self._entries[0] if self._entries else None

    @property
    def newest(self) -> PendingEntry | None:
        """The entry that was sent last."""
        return self._entries[-1] if self._entries else None

    def pop(self) -> PendingEntry:
        """Removes and returns the oldest entry."""
        entry = self._entries.popleft()
        self.messages -= entry.permits
        self.size_bytes -= entry.size_bytes
        return entry

    def take_transactional(self) -> list[PendingEntry]:
        """Removes and returns the entries of transactions."""
        entries, self._entries = self._entries, deque()
        taken = []
        self.messages = self.size_bytes = 0
        for entry in entries:
            if entry.transactional:
                taken.append(entry)
            else:
                self.append(entry)
        return taken


def succeed(entry: PendingEntry, ledger_id: int, entry_id: int, partition: int, topic: str) -> None:
    """Completes the futures of an entry with the ids of its messages."""
    futures = entry.futures
    if entry.is_batch:
        size = len(futures)
        for index, future in enumerate(futures):
            if not future.done():
                future.set_result(MessageId(ledger_id, entry_id, partition, index, size, topic))
    elif futures and not futures[0].done():
        first = entry.chunked.first if entry.chunked is not None else None
        futures[0].set_result(MessageId(ledger_id, entry_id, partition, -1, 0, topic, first))
    _flushed(entry, None)


def fail(entry: PendingEntry, error: Exception) -> None:
    """Fails the futures of an entry."""
    for future in entry.futures:
        if not future.done():
            future.set_exception(error)
    _flushed(entry, error)


def _flushed(entry: PendingEntry, error: Exception | None) -> None:
    for waiter in entry.flushes or ():
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


def flush_waiter(entry: PendingEntry, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Any]":
    """Returns a future that is done when the entry is answered."""
    future: asyncio.Future[None] = loop.create_future()
    if entry.flushes is None:
        entry.flushes = []
    entry.flushes.append(future)
    return future
