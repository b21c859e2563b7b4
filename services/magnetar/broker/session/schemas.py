"""Schemas on the wire, and the commands that fetch and register them."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from magnetar.broker.schema.model import SchemaInfo, SchemaType, VersionedSchema
from magnetar.core.errors import IncompatibleSchema, MagnetarError, ServerError
from magnetar.core.names import parse_topic
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

if TYPE_CHECKING:
    from magnetar.broker.session.session import Session


def schema_info(schema: pb.Schema) -> SchemaInfo:
    """A client's schema in our words."""
    properties = {pair.key: pair.value for pair in schema.properties}
    return SchemaInfo(SchemaType(schema.type), schema.schema_data, properties, schema.name)


def schema_message(found: VersionedSchema, name: str) -> pb.Schema:
    """The wire form of a registered schema."""
    info = found.schema
    message = pb.Schema(name=name, schema_data=info.data, type=int(info.type))  # type: ignore[arg-type]
    for key, value in info.properties.items():
        message.properties.add(key=key, value=value)
    return message


def on_get_schema(session: "Session", command: pb.CommandGetSchema) -> Coroutine[Any, Any, None]:
    return _get_schema(session, command)


async def _get_schema(session: "Session", command: pb.CommandGetSchema) -> None:
    response = pb.CommandGetSchemaResponse(request_id=command.request_id)
    try:
        name = parse_topic(command.topic)
        version: bytes | None = None
        if command.HasField("schema_version"):
            version = command.schema_version
            if not version:
                raise IncompatibleSchema("Empty schema version")
        found = await session.service.schemas.get(name, version)
        if found is None:
            response.error_code = int(ServerError.TOPIC_NOT_FOUND)  # type: ignore[assignment]
            response.error_message = f"Topic not found or no-schema {command.topic}"
        else:
            base = name.base
            full = f"{base.tenant}/{base.namespace_local}/{base.encoded_local}"
            response.schema.CopyFrom(schema_message(found, full))
            response.schema_version = found.version_bytes
    except MagnetarError as error:
        response.error_code = int(error.code)  # type: ignore[assignment]
        response.error_message = error.message
    session.link.answer(CommandType.GET_SCHEMA_RESPONSE, response)


def on_get_or_create_schema(
    session: "Session", command: pb.CommandGetOrCreateSchema
) -> Coroutine[Any, Any, None]:
    return _get_or_create(session, command)


async def _get_or_create(session: "Session", command: pb.CommandGetOrCreateSchema) -> None:
    response = pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    try:
        name = parse_topic(command.topic)
        topic = await session.service.topics.get_or_open(name, create=False)
        # Here, unlike when a producer or consumer attaches, type NONE means no schema.
        is_none = command.schema.type == pb.Schema.Type.Value("None")
        schema = None if is_none else schema_info(command.schema)
        response.schema_version = await topic.add_schema(schema)
    except MagnetarError as error:
        response.error_code = int(error.code)  # type: ignore[assignment]
        response.error_message = error.message
    session.link.answer(CommandType.GET_OR_CREATE_SCHEMA_RESPONSE, response)
