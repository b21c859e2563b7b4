"""JSON schemas in the format of clients before 2.1: a JSON Schema document, told by its `id`.

Pulsar's JSON schemas are Avro schemas today. Pulsar 4.2 takes the old format only where
`schemaJsonAllowLegacyJacksonFormat` says so, and it is off by default; here it is never taken.
What an older cluster registered can still be told apart, so that its error says what it is.
"""

from typing import Final

from magnetar.broker.schema.avro_parse import AvroParseError, Schema, parse_avro
from magnetar.core.errors import IncompatibleSchema

NEW_IS_NOT_AVRO: Final = "Incompatible schema: expected Avro schema format for SchemaType.JSON"
OLD_IS_NOT_AVRO: Final = (
    "Incompatible schema: existing schema is not in valid Avro format for SchemaType.JSON"
)


def json_schemas(existing: bytes, new: bytes) -> tuple[Schema, Schema]:
    """Both as Avro schemas; raises IncompatibleSchema for the one that is none."""
    try:
        old = parse_avro(existing)
    except AvroParseError as error:
        raise IncompatibleSchema(OLD_IS_NOT_AVRO) from error
    try:
        return old, parse_avro(new)
    except AvroParseError as error:
        raise IncompatibleSchema(NEW_IS_NOT_AVRO) from error
