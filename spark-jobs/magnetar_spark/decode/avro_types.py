"""Spark's types for Avro's, which describe JSON values as well. Pure.

Dates, timestamps and decimals are what they are called; other logical types are the numbers or
bytes below them. A union of null and one type is that type; other unions and types that contain
themselves have no column.
"""

from collections.abc import Mapping
from typing import Any, Final

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
LOGICAL: Final[Mapping[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
}
DECIMAL: Final = "decimal"


def without_unknown_logical_types(definition: Any, *, all_of_them: bool = False) -> Any:
    """The definition, in which only the logical types stay that have a type in Spark."""
    if isinstance(definition, list):
        return [without_unknown_logical_types(each, all_of_them=all_of_them) for each in definition]
    if not isinstance(definition, dict):
        return definition
    known = (*LOGICAL, DECIMAL)
    return {
        key: without_unknown_logical_types(value, all_of_them=all_of_them)
        if key in ("type", "items", "values", "fields")
        else value
        for key, value in definition.items()
        if key != "logicalType" or (value in known and not all_of_them)
    }


def spark_type_of(definition: Any) -> DataType:
    """Raises PreconditionFailed naming what has no type in Spark."""
    return _Names().type_of(definition)


class _Names:
    """Types that were defined with a name may be referred to by it."""

    def __init__(self) -> None:
        self._known: dict[str, DataType | None] = {}

    def type_of(self, definition: Any) -> DataType:
        if isinstance(definition, list):
            return self._union(definition)
        if isinstance(definition, str):
            return self._by_name(definition)
        kind = definition.get("type")
        if isinstance(kind, dict | list):
            return self.type_of(kind)
        logical = definition.get("logicalType")
        if logical == DECIMAL:
            return DecimalType(int(definition["precision"]), int(definition.get("scale", 0)))
        if logical in LOGICAL:
            return LOGICAL[logical]
        if kind == "record":
            return self._record(definition)
        if kind == "array":
            return ArrayType(self.type_of(definition["items"]))
        if kind == "map":
            return MapType(StringType(), self.type_of(definition["values"]))
        found = self._by_name(kind)
        if kind in ("enum", "fixed"):
            self._name(definition, found)
        return found

    def _record(self, definition: Mapping[str, Any]) -> StructType:
        self._name(definition, None)
        fields = [
            StructField(field["name"], self.type_of(field["type"]))
            for field in definition["fields"]
        ]
        made = StructType(fields)
        self._name(definition, made)
        return made

    def _name(self, definition: Mapping[str, Any], made: DataType | None) -> None:
        name = definition.get("name", "")
        self._known[name] = made
        if space := definition.get("namespace"):
            self._known[f"{space}.{name}"] = made

    def _by_name(self, name: str) -> DataType:
        if name in PLAIN:
            return PLAIN[name]
        found = self._known.get(name) or self._known.get(name.rpartition(".")[2])
        if found is None:
            raise PreconditionFailed(f"the type '{name}' is unknown, or contains itself")
        return found

    def _union(self, kinds: list[Any]) -> DataType:
        rest = [kind for kind in kinds if kind != "null"]
        if len(rest) != 1:
            raise PreconditionFailed(f"a union of {len(rest)} types beside null has no column")
        return self.type_of(rest[0])
