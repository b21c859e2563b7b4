"""KEY_VALUE schemas: two definitions with their lengths on the wire, one JSON text in REST.

    key_size:u32 key value_size:u32 value   <->   {"key": …, "value": …}

A definition that is a JSON object is an object in the text; any other is a string.
"""

import struct

import msgspec

from magnetar.schemas.model import InvalidSchemaData

_U32 = struct.Struct(">I")
_EMPTY_SIZE = 0xFFFFFFFF
"""The size -1, which some clients write for a part without a definition."""


def decode(data: bytes) -> str:
    """Returns the JSON text; raises InvalidSchemaData if the lengths do not fit."""
    key, rest = _part(data)
    value, rest = _part(rest)
    if rest:
        raise InvalidSchemaData("A KEY_VALUE schema has bytes after its value's definition")
    return msgspec.json.encode({"key": _readable(key), "value": _readable(value)}).decode()


def encode(text: str) -> bytes:
    """Returns the wire form of the JSON text; raises InvalidSchemaData."""
    try:
        document = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        key, value = _definition(document["key"]), _definition(document["value"])
    except (msgspec.MsgspecError, KeyError) as error:
        raise InvalidSchemaData(
            "Invalid schema definition data for KEY_VALUE schema: it must be "
            f'{{"key": …, "value": …}} ({error})'
        ) from None
    return b"".join((_U32.pack(len(key)), key, _U32.pack(len(value)), value))


def _part(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < _U32.size:
        raise InvalidSchemaData("A KEY_VALUE schema ends within a length")
    size = _U32.unpack_from(data)[0]
    size = 0 if size == _EMPTY_SIZE else size
    end = _U32.size + size
    if end > len(data):
        raise InvalidSchemaData("A KEY_VALUE schema ends within a definition")
    return data[_U32.size : end], data[end:]


def _readable(definition: bytes) -> object:
    try:
        document = msgspec.json.decode(definition)
    except msgspec.MsgspecError:
        document = None
    return document if isinstance(document, dict | list) else definition.decode("utf-8", "replace")


def _definition(raw: msgspec.Raw) -> bytes:
    data = bytes(raw).strip()
    return msgspec.json.decode(data, type=str).encode() if data.startswith(b'"') else data
