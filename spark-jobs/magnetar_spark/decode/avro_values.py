"""Converts values of Avro's plain types to column values, between two schema versions. Pure.

Messages are read without logical types, and the reader's logical types are applied afterwards. If
the writer's version has no logical type, the newest version's applies to its numbers and bytes. If
both have one, the meaning is kept, not the number: a timestamp in ms becomes the same time in µs, a
decimal the same number with another scale. Incompatible types (a date as a timestamp) are refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, Final

from magnetar.core.errors import PersistenceError
from magnetar_spark.decode.avro_schema import (
    DATE,
    DECIMAL,
    MICROS,
    MILLIS,
    NO_DEFAULT,
    Field,
    Logical,
    Node,
)
from magnetar_spark.decode.times import US_PER_MS, days, micros

Step = Callable[[Any], Any]
"""Converts a value, or null, without modifying it."""

_EXACT: Final = Context(prec=1_000)
"""More digits than Spark's decimals have: nothing is rounded, and Arrow refuses the excess."""
_UNITS_US: Final = {MILLIS: US_PER_MS, MICROS: 1}


@dataclass(frozen=True, slots=True)
class _Time:
    unit_us: int

    def __call__(self, value: int | None) -> int | None:
        return None if value is None else micros(value, self.unit_us)


@dataclass(frozen=True, slots=True)
class _Date:
    def __call__(self, value: int | None) -> int | None:
        return None if value is None else days(value)


@dataclass(frozen=True, slots=True)
class _Decimal:
    scale: int

    def __call__(self, value: bytes | None) -> Decimal | None:
        if value is None:
            return None
        unscaled = Decimal(int.from_bytes(value, "big", signed=True))
        return _EXACT.scaleb(unscaled, -self.scale)


@dataclass(frozen=True, slots=True)
class _Items:
    step: Step

    def __call__(self, value: list[Any] | None) -> list[Any] | None:
        step = self.step
        return None if value is None else [step(item) for item in value]


@dataclass(frozen=True, slots=True)
class _Entries:
    step: Step

    def __call__(self, value: dict[str, Any] | None) -> dict[str, Any] | None:
        step = self.step
        return None if value is None else {key: step(item) for key, item in value.items()}


@dataclass(frozen=True, slots=True)
class _Fields:
    steps: tuple[tuple[str, Step], ...]

    def __call__(self, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        fields = dict(value)  # a default is shared by all rows
        for name, step in self.steps:
            fields[name] = step(fields.get(name))
        return fields


@dataclass(frozen=True, slots=True)
class _Default:
    text: str
    value: Any = field(compare=False)
    """May be a list, which is not hashable."""

    def __call__(self, _: Any) -> Any:
        return self.value


def conversion(writer: Node, reader: Node) -> Step | None:
    """The conversion from the writer's plain values to the reader's columns; None for no change.

    Raises PersistenceError naming a field whose older values have no meaning in the new type.
    """
    return _step(writer, reader, "")


def _step(writer: Node, reader: Node, path: str) -> Step | None:
    wanted = reader.without_null()
    if reader.kind == "union":
        if len(wanted) != 1:
            return None  # has no column
        reader = wanted[0]
    steps = {_of_branch(branch, reader, path) for branch in writer.without_null()}
    if len(steps) > 1:
        kinds = ", ".join(str(branch) for branch in writer.without_null())
        raise _refused(path, kinds, reader)
    return steps.pop() if steps else None


def _of_branch(writer: Node, reader: Node, path: str) -> Step | None:
    if reader.kind == "record" and writer.kind == "record":
        return _record(writer, reader, path)
    if reader.kind == writer.kind == "array":
        inner = _step(writer.element, reader.element, f"{path}[]")
        return None if inner is None else _Items(inner)
    if reader.kind == writer.kind == "map":
        inner = _step(writer.element, reader.element, f"{path}{{}}")
        return None if inner is None else _Entries(inner)
    return _leaf(writer, reader, path)


def _leaf(writer: Node, reader: Node, path: str) -> Step | None:
    was, wanted = writer.logical, reader.logical
    if DECIMAL in (was and was.name, wanted and wanted.name) and "string" in (
        writer.kind,
        reader.kind,
    ):
        raise _refused(path, str(writer), reader)  # Avro takes one's bytes for the other's text
    if wanted is None:
        return None
    meant = was or wanted
    if meant.name != wanted.name and not (meant.name in _UNITS_US and wanted.name in _UNITS_US):
        raise _refused(path, str(writer), reader)
    return _by(meant)


def _by(logical: Logical) -> Step:
    if logical.name == DECIMAL:
        return _Decimal(logical.scale)
    return _Date() if logical.name == DATE else _Time(_UNITS_US[logical.name])


def _record(writer: Node, reader: Node, path: str) -> Step | None:
    by_name = {field.name: field for field in reader.fields}
    by_alias = {alias: field for field in reader.fields for alias in field.aliases}
    written: dict[str, Field] = {}
    for source in writer.fields:
        target = by_name.get(source.name) or by_alias.get(source.name)
        if target is not None:
            written[target.name] = source
    steps: list[tuple[str, Step]] = []
    for wanted in reader.fields:
        source_field = written.get(wanted.name)
        step: Step | None
        if source_field is not None:
            step = _step(
                source_field.node, wanted.node, f"{path}.{wanted.name}" if path else wanted.name
            )
        elif wanted.default is not NO_DEFAULT:
            step = _Default(repr(wanted.default), _default(wanted.node, wanted.default))
        else:
            step = None  # fastavro refuses to read it
        if step is not None:
            steps.append((wanted.name, step))
    return _Fields(tuple(steps)) if steps else None


def _default(node: Node, value: Any) -> Any:
    """A JSON default as a column value: bytes are text there, one character per byte."""
    if value is None:
        return None
    if node.kind == "union":
        rest = node.without_null()
        return _default(rest[0], value) if len(rest) == 1 else value
    if node.kind == "record":
        return {
            inner.name: _default(inner.node, value.get(inner.name, inner.default))
            for inner in node.fields
            if inner.name in value or inner.default is not NO_DEFAULT
        }
    if node.kind == "array":
        return [_default(node.element, item) for item in value]
    if node.kind == "map":
        return {key: _default(node.element, item) for key, item in value.items()}
    if node.kind in ("bytes", "fixed"):
        value = value.encode("latin-1")
    return value if node.logical is None else _by(node.logical)(value)


def _refused(path: str, was: str, reader: Node) -> PersistenceError:
    return PersistenceError(
        f"field '{path}' was {was} when a message was made, and is {reader} in the newest version: "
        "set allowDifferentTopicSchemas to true to have the values as they are"
    )
