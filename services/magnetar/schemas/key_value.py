"""KEY_VALUE schemas: two schemas in one definition.

The definition consists of the key's and the value's, each preceded by its length (4 bytes,
big-endian; -1: none). Their types, names and properties are in the properties `key.schema.type`,
`key.schema.name` and `key.schema.properties` (JSON), and the same with `value`; a missing type
means BYTES. `kv.encoding.type` says whether the key is in the payload (INLINE) or is the message's
key (SEPARATED); Pulsar does not compare it.
"""

from typing import Final

import msgspec

from magnetar.schemas.model import InvalidSchemaData, SchemaInfo, SchemaType

_LENGTH_BYTES: Final = 4
ENCODING: Final = "kv.encoding.type"
INLINE: Final = "INLINE"
SEPARATED: Final = "SEPARATED"
_MALFORMED: Final = "Invalid schema definition data for KEY_VALUE schema"


def split_key_value(schema: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    """Returns the key's and the value's schema; raises InvalidSchemaData."""
    key, rest = _take(schema.data)
    value, _ = _take(rest)
    return _part(schema, "key", key), _part(schema, "value", value)


def join_key_value(
    key: SchemaInfo, value: SchemaInfo, *, separated: bool, name: str = "KeyValue"
) -> SchemaInfo:
    """Returns the schema of pairs, with the properties of Java's client."""
    properties = {ENCODING: SEPARATED if separated else INLINE}
    data = b""
    for part, schema in (("key", key), ("value", value)):
        properties[f"{part}.schema.name"] = schema.name
        properties[f"{part}.schema.type"] = schema.type.name
        properties[f"{part}.schema.properties"] = msgspec.json.encode(schema.properties).decode()
        data += len(schema.data).to_bytes(_LENGTH_BYTES, "big") + schema.data
    return SchemaInfo(SchemaType.KEY_VALUE, data, properties, name)


def _take(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < _LENGTH_BYTES:
        raise InvalidSchemaData(_MALFORMED)
    length = int.from_bytes(data[:_LENGTH_BYTES], "big", signed=True)
    rest = data[_LENGTH_BYTES:]
    if length == -1:
        return b"", rest
    if not 0 <= length <= len(rest):
        raise InvalidSchemaData(_MALFORMED)
    return rest[:length], rest[length:]


def _part(schema: SchemaInfo, part: str, data: bytes) -> SchemaInfo:
    name = schema.properties.get(f"{part}.schema.type", SchemaType.BYTES.name)
    try:
        kind = SchemaType[name]
    except KeyError as error:
        raise InvalidSchemaData(f"Unknown schema type : {name}") from error
    encoded = schema.properties.get(f"{part}.schema.properties")
    properties: dict[str, str] = {}
    if encoded:
        try:
            properties = msgspec.json.decode(encoded, type=dict[str, str])
        except msgspec.MsgspecError as error:
            raise InvalidSchemaData(_MALFORMED) from error
    return SchemaInfo(kind, data, properties, schema.properties.get(f"{part}.schema.name", ""))
