"""Parses Avro schemas from JSON to typed nodes.

Follows the Avro 1.12 specification and, where it is silent, Pulsar's broker with Avro's Java
library: names consist of letters, digits, `_` and `$`; defaults are not checked against their
types; names may be used before they are defined; nothing may follow the schema's JSON. Definitions
come from clients, so nesting is bounded by NESTING_MAX.
"""

import json
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

NESTING_MAX: Final = 100
PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
ORDERS: Final = ("ascending", "descending", "ignore")

_SCHEMA_KEYS: Final = frozenset(
    ("type", "name", "namespace", "doc", "aliases", "fields", "symbols", "items", "values", "size")
)
_ENUM_KEYS: Final = _SCHEMA_KEYS | {"default"}
_FIELD_KEYS: Final = frozenset(("name", "type", "doc", "default", "order", "aliases"))


class AvroParseError(ValueError):
    """The text is not an Avro schema."""


class NoDefault:
    """The type of NO_DEFAULT: the field has no default. None would be the default null."""


NO_DEFAULT: Final = NoDefault()


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record."""

    name: str
    schema: "Schema"
    default: "Json | NoDefault" = NO_DEFAULT
    aliases: tuple[str, ...] = ()
    order: str = "ascending"
    doc: str | None = None
    properties: "dict[str, Json]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Schema:
    """A node. `type` decides which attributes apply; recursive schemas share nodes."""

    type: str
    name: str = ""
    namespace: str = ""
    doc: str | None = None
    is_error: bool = False
    aliases: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    enum_default: str | None = None
    size: int = 0
    items: "Schema | None" = None
    branches: list["Schema"] = field(default_factory=list)
    properties: "dict[str, Json]" = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """The name with its namespace."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @property
    def element(self) -> "Schema":
        """An array's items, or a map's values."""
        if self.items is None:
            raise TypeError(f"{self.type} has no elements")
        return self.items


def parse_avro(data: bytes) -> Schema:
    """Parses a schema; raises AvroParseError."""
    try:
        tree = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise AvroParseError(str(error)) from error
    parser = _Parser()
    schema = parser.parse(tree, "", 0)
    parser.resolve()
    return schema


class _Parser:
    """The state of a parse: defined names, and names used before their definition."""

    def __init__(self) -> None:
        self._named: dict[str, Schema] = {}
        self._unresolved: dict[str, Schema] = {}

    def parse(self, tree: Json, namespace: str, depth: int) -> Schema:
        if depth > NESTING_MAX:
            raise AvroParseError(f"Schema is nested more than {NESTING_MAX} deep")
        match tree:
            case str():
                return self._lookup(tree, namespace)
            case list():
                return self._union(tree, namespace, depth)
            case dict():
                return self._object(tree, namespace, depth)
        raise AvroParseError(f"Schema not yet supported: {tree!r}")

    def _object(self, tree: dict[str, Json], namespace: str, depth: int) -> Schema:
        kind = _text(tree, "type", "No type")
        if kind in PRIMITIVES:
            schema = Schema(kind)
        elif kind in ("record", "error"):
            return self._record(tree, namespace, depth)
        elif kind == "enum":
            return self._enum(tree, namespace)
        elif kind == "fixed":
            return self._fixed(tree, namespace)
        elif kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if tree.get(part) is None:
                raise AvroParseError(f"No {part} type: {tree}")
            schema = Schema(kind, items=self.parse(tree[part], namespace, depth + 1))
        else:
            return self._lookup(kind, namespace)
        schema.properties = _rest(tree, _SCHEMA_KEYS)
        return schema

    def _named_schema(self, kind: str, tree: dict[str, Json], namespace: str) -> Schema:
        name = _text(tree, "name", "No name in schema")
        own = tree.get("namespace")
        space = own if isinstance(own, str) else namespace
        if "." in name:
            space, _, name = name.rpartition(".")
        _check_name(name)
        doc = tree.get("doc")
        schema = Schema(kind, name, space, doc=doc if isinstance(doc, str) else None)
        schema.aliases = tuple(
            alias if "." in alias or not space else f"{space}.{alias}" for alias in _aliases(tree)
        )
        if schema.full_name in PRIMITIVES:
            raise AvroParseError(f"Schemas may not be named after primitives: {schema.full_name}")
        if schema.full_name in self._named:
            raise AvroParseError(f"Can't redefine: {schema.full_name}")
        self._named[schema.full_name] = schema
        return schema

    def _record(self, tree: dict[str, Json], namespace: str, depth: int) -> Schema:
        schema = self._named_schema("record", tree, namespace)
        schema.is_error = tree["type"] == "error"
        fields = tree.get("fields")
        if not isinstance(fields, list):
            raise AvroParseError(f"Record has no fields: {schema.full_name}")
        schema.fields = [self._field(item, schema.namespace, depth) for item in fields]
        names = [field.name for field in schema.fields]
        if len(set(names)) != len(names):
            raise AvroParseError(f"Duplicate field in record {schema.full_name}")
        schema.properties = _rest(tree, _SCHEMA_KEYS)
        return schema

    def _field(self, tree: Json, namespace: str, depth: int) -> Field:
        if not isinstance(tree, dict):
            raise AvroParseError(f"Field is not an object: {tree!r}")
        name = _text(tree, "name", "No field name")
        _check_name(name)
        if tree.get("type") is None:
            raise AvroParseError(f"No field type: {name}")
        order = tree.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in ORDERS:
            raise AvroParseError(f"No order is {order!r}")
        doc = tree.get("doc")
        return Field(
            name,
            self.parse(tree["type"], namespace, depth + 1),
            default=tree.get("default", NO_DEFAULT),
            aliases=_aliases(tree),
            order=order.lower(),
            doc=doc if isinstance(doc, str) else None,
            properties=_rest(tree, _FIELD_KEYS),
        )

    def _enum(self, tree: dict[str, Json], namespace: str) -> Schema:
        schema = self._named_schema("enum", tree, namespace)
        symbols = tree.get("symbols")
        if not isinstance(symbols, list):
            raise AvroParseError(f"Enum has no symbols: {schema.full_name}")
        texts = [_scalar_text(symbol) for symbol in symbols]
        for symbol in texts:
            _check_name(symbol)
        if len(set(texts)) != len(texts):
            raise AvroParseError(f"Duplicate enum symbol in {schema.full_name}")
        schema.symbols = tuple(texts)
        if (default := tree.get("default")) is not None:
            schema.enum_default = _scalar_text(default)
            if schema.enum_default not in texts:
                raise AvroParseError(f"The default {default!r} is no symbol of {schema.full_name}")
        schema.properties = _rest(tree, _ENUM_KEYS)
        return schema

    def _fixed(self, tree: dict[str, Json], namespace: str) -> Schema:
        schema = self._named_schema("fixed", tree, namespace)
        size = tree.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**31:
            raise AvroParseError(f"Invalid or no size: {schema.full_name}")
        schema.size = size
        schema.properties = _rest(tree, _SCHEMA_KEYS)
        return schema

    def _union(self, tree: list[Json], namespace: str, depth: int) -> Schema:
        branches = [self.parse(item, namespace, depth + 1) for item in tree]
        seen: set[str] = set()
        for branch in branches:
            if branch.type == "union":
                raise AvroParseError("Nested union")
            label = branch.full_name or branch.type
            if label in seen:
                raise AvroParseError(f"Duplicate in union:{label}")
            seen.add(label)
        return Schema("union", branches=branches)

    def _lookup(self, name: str, namespace: str) -> Schema:
        if name in PRIMITIVES:
            return Schema(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full, name):
            if (defined := self._named.get(candidate)) is not None:
                return defined
        # The definition may follow: until then, an empty node represents it.
        space, _, local = full.rpartition(".")
        return self._unresolved.setdefault(full, Schema("unresolved", local, space))

    def resolve(self) -> None:
        """Fills the nodes of names that were used before their definition."""
        for full, node in self._unresolved.items():
            defined = self._named.get(full)
            if defined is None:
                raise AvroParseError(f"Undefined schema: {full}")
            for slot in Schema.__dataclass_fields__:
                setattr(node, slot, getattr(defined, slot))


def _text(tree: dict[str, Json], key: str, error: str) -> str:
    value = tree.get(key)
    if not isinstance(value, str):
        raise AvroParseError(f"{error}: {tree}")
    return value


def _scalar_text(value: Json) -> str:
    if not isinstance(value, str):
        raise AvroParseError(f"Not a text: {value!r}")
    return value


def _aliases(tree: dict[str, Json]) -> tuple[str, ...]:
    aliases = tree.get("aliases")
    if aliases is None:
        return ()
    if not isinstance(aliases, list):
        raise AvroParseError(f"aliases not an array: {aliases!r}")
    return tuple(_scalar_text(alias) for alias in aliases)


def _rest(tree: dict[str, Json], known: frozenset[str]) -> dict[str, Json]:
    return {key: value for key, value in tree.items() if key not in known}


def _check_name(name: str) -> None:
    if not name:
        raise AvroParseError("Empty name")
    for index, char in enumerate(name):
        if not (char.isalpha() or char in "_$" or (index and char.isdigit())):
            raise AvroParseError(f"Illegal character in: {name}")
