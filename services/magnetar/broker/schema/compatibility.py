"""Checks that a new schema is compatible with earlier ones, by type and strategy.

BACKWARD: the new schema can read old data. FORWARD: the old schema can read new data. FULL: both.
The plain strategies consider only the latest version, the TRANSITIVE ones all versions since the
last deletion. Only ALWAYS_COMPATIBLE allows another schema type. Semantics and texts are those of
Pulsar 4.2's SchemaRegistryServiceImpl and its checks, including its oddities: definitions of
primitives, PROTOBUF and EXTERNAL schemas are not compared at all.
"""

from collections.abc import Sequence

from magnetar.broker.schema.avro_text import avro_text
from magnetar.broker.schema.json_schema import json_schemas
from magnetar.core.errors import IncompatibleSchema
from magnetar.schemas.avro import avro_equal, can_read
from magnetar.schemas.avro_parse import AvroParseError, Schema, parse_avro
from magnetar.schemas.key_value import split_key_value
from magnetar.schemas.model import (
    AVRO_BASED,
    DEFAULT_STRATEGY,
    CompatibilityStrategy,
    SchemaInfo,
    SchemaType,
)
from magnetar.schemas.protobuf import root_message


def same_schema(a: SchemaInfo, b: SchemaInfo) -> bool:
    """Whether registering `b` after `a` creates no new version: same type, same definition.

    Avro definitions are compared by meaning; the order of attributes and white space do not matter.
    """
    if a.type != b.type:
        return False
    if a.data == b.data:
        return True
    if a.type not in AVRO_BASED:
        return False
    try:
        return avro_equal(parse_avro(a.data), parse_avro(b.data))
    except (AvroParseError, RecursionError):
        return False


def check_latest(existing: SchemaInfo, new: SchemaInfo, strategy: CompatibilityStrategy) -> None:
    """Raises IncompatibleSchema if `new` is incompatible with the latest version."""
    if strategy is CompatibilityStrategy.ALWAYS_COMPATIBLE:
        return
    _check_types((existing,), new)
    if existing.data != new.data:
        _check((existing,), new, strategy)


def check_all(
    existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: CompatibilityStrategy
) -> None:
    """Raises IncompatibleSchema if `new` is incompatible with any version (oldest first)."""
    if strategy is CompatibilityStrategy.ALWAYS_COMPATIBLE:
        return
    _check_types(existing, new)
    _check(existing, new, strategy)


def _check_types(existing: Sequence[SchemaInfo], new: SchemaInfo) -> None:
    for schema in existing:
        if schema.type != new.type:
            raise IncompatibleSchema(
                f"Incompatible schema: exists schema type {schema.type.name}, "
                f"new schema type {new.type.name}"
            )


def _check(
    existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: CompatibilityStrategy
) -> None:
    if strategy is CompatibilityStrategy.UNDEFINED:
        strategy = DEFAULT_STRATEGY
    match new.type:
        case SchemaType.AVRO | SchemaType.JSON:
            # Newest first: the error should name the newest incompatible version.
            for schema in reversed(existing):
                _check_avro(schema, new, strategy)
        case SchemaType.PROTOBUF_NATIVE:
            for schema in existing:
                _check_protobuf(schema, new, strategy)
        case SchemaType.KEY_VALUE:
            _check_key_value(existing, new, strategy)
        case SchemaType.EXTERNAL:
            pass
        case _:
            if strategy is CompatibilityStrategy.ALWAYS_INCOMPATIBLE:
                raise IncompatibleSchema("Schema compatibility strategy is ALWAYS_INCOMPATIBLE")


def _check_avro(existing: SchemaInfo, new: SchemaInfo, strategy: CompatibilityStrategy) -> None:
    try:
        if new.type is SchemaType.JSON:
            old_schema, new_schema = json_schemas(existing.data, new.data)
        else:
            old_schema, new_schema = parse_avro(existing.data), parse_avro(new.data)
        if strategy is CompatibilityStrategy.ALWAYS_INCOMPATIBLE:
            # Pulsar names the new schema twice here; only the refusal matters.
            raise _unreadable(new_schema, new_schema, strategy)
        if strategy.old_reads_new and not can_read(new_schema, old_schema):
            raise _unreadable(new_schema, old_schema, strategy)
        if strategy.new_reads_old and not can_read(old_schema, new_schema):
            raise _unreadable(old_schema, new_schema, strategy)
    except AvroParseError as error:
        raise IncompatibleSchema(f"org.apache.avro.SchemaParseException: {error}") from error
    except RecursionError as error:
        raise IncompatibleSchema("Schemas refer to each other too deeply") from error


def _unreadable(
    writer: Schema, reader: Schema, strategy: CompatibilityStrategy
) -> IncompatibleSchema:
    return IncompatibleSchema(
        f"Error during schema compatibility check with strategy {strategy}: "
        "org.apache.avro.SchemaValidationException: "
        f"Unable to read schema: \n{avro_text(writer)}\nusing schema:\n{avro_text(reader)}"
    )


def _check_protobuf(existing: SchemaInfo, new: SchemaInfo, strategy: CompatibilityStrategy) -> None:
    if strategy is CompatibilityStrategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchema("Unknown SchemaCompatibilityStrategy.")
    old_root, new_root = root_message(existing.data), root_message(new.data)
    if old_root != new_root:
        raise IncompatibleSchema(
            f"Protobuf root message change is not allowed under the '{strategy}' strategy. "
            f"Original message name: '{old_root}', new message name: '{new_root}'."
        )


def _check_key_value(
    existing: Sequence[SchemaInfo], new: SchemaInfo, strategy: CompatibilityStrategy
) -> None:
    new_key, new_value = split_key_value(new)
    keys: list[SchemaInfo] = []
    values: list[SchemaInfo] = []
    for schema in existing:
        key, value = split_key_value(schema)
        if key.type != new_key.type or value.type != new_value.type:
            raise IncompatibleSchema(
                "Key schemas or Value schemas are different schema type, "
                f"from key schema type is {key.type.name} and to key schema is "
                f"{new_key.type.name}, from value schema is {value.type.name} and to value "
                f"schema is {new_value.type.name}"
            )
        keys.append(key)
        values.append(value)
    _check(keys, new_key, strategy)
    _check(values, new_value, strategy)
