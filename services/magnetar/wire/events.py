"""What a decoder finds in received bytes.

The three hot commands have compact events of their own; everything else is a `Command` with its
protobuf message. An entry is immutable bytes, cut once out of the receive buffer and shared from
then on.
"""

import msgspec
from google.protobuf.message import Message

from magnetar.core.errors import ServerError
from magnetar.wire._pb.PulsarApi_pb2 import CommandSend


class SendRun(msgspec.Struct, gc=False):
    """Plain SENDs of one producer, in order: parallel lists, one item for each frame.

    A run takes in what the producer sent between two frames that are no plain SENDs, also where
    other producers' SENDs lie between its own: the order between producers means nothing.
    Checksums are verified. `highest_sequence_ids` is the last sequence id of a batch, and the
    sequence id itself where the frame named none or a lower one. The chunks of one message come as
    entries with the same sequence id.
    """

    producer_id: int
    sequence_ids: list[int]
    highest_sequence_ids: list[int]
    message_counts: list[int]
    entries: list[bytes]
    size_bytes: int = 0
    """Bytes of the entries together."""


class Send(msgspec.Struct, gc=False):
    """One SEND with a transaction, marker, message id, odd numbers or perhaps a delivery time.

    Its checksum is verified.
    """

    command: CommandSend
    entry: bytes


class BadSend(msgspec.Struct, gc=False):
    """A SEND whose entry must not be stored; the stream itself is sound. Answer SEND_ERROR."""

    producer_id: int
    sequence_id: int
    code: ServerError
    reason: str


class AckOne(msgspec.Struct, gc=False):
    """An individual ACK of one whole entry, outside of transactions, that wants no response."""

    consumer_id: int
    ledger_id: int
    entry_id: int


class Flow(msgspec.Struct, gc=False):
    """More permits for a consumer; the count is as sent, 0 to 2**32 - 1."""

    consumer_id: int
    permits: int


class Command(msgspec.Struct, gc=False):
    """Any other command: its `BaseCommand.Type`, its own message, and what followed it, if any."""

    type: int
    message: Message
    payload: bytes | None = None


Event = SendRun | Send | BadSend | AckOne | Flow | Command
