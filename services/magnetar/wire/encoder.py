"""Commands to bytes: any command by protobuf, the two hot ones from templates.

A broker writes one SEND_RECEIPT for each message it stores and one MESSAGE for each it delivers.
Both differ from their predecessors only in a few varints, which mostly keep their length: their
frames are joined from cached pieces and a table of two-byte varint heads (`varint.py`). Numbers
that do not fit that (below 128, negative) and fields that are seldom set take the general path.
The output is byte for byte that of protobuf.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from google.protobuf.message import Message

from magnetar.core.errors import ServerError
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.entry import build_entry
from magnetar.wire.framing import FRAME_HEADER, U32
from magnetar.wire.message_id import unsigned64
from magnetar.wire.varint import LOW_BITS, LOW_MASK, split_tables, varint

RECEIPT_TEMPLATES_MAX: Final = 4096
SPLIT_MIN: Final = 128

_Table = tuple[bytes, ...]


def _command_start(number: int) -> bytes:
    """`type`, and the tag of the field with the type's number."""
    return b"\x08" + varint(number) + varint(number << 3 | 2)


_STARTS: Final[dict[int, bytes]] = {
    number: _command_start(number) for number in CommandType.values()
}
_RECEIPT_START: Final = _STARTS[CommandType.SEND_RECEIPT]
_MESSAGE_START: Final = _STARTS[CommandType.MESSAGE]


def encode_command(command_type: int | str, message: Message) -> bytes:
    """The frame of a simple command: its type, by number or name, and its own message."""
    number = CommandType.Value(command_type) if isinstance(command_type, str) else command_type
    body = message.SerializeToString()
    command = b"".join((_STARTS[number], varint(len(body)), body))
    return FRAME_HEADER.pack(len(command) + 4, len(command)) + command


PING_FRAME: Final = encode_command(CommandType.PING, pb.CommandPing())
PONG_FRAME: Final = encode_command(CommandType.PONG, pb.CommandPong())


def encode_success(request_id: int) -> bytes:
    """SUCCESS, the answer to many requests."""
    return encode_command(CommandType.SUCCESS, pb.CommandSuccess(request_id=request_id))


def encode_error(request_id: int, code: ServerError, text: str) -> bytes:
    """ERROR for a request; a request id of -1 means that the error answers no request."""
    error = pb.CommandError(
        request_id=unsigned64(request_id), error=error_number(code), message=text
    )
    return encode_command(CommandType.ERROR, error)


def encode_send_error(producer_id: int, sequence_id: int, code: ServerError, text: str) -> bytes:
    """SEND_ERROR for one SEND."""
    error = pb.CommandSendError(
        producer_id=producer_id, sequence_id=sequence_id, error=error_number(code), message=text
    )
    return encode_command(CommandType.SEND_ERROR, error)


def encode_ack_response(
    consumer_id: int, request_id: int, code: ServerError | None = None, text: str | None = None
) -> bytes:
    """ACK_RESPONSE, for an ACK that carried a request id."""
    response = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id, message=text)
    if code is not None:
        response.error = error_number(code)
    return encode_command(CommandType.ACK_RESPONSE, response)


def encode_transaction_answer(command_type: int, request_id: int, txn: tuple[int, int]) -> bytes:
    """The answer to NEW_TXN, ADD_…_TO_TXN or END_TXN without an error: their fields are equal."""
    most, least = txn
    body = b"".join((b"\x08", varint(request_id), b"\x10", varint(least), b"\x18", varint(most)))
    return _frame_start(_STARTS[command_type], len(body)) + body


def error_number(code: ServerError) -> pb.ServerError.ValueType:
    """The protocol's number of an error code."""
    return pb.ServerError.ValueType(int(code))


def encode_receipts(
    producer_id: int,
    sequence_ids: Sequence[int],
    highest_sequence_ids: Sequence[int],
    ledger_id: int,
    first_entry_id: int,
) -> bytes:
    """The SEND_RECEIPTs of a run of messages that were stored as consecutive entries."""
    entry_id = first_entry_id
    if entry_id < SPLIT_MIN and len(sequence_ids) == 1:
        return _receipt(producer_id, sequence_ids[0], highest_sequence_ids[0], ledger_id, entry_id)
    parts: list[bytes] = []
    add = parts.extend
    small = min(entry_id, min(sequence_ids), min(highest_sequence_ids)) < SPLIT_MIN
    sequence_high = highest_high = entry_high = -1
    for sequence_id, highest_id in zip(sequence_ids, highest_sequence_ids, strict=True):
        if small:
            parts.append(_receipt(producer_id, sequence_id, highest_id, ledger_id, entry_id))
        else:
            if (
                sequence_id >> LOW_BITS != sequence_high
                or highest_id >> LOW_BITS != highest_high
                or entry_id >> LOW_BITS != entry_high
            ):
                sequence_high = sequence_id >> LOW_BITS
                highest_high = highest_id >> LOW_BITS
                entry_high = entry_id >> LOW_BITS
                start, sequences, to_entry, entries, to_highest, highests, stop = _receipt_template(
                    producer_id, sequence_high, highest_high, ledger_id, entry_high
                )
            add(
                (
                    start,
                    sequences[sequence_id & LOW_MASK],
                    to_entry,
                    entries[entry_id & LOW_MASK],
                    to_highest,
                    highests[highest_id & LOW_MASK],
                    stop,
                )
            )
        entry_id += 1
    return b"".join(parts)


@lru_cache(maxsize=RECEIPT_TEMPLATES_MAX)
def _receipt_template(
    producer_id: int, sequence_high: int, highest_high: int, ledger_id: int, entry_high: int
) -> tuple[bytes, _Table, bytes, _Table, bytes, _Table, bytes]:
    """Fixed pieces of a receipt, alternating with the tables of the bytes between them."""
    sequences, sequence_rest = split_tables(sequence_high)
    entries, entry_rest = split_tables(entry_high)
    highests, highest_rest = split_tables(highest_high)
    to_entry = b"\x08" + varint(ledger_id) + b"\x10"
    id_bytes = len(to_entry) + 2 + len(entry_rest)
    after_sequence = sequence_rest + b"\x1a" + varint(id_bytes) + to_entry
    after_entry = entry_rest + b"\x20"
    producer = b"\x08" + varint(producer_id) + b"\x10"
    fixed_bytes = len(producer) + len(after_sequence) + len(after_entry) + len(highest_rest)
    start = _frame_start(_RECEIPT_START, fixed_bytes + 6) + producer
    return start, sequences, after_sequence, entries, after_entry, highests, highest_rest


def _receipt(
    producer_id: int, sequence_id: int, highest_id: int, ledger_id: int, entry_id: int
) -> bytes:
    message_id = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
    body = b"".join(
        (
            b"\x08",
            varint(producer_id),
            b"\x10",
            varint(sequence_id),
            b"\x1a",
            varint(len(message_id)),
            message_id,
            b"\x20",
            varint(highest_id),
        )
    )
    return _frame_start(_RECEIPT_START, len(body)) + body


def _frame_start(command_start: bytes, body_bytes: int) -> bytes:
    """Everything of a simple command's frame before its message of `body_bytes`."""
    start = command_start + varint(body_bytes)
    command_bytes = len(start) + body_bytes
    return FRAME_HEADER.pack(command_bytes + 4, command_bytes) + start


class MessageFramer:
    """Encodes the bytes before each entry in the MESSAGE frames of one consumer.

    A frame is the header followed by the entry's bytes, unchanged. The pieces of the last header
    are kept: the next one of the same ledger only needs its entry id and total size filled in.
    """

    __slots__ = (
        "_after_entry",
        "_before_entry",
        "_consumer",
        "_entries",
        "_key",
        "_partition",
        "_size_bytes",
    )

    def __init__(self, consumer_id: int, partition: int = -1) -> None:
        self._partition = b"" if partition < 0 else b"\x18" + varint(partition)
        self._consumer = b"\x08" + varint(consumer_id) + b"\x12"
        self._key: tuple[int, int, int | None] | None = None
        self._size_bytes = 0
        self._before_entry = b""
        self._entries: _Table = ()
        self._after_entry = b""

    def header(
        self,
        ledger_id: int,
        entry_id: int,
        entry_bytes: int,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
        consumer_epoch: int | None = None,
        batch_index: int = -1,
    ) -> bytes:
        """Everything of a MESSAGE frame before its entry; `ack_set` in wire words."""
        if entry_id < SPLIT_MIN or redelivery_count or ack_set or batch_index >= 0:
            place = b"".join(
                (
                    b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id),
                    self._partition,
                    b"\x20" + varint(batch_index) if batch_index != -1 else b"",
                )
            )
            rest = _message_rest(redelivery_count, ack_set, consumer_epoch)
            command = self._command(varint(len(place)) + place, rest)
            return FRAME_HEADER.pack(len(command) + 4 + entry_bytes, len(command)) + command
        key = (ledger_id, entry_id >> LOW_BITS, consumer_epoch)
        if key != self._key:
            self._prepare(*key)
            self._key = key
        return b"".join(
            (
                U32.pack(self._size_bytes + entry_bytes),
                self._before_entry,
                self._entries[entry_id & LOW_MASK],
                self._after_entry,
            )
        )

    def _prepare(self, ledger_id: int, entry_high: int, consumer_epoch: int | None) -> None:
        self._entries, entry_rest = split_tables(entry_high)
        place = b"\x08" + varint(ledger_id) + b"\x10"
        entry_rest += self._partition
        id_bytes = len(place) + 2 + len(entry_rest)
        self._after_entry = entry_rest + _message_rest(0, (), consumer_epoch)
        start = self._consumer + varint(id_bytes) + place
        body_bytes = len(start) + 2 + len(self._after_entry)
        frame_start = _frame_start(_MESSAGE_START, body_bytes)
        self._before_entry = frame_start[4:] + start
        self._size_bytes = len(self._before_entry) + 2 + len(self._after_entry)

    def _command(self, place: bytes, rest: bytes) -> bytes:
        body = self._consumer + place + rest
        return _MESSAGE_START + varint(len(body)) + body


def _message_rest(redelivery_count: int, ack_set: Sequence[int], epoch: int | None) -> bytes:
    """The fields of MESSAGE that follow its id."""
    return b"".join(
        (
            b"\x18" + varint(redelivery_count) if redelivery_count else b"",
            *(b"\x20" + varint(word) for word in ack_set),
            b"\x28" + varint(epoch) if epoch is not None else b"",
        )
    )


def encode_send(
    command: pb.CommandSend, metadata: pb.MessageMetadata, payload: bytes, *, checksum: bool = True
) -> bytes:
    """A producer's SEND frame of one entry."""
    return encode_send_entry(command, build_entry(metadata, payload, checksum=checksum))


def encode_send_entry(command: pb.CommandSend, entry: bytes) -> bytes:
    """A producer's SEND frame of an entry that exists already."""
    start = encode_command(CommandType.SEND, command)[4:]
    return U32.pack(len(start) + len(entry)) + start + entry
