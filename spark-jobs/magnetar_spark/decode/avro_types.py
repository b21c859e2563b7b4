"""Spark's types, and those of JSON values, for Avro's. Pure.

Dates, timestamps and decimals are what they are called; other logical types are the numbers or
bytes below them. A union of null and one type is that type; other unions and types that contain
themselves have no column.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypedDict

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from magnetar.core.errors import PreconditionFailed
from magnetar_spark.decode.avro_schema import DATE, DECIMAL, Logical, Node

PLAIN: Final[Mapping[str, DataType]] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
DIGITS_MAX: Final = 38
"""Of Spark's decimals."""
JSON_PLAIN: Final[Mapping[str, Any]] = {
    "null": None,
    "boolean": bool,
    "int": Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    "long": Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
}
"""msgspec takes no number with a fraction for an integer, and bytes in base64."""


def spark_type_of(node: Node, *, logical_types: bool = True) -> DataType:
    """Raises PreconditionFailed naming what has no type in Spark."""
    return _Types(logical_types=logical_types).type_of(node)


class _Types:
    """One conversion; remembers the records that it is within."""

    def __init__(self, *, logical_types: bool) -> None:
        self._logical_types = logical_types
        self._within: list[Node] = []

    def type_of(self, node: Node) -> DataType:
        if node.kind == "union":
            return self.type_of(only_branch(node))
        if node.logical is not None and self._logical_types:
            return _logical_type(node.logical)
        if node.kind == "record":
            return self._record(node)
        if node.kind == "array":
            return ArrayType(self.type_of(node.element))
        if node.kind == "map":
            return MapType(StringType(), self.type_of(node.element))
        return PLAIN[node.kind]

    def _record(self, node: Node) -> StructType:
        if any(node is each for each in self._within):
            raise PreconditionFailed(f"the type '{node.name}' contains itself")
        self._within.append(node)
        fields = [StructField(each.name, self.type_of(each.node)) for each in node.fields]
        self._within.pop()
        return StructType(fields)


def only_branch(node: Node) -> Node:
    """The one type beside null; raises PreconditionFailed where there are more, or none."""
    rest = node.without_null()
    if len(rest) != 1:
        raise PreconditionFailed(f"a union of {len(rest)} types beside null has no column")
    return rest[0]


def _logical_type(logical: Logical) -> DataType:
    if logical.name == DECIMAL:
        if logical.precision > DIGITS_MAX:
            raise PreconditionFailed(f"{logical} has more than the {DIGITS_MAX} digits of Spark's")
        return DecimalType(logical.precision, logical.scale)
    return DateType() if logical.name == DATE else TimestampType()


def json_type_of(node: Node) -> Any:
    """What msgspec decodes a JSON value as; of a type that has a type in Spark.

    Every value may be null, and every field missing, as Jackson has it.
    """
    if node.kind == "union":
        return json_type_of(only_branch(node))
    if node.kind == "record":
        kinds = {each.name: json_type_of(each.node) for each in node.fields}
        return TypedDict("Row", kinds, total=False) | None  # type: ignore[operator]
    if node.kind == "array":
        return list[json_type_of(node.element)] | None  # type: ignore[misc]
    if node.kind == "map":
        return dict[str, json_type_of(node.element)] | None  # type: ignore[misc]
    kind = JSON_PLAIN[node.kind]
    return None if kind is None else kind | None
