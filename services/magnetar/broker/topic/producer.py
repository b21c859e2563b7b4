"""A producer attached to a topic, and its counters."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.core.errors import MagnetarError


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


class Producer:
    """One producer of one connection."""

    __slots__ = (
        "_bytes_before",
        "_messages_before",
        "access_mode",
        "bytes_in",
        "bytes_rate_in",
        "closed",
        "connected_since_ms",
        "entries_in",
        "epoch",
        "generated_name",
        "message_rate_in",
        "messages_in",
        "metadata",
        "missed",
        "name",
        "on_drained",
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
        # Called once none is pending any more, by a client that closes and waits for that.
        self.on_drained: Callable[[], None] | None = None

    def renew_rates(self, period_s: float) -> None:
        """Call once per period."""
        self.message_rate_in = (self.messages_in - self._messages_before) / period_s
        self.bytes_rate_in = (self.bytes_in - self._bytes_before) / period_s
        self._messages_before = self.messages_in
        self._bytes_before = self.bytes_in

    def succeeds(self, other: "Producer") -> bool:
        """Whether this is a newer life of `other`: the same client recreated it."""
        return (
            self.sink is other.sink
            and self.producer_id == other.producer_id
            and self.name == other.name
            and self.epoch > other.epoch
        )
