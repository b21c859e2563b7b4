"""What a consumer has received so far."""

import msgspec


class ConsumerStats(msgspec.Struct):
    """Totals since the consumer was created, over all of its topics and partitions."""

    messages_received: int = 0
    """Messages that the user took."""
    bytes_received: int = 0
    entries_received: int = 0
    acks_sent: int = 0
    """Acknowledged entries and messages."""
    ack_commands_sent: int = 0
    negative_acks: int = 0
    ack_timeouts: int = 0
    dead_letters: int = 0
    retry_letters: int = 0
    duplicates_dropped: int = 0
    """Entries that came again although they were acknowledged."""
    entries_bad: int = 0
    """Entries that could not be read."""
    chunks_discarded: int = 0
    reconnects: int = 0
    queued_messages: int = 0
    queued_bytes: int = 0
