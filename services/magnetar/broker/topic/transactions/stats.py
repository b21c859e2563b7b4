"""The statistics of transactions for REST; positions are texts, as in Pulsar."""

import msgspec


class BufferStats(msgspec.Struct, kw_only=True, frozen=True):
    """The transactions of a topic."""

    state: str
    """`None` before the first transaction, `Initializing` during recovery, else `Ready`."""
    max_read_position: str
    """The last position that consumers may read."""
    open_count: int
    committed_total: int
    """Since the topic was opened; so is `aborted_total`."""
    aborted_total: int
    recovery_started_ms: int
    """0 without a recovery."""
    recovery_ended_ms: int


class TxnInBuffer(msgspec.Struct, kw_only=True, frozen=True):
    """An open transaction of a topic; the position is None before its first message."""

    start_position: str | None
    aborted: bool
    """Whether its abort is under way."""


class PendingAckStats(msgspec.Struct, kw_only=True, frozen=True):
    """The transactions of a subscription."""

    state: str
    """`None` before the first transaction, else `Ready`."""
    open_count: int
    committed_total: int
    """Since the topic was opened; so is `aborted_total`."""
    aborted_total: int
