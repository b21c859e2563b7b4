"""Frames for the wire's tests: the usual ones, and one of each command with any fields."""

import random
from struct import pack

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import FIELD_OF_TYPE
from magnetar.wire.entry import build_entry

NUMBERS = (0, 1, 127, 128, 300, 16_383, 16_384, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
REPEATS_MAX = 3
DEPTH_MAX = 3


def frame(command: bytes, rest: bytes = b"") -> bytes:
    return pack(">II", len(command) + 4 + len(rest), len(command)) + command + rest


def entry(sequence_id: int = 0, payload: bytes = b"payload", **fields: object) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    for name, value in fields.items():
        setattr(metadata, name, value)
    return build_entry(metadata, payload)


def send(producer_id: int, sequence_id: int, data: bytes | None = None, **fields: object) -> bytes:
    command = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
    for name, value in fields.items():
        setattr(command, name, value)
    base = pb.BaseCommand(type=pb.BaseCommand.SEND, send=command)
    return frame(base.SerializeToString(), entry(sequence_id) if data is None else data)


def ack(consumer_id: int, ledger_id: int, entry_id: int) -> bytes:
    command = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.Individual,
        message_id=[pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)],
    )
    return frame(pb.BaseCommand(type=pb.BaseCommand.ACK, ack=command).SerializeToString())


def flow(consumer_id: int, permits: int) -> bytes:
    command = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    return frame(pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=command).SerializeToString())


def ping() -> bytes:
    return frame(
        pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()).SerializeToString()
    )


def any_command(rng: random.Random, number: int) -> pb.BaseCommand:
    """A command of the type, its required fields set and any of the others."""
    command = pb.BaseCommand(type=number)  # type: ignore[arg-type]
    message = getattr(command, FIELD_OF_TYPE[number])
    message.SetInParent()
    _fill(rng, message, DEPTH_MAX)
    return command


def _fill(rng: random.Random, message: Message, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and (rng.random() < 0.5 or not depth):
            continue
        if field.message_type is not None:
            targets = (
                [getattr(message, field.name).add() for _ in range(rng.randint(0, REPEATS_MAX))]
                if field.is_repeated
                else [getattr(message, field.name)]
            )
            for target in targets:
                target.SetInParent()
                _fill(rng, target, depth - 1)
        elif field.enum_type is not None:
            setattr(message, field.name, rng.choice(list(field.enum_type.values_by_number)))
        elif field.is_repeated:
            values = [_scalar(rng, field.type) for _ in range(rng.randint(0, REPEATS_MAX))]
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, _scalar(rng, field.type))


_BITS = {
    FieldDescriptor.TYPE_INT32: 32,
    FieldDescriptor.TYPE_UINT32: 32,
    FieldDescriptor.TYPE_INT64: 64,
    FieldDescriptor.TYPE_UINT64: 64,
}
_SIGNED = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64}


def _scalar(rng: random.Random, kind: int) -> object:
    """A value for a field of that `FieldDescriptor.TYPE_*`."""
    if kind == FieldDescriptor.TYPE_STRING:
        return rng.choice(("", "persistent://public/default/t", "key-\u00e9", "x" * 200))
    if kind == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 20)))
    if kind == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.TYPE_DOUBLE:
        return rng.random()
    number = rng.choice(NUMBERS) % 2 ** _BITS[kind]
    return number - 2 ** _BITS[kind] if kind in _SIGNED and number >> _BITS[kind] - 1 else number
