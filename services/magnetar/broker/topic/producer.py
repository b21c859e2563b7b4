"""A producer attached to a topic, and its counters."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.core.errors import MagnetarError
from magnetar.wire.events import SendRun


class AccessMode(IntEnum):
    """Who else may publish to the topic (PIP-68)."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerSink(Protocol):
    """One connection, as its producers see it."""

    @property
    def address(self) -> str: ...

    @property
    def client_version(self) -> str: ...

    def publishing(self, size_bytes: int) -> None:
        """Counts what is about to be published, until it is answered."""

    def pause_reading(self) -> None:
        """Nothing more is read from the connection until `resume_reading`."""

    def resume_reading(self) -> None: ...

    async def is_alive(self) -> bool:
        """Pings the peer unless it was heard of lately; False where it does not answer."""

    def send_receipts(
        self, producer: "Producer", run: "PublishRun", ledger_id: int, first_entry_id: int
    ) -> None:
        """Answers every message of the run with its id."""

    def send_errors(self, producer: "Producer", run: "PublishRun", error: MagnetarError) -> None:
        """Answers every message of the run with the error."""

    def producer_ready(self, producer: "Producer") -> None:
        """Tells a producer that waited for exclusive access that it has it."""

    def producer_refused(self, producer: "Producer", error: MagnetarError) -> None:
        """Tells a producer that waited for exclusive access that it will not get it."""

    def close_producer(self, producer: "Producer", destination: BrokerRecord | None = None) -> None:
        """Asks the client to look the topic up again and reattach the producer.

        With `destination`, the topic is served there now (PIP-307).
        """


class PublishRun(Protocol):
    """Messages of one producer that arrived together, in order (`wire.decoder.SendRun`)."""

    sequence_ids: list[int]
    highest_sequence_ids: list[int]
    message_counts: list[int]
    entries: list[bytes]
    size_bytes: int


Judged = tuple[SendRun, MagnetarError | None]
"""Messages, and why they are refused: then it is one."""


class Held(Protocol):
    """What it sent and may not be published yet."""

    def add(self, parts: "list[Judged]") -> None:
        """More, behind it."""

    def answered(self) -> None:
        """A run of the producer's has its receipts."""

    def drop(self) -> None: ...


class Producer:
    """One producer of one connection."""

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
        "resting",
        "schema_version",
        "sink",
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
        # While its topic rests it is not ready; what it sends then is not taken, and noted.
        self.resting = False
        self.missed = False
        self.messages_in = 0
        self.entries_in = 0
        self.bytes_in = 0
        self.message_rate_in = 0.0
        self.bytes_rate_in = 0.0
        self._messages_before = 0
        self._bytes_before = 0
        self.pending_runs = 0
        # Called with each run that is answered, where somebody waits for that.
        self.on_answered: Callable[[], None] | None = None
        self.held: Held | None = None
        self._on_drained: Callable[[], None] | None = None

    def renew_rates(self, period_s: float) -> None:
        """Call once per period."""
        self.message_rate_in = (self.messages_in - self._messages_before) / period_s
        self.bytes_rate_in = (self.bytes_in - self._bytes_before) / period_s
        self._messages_before = self.messages_in
        self._bytes_before = self.bytes_in

    @property
    def admitted(self) -> bool:
        """Whether it may publish as soon as its topic does; if not, it waits for exclusive access.

        A client that is told to wait sends nothing until it hears again.
        """
        return self.ready or self.resting

    @property
    def closing(self) -> bool:
        """Whether its client closes it, and what it had sent is still to be answered."""
        return self._on_drained is not None

    def when_drained(self, done: Callable[[], None]) -> None:
        """Takes nothing more; `done` is called once all it had sent is answered."""
        self.ready = self.resting = False
        self._on_drained = done
        self.on_answered = self._answered

    def hold(self, held: Held) -> None:
        """Some of what it sent has to wait; that counts as one run."""
        self.held = held
        self.pending_runs += 1
        self.on_answered = self._answered

    def held_ended(self, held: Held) -> None:
        """Nothing of it waits any more."""
        if self.held is held:
            self.held = None
            self.pending_runs -= 1
            self._answered()

    def close(self) -> None:
        """It publishes nothing more; what waits is dropped."""
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
        """Whether this is a newer life of `other`: the same client recreated it."""
        return (
            self.sink is other.sink
            and self.producer_id == other.producer_id
            and self.name == other.name
            and self.epoch > other.epoch
        )
