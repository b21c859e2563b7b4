"""Whether data written with one Avro schema can be read with another.

The rules are those of the Avro specification, "Schema Resolution", as Pulsar's broker applies
them (Avro's Java validator): the names of records are not compared outside unions, those of enums
and fixed are, without their namespaces; a writer's enum may have symbols that the reader lacks; a
reader's field that the writer lacks needs a default that fits its type; aliases are the reader's
names for what the writer called otherwise.
"""

from dataclasses import replace
from typing import Final

from magnetar.broker.schema.avro_parse import Field, Json, NoDefault, Schema

_PROMOTIONS: Final = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}
"""From a writer's type to the readers' types that take it."""

_NAMED: Final = frozenset(("record", "enum", "fixed"))

Pair = tuple[int, int]


def can_read(writer: Schema, reader: Schema) -> bool:
    """Whether a reader with schema `reader` understands what `writer` wrote."""
    if avro_equal(writer, reader):
        return True
    renamed = _with_readers_names(writer, reader)
    return renamed is not None and _Resolution().resolves(renamed, reader)


def avro_equal(a: Schema, b: Schema) -> bool:
    """Equal as Avro's Java library has it: documentation, aliases and enum defaults left out."""
    return _equal(a, b, set())


def _equal(a: Schema, b: Schema, seen: set[Pair]) -> bool:
    if a.type != b.type or a.full_name != b.full_name or a.properties != b.properties:
        return False
    match a.type:
        case "record":
            pair = (id(a), id(b))
            if pair in seen:
                return True
            seen.add(pair)
            return (
                a.is_error == b.is_error
                and len(a.fields) == len(b.fields)
                and all(_equal_fields(x, y, seen) for x, y in zip(a.fields, b.fields, strict=True))
            )
        case "enum":
            return a.symbols == b.symbols
        case "fixed":
            return a.size == b.size
        case "array" | "map":
            return _equal(a.element, b.element, seen)
        case "union":
            return len(a.branches) == len(b.branches) and all(
                _equal(x, y, seen) for x, y in zip(a.branches, b.branches, strict=True)
            )
    return True


def _equal_fields(a: Field, b: Field, seen: set[Pair]) -> bool:
    return (
        a.name == b.name
        and a.order == b.order
        # 1 and True are equal in Python; as defaults they are not.
        and repr(a.default) == repr(b.default)
        and a.properties == b.properties
        and _equal(a.schema, b.schema, seen)
    )


class _Resolution:
    """One resolution; remembers pairs of records, for schemas may be recursive."""

    def __init__(self) -> None:
        self._records: dict[Pair, bool] = {}
        self._defaults = _Defaults()

    def resolves(self, writer: Schema, reader: Schema) -> bool:
        if writer.type == "union":
            if _same_union(writer, reader, set()):
                return True
            return all(self.resolves(branch, reader) for branch in writer.branches)
        if writer.type == reader.type:
            return self._same_type(writer, reader)
        if reader.type == "union":
            branch = self._matching_branch(writer, reader)
            return branch is not None and self.resolves(writer, branch)
        return reader.type in _PROMOTIONS.get(writer.type, ())

    def _same_type(self, writer: Schema, reader: Schema) -> bool:
        match writer.type:
            case "record":
                return self._record(writer, reader)
            case "enum":
                return writer.name == reader.name
            case "fixed":
                return writer.name == reader.name and writer.size == reader.size
            case "array" | "map":
                return self.resolves(writer.element, reader.element)
        return True

    def _record(self, writer: Schema, reader: Schema) -> bool:
        pair = (id(writer), id(reader))
        if pair in self._records:
            return self._records[pair]
        self._records[pair] = True
        fits = self._fields(writer, reader)
        self._records[pair] = fits
        return fits

    def _fields(self, writer: Schema, reader: Schema) -> bool:
        fields = {field.name: field for field in writer.fields}
        for wanted in reader.fields:
            written = fields.get(wanted.name)
            if written is None:
                if not self._defaults.fit(wanted.schema, wanted.default):
                    return False
            elif not self.resolves(written.schema, wanted.schema):
                return False
        return True

    def _matching_branch(self, writer: Schema, reader: Schema) -> Schema | None:
        """The branch of a reader's union that takes the writer's type: exact, alike, promoted."""
        alike: Schema | None = None
        for branch in reader.branches:
            if branch.type != writer.type:
                continue
            if writer.type not in _NAMED or branch.full_name == writer.full_name:
                return branch
            if writer.type == "record" and (alike is None or branch.name == writer.name):
                alike = branch if self._record(writer, branch) else alike
        if alike is not None:
            return alike
        takers = _PROMOTIONS.get(writer.type, frozenset())
        return next((branch for branch in reader.branches if branch.type in takers), None)


def _same_union(a: Schema, b: Schema, seen: set[Pair]) -> bool:
    """Whether two unions are the same but for namespaces: then they resolve branch by branch."""
    if a.type != b.type or (a.type in _NAMED and a.name != b.name):
        return False
    match a.type:
        case "record":
            pair = (id(a), id(b))
            if pair in seen:
                return True
            seen.add(pair)
            return len(a.fields) == len(b.fields) and all(
                x.name == y.name and _same_union(x.schema, y.schema, seen)
                for x, y in zip(a.fields, b.fields, strict=True)
            )
        case "enum":
            return a.symbols == b.symbols
        case "fixed":
            return a.size == b.size
        case "array" | "map":
            return _same_union(a.element, b.element, seen)
        case "union":
            return len(a.branches) == len(b.branches) and all(
                _same_union(x, y, seen) for x, y in zip(a.branches, b.branches, strict=True)
            )
    return True


class _Defaults:
    """Whether defaults, as JSON, are values of their schemas: bytes as text, the rest as it reads.

    A record's default may leave its fields to their own defaults, which may lead back to it: such
    a value has no end, so it fits nothing. Results are kept, for the ways there are many.
    """

    def __init__(self) -> None:
        self._known: dict[Pair, bool] = {}

    def fit(self, schema: Schema, value: "Json | NoDefault") -> bool:
        match schema.type:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long" | "float" | "double":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "string" | "bytes" | "fixed":
                return isinstance(value, str)
            case "enum":
                return isinstance(value, str) and value in schema.symbols
            case "array":
                return isinstance(value, list) and all(
                    self.fit(schema.element, item) for item in value
                )
            case "map":
                return isinstance(value, dict) and all(
                    self.fit(schema.element, item) for item in value.values()
                )
            case "union":
                return any(self.fit(branch, value) for branch in schema.branches)
        pair = (id(schema), id(value))
        if pair not in self._known:
            self._known[pair] = False
            self._known[pair] = isinstance(value, dict) and all(
                self.fit(field.schema, value.get(field.name, field.default))
                for field in schema.fields
            )
        return self._known[pair]


def _with_readers_names(writer: Schema, reader: Schema) -> Schema | None:
    """The writer's schema under the names that the reader's aliases give; None on a clash."""
    names: dict[str, Schema] = {}
    fields: dict[str, dict[str, str]] = {}
    _collect_aliases(reader, names, fields, set())
    if not names and not fields:
        return writer
    return _Renaming(names, fields).of(writer)


def _collect_aliases(
    schema: Schema, names: dict[str, Schema], fields: dict[str, dict[str, str]], seen: set[int]
) -> None:
    if id(schema) in seen:
        return
    seen.add(id(schema))
    for alias in schema.aliases:
        names[alias] = schema
    for field in schema.fields:
        for alias in field.aliases:
            fields.setdefault(schema.full_name, {})[alias] = field.name
        _collect_aliases(field.schema, names, fields, seen)
    for branch in (*schema.branches, *((schema.items,) if schema.items else ())):
        _collect_aliases(branch, names, fields, seen)


class _Renaming:
    """Copies a schema with other names; shared nodes stay shared."""

    def __init__(self, names: dict[str, Schema], fields: dict[str, dict[str, str]]) -> None:
        self._names, self._fields = names, fields
        self._copies: dict[int, Schema] = {}
        self._clash = False

    def of(self, schema: Schema) -> Schema | None:
        copy = self._copy(schema)
        return None if self._clash else copy

    def _copy(self, schema: Schema) -> Schema:
        if (known := self._copies.get(id(schema))) is not None:
            return known
        copy = self._copies[id(schema)] = replace(schema)
        if (namesake := self._names.get(schema.full_name)) is not None and schema.name:
            copy.name, copy.namespace = namesake.name, namesake.namespace
        if schema.items is not None:
            copy.items = self._copy(schema.items)
        copy.branches = [self._copy(branch) for branch in schema.branches]
        labels = [branch.full_name or branch.type for branch in copy.branches]
        others = self._fields.get(copy.full_name, {})
        copy.fields = [
            replace(field, name=others.get(field.name, field.name), schema=self._copy(field.schema))
            for field in schema.fields
        ]
        called = [field.name for field in copy.fields]
        if len(set(labels)) < len(labels) or len(set(called)) < len(called):
            self._clash = True
        return copy
