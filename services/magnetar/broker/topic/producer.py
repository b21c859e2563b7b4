"""A producer of a topic with its counters, and the interface of its connection."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.core.errors import MagnetarError
from magnetar.wire.events import SendRun


class AccessMode(IntEnum):
    """Whether other producers may publish to the topic (PIP-68)."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerSink(Protocol):
    """The connection of a producer."""

    @property
    def address(self) -> str:
        """The peer, as `/127.0.0.1:40712`."""

    @property
    def client_version(self) -> str:
        """The version that the client announced."""

    def publishing(self, size_bytes: int) -> None:
        """Counts bytes as unanswered until their run is answered."""

    def pause_reading(self) -> None:
        """Stops reading from the connection until `resume_reading`."""

    def resume_reading(self) -> None:
        """Ends one `pause_reading`."""

    async def is_alive(self) -> bool:
        """Whether the peer sent something recently or answers a ping."""

    def send_receipts(
        self,
        producer: "Producer",
        run: SendRun,
        ledger_id: int,
        first_entry_id: int,
        *,
        stored: bool = True,
    ) -> None:
        """Answers every message of the run with its id.

        Messages that are not `stored` have no ids of their own: all get the given one.
        """

    def send_errors(self, producer: "Producer", run: SendRun, error: MagnetarError) -> None:
        """Answers every message of the run with the error."""

    def producer_ready(self, producer: "Producer") -> None:
        """Notifies a producer that waited for exclusive access that it has it."""

    def producer_refused(self, producer: "Producer", error: MagnetarError) -> None:
        """Notifies a producer that waited for exclusive access that it will not get it."""

    def close_producer(self, producer: "Producer", destination: BrokerRecord | None = None) -> None:
        """Asks the client to look the topic up again and reattach the producer.

        With `destination`, the client connects to that broker directly (PIP-307).
        """


Judged = tuple[SendRun, MagnetarError | None]
"""A run, and the error that refuses it; a refused run is a single message."""


class Held(Protocol):
    """The messages of a producer that wait for its topic's rate."""

    def add(self, parts: "list[Judged]") -> None:
        """Appends more messages."""

    def answered(self) -> None:
        """A run of the producer was answered."""

    def drop(self) -> None:
        """Drops all waiting messages."""


class Producer:
    """A producer of a connection, attached to a topic."""

    __slots__ = (
        "_bytes_before",
        "_messages_before",
        "_on_drained",
        "access_mode",
        "bytes_in",
        "bytes_rate_in",
        "closed",
        "connected_since_ms",
        "encrypted",
        "entries_in",
        "epoch",
        "generated_name",
        "held",
        "last_sequence",
        "message_rate_in",
        "messages_in",
        "metadata",
        "missed",
        "name",
        "on_answered",
        "pending_runs",
        "producer_id",
        "ready",
        "request_id",
        "schema_version",
        "sink",
        "suspended",
        "topic_epoch",
    )

    def __init__(
        self,
        producer_id: int,
        name: str,
        sink: ProducerSink,
        *,
        epoch: int,
        generated_name: bool,
        access_mode: AccessMode,
        topic_epoch: int | None,
        request_id: int,
        connected_since_ms: int,
        metadata: Sequence[tuple[str, str]] = (),
        encrypted: bool = False,
    ) -> None:
        self.producer_id = producer_id
        self.name = name
        self.sink = sink
        self.epoch = epoch
        self.generated_name = generated_name
        self.access_mode = access_mode
        self.topic_epoch = topic_epoch
        self.request_id = request_id
        self.connected_since_ms = connected_since_ms
        self.metadata = dict(metadata)
        self.encrypted = encrypted
        self.schema_version: bytes = b""
        self.ready = False
        self.closed = False
        # While the topic is suspended, the producer is not ready; `missed` notes that it has sent
        # messages meanwhile, which were not taken.
        self.suspended = False
        self.missed = False
        self.messages_in = 0
        self.entries_in = 0
        self.bytes_in = 0
        self.message_rate_in = 0.0
        self.bytes_rate_in = 0.0
        self._messages_before = 0
        self._bytes_before = 0
        self.pending_runs = 0
        self.on_answered: Callable[[], None] | None = None
        """Called after each answered run."""
        self.held: Held | None = None
        self.last_sequence: Callable[[], int] | None = None
        """Returns the highest stored sequence id of the name; None or -1: none is known."""
        self._on_drained: Callable[[], None] | None = None

    @property
    def last_sequence_id(self) -> int:
        """The highest stored sequence id of the name, -1 if none is known; a signed 64-bit number.

        Known only while the topic's deduplication is on.
        """
        last = -1 if self.last_sequence is None else self.last_sequence()
        return last if last < 1 << 63 else last - (1 << 64)

    def renew_rates(self, period_s: float) -> None:
        """Recomputes the rates; call once per period."""
        self.message_rate_in = (self.messages_in - self._messages_before) / period_s
        self.bytes_rate_in = (self.bytes_in - self._bytes_before) / period_s
        self._messages_before = self.messages_in
        self._bytes_before = self.bytes_in

    @property
    def admitted(self) -> bool:
        """Whether the producer has its access; if not, it waits for exclusive access.

        A client that waits sends nothing until it is notified.
        """
        return self.ready or self.suspended

    @property
    def closing(self) -> bool:
        """Whether the client has closed the producer while runs are still unanswered."""
        return self._on_drained is not None

    def when_drained(self, done: Callable[[], None]) -> None:
        """Takes no more messages; calls `done` once all earlier ones are answered."""
        self.ready = self.suspended = False
        self._on_drained = done
        self.on_answered = self._answered

    def hold(self, held: Held) -> None:
        """Notes that messages wait for a rate; together they count as one pending run."""
        self.held = held
        self.pending_runs += 1
        self.on_answered = self._answered

    def held_ended(self, held: Held) -> None:
        """Notes that no message waits for a rate any more."""
        if self.held is held:
            self.held = None
            self.pending_runs -= 1
            self._answered()

    def close(self) -> None:
        """Ends the producer; waiting messages are dropped."""
        self.closed = True
        if self.held is not None:
            self.held.drop()

    def _answered(self) -> None:
        if self.held is not None:
            self.held.answered()
        elif self._on_drained is None:
            self.on_answered = None
        if self._on_drained is not None and not self.pending_runs:
            done, self._on_drained = self._on_drained, None
            self.on_answered = None
            done()

    def succeeds(self, other: "Producer") -> bool:
        """Whether the same client has recreated `other` as this producer."""
        return (
            self.sink is other.sink
            and self.producer_id == other.producer_id
            and self.name == other.name
            and self.epoch > other.epoch
        )
