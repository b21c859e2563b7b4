"""The events that a decoder returns.

The three hot commands have compact events of their own; any other command is a `Command` with its
protobuf message. An entry is immutable bytes, copied once from the receive buffer and shared after
that.
"""

import msgspec
from google.protobuf.message import Message

from magnetar.core.errors import ServerError
from magnetar.wire._pb.PulsarApi_pb2 import CommandSend


class SendRun(msgspec.Struct, gc=False):
    """Plain SENDs of one producer, in order: parallel lists with one item per frame.

    A run has the producer's SENDs between two frames that are not plain SENDs, even if SENDs of
    other producers lie between them: no order is promised between producers. Checksums are
    verified. `highest_sequence_ids` has the last sequence id of a batch, or the sequence id itself
    if the frame has none or a lower one. The chunks of a message are entries with the same
    sequence id.
    """

    producer_id: int
    sequence_ids: list[int]
    highest_sequence_ids: list[int]
    message_counts: list[int]
    entries: list[bytes]
    size_bytes: int = 0
    """The size of all entries together."""
    txn: tuple[int, int] | None = None
    """The transaction (most bits, least bits) of all entries; None outside of transactions."""
    deliver_at_ms: tuple[int, ...] = ()
    """The delivery times, one per entry; empty if none of the entries has one."""
    delays_ms: tuple[int, ...] = ()
    """The delivery time of each entry less its publish time, which is by its producer's clock."""

    @property
    def special(self) -> bool:
        """Whether the topic must admit the run: it has a transaction or delivery times."""
        return self.txn is not None or bool(self.deliver_at_ms)

    def part(self, start: int, end: int | None = None) -> "SendRun":
        """Returns the messages `start` to `end` (exclusive) as a run of their own."""
        entries = self.entries[start:end]
        return SendRun(
            self.producer_id,
            self.sequence_ids[start:end],
            self.highest_sequence_ids[start:end],
            self.message_counts[start:end],
            entries,
            sum(map(len, entries)),
            self.txn,
            self.deliver_at_ms[start:end],
            self.delays_ms[start:end],
        )


class UncheckedSends(msgspec.Struct, gc=False):
    """SENDs of one producer, in order, whose metadata the broker must read.

    Either all are of one transaction (`run.txn`), or each may have a delivery time. Their checksums
    are verified; whether the metadata of the entries names the transaction is not.
    `run.size_bytes` is not set.
    """

    run: SendRun


class Send(msgspec.Struct, gc=False):
    """A SEND with a marker, message id or unusual numbers. Its checksum is verified."""

    command: CommandSend
    entry: bytes


class BadSend(msgspec.Struct, gc=False):
    """A SEND whose entry must not be stored: answer SEND_ERROR. The stream itself is intact."""

    producer_id: int
    sequence_id: int
    code: ServerError
    reason: str


class AckOne(msgspec.Struct, gc=False):
    """An individual ACK of one whole entry, without transaction, that requests no response."""

    consumer_id: int
    ledger_id: int
    entry_id: int


class Flow(msgspec.Struct, gc=False):
    """More permits for a consumer; the count is as sent, 0 to 2**32 - 1."""

    consumer_id: int
    permits: int


class Command(msgspec.Struct, gc=False):
    """Any other command: its `BaseCommand.Type`, its message, and the bytes after it, if any."""

    type: int
    message: Message
    payload: bytes | None = None


Event = SendRun | UncheckedSends | Send | BadSend | AckOne | Flow | Command
