"""PROTOBUF_NATIVE schemas: messages of generated protobuf classes, defined by their descriptors."""

from typing import Any, TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message

from magnetar.client.errors import InvalidConfiguration, SchemaFailed
from magnetar.client.schema.api import Schema
from magnetar.schemas.model import InvalidSchemaData, SchemaInfo, SchemaType
from magnetar.schemas.protobuf import descriptor, envelope_of

M = TypeVar("M", bound=Message)


class ProtobufNativeSchema(Schema[M]):
    """Messages of one generated class."""

    def __init__(self, kind: type[M]) -> None:
        if not (isinstance(kind, type) and issubclass(kind, Message)):
            raise InvalidConfiguration(f"{kind!r} is no generated class of a protobuf message")
        self._kind = kind
        root: Any = kind.DESCRIPTOR  # the stubs know two classes of descriptors
        data = envelope_of(root)
        self._info = SchemaInfo(SchemaType.PROTOBUF_NATIVE, data, name="PROTOBUF_NATIVE")

    @property
    def info(self) -> SchemaInfo:
        return self._info

    def encode(self, value: M) -> bytes:
        if not isinstance(value, self._kind):
            raise SchemaFailed(f"{value!r} is not a {self._kind.__name__}")
        try:
            return value.SerializeToString()
        except EncodeError as error:
            raise SchemaFailed(f"The {self._kind.__name__} is incomplete: {error}") from error

    def decode(self, data: bytes, version: bytes | None) -> M:
        try:
            return self._kind.FromString(data)
        except DecodeError as error:
            raise SchemaFailed(f"The message is no {self._kind.__name__}: {error}") from error


def message_class(definition: bytes) -> Any:
    """Returns a class for the messages of a definition; raises SchemaFailed."""
    from google.protobuf.message_factory import GetMessageClass

    try:
        return GetMessageClass(descriptor(definition))
    except InvalidSchemaData as error:
        raise SchemaFailed(error.message) from error
