"""A slow second decoder, straight from the protocol's layout, to compare the fast one with.

Every frame goes through protobuf in full, nothing is scanned by hand, and the result is a flat list
of tuples: what a run of SENDs holds is listed message by message.
"""

from itertools import groupby
from struct import unpack_from
from typing import cast

from google.protobuf.message import DecodeError, Message
from google_crc32c import value as crc32c

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.decoder import FrameDecoder
from magnetar.wire.events import (
    AckOne,
    BadSend,
    Command,
    Event,
    Flow,
    Send,
    SendRun,
    UncheckedSends,
)
from magnetar.wire.framing import FRAME_BYTES_MAX_DEFAULT, ProtocolError

Flat = tuple[object, ...]


class Unreadable(Exception):
    """The stream cannot be read further; `flat` holds what came before."""

    def __init__(self, flat: list[Flat]) -> None:
        super().__init__()
        self.flat = flat


def flatten(events: list[Event]) -> list[Flat]:
    """The decoder's events in the reference's form."""
    flat: list[Flat] = []
    for event in events:
        if isinstance(event, SendRun):
            assert event.size_bytes == sum(map(len, event.entries))
            items = zip(
                event.sequence_ids,
                event.highest_sequence_ids,
                event.message_counts,
                event.entries,
                strict=True,
            )
            flat += [("send", event.producer_id, *item) for item in items]
        elif isinstance(event, UncheckedSends):
            run = event.run
            items = zip(
                run.sequence_ids,
                run.highest_sequence_ids,
                run.message_counts,
                run.entries,
                strict=True,
            )
            flat += [("unchecked send", run.producer_id, run.txn, *item) for item in items]
        elif isinstance(event, Send):
            flat.append(("odd send", event.command.SerializeToString(), event.entry))
        elif isinstance(event, BadSend):
            flat.append(("bad send", event.producer_id, event.sequence_id))
        elif isinstance(event, AckOne):
            flat.append(("ack", event.consumer_id, event.ledger_id, event.entry_id))
        elif isinstance(event, Flow):
            flat.append(("flow", event.consumer_id, event.permits))
        else:
            flat.append(_command(event))
    return by_producer(flat)


_STRETCHES = {"send": "send", "bad send": "send", "unchecked send": "unchecked send"}


def by_producer(flat: list[Flat]) -> list[Flat]:
    """With each stretch of SENDs in the order of producers: among them the order is free."""
    ordered: list[Flat] = []
    for kind, stretch in groupby(flat, lambda item: _STRETCHES.get(cast("str", item[0]))):
        items = list(stretch)
        ordered += sorted(items, key=lambda item: cast("int", item[1])) if kind else items
    return ordered


def _command(event: Command) -> Flat:
    return ("command", event.type, event.message.SerializeToString(), event.payload)


def reference_events(stream: bytes, frame_bytes_max: int) -> list[Flat]:
    """What the whole stream holds; raises Unreadable where it breaks."""
    flat: list[Flat] = []
    at = 0
    while len(stream) - at >= 8:
        total, size = unpack_from(">II", stream, at)
        if total + 4 > frame_bytes_max or size < 2 or size + 4 > total:
            raise Unreadable(flat)
        if len(stream) - at < total + 4:
            break
        command_end = at + 8 + size
        command = _parsed(stream[at + 8 : command_end], flat)
        at += total + 4
        flat.append(_event(command, stream[command_end:at]))
    return by_producer(flat)


def decoded(decoder: FrameDecoder, stream: bytes) -> tuple[list[Flat], bool]:
    """What the fast decoder makes of a stream, and whether all of it could be read."""
    try:
        return flatten(decoder.feed(stream)), True
    except ProtocolError as error:
        return flatten(error.events), False


def expected(
    stream: bytes, frame_bytes_max: int = FRAME_BYTES_MAX_DEFAULT
) -> tuple[list[Flat], bool]:
    """What it is to make of it."""
    try:
        return reference_events(stream, frame_bytes_max), True
    except Unreadable as unreadable:
        return by_producer(unreadable.flat), False


def _parsed(data: bytes, flat: list[Flat]) -> pb.BaseCommand:
    try:
        command = pb.BaseCommand.FromString(data)
    except DecodeError:
        raise Unreadable(flat) from None
    field = pb.BaseCommand.DESCRIPTOR.fields_by_number.get(command.type)
    if not command.IsInitialized() or field is None:
        raise Unreadable(flat)
    messages = [value for name, value in command.ListFields() if name.number == command.type]
    if not messages or not _sound(messages[0]):
        raise Unreadable(flat)
    return command


def _sound(message: Message) -> bool:
    """No string, however deep, that is not UTF-8."""
    for field, value in message.ListFields():
        for item in value if field.is_repeated else [value]:
            if field.type == field.TYPE_STRING and not isinstance(item, str):
                return False
            if isinstance(item, Message) and not _sound(item):
                return False
    return True


def _event(command: pb.BaseCommand, rest: bytes) -> Flat:
    if command.type == pb.BaseCommand.SEND:
        return _send(command.send, rest)
    if command.type == pb.BaseCommand.FLOW:
        return ("flow", command.flow.consumer_id, command.flow.messagePermits)
    if command.type == pb.BaseCommand.ACK:
        return _ack(command.ack)
    message = getattr(command, pb.BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)
    return ("command", command.type, message.SerializeToString(), rest or None)


def _send(send: pb.CommandSend, entry: bytes) -> Flat:
    if not entry_is_sound(entry):
        return ("bad send", send.producer_id, send.sequence_id)
    ordinary = {"producer_id", "sequence_id", "num_messages", "highest_sequence_id", "is_chunk"}
    odd = {field.name for field, _ in send.ListFields()} - ordinary
    if in_txn := odd & {"txnid_most_bits", "txnid_least_bits"}:
        odd -= in_txn
    highest = send.highest_sequence_id
    if odd or send.sequence_id >= 2**63 or highest >= 2**63 or send.num_messages <= 0:
        return ("odd send", send.SerializeToString(), entry)
    if in_txn:
        highest = max(highest, send.sequence_id)
        txn = (send.txnid_most_bits, send.txnid_least_bits)
        numbers = (send.sequence_id, highest, send.num_messages)
        return ("unchecked send", send.producer_id, txn, *numbers, entry)
    highest = max(highest, send.sequence_id)
    if has_delivery_time_bytes(entry):
        numbers = (send.sequence_id, highest, send.num_messages)
        return ("unchecked send", send.producer_id, None, *numbers, entry)
    return ("send", send.producer_id, send.sequence_id, highest, send.num_messages, entry)


def has_delivery_time_bytes(entry: bytes) -> bool:
    """Whether the tag of `deliver_at_time` occurs in the metadata of a sound entry."""
    if entry[:2] == b"\x0e\x01":
        entry = entry[6:]
    metadata = entry[4 : 4 + unpack_from(">I", entry)[0]]
    return b"\x98\x01" in metadata


def entry_is_sound(entry: bytes) -> bool:
    """As a producer may send it: checksum right, where there is one, and sizes that agree."""
    if entry[:2] == b"\x0e\x02":
        return False
    if entry[:2] == b"\x0e\x01":
        if len(entry) < 10 or unpack_from(">I", entry, 2)[0] != crc32c(entry[6:]):
            return False
        entry = entry[6:]
    return len(entry) >= 4 and 0 < unpack_from(">I", entry)[0] <= len(entry) - 4


def _ack(ack: pb.CommandAck) -> Flat:
    plain = {field.name for field, _ in ack.ListFields()} <= {
        "consumer_id",
        "ack_type",
        "message_id",
    }
    if plain and ack.ack_type == pb.CommandAck.Individual and len(ack.message_id) == 1:
        message_id = ack.message_id[0]
        if not message_id.ack_set and not message_id.HasField("first_chunk_message_id"):
            ids = [
                n - 2**64 if n >= 2**63 else n for n in (message_id.ledgerId, message_id.entryId)
            ]
            return ("ack", ack.consumer_id, *ids)
    return ("command", pb.BaseCommand.ACK, ack.SerializeToString(), None)
