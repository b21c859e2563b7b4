"""The shape of records: dataclasses, msgspec structs and pydantic models."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from magnetar.client.errors import SchemaFailed
from magnetar.client.schema.shapes import Mismatch, NullShape, Shape, UnionShape
from magnetar.schemas.avro_parse import Json

NO_DEFAULT: Final = object()
UNSTABLE_DEFAULT: Final = object()
"""A default that is another each time, such as the present: it is not in the definition."""


class RecordField(NamedTuple):
    """A field of a record."""

    name: str
    """The attribute."""
    wire_name: str
    """The name in the definition and in encoded values."""
    shape: Shape
    default: Any = NO_DEFAULT

    @property
    def nullable(self) -> bool:
        """Whether the field may be None."""
        return _nullable(self.shape)


def _nullable(shape: Shape) -> bool:
    return isinstance(shape, NullShape) or (
        isinstance(shape, UnionShape) and any(_nullable(branch) for branch in shape.branches)
    )


class RecordShape(Shape):
    """A record; `fields` are set once they are derived, because records may be recursive."""

    def __init__(
        self, kind: type[Any], name: str, namespace: str, build: Callable[[dict[str, Any]], Any]
    ) -> None:
        self.kind = kind
        self.fields: list[RecordField] = []
        self._name = name
        self._namespace = namespace
        self._build = build

    def definition(self, defined: set[str]) -> Json:
        full = f"{self._namespace}.{self._name}" if self._namespace else self._name
        if full in defined:
            return full
        defined.add(full)
        definition: dict[str, Json] = {"type": "record", "name": self._name}
        if self._namespace:
            definition["namespace"] = self._namespace
        definition["fields"] = [self._field(field, defined) for field in self.fields]
        return definition

    def _field(self, field: RecordField, defined: set[str]) -> Json:
        defined_field: dict[str, Json] = {
            "name": field.wire_name,
            "type": field.shape.definition(defined),
        }
        default = field.default
        if default is NO_DEFAULT and field.nullable:
            default = None
        if default is not NO_DEFAULT and default is not UNSTABLE_DEFAULT:
            plain = field.shape.plain(default, f"{self._name}.{field.wire_name}")
            defined_field["default"] = _json_default(plain)
        return defined_field

    def plain(self, value: Any, path: str) -> Any:
        if not isinstance(value, self.kind):
            raise Mismatch(path, value, f"a {self.kind.__name__}")
        return {
            field.wire_name: field.shape.plain(
                getattr(value, field.name), f"{path}.{field.wire_name}"
            )
            for field in self.fields
        }

    def value(self, plain: Any, path: str) -> Any:
        if not isinstance(plain, dict):
            raise Mismatch(path, plain, "a record")
        values = {}
        for field in self.fields:
            if field.wire_name in plain:
                where = f"{path}.{field.wire_name}"
                values[field.name] = field.shape.value(plain[field.wire_name], where)
            elif field.default is NO_DEFAULT:
                if not field.nullable:
                    raise SchemaFailed(
                        f"{path}.{field.wire_name} is missing in the message, and has no default"
                    )
                values[field.name] = None
        try:
            return self._build(values)
        except (TypeError, ValueError) as error:  # also pydantic's and msgspec's ValidationError
            raise SchemaFailed(f"{path} cannot be built: {error}") from error


def _json_default(plain: Any) -> Json:
    """Returns a default in Avro's JSON, whose bytes are text with a character per byte."""
    if isinstance(plain, bytes):
        return plain.decode("latin-1")
    if isinstance(plain, tuple):  # the branch of a union, with its value
        return _json_default(plain[1])
    if isinstance(plain, dict):
        return {key: _json_default(item) for key, item in plain.items()}
    if isinstance(plain, list):
        return [_json_default(item) for item in plain]
    default: Json = plain
    return default
