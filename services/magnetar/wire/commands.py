"""Which field of `BaseCommand` belongs to which type, and parsing a command in full.

Parsing is stricter than protobuf's Python runtime, so that whoever handles a message can rely on
it: required fields are there, and every `string` is a `str` (for invalid UTF-8 the runtime would
hand out `bytes` instead).
"""

from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from magnetar.wire._pb.PulsarApi_pb2 import BaseCommand
from magnetar.wire.framing import ProtocolError

CommandType = BaseCommand.Type

FIELD_OF_TYPE: Final[dict[int, str]] = {
    number: BaseCommand.DESCRIPTOR.fields_by_number[number].name
    for number in BaseCommand.Type.values()
}
"""A command's field has the number of its type."""

_TextFields = tuple[tuple[str, bool, "_TextFields | None"], ...]


def _text_fields(descriptor: Descriptor | None, above: tuple[Descriptor, ...] = ()) -> _TextFields:
    """Fields that hold text: (name, repeated, the text fields inside or None for a string)."""
    found: list[tuple[str, bool, _TextFields | None]] = []
    if descriptor is None:
        return ()
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            found.append((field.name, field.is_repeated, None))
        elif field.message_type is not None and field.message_type not in above:
            inside = _text_fields(field.message_type, (*above, descriptor))
            if inside:
                found.append((field.name, field.is_repeated, inside))
    return tuple(found)


_TEXT_OF_TYPE: Final[dict[int, _TextFields]] = {
    number: _text_fields(BaseCommand.DESCRIPTOR.fields_by_number[number].message_type)
    for number in FIELD_OF_TYPE
}


def _text_is_sound(message: Message, fields: _TextFields) -> bool:
    for name, repeated, inside in fields:
        if repeated:
            values = getattr(message, name)
        elif message.HasField(name):
            values = (getattr(message, name),)
        else:
            continue
        for value in values:
            if not (isinstance(value, str) if inside is None else _text_is_sound(value, inside)):
                return False
    return True


def parse_command(data: bytes) -> tuple[int, Message]:
    """The type of a serialized `BaseCommand`, and the message that belongs to that type."""
    try:
        command = BaseCommand.FromString(data)
    except DecodeError as error:
        raise ProtocolError("A command cannot be parsed") from error
    if not command.IsInitialized():
        raise ProtocolError("A command lacks its type or a required field")
    number = command.type
    field = FIELD_OF_TYPE[number]
    if not command.HasField(field):  # type: ignore[arg-type]  # one of the fields by construction
        raise ProtocolError(f"A command of type {CommandType.Name(number)} has no {field}")
    message: Message = getattr(command, field)
    if not _text_is_sound(message, _TEXT_OF_TYPE[number]):
        raise ProtocolError(f"A command of type {CommandType.Name(number)} has text not in UTF-8")
    return number, message
