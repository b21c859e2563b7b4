"""A consumer of a subscription: its permits, its unacknowledged entries and its counters.

Permits count messages, not entries: a batch may take them below zero, by at most its own size.
Shared and Key_Shared consumers keep every unacknowledged entry in `pending`, so that the entry can
be redelivered to another consumer when this one leaves. Exclusive and Failover consumers do not:
the cursor alone has their position, and as in Pulsar their `unacked` stays 0.

`pending` maps ledger id → entry id → `messages << HASH_BITS | sticky hash`: nested dicts of ints
take a third of the memory of a dict of positions. The unacked caps of the subscription bound the
number of its entries.
"""

from collections.abc import Iterator
from typing import Final

from magnetar.broker.dispatch.compacted_log import CompactedLog
from magnetar.broker.subscription.sink import ConsumerSink
from magnetar.broker.subscription.spec import ConsumerSpec
from magnetar.core.clock import Clock

HASH_BITS: Final = 16
HASH_MASK: Final = (1 << HASH_BITS) - 1
AVERAGE_WEIGHT: Final = 0.9


class Consumer:
    """The state of a consumer; only its dispatcher and its subscription write it."""

    __slots__ = (
        "acked_messages",
        "attached",
        "average_messages",
        "blocked",
        "bytes_out",
        "compacted",
        "connected_since_ms",
        "end_announced",
        "epoch",
        "first_flow_ms",
        "first_sent_ms",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_out",
        "pending",
        "permits",
        "rates",
        "redelivered_messages",
        "sink",
        "spec",
        "unacked",
    )

    def __init__(self, spec: ConsumerSpec, sink: ConsumerSink, clock: Clock) -> None:
        self.spec = spec
        self.sink = sink
        self.attached = False
        self.compacted: CompactedLog | None = None
        """The compacted log that it reads instead of the log; None without `read_compacted`."""
        self.permits = 0
        self.unacked = 0
        self.blocked = False
        self.pending: dict[int, dict[int, int]] = {}
        self.epoch = spec.consumer_epoch
        self.end_announced = False
        self.average_messages = 1.0
        self.messages_out = 0
        self.bytes_out = 0
        self.redelivered_messages = 0
        self.acked_messages = 0
        self.connected_since_ms = clock.now_ms()
        self.first_sent_ms = self.first_flow_ms = 0
        self.last_consumed_ms = self.last_acked_ms = self.last_flow_ms = 0
        self.rates = ConsumerRates(clock.monotonic())

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, id={self.spec.consumer_id}, permits={self.permits})"

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self.spec.name

    @property
    def label(self) -> str:
        """The consumer's name for people, or its address and id if its client gave it none."""
        return self.name or f"{self.sink.address}#{self.spec.consumer_id}"

    @property
    def available(self) -> bool:
        """Whether the dispatcher may hand over an entry now."""
        return self.permits > 0 and not self.blocked and self.sink.writable

    def hold(self, ledger_id: int, entry_id: int, messages: int, sticky_hash: int = 0) -> None:
        """Adds an entry to `pending`."""
        entries = self.pending.get(ledger_id)
        if entries is None:
            entries = self.pending[ledger_id] = {}
        entries[entry_id] = messages << HASH_BITS | sticky_hash

    def release(self, ledger_id: int, entry_id: int) -> int:
        """Removes an entry from `pending`; returns its packed value, else 0."""
        entries = self.pending.get(ledger_id)
        if entries is None:
            return 0
        packed = entries.pop(entry_id, 0)
        if not entries:
            del self.pending[ledger_id]
        return packed

    def held(self, ledger_id: int, entry_id: int) -> int:
        """Returns the packed value of a pending entry, 0 if it is not pending."""
        entries = self.pending.get(ledger_id)
        return 0 if entries is None else entries.get(entry_id, 0)

    def pending_items(self) -> Iterator[tuple[int, int, int]]:
        """Yields (ledger id, entry id, packed value) of all pending entries, in any order."""
        for ledger_id, entries in self.pending.items():
            for entry_id, packed in entries.items():
                yield ledger_id, entry_id, packed

    @property
    def pending_count(self) -> int:
        """How many entries are pending."""
        return sum(map(len, self.pending.values()))


class ConsumerRates:
    """A consumer's rates per second, between the last two updates."""

    __slots__ = ("_acked", "_at", "_bytes", "_out", "_redelivered", "ack", "out", "redeliver",
                 "throughput")  # fmt: skip

    def __init__(self, now_s: float) -> None:
        self._at = now_s
        self._out = self._bytes = self._acked = self._redelivered = 0
        self.out = self.throughput = self.ack = self.redeliver = 0.0

    def update(self, consumer: Consumer, now_s: float) -> None:
        """Recomputes the rates; call once per RATE_PERIOD_S."""
        elapsed = now_s - self._at
        if elapsed <= 0:
            return
        self.out = (consumer.messages_out - self._out) / elapsed
        self.throughput = (consumer.bytes_out - self._bytes) / elapsed
        self.ack = (consumer.acked_messages - self._acked) / elapsed
        self.redeliver = (consumer.redelivered_messages - self._redelivered) / elapsed
        self._at, self._out, self._bytes = now_s, consumer.messages_out, consumer.bytes_out
        self._acked, self._redelivered = consumer.acked_messages, consumer.redelivered_messages
