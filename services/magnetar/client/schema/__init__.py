"""Schemas: how values become the bytes of messages, and the reverse.

Names are imported when they are first used: records need more modules than bytes and text.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from magnetar.client.schema.api import BytesSchema, Schema, StringSchema
    from magnetar.client.schema.auto_consume import AutoConsumeSchema
    from magnetar.client.schema.avro import AvroSchema
    from magnetar.client.schema.derive import AvroType, Float32, Int32
    from magnetar.client.schema.json_schema import JsonSchema
    from magnetar.client.schema.key_value import KeyValue, KeyValueSchema
    from magnetar.client.schema.primitives import (
        BooleanSchema,
        DateSchema,
        DoubleSchema,
        FloatSchema,
        InstantSchema,
        Int8Schema,
        Int16Schema,
        Int32Schema,
        Int64Schema,
        LocalDateSchema,
        LocalDateTimeSchema,
        LocalTimeSchema,
        TimeSchema,
        TimestampSchema,
    )
    from magnetar.client.schema.protobuf import ProtobufNativeSchema
    from magnetar.schemas.model import SchemaInfo, SchemaType

_PACKAGE: Final = "magnetar.client.schema"
_MODULES: Final = {
    f"{_PACKAGE}.api": ("BytesSchema", "Schema", "StringSchema"),
    f"{_PACKAGE}.auto_consume": ("AutoConsumeSchema",),
    f"{_PACKAGE}.avro": ("AvroSchema",),
    f"{_PACKAGE}.derive": ("AvroType", "Float32", "Int32"),
    f"{_PACKAGE}.json_schema": ("JsonSchema",),
    f"{_PACKAGE}.key_value": ("KeyValue", "KeyValueSchema"),
    f"{_PACKAGE}.primitives": (
        "BooleanSchema", "DateSchema", "DoubleSchema", "FloatSchema", "InstantSchema",
        "Int8Schema", "Int16Schema", "Int32Schema", "Int64Schema", "LocalDateSchema",
        "LocalDateTimeSchema", "LocalTimeSchema", "TimeSchema", "TimestampSchema",
    ),
    f"{_PACKAGE}.protobuf": ("ProtobufNativeSchema",),
    "magnetar.schemas.model": ("SchemaInfo", "SchemaType"),
}  # fmt: skip
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AutoConsumeSchema",
    "AvroSchema",
    "AvroType",
    "BooleanSchema",
    "BytesSchema",
    "DateSchema",
    "DoubleSchema",
    "Float32",
    "FloatSchema",
    "InstantSchema",
    "Int8Schema",
    "Int16Schema",
    "Int32",
    "Int32Schema",
    "Int64Schema",
    "JsonSchema",
    "KeyValue",
    "KeyValueSchema",
    "LocalDateSchema",
    "LocalDateTimeSchema",
    "LocalTimeSchema",
    "ProtobufNativeSchema",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "StringSchema",
    "TimeSchema",
    "TimestampSchema",
]


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value
