"""JSON schemas: records as JSON objects, defined by an Avro schema as in Pulsar's clients."""

from typing import Any, TypeVar

import msgspec

from magnetar.client.errors import SchemaFailed
from magnetar.client.schema.api import Schema
from magnetar.client.schema.derive import definition_of, derive
from magnetar.schemas.model import SchemaInfo, SchemaType

T = TypeVar("T")


class JsonSchema(Schema[T]):
    """Records of a dataclass, msgspec struct or pydantic model, as JSON."""

    def __init__(self, kind: type[T], *, name: str = "", namespace: str = "") -> None:
        """`name` and `namespace` are those of the definition; the default name is the type's."""
        self._shape = derive(kind, name=name, namespace=namespace, as_json=True)
        self._path = name or kind.__name__
        self._info = SchemaInfo(SchemaType.JSON, definition_of(self._shape), name="JSON")

    @property
    def info(self) -> SchemaInfo:
        return self._info

    def encode(self, value: T) -> bytes:
        return msgspec.json.encode(self._shape.plain(value, self._path))

    def decode(self, data: bytes, version: bytes | None) -> T:
        try:
            plain: Any = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SchemaFailed(f"The message is not JSON: {error}") from error
        value: T = self._shape.value(plain, self._path)
        return value
