"""Decides whether data written with one Avro schema can be read with another.

The rules are the Avro specification's "Schema Resolution", as Avro's Java validator, and therefore
Pulsar's broker, applies them: names of records are compared only inside unions; names of enums and
fixed types are always compared, without their namespaces; a writer's enum may have symbols that the
reader lacks; a field that only the reader has needs a default that fits its type; the reader's
aliases map the writer's names to its own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from magnetar.schemas.avro_parse import Field, Json, NoDefault, Schema

_PROMOTIONS: Final = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}
"""The reader's types that accept a writer's type."""

_NAMED: Final = frozenset(("record", "enum", "fixed"))

Pair = tuple[int, int]
Equality = Callable[[Schema, Schema, set[Pair]], bool]


def can_read(writer: Schema, reader: Schema) -> bool:
    """Whether a reader with schema `reader` can read data written with `writer`."""
    if avro_equal(writer, reader):
        return True
    renamed = _with_readers_names(writer, reader)
    return renamed is not None and _Resolution().resolves(renamed, reader)


def avro_equal(a: Schema, b: Schema) -> bool:
    """Whether Avro's Java library counts them as equal: ignores docs, aliases, enum defaults."""
    return _equal(a, b, set())


def _equal(a: Schema, b: Schema, seen: set[Pair]) -> bool:
    if a.type != b.type or a.full_name != b.full_name or a.properties != b.properties:
        return False
    if a.type == "record":
        pair = (id(a), id(b))
        if pair in seen:
            return True
        seen.add(pair)
        return (
            a.is_error == b.is_error
            and len(a.fields) == len(b.fields)
            and all(_equal_fields(x, y, seen) for x, y in zip(a.fields, b.fields, strict=True))
        )
    return _equal_parts(a, b, seen, _equal)


def _equal_fields(a: Field, b: Field, seen: set[Pair]) -> bool:
    return (
        a.name == b.name
        and a.order == b.order
        # 1 and True are equal in Python, but not as defaults.
        and repr(a.default) == repr(b.default)
        and a.properties == b.properties
        and _equal(a.schema, b.schema, seen)
    )


class _Resolution:
    """A comparison of two schemas; remembers pairs of records, because schemas may be recursive."""

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
        written_fields = {field.name: field for field in writer.fields}
        for field in reader.fields:
            written = written_fields.get(field.name)
            if written is None:
                if not self._defaults.fit(field.schema, field.default):
                    return False
            elif not self.resolves(written.schema, field.schema):
                return False
        return True

    def _matching_branch(self, writer: Schema, reader: Schema) -> Schema | None:
        """Returns the union branch that accepts the writer's type: exact, similar, or promoted."""
        similar: Schema | None = None
        for branch in reader.branches:
            if branch.type != writer.type:
                continue
            if writer.type not in _NAMED or branch.full_name == writer.full_name:
                return branch
            if writer.type == "record" and (similar is None or branch.name == writer.name):
                similar = branch if self._record(writer, branch) else similar
        if similar is not None:
            return similar
        accepting = _PROMOTIONS.get(writer.type, frozenset())
        return next((branch for branch in reader.branches if branch.type in accepting), None)


def _same_union(a: Schema, b: Schema, seen: set[Pair]) -> bool:
    """Whether two unions differ only in namespaces: then they resolve branch by branch."""
    if a.type != b.type or (a.type in _NAMED and a.name != b.name):
        return False
    if a.type == "record":
        pair = (id(a), id(b))
        if pair in seen:
            return True
        seen.add(pair)
        return len(a.fields) == len(b.fields) and all(
            x.name == y.name and _same_union(x.schema, y.schema, seen)
            for x, y in zip(a.fields, b.fields, strict=True)
        )
    return _equal_parts(a, b, seen, _same_union)


def _equal_parts(a: Schema, b: Schema, seen: set[Pair], equal: Equality) -> bool:
    """Whether what two schemas of one type, but not records, consist of is equal by `equal`."""
    match a.type:
        case "enum":
            return a.symbols == b.symbols
        case "fixed":
            return a.size == b.size
        case "array" | "map":
            return equal(a.element, b.element, seen)
        case "union":
            return len(a.branches) == len(b.branches) and all(
                equal(x, y, seen) for x, y in zip(a.branches, b.branches, strict=True)
            )
    return True


class _Defaults:
    """Checks that defaults are values of their schemas' types, in Avro's JSON encoding.

    A record's default may omit fields that have their own defaults, and those may refer to the
    record again. Such a value is infinite, so it fits nothing. Results are cached, because the
    number of paths through a schema can be exponential.
    """

    def __init__(self) -> None:
        self._results: dict[Pair, bool] = {}

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
        if pair not in self._results:
            self._results[pair] = False
            self._results[pair] = isinstance(value, dict) and all(
                self.fit(field.schema, value.get(field.name, field.default))
                for field in schema.fields
            )
        return self._results[pair]


def _with_readers_names(writer: Schema, reader: Schema) -> Schema | None:
    """Returns the writer's schema, renamed by the reader's aliases; None if names clash."""
    names: dict[str, Schema] = {}
    fields: dict[str, dict[str, str]] = {}
    _collect_aliases(reader, names, fields, set())
    if not names and not fields:
        return writer
    return _Renamer(names, fields).renamed(writer)


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


class _Renamer:
    """Copies a schema under other names; shared nodes stay shared."""

    def __init__(self, names: dict[str, Schema], fields: dict[str, dict[str, str]]) -> None:
        self._names, self._fields = names, fields
        self._copies: dict[int, Schema] = {}
        self._clash = False

    def renamed(self, schema: Schema) -> Schema | None:
        copy = self._copy(schema)
        return None if self._clash else copy

    def _copy(self, schema: Schema) -> Schema:
        if (existing := self._copies.get(id(schema))) is not None:
            return existing
        copy = self._copies[id(schema)] = replace(schema)
        if (namesake := self._names.get(schema.full_name)) is not None and schema.name:
            copy.name, copy.namespace = namesake.name, namesake.namespace
        if schema.items is not None:
            copy.items = self._copy(schema.items)
        copy.branches = [self._copy(branch) for branch in schema.branches]
        labels = [branch.full_name or branch.type for branch in copy.branches]
        field_names = self._fields.get(copy.full_name, {})
        copy.fields = [
            replace(
                field,
                name=field_names.get(field.name, field.name),
                schema=self._copy(field.schema),
            )
            for field in schema.fields
        ]
        names = [field.name for field in copy.fields]
        if len(set(labels)) < len(labels) or len(set(names)) < len(names):
            self._clash = True
        return copy
