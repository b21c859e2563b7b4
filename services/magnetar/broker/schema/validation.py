"""Checks a schema's definition when it is registered.

Rules and texts are Pulsar's (SchemaDataValidator). Definitions of AVRO, JSON and PROTOBUF schemas
are Avro schemas, and an AVRO schema is not a union. Primitives have no definition, except for the
`null` that old Python clients send with STRING. EXTERNAL definitions are not checked.
"""

from magnetar.schemas.avro_parse import AvroParseError, parse_avro
from magnetar.schemas.key_value import split_key_value
from magnetar.schemas.model import AVRO_BASED, InvalidSchemaData, SchemaInfo, SchemaType
from magnetar.schemas.protobuf import root_message


def check_definition(schema: SchemaInfo) -> None:
    """Raises InvalidSchemaData if the definition is not valid for its type."""
    kind = schema.type
    if kind in AVRO_BASED:
        _check_avro(schema)
    elif kind is SchemaType.PROTOBUF_NATIVE:
        root_message(schema.data)
    elif kind is SchemaType.KEY_VALUE:
        key, value = split_key_value(schema)
        check_definition(key)
        check_definition(value)
    elif kind is SchemaType.STRING:
        if schema.data and schema.data != b"null":
            raise InvalidSchemaData(
                "Invalid schema definition data for string schema : "
                f"'{schema.data.decode(errors='replace')}'"
            )
    elif kind is SchemaType.AUTO_CONSUME:
        raise InvalidSchemaData(f"Schema {kind.name} is a client-side schema type")
    elif kind not in (SchemaType.NONE, SchemaType.BYTES, SchemaType.EXTERNAL) and schema.data:
        raise InvalidSchemaData(
            "Invalid schema definition data for primitive schemas :length of schema data should "
            f"be zero, but {len(schema.data)} bytes is found"
        )


def _check_avro(schema: SchemaInfo) -> None:
    try:
        parsed = parse_avro(schema.data)
    except (AvroParseError, RecursionError) as error:
        raise InvalidSchemaData(
            f"Invalid schema definition data for {schema.type.name} schema"
        ) from error
    if schema.type is SchemaType.AVRO and parsed.type == "union":
        raise InvalidSchemaData("Avro schema typed [UNION] is not supported")
