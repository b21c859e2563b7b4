"""JSON schemas, and those in the format of clients before 2.1: JSON Schema documents with an `id`.

Current JSON schemas are Avro schemas. Pulsar 4.2 accepts the old format only with
`schemaJsonAllowLegacyJacksonFormat`, which is off by default. Magnetar never accepts it, but a
separate error shows if a schema from an older cluster has it.
"""

from typing import Final

from magnetar.core.errors import IncompatibleSchema
from magnetar.schemas.avro_parse import AvroParseError, Schema, parse_avro

NEW_IS_NOT_AVRO: Final = "Incompatible schema: expected Avro schema format for SchemaType.JSON"
OLD_IS_NOT_AVRO: Final = (
    "Incompatible schema: existing schema is not in valid Avro format for SchemaType.JSON"
)


def json_schemas(existing: bytes, new: bytes) -> tuple[Schema, Schema]:
    """Parses both as Avro schemas; raises IncompatibleSchema with the one that is not Avro."""
    try:
        old = parse_avro(existing)
    except AvroParseError as error:
        raise IncompatibleSchema(OLD_IS_NOT_AVRO) from error
    try:
        return old, parse_avro(new)
    except AvroParseError as error:
        raise IncompatibleSchema(NEW_IS_NOT_AVRO) from error
