"""What a producer has sent so far: the figures from which its settings can be judged."""

import msgspec


class ProducerStats(msgspec.Struct):
    """Totals since the producer was created, over all of its partitions."""

    messages_sent: int = 0
    """Messages with a receipt."""
    bytes_sent: int = 0
    """Their payloads, before compression."""
    entries_sent: int = 0
    wire_bytes_sent: int = 0
    """Payloads of entries, after compression."""
    messages_failed: int = 0
    batches_by_count: int = 0
    batches_by_size: int = 0
    batches_by_time: int = 0
    """Batches that were closed before they were full."""
    receipt_s_total: float = 0.0
    """Time from sending an entry to its receipt, summed over entries."""
    receipt_s_max: float = 0.0
    reconnects: int = 0
    pending_messages: int = 0
    pending_bytes: int = 0

    def entry_stored(
        self, messages: int, payload_bytes: int, wire_bytes: int, elapsed_s: float
    ) -> None:
        """Adds an entry that has its receipt."""
        self.entries_sent += 1
        self.messages_sent += messages
        self.bytes_sent += payload_bytes
        self.wire_bytes_sent += wire_bytes
        self.receipt_s_total += elapsed_s
        self.receipt_s_max = max(self.receipt_s_max, elapsed_s)

    @property
    def messages_per_entry(self) -> float:
        """The average size of a batch; 0 before the first receipt."""
        return self.messages_sent / self.entries_sent if self.entries_sent else 0.0

    @property
    def receipt_s_mean(self) -> float:
        """The average time to a receipt; 0 before the first."""
        return self.receipt_s_total / self.entries_sent if self.entries_sent else 0.0
