"""Schemas on the wire, and the commands that fetch and register them."""

from collections.abc import Coroutine
from typing import Any

from magnetar.broker.session.session import Session
from magnetar.core.errors import IncompatibleSchema, MagnetarError, ServerError
from magnetar.core.names import parse_topic
from magnetar.schemas.model import SchemaInfo, SchemaType, VersionedSchema
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import error_number


def schema_info(schema: pb.Schema) -> SchemaInfo:
    """Decodes a client's schema."""
    properties = {pair.key: pair.value for pair in schema.properties}
    return SchemaInfo(SchemaType(schema.type), schema.schema_data, properties, schema.name)


def schema_message(registered: VersionedSchema, name: str) -> pb.Schema:
    """Encodes a registered schema."""
    info = registered.schema
    message = pb.Schema(name=name, schema_data=info.data, type=int(info.type))  # type: ignore[arg-type]
    for key, value in info.properties.items():
        message.properties.add(key=key, value=value)
    return message


def on_get_schema(session: Session, command: pb.CommandGetSchema) -> Coroutine[Any, Any, None]:
    """Answers a version of a topic's schema, by default the latest."""
    return _get_schema(session, command)


async def _get_schema(session: Session, command: pb.CommandGetSchema) -> None:
    response = pb.CommandGetSchemaResponse(request_id=command.request_id)
    try:
        name = parse_topic(command.topic)
        version: bytes | None = None
        if command.HasField("schema_version"):
            version = command.schema_version
            if not version:
                raise IncompatibleSchema("Empty schema version")
        registered = await session.service.schemas.get(name, version)
        if registered is None:
            response.error_code = error_number(ServerError.TOPIC_NOT_FOUND)
            response.error_message = f"Topic not found or no-schema {command.topic}"
        else:
            base = name.base
            full = f"{base.tenant}/{base.namespace_local}/{base.encoded_local}"
            response.schema.CopyFrom(schema_message(registered, full))
            response.schema_version = registered.version_bytes
    except MagnetarError as error:
        refuse_schema(session, command, error)
    else:
        session.link.answer(CommandType.GET_SCHEMA_RESPONSE, response)


def refuse_schema(session: Session, command: pb.CommandGetSchema, error: MagnetarError) -> None:
    """Answers GET_SCHEMA with an error."""
    response = pb.CommandGetSchemaResponse(request_id=command.request_id)
    response.error_code = error_number(error.code)
    response.error_message = error.message
    session.link.answer(CommandType.GET_SCHEMA_RESPONSE, response)


def on_get_or_create_schema(
    session: Session, command: pb.CommandGetOrCreateSchema
) -> Coroutine[Any, Any, None]:
    """Registers a schema for a topic if it is new, and answers its version."""
    return _get_or_create(session, command)


async def _get_or_create(session: Session, command: pb.CommandGetOrCreateSchema) -> None:
    response = pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    try:
        name = parse_topic(command.topic)
        topic = await session.service.topics.get_or_open(name, create=False)
        # Here, unlike when a producer or consumer attaches, type NONE means no schema.
        is_none = command.schema.type == pb.Schema.Type.Value("None")
        schema = None if is_none else schema_info(command.schema)
        response.schema_version = await topic.add_schema(schema)
    except MagnetarError as error:
        refuse_registration(session, command, error)
    else:
        session.link.answer(CommandType.GET_OR_CREATE_SCHEMA_RESPONSE, response)


def refuse_registration(
    session: Session, command: pb.CommandGetOrCreateSchema, error: MagnetarError
) -> None:
    """Answers GET_OR_CREATE_SCHEMA with an error."""
    response = pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    response.error_code = error_number(error.code)
    response.error_message = error.message
    session.link.answer(CommandType.GET_OR_CREATE_SCHEMA_RESPONSE, response)
