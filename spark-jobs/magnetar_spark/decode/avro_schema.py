"""Parses Avro definitions into trees of nodes: resolves names, checks logical types. Pure.

Names are full names, with the enclosing namespace. A logical type that does not fit the type below
it, or has no Spark type, is ignored, as Avro demands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.core.errors import PreconditionFailed

PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
DATE: Final = "date"
MILLIS: Final = "timestamp-millis"
MICROS: Final = "timestamp-micros"
DECIMAL: Final = "decimal"
_BELOW: Final[Mapping[str, tuple[str, ...]]] = {
    DATE: ("int",),
    MILLIS: ("long",),
    MICROS: ("long",),
    DECIMAL: ("bytes", "fixed"),
}
"""The types that each logical type may annotate."""
_OF_TYPES: Final = ("type", "items", "values", "fields")


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type; precision and scale are a decimal's."""

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        digits = f"({self.precision},{self.scale})" if self.name == DECIMAL else ""
        return f"{self.name}{digits}"


class _NoDefault:
    """The type of NO_DEFAULT, since null is a valid default."""


NO_DEFAULT: Final = _NoDefault()


@dataclass(slots=True, eq=False)
class Field:
    """One field of a record. `default` is the JSON value."""

    name: str
    node: "Node"
    aliases: tuple[str, ...] = ()
    default: Any = NO_DEFAULT


@dataclass(slots=True, eq=False)
class Node:
    """One type. `kind` decides which attributes apply; equal names are the same object."""

    kind: str
    name: str = ""
    logical: Logical | None = None
    fields: list[Field] = field(default_factory=list)
    items: "Node | None" = None
    """The item type of an array, or the value type of a map."""
    branches: list["Node"] = field(default_factory=list)

    @property
    def element(self) -> "Node":
        """The item type of an array, or the value type of a map."""
        if self.items is None:
            raise TypeError(f"{self.kind} has no elements")
        return self.items

    def without_null(self) -> list["Node"]:
        """The branches of a union other than null, or this type alone."""
        if self.kind != "union":
            return [self]
        return [branch for branch in self.branches if branch.kind != "null"]

    def __str__(self) -> str:
        return str(self.logical or self.name or self.kind)


def parse(definition: Any) -> Node:
    """Parses a definition. Raises PreconditionFailed that names the error."""
    try:
        return _Parser().node(definition, "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PreconditionFailed(f"its definition is no Avro schema: {error!r}") from error


def without_logical_types(definition: Any) -> Any:
    """The definition of the same bytes with plain types only."""
    if isinstance(definition, list):
        return [without_logical_types(branch) for branch in definition]
    if not isinstance(definition, dict):
        return definition
    return {
        key: without_logical_types(value) if key in _OF_TYPES else value
        for key, value in definition.items()
        if key != "logicalType"
    }


class _Parser:
    """Parses one definition; a name may be used anywhere after its definition."""

    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def node(self, definition: Any, space: str) -> Node:
        if isinstance(definition, list):
            return Node("union", branches=[self.node(branch, space) for branch in definition])
        if isinstance(definition, str):
            return self._by_name(definition, space)
        kind = definition["type"]
        if isinstance(kind, dict | list):
            return self.node(kind, space)
        if kind in ("record", "error"):
            return self._record(definition, space)
        if kind in ("enum", "fixed"):
            return self._defined(definition, space)[0]
        if kind in ("array", "map"):
            items = definition["items" if kind == "array" else "values"]
            return Node(kind, items=self.node(items, space))
        if kind not in PRIMITIVES:
            return self._by_name(kind, space)
        return Node(kind, logical=_logical(definition))

    def _record(self, definition: Mapping[str, Any], space: str) -> Node:
        record, space = self._defined(definition, space)
        record.kind = "record"
        for item in definition["fields"]:
            node = self.node(item["type"], space)
            aliases = tuple(item.get("aliases", ()))
            default = item.get("default", NO_DEFAULT)
            record.fields.append(Field(item["name"], node, aliases, default))
        return record

    def _defined(self, definition: Mapping[str, Any], space: str) -> tuple[Node, str]:
        """A named type, and the namespace inside it."""
        name = definition["name"]
        if "." in name:
            space = name.rpartition(".")[0]
        else:
            space = definition.get("namespace", space) or ""
            name = f"{space}.{name}" if space else name
        node = self._named[name] = Node(definition["type"], name, _logical(definition))
        return node, space

    def _by_name(self, name: str, space: str) -> Node:
        if name in PRIMITIVES:
            return Node(name)
        full = f"{space}.{name}" if space and "." not in name else name
        node = self._named.get(full) or self._named.get(name)
        if node is None:
            raise PreconditionFailed(f"the type '{full}' is unknown")
        return node


def _logical(definition: Mapping[str, Any]) -> Logical | None:
    name = definition.get("logicalType")
    if not isinstance(name, str) or definition["type"] not in _BELOW.get(name, ()):
        return None
    if name != DECIMAL:
        return Logical(name)
    precision, scale = definition.get("precision"), definition.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    return Logical(name, precision, scale) if 0 <= scale <= precision and precision else None
