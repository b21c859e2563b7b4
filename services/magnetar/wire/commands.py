"""The field of `BaseCommand` for each command type, and the strict parser of commands.

The parser is stricter than protobuf's Python runtime, so that handlers can rely on a message: every
required field is set, and every `string` is a `str` (the runtime returns `bytes` for invalid
UTF-8).
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
"""The name of a command's field, which has the number of the command's type."""


def command_name(number: int) -> str:
    """The protocol's name of a command type."""
    return CommandType.Name(CommandType.ValueType(number))


_TextFields = tuple[tuple[str, bool, "_TextFields | None"], ...]


def _text_fields(
    descriptor: Descriptor | None, ancestors: tuple[Descriptor, ...] = ()
) -> _TextFields:
    """Returns the fields with text: (name, repeated, the text fields inside; None for a string)."""
    fields: list[tuple[str, bool, _TextFields | None]] = []
    if descriptor is None:
        return ()
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            fields.append((field.name, field.is_repeated, None))
        elif field.message_type is not None and field.message_type not in ancestors:
            inside = _text_fields(field.message_type, (*ancestors, descriptor))
            if inside:
                fields.append((field.name, field.is_repeated, inside))
    return tuple(fields)


_TEXT_OF_TYPE: Final[dict[int, _TextFields]] = {
    number: _text_fields(BaseCommand.DESCRIPTOR.fields_by_number[number].message_type)
    for number in FIELD_OF_TYPE
}


def _text_is_sound(message: Message, fields: _TextFields) -> bool:
    """Whether all text in these fields is valid UTF-8."""
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
    """Returns a serialized `BaseCommand`'s type and its message; raises ProtocolError."""
    try:
        command = BaseCommand.FromString(data)
    except DecodeError as error:
        raise ProtocolError("A command cannot be parsed") from error
    if not command.IsInitialized():
        raise ProtocolError("A command lacks its type or a required field")
    number = command.type
    field = FIELD_OF_TYPE[number]
    message_of_any_type: Message = command  # its HasField takes names that are not literals
    if not message_of_any_type.HasField(field):
        raise ProtocolError(f"A command of type {CommandType.Name(number)} has no {field}")
    message: Message = getattr(command, field)
    if not _text_is_sound(message, _TEXT_OF_TYPE[number]):
        raise ProtocolError(f"A command of type {CommandType.Name(number)} has text not in UTF-8")
    return number, message
