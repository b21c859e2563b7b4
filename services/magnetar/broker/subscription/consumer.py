"""One attached consumer: its permits, what it holds unacknowledged, and what it was sent.

Permits count messages, not entries: a batch may take them below zero, by at most its own size.
Shared and Key_Shared consumers remember every entry they hold (`pending`), so that it can go to
another when they leave; Exclusive and Failover ones do not, the cursor alone says where they are
(as in Pulsar, their `unacked` stays 0).

`pending` is ledger id → entry id → `messages << HASH_BITS | sticky hash`: two dicts of ints cost a
third of what a dict of positions does, and one lookup per ack is saved by neither. The number of
entries in it is bounded by the unacked caps of the subscription.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from magnetar.broker.subscription.sink import ConsumerSink
from magnetar.broker.subscription.spec import ConsumerSpec
from magnetar.core.clock import Clock

if TYPE_CHECKING:
    from magnetar.broker.dispatch.compacted import CompactedLog

HASH_BITS: Final = 16
HASH_MASK: Final = (1 << HASH_BITS) - 1
AVERAGE_WEIGHT: Final = 0.9


class Consumer:
    """State of one consumer; the dispatcher and the subscription write it, nobody else."""

    __slots__ = (
        "acked_messages",
        "attached",
        "average_messages",
        "blocked",
        "bytes_out",
        "compacted",
        "connected_since_ms",
        "end_told",
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
        """What it reads instead of the log itself."""
        self.permits = 0
        self.unacked = 0
        self.blocked = False
        self.pending: dict[int, dict[int, int]] = {}
        self.epoch = spec.consumer_epoch
        self.end_told = False
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
        return self.spec.name

    @property
    def available(self) -> bool:
        """Whether an entry may be handed over now."""
        return self.permits > 0 and not self.blocked and self.sink.writable

    def hold(self, ledger_id: int, entry_id: int, messages: int, sticky_hash: int = 0) -> None:
        """Remembers an entry as outstanding here."""
        entries = self.pending.get(ledger_id)
        if entries is None:
            entries = self.pending[ledger_id] = {}
        entries[entry_id] = messages << HASH_BITS | sticky_hash

    def release(self, ledger_id: int, entry_id: int) -> int:
        """Forgets an entry; what `hold` packed, or 0 where it was not outstanding here."""
        entries = self.pending.get(ledger_id)
        if entries is None:
            return 0
        packed = entries.pop(entry_id, 0)
        if not entries:
            del self.pending[ledger_id]
        return packed

    def held(self, ledger_id: int, entry_id: int) -> int:
        """What `hold` packed for an outstanding entry, else 0."""
        entries = self.pending.get(ledger_id)
        return 0 if entries is None else entries.get(entry_id, 0)

    def pending_items(self) -> Iterator[tuple[int, int, int]]:
        """(ledger id, entry id, packed) of all that is outstanding, in no promised order."""
        for ledger_id, entries in self.pending.items():
            for entry_id, packed in entries.items():
                yield ledger_id, entry_id, packed

    @property
    def pending_count(self) -> int:
        return sum(map(len, self.pending.values()))


class ConsumerRates:
    """Rates per second since the last update, from the consumer's counters."""

    __slots__ = ("_acked", "_at", "_bytes", "_out", "_redelivered", "ack", "out", "redeliver",
                 "throughput")  # fmt: skip

    def __init__(self, now_s: float) -> None:
        self._at = now_s
        self._out = self._bytes = self._acked = self._redelivered = 0
        self.out = self.throughput = self.ack = self.redeliver = 0.0

    def update(self, consumer: Consumer, now_s: float) -> None:
        """Call at the pace at which statistics are refreshed."""
        elapsed = now_s - self._at
        if elapsed <= 0:
            return
        self.out = (consumer.messages_out - self._out) / elapsed
        self.throughput = (consumer.bytes_out - self._bytes) / elapsed
        self.ack = (consumer.acked_messages - self._acked) / elapsed
        self.redeliver = (consumer.redelivered_messages - self._redelivered) / elapsed
        self._at, self._out, self._bytes = now_s, consumer.messages_out, consumer.bytes_out
        self._acked, self._redelivered = consumer.acked_messages, consumer.redelivered_messages
