"""Decodes what a broker sends to a client: receipts and messages without protobuf where possible.

Consecutive MESSAGEs of a consumer differ in the entry id and little else, and so do consecutive
SEND_RECEIPTs in the sequence id and the entry id. The decoder keeps the bytes around these numbers
of the last command that protobuf parsed. A command with the same bytes around them needs only the
numbers decoded; any other command takes the general path, which returns the same events.

Bounds and buffers are those of `decoder.py`. Checksums are verified by the reader of the entry.
"""

from typing import Final, cast

import msgspec
from google.protobuf.message import Message

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType, parse_command
from magnetar.wire.framing import FRAME_BYTES_MAX_DEFAULT, FRAME_HEADER, ProtocolError
from magnetar.wire.message_id import signed64
from magnetar.wire.receive_buffer import BUFFER_BYTES_DEFAULT, ReceiveBuffer
from magnetar.wire.varint import varint

_MESSAGE: Final = int(CommandType.MESSAGE)
_RECEIPT: Final = int(CommandType.SEND_RECEIPT)


class Delivery(msgspec.Struct, gc=False):
    """A MESSAGE: an entry for a consumer. Its checksum is not verified yet."""

    consumer_id: int
    ledger_id: int
    entry_id: int
    partition: int
    redelivery_count: int
    ack_set: tuple[int, ...]
    """Wire words of the batch indexes that are not acknowledged; empty if all are to be read."""
    epoch: int
    """The consumer epoch of the delivery; -1 without one."""
    batch_index: int
    entry: bytes


class Receipt(msgspec.Struct, gc=False):
    """A SEND_RECEIPT; ledger and entry are -1 if the message was a duplicate."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    ledger_id: int
    entry_id: int


class Answer(msgspec.Struct, gc=False):
    """Any other command: its `BaseCommand.Type` and its message."""

    type: int
    message: Message


ClientEvent = Delivery | Receipt | Answer


class _MessageShape:
    """The bytes around the entry id of the last MESSAGE, and what they mean."""

    __slots__ = ("after", "before", "consumer_id", "ledger_id", "partition")

    def __init__(self) -> None:
        self.before = b"\0"
        self.after = b""
        self.consumer_id = self.ledger_id = self.partition = -1


class _ReceiptShape:
    """The bytes around the numbers of the last SEND_RECEIPT, and what they mean."""

    __slots__ = ("before", "between", "ledger_id", "producer_id")

    def __init__(self) -> None:
        self.before = b"\0"
        self.between = b""
        self.producer_id = self.ledger_id = -1


class ClientDecoder:
    """Decodes the frames of one connection. Not usable after a `ProtocolError`."""

    __slots__ = ("_buffer", "_message", "_receipt", "_total_bytes_max")

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX_DEFAULT,
        buffer_bytes: int = BUFFER_BYTES_DEFAULT,
    ) -> None:
        self._total_bytes_max = frame_bytes_max - 4
        self._buffer = ReceiveBuffer(frame_bytes_max, buffer_bytes)
        self._message = _MessageShape()
        self._receipt = _ReceiptShape()

    def resize(self, frame_bytes_max: int) -> None:
        """Raises the bound of frames; a lower one than the present is not applied."""
        buffer = self._buffer
        if frame_bytes_max > buffer.frame_bytes_max:
            buffer.resize(frame_bytes_max, buffer.buffer_bytes)
            self._total_bytes_max = frame_bytes_max - 4

    def get_buffer(self) -> memoryview:
        """Returns the memory for the next bytes; valid until `received` is called."""
        return self._buffer.writable()

    def received(self, byte_count: int) -> list[ClientEvent]:
        """Returns the events of the frames that `byte_count` more bytes completed."""
        buffer = self._buffer
        buffer.end += byte_count
        events: list[ClientEvent] = []
        data, view, end = buffer.data, buffer.view, buffer.end
        position, total_bytes_max = buffer.start, self._total_bytes_max
        header_at = FRAME_HEADER.unpack_from
        while end - position >= 8:
            total, size = header_at(data, position)
            if not 6 <= size + 4 <= total <= total_bytes_max:
                raise ProtocolError(f"A frame of {total + 4} bytes has a command of {size}")
            frame_end = position + 4 + total
            if frame_end > end:
                break
            command_end = position + 8 + size
            command = view[position + 8 : command_end].tobytes()
            number = command[1]
            if number == _MESSAGE:
                events.append(self._delivery(command, view[command_end:frame_end].tobytes()))
            elif number == _RECEIPT:
                events.append(self._receipt_of(command))
            else:
                events.append(self._other(command, view[command_end:frame_end]))
            position = frame_end
        buffer.start = position
        buffer.settle(byte_count)
        return events

    def _other(self, command: bytes, entry: memoryview) -> ClientEvent:
        number, message = parse_command(command)
        if number == _MESSAGE:  # its type is not its first field
            return self._parsed_delivery(command, entry.tobytes())
        return self._parsed_receipt(command) if number == _RECEIPT else Answer(number, message)

    def _delivery(self, command: bytes, entry: bytes) -> ClientEvent:
        shape = self._message
        before = shape.before
        if command.startswith(before):
            at = len(before)
            entry_id = command[at]
            at += 1
            if entry_id > 0x7F:
                entry_id &= 0x7F
                shift = 7
                while at < len(command):
                    byte = command[at]
                    at += 1
                    entry_id |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
            if command[at:] == shape.after:
                return Delivery(
                    shape.consumer_id, shape.ledger_id, entry_id, shape.partition, 0, (), -1, -1,
                    entry,
                )  # fmt: skip
        return self._parsed_delivery(command, entry)

    def _parsed_delivery(self, command: bytes, entry: bytes) -> ClientEvent:
        number, parsed = parse_command(command)
        message = cast("pb.CommandMessage", parsed)
        if number != _MESSAGE:
            return Answer(number, parsed)
        place = message.message_id
        delivery = Delivery(
            message.consumer_id,
            signed64(place.ledgerId),
            signed64(place.entryId),
            place.partition,
            message.redelivery_count,
            tuple(message.ack_set),
            message.consumer_epoch if message.HasField("consumer_epoch") else -1,
            place.batch_index,
            entry,
        )
        plain = not (delivery.redelivery_count or delivery.ack_set)
        if plain and delivery.epoch < 0 and delivery.batch_index < 0:
            ledger = b"\x08" + varint(place.ledgerId) + b"\x10"
            entry_id = varint(place.entryId)
            start = command.find(ledger + entry_id)
            if start > 0:
                shape = self._message
                end = start + len(ledger)
                shape.before = command[:end]
                shape.after = command[end + len(entry_id) :]
                shape.consumer_id, shape.ledger_id = delivery.consumer_id, delivery.ledger_id
                shape.partition = delivery.partition
        return delivery

    def _receipt_of(self, command: bytes) -> ClientEvent:
        shape = self._receipt
        if command.startswith(shape.before):
            try:
                sequence_id, at = _number(command, len(shape.before))
                if command.startswith(shape.between, at):
                    entry_id, at = _number(command, at + len(shape.between))
                    highest_id = 0
                    if at < len(command) and command[at] == 0x20:
                        highest_id, at = _number(command, at + 1)
                    if at == len(command):
                        return Receipt(
                            shape.producer_id, sequence_id, highest_id, shape.ledger_id, entry_id
                        )
            except IndexError:
                pass
        return self._parsed_receipt(command)

    def _parsed_receipt(self, command: bytes) -> ClientEvent:
        number, parsed = parse_command(command)
        receipt = cast("pb.CommandSendReceipt", parsed)
        if number != _RECEIPT:
            return Answer(number, parsed)
        if not receipt.HasField("message_id"):
            return Receipt(
                receipt.producer_id, receipt.sequence_id, receipt.highest_sequence_id, -1, -1
            )
        place = receipt.message_id
        ledger_id, entry_id = signed64(place.ledgerId), signed64(place.entryId)
        sequence = varint(receipt.sequence_id)
        before, start, after = command.partition(
            b"\x08" + varint(receipt.producer_id) + b"\x10" + sequence
        )
        ledger = b"\x08" + varint(place.ledgerId) + b"\x10"
        ledger_at = after.find(ledger)
        if ledger_id >= 0 and entry_id >= 0 and start and 0 <= ledger_at <= 4:
            shape = self._receipt
            shape.before = before + start[: -len(sequence)]
            shape.between = after[: ledger_at + len(ledger)]
            shape.producer_id, shape.ledger_id = receipt.producer_id, ledger_id
        return Receipt(
            receipt.producer_id,
            receipt.sequence_id,
            receipt.highest_sequence_id,
            ledger_id,
            entry_id,
        )


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at `at` and its end; raises IndexError if the data ends within it."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
