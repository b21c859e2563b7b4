"""Derives the shapes of Python types: of dataclasses, msgspec structs and pydantic models.

| Python | Avro |
|---|---|
| `bool`, `str`, `bytes` | `boolean`, `string`, `bytes` |
| `int`, `float` | `long`, `double`; `Int32` and `Float32` are `int` and `float` |
| `datetime`, `date`, `time`, `UUID` | `timestamp-micros`, `date`, `time-micros`, `uuid` |
| an `Enum` | an enum of its names |
| `list`, `tuple[T, ...]`, `set`, `frozenset` | an array |
| `dict[str, T]` | a map |
| `T | None`, other unions | a union |
| a record type | a record |

A field with a default has it in the definition. A field that may be None and has no default gets
null, as in Java's client.
"""

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from magnetar.client.errors import InvalidConfiguration, SchemaFailed
from magnetar.client.schema.record import NO_DEFAULT, UNSTABLE_DEFAULT, RecordField, RecordShape
from magnetar.client.schema.shapes import (
    ArrayShape,
    BooleanShape,
    BytesShape,
    DayShape,
    EnumShape,
    IntegerShape,
    MapShape,
    NullShape,
    RealShape,
    Shape,
    TextShape,
    TimeShape,
    TimestampShape,
    UnionShape,
    UuidShape,
)


@dataclass(frozen=True, slots=True)
class AvroType:
    """Names the Avro type of an annotated Python type."""

    name: str


Int32 = Annotated[int, AvroType("int")]
"""A whole number of 32 bits: Java's `int`."""
Float32 = Annotated[float, AvroType("float")]
"""A number of 32 bits: Java's `float`."""

_ARRAYS: Final[dict[type, type]] = {list: list, tuple: tuple, set: set, frozenset: frozenset}


def derive(kind: type[Any], *, name: str, namespace: str, as_json: bool) -> RecordShape:
    """Returns the shape of a record type; raises InvalidConfiguration, which names the field."""
    derivation = _Derivation(namespace, as_json=as_json)
    if not derivation.is_record(kind):
        raise InvalidConfiguration(
            f"{kind!r} is no record: use a dataclass, a msgspec struct or a pydantic model"
        )
    return derivation.record(kind, name or kind.__name__)


class _Derivation:
    """The record types that were derived so far."""

    def __init__(self, namespace: str, *, as_json: bool) -> None:
        self._namespace = namespace
        self._as_json = as_json
        self._records: dict[type, RecordShape] = {}
        self._names: dict[str, type] = {}

    @staticmethod
    def is_record(kind: Any) -> bool:
        return isinstance(kind, type) and (
            dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or _is_model(kind)
        )

    def record(self, kind: type[Any], name: str) -> RecordShape:
        known = self._records.get(kind)
        if known is not None:
            return known
        self._name(kind, name)
        shape = self._records[kind] = RecordShape(kind, name, self._namespace, _builder(kind))
        if _is_model(kind):
            declared = _model_fields(kind)
        elif issubclass(kind, msgspec.Struct):
            declared = _struct_fields(kind)
        else:
            declared = _dataclass_fields(kind)
        for attribute, wire_name, annotation, default in declared:
            path = f"{name}.{attribute}"
            field = self._shape(annotation, path)
            if isinstance(field, UnionShape):
                field = field.starting_with(default)
            shape.fields.append(RecordField(attribute, wire_name, field, default))
        return shape

    def _name(self, kind: type, name: str) -> None:
        other = self._names.setdefault(name, kind)
        if other is not kind:
            raise InvalidConfiguration(f"{kind!r} and {other!r} have the same name in the schema")

    def _shape(self, annotation: Any, path: str) -> Shape:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            marker = next((a for a in arguments[1:] if isinstance(a, AvroType)), None)
            return self._marked(marker, path) if marker else self._shape(arguments[0], path)
        if isinstance(annotation, NewType):
            return self._shape(annotation.__supertype__, path)
        if origin in (Union, UnionType):
            return self._union(arguments, path)
        if origin in _ARRAYS:
            if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
                raise _refused(path, annotation, "a tuple of unlike elements has no Avro type")
            return ArrayShape(self._shape(arguments[0], f"{path}[]"), _ARRAYS[origin], origin)
        if origin is dict:
            if arguments[0] is not str:
                raise _refused(path, annotation, "the keys of a map are str")
            return MapShape(self._shape(arguments[1], f"{path}[]"))
        if self.is_record(annotation):
            return self.record(annotation, annotation.__name__)
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            self._name(annotation, annotation.__name__)
            return EnumShape(annotation, self._namespace)
        return self._simple(annotation, path)

    def _marked(self, marker: AvroType, path: str) -> Shape:
        if marker.name in ("int", "long"):
            return IntegerShape(marker.name)
        if marker.name in ("float", "double"):
            return RealShape(marker.name, as_json=self._as_json)
        raise _refused(path, marker, "AvroType names int, long, float or double")

    def _simple(self, annotation: Any, path: str) -> Shape:
        simple: dict[Any, Shape] = {
            bool: BooleanShape(),
            int: IntegerShape("long"),
            float: RealShape("double", as_json=self._as_json),
            str: TextShape(),
            bytes: BytesShape(as_json=self._as_json),
            datetime: TimestampShape(),
            date: DayShape(),
            time: TimeShape(),
            UUID: UuidShape(),
            None: NullShape(),
            NoneType: NullShape(),
        }
        try:
            return simple[annotation]
        except (KeyError, TypeError):
            raise _refused(path, annotation, "it has no Avro type") from None

    def _union(self, arguments: tuple[Any, ...], path: str) -> UnionShape:
        branches = [self._shape(argument, path) for argument in arguments]
        kinds = [_avro_kind(branch) for branch in branches]
        alike = _ALIKE_IN_JSON if self._as_json else _ALIKE_IN_AVRO
        kinds = [alike.get(kind, kind) for kind in kinds]
        if len(set(kinds)) != len(kinds):
            encoding = "JSON" if self._as_json else "Avro"
            union = " | ".join(map(str, arguments))
            raise _refused(path, union, f"two types are alike in {encoding}")
        return UnionShape(branches)


_ALIKE_IN_AVRO: Final = {"enum": "string", "int": "long", "float": "double", "map": "record"}
_ALIKE_IN_JSON: Final = _ALIKE_IN_AVRO | {"bytes": "string", "long": "double", "int": "double"}
"""Types of which a decoded value may be either."""


def _avro_kind(shape: Shape) -> str:
    definition = shape.definition(set())
    kind = definition["type"] if isinstance(definition, dict) else definition
    return str(kind)


def _refused(path: str, annotation: object, reason: str) -> InvalidConfiguration:
    shown = annotation.__name__ if isinstance(annotation, type) else annotation
    return InvalidConfiguration(f"{path}: {shown} cannot be in a schema: {reason}")


_Declared = tuple[str, str, Any, Any]


def _dataclass_fields(kind: type[Any]) -> list[_Declared]:
    hints = _hints(kind)
    declared = []
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        default = NO_DEFAULT
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = _made(field.default_factory)
        declared.append((field.name, field.name, hints[field.name], default))
    return declared


def _struct_fields(kind: type[msgspec.Struct]) -> list[_Declared]:
    hints = _hints(kind)
    declared = []
    for field in msgspec.structs.fields(kind):
        default = NO_DEFAULT
        if field.default is not msgspec.NODEFAULT:
            default = field.default
        elif field.default_factory is not msgspec.NODEFAULT:
            default = _made(field.default_factory)
        declared.append((field.name, field.encode_name, hints[field.name], default))
    return declared


def _model_fields(kind: Any) -> list[_Declared]:
    declared = []
    for name, field in kind.model_fields.items():
        annotation = field.annotation
        marker = next((m for m in field.metadata if isinstance(m, AvroType)), None)
        if marker is not None:
            annotation = Annotated[annotation, marker]
        default = NO_DEFAULT
        if field.default_factory is not None:
            takes_data = field.default_factory_takes_validated_data
            default = UNSTABLE_DEFAULT if takes_data else _made(field.default_factory)
        elif not field.is_required():
            default = field.default
        declared.append((name, name, annotation, default))
    return declared


def _made(factory: Callable[[], Any]) -> Any:
    """Returns what a factory makes, if that is the same each time: a definition must not change."""
    first, second = factory(), factory()
    if isinstance(first, datetime | date | time | UUID) or first != second:
        return UNSTABLE_DEFAULT
    return first


def _builder(kind: Any) -> Callable[[dict[str, Any]], Any]:
    if _is_model(kind):
        return lambda values: kind.model_validate(values, by_name=True)
    return lambda values: kind(**values)


def _hints(kind: type[Any]) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError as error:
        raise InvalidConfiguration(
            f"{kind.__name__}: {error}; the types of a schema must be importable from its module"
        ) from error


def _is_model(kind: type[Any]) -> bool:
    """Whether a type is a pydantic model; does not import pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(kind, pydantic.BaseModel)


def definition_of(shape: Shape) -> bytes:
    """Returns the definition as JSON; raises InvalidConfiguration for defaults that do not fit."""
    try:
        return msgspec.json.encode(shape.definition(set()))
    except SchemaFailed as error:
        raise InvalidConfiguration(f"A default does not fit its field: {error.message}") from error
