"""Maps Avro types to Spark types, and to types for decoding JSON. Pure.

Dates, timestamps and decimals get their Spark types; other logical types stay the numbers or bytes
below them. A union of null and one type is that type; other unions, and recursive types, have no
column.
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
"""The maximal precision of Spark's decimals."""
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
"""msgspec refuses numbers with a fraction for integers, and reads bytes from base64."""


def spark_type_of(node: Node, *, logical_types: bool = True) -> DataType:
    """The Spark type of a node. Raises PreconditionFailed naming a type that Spark lacks."""
    return _Types(logical_types=logical_types).type_of(node)


class _Types:
    """One conversion; tracks the enclosing records."""

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
        if any(node is outer for outer in self._within):
            raise PreconditionFailed(f"the type '{node.name}' contains itself")
        self._within.append(node)
        fields = [StructField(inner.name, self.type_of(inner.node)) for inner in node.fields]
        self._within.pop()
        return StructType(fields)


def only_branch(node: Node) -> Node:
    """The type of a union beside null. Raises PreconditionFailed unless there is exactly one."""
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
    """The type as which msgspec decodes a JSON value, for a node that has a Spark type.

    As in Jackson, every value may be null, and every field may be missing.
    """
    if node.kind == "union":
        return json_type_of(only_branch(node))
    if node.kind == "record":
        kinds = {inner.name: json_type_of(inner.node) for inner in node.fields}
        return TypedDict("Row", kinds, total=False) | None  # type: ignore[operator]
    if node.kind == "array":
        return list[json_type_of(node.element)] | None  # type: ignore[misc]
    if node.kind == "map":
        return dict[str, json_type_of(node.element)] | None  # type: ignore[misc]
    kind = JSON_PLAIN[node.kind]
    return None if kind is None else kind | None
