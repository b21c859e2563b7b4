"""Avro definitions and Arrow types of a DataFrame's columns. Pure.

The definition of a record is also that of a JSON schema, as Pulsar's clients have it. Nullable
columns become unions with null and default to null, so that a column can be added later.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from magnetar.core.errors import PreconditionFailed

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[dict[type[DataType], str]] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
}
_LOGICAL: Final[dict[type[DataType], tuple[str, str]]] = {
    DateType: ("int", "date"),
    TimestampType: ("long", "timestamp-micros"),
    TimestampNTZType: ("long", "local-timestamp-micros"),
}


def record_definition(
    name: str, columns: Iterable[StructField], *, decimals: bool
) -> dict[str, Any]:
    """Returns the definition of a record with these columns. Raises PreconditionFailed.

    `decimals` is false if the encoding has no decimals.
    """
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise PreconditionFailed(
            f"recordName '{name}': write an Avro name, like Order or a.b.Order"
        )
    return _record(name, columns, decimals)


def _record(name: str, columns: Iterable[StructField], decimals: bool) -> dict[str, Any]:
    space, _, short = name.rpartition(".")
    fields = []
    for column in columns:
        if not _NAME.fullmatch(column.name):
            raise PreconditionFailed(
                f"column '{column.name}' of {name}: Avro names have letters, digits and '_', and "
                "do not begin with a digit; rename it"
            )
        kind = _type(f"{name}.{column.name}", column.dataType, decimals)
        fields.append(
            {"name": column.name, "type": ["null", kind], "default": None}
            if column.nullable
            else {"name": column.name, "type": kind}
        )
    head = {"type": "record", "name": short, "fields": fields}
    return {**head, "namespace": space} if space else head


def _type(path: str, kind: DataType, decimals: bool) -> Any:
    plain = _PLAIN.get(type(kind)) or ("string" if isinstance(kind, StringType) else None)
    if plain is not None:
        return plain
    if type(kind) in _LOGICAL:
        below, logical = _LOGICAL[type(kind)]
        return {"type": below, "logicalType": logical}
    if isinstance(kind, DecimalType) and decimals:
        scale = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **scale}
    if isinstance(kind, StructType):
        return _record(path, kind.fields, decimals)
    if isinstance(kind, ArrayType):
        return {
            "type": "array",
            "items": _nested(path, kind.elementType, kind.containsNull, decimals),
        }
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        values = _nested(path, kind.valueType, kind.valueContainsNull, decimals)
        return {"type": "map", "values": values}
    raise PreconditionFailed(
        f"column {path} has the type {kind.simpleString()}, which this schema cannot have: cast it"
    )


def _nested(path: str, kind: DataType, nullable: bool, decimals: bool) -> Any:
    inner = _type(path, kind, decimals)
    return ["null", inner] if nullable else inner
