"""Bounds on published bytes without a receipt: per connection, and for the broker.

Above its high mark, a connection is not read until it is below the low mark. Above the broker's
high mark, no publishing connection is read until the broker is below its low mark. A connection
that was paused only for its own bytes does not wait for those of others. Data that was already read
is appended all the same, so a connection may exceed the bound by one receive buffer.
"""

from typing import Final, Protocol

CONNECTION_PENDING_BYTES_HIGH: Final = 16 << 20
CONNECTION_PENDING_BYTES_LOW: Final = 8 << 20
BROKER_PENDING_BYTES_HIGH: Final = 48 << 20
BROKER_PENDING_BYTES_LOW: Final = 32 << 20


class Publisher(Protocol):
    """A publishing connection."""

    pending_bytes: int

    def pause_reading(self) -> None:
        """Stops reading until `resume_reading`."""

    def resume_reading(self) -> None:
        """Reads again."""


class PublishBudget:
    """Counts the pending bytes of a broker, and pauses and resumes its connections."""

    __slots__ = ("_full", "_paused", "pending_bytes")

    def __init__(self) -> None:
        self.pending_bytes = 0
        self._paused: set[Publisher] = set()
        self._full = False
        """Whether the broker was above its high mark and is not below its low mark yet."""

    def add(self, publisher: Publisher, size_bytes: int) -> None:
        """Counts published bytes, which the publisher's own count includes already."""
        self.pending_bytes += size_bytes
        if self.pending_bytes > BROKER_PENDING_BYTES_HIGH:
            self._full = True
        if (
            self._full or publisher.pending_bytes > CONNECTION_PENDING_BYTES_HIGH
        ) and publisher not in self._paused:
            self._paused.add(publisher)
            publisher.pause_reading()

    def subtract(self, size_bytes: int) -> None:
        """Counts answered bytes, which the publisher's own count excludes already."""
        self.pending_bytes -= size_bytes
        if self.pending_bytes <= BROKER_PENDING_BYTES_LOW:
            self._full = False
        if self._full or not self._paused:
            return
        for publisher in [
            publisher
            for publisher in self._paused
            if publisher.pending_bytes <= CONNECTION_PENDING_BYTES_LOW
        ]:
            self._paused.discard(publisher)
            publisher.resume_reading()

    def forget(self, publisher: Publisher) -> None:
        """Drops a lost connection; its pending bytes still count until they are answered."""
        self._paused.discard(publisher)
