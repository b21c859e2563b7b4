"""How much may be published and not yet receipted: per connection, and for the broker.

Above a high mark a connection is not read from, until it is below the low mark again; above the
broker's mark no connection that publishes is, until the broker is below its low mark. A connection
that was paused for its own bytes alone waits for nobody else's. What was read already is appended
all the same, so a connection may overshoot by one receive buffer.
"""

from typing import Final, Protocol

CONNECTION_PENDING_BYTES_HIGH: Final = 16 << 20
CONNECTION_PENDING_BYTES_LOW: Final = 8 << 20
BROKER_PENDING_BYTES_HIGH: Final = 48 << 20
BROKER_PENDING_BYTES_LOW: Final = 32 << 20


class Publisher(Protocol):
    """A connection, as the budget sees it."""

    pending_bytes: int

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class PublishBudget:
    """One per broker."""

    __slots__ = ("_full", "_paused", "pending_bytes")

    def __init__(self) -> None:
        self.pending_bytes = 0
        self._paused: set[Publisher] = set()
        self._full = False  # from the broker's high mark down to its low one

    @property
    def paused_connections(self) -> int:
        return len(self._paused)

    def took(self, publisher: Publisher, size_bytes: int) -> None:
        """Call after the publisher's own count was raised."""
        self.pending_bytes += size_bytes
        if self.pending_bytes > BROKER_PENDING_BYTES_HIGH:
            self._full = True
        if (
            self._full or publisher.pending_bytes > CONNECTION_PENDING_BYTES_HIGH
        ) and publisher not in self._paused:
            self._paused.add(publisher)
            publisher.pause_reading()

    def gave_back(self, size_bytes: int) -> None:
        """Call after the publisher's own count was lowered."""
        self.pending_bytes -= size_bytes
        if self.pending_bytes <= BROKER_PENDING_BYTES_LOW:
            self._full = False
        if self._full or not self._paused:
            return
        for paused in [p for p in self._paused if p.pending_bytes <= CONNECTION_PENDING_BYTES_LOW]:
            self._paused.discard(paused)
            paused.resume_reading()

    def forget(self, publisher: Publisher) -> None:
        """The connection is gone. What it has pending is still counted until it is answered."""
        self._paused.discard(publisher)
