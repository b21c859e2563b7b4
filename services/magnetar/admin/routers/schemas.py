"""`/admin/v2/schemas`: the schemas of topics, and their versions."""

from dataclasses import replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import number_of, require_namespace, service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, empty
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.routes import Routes
from magnetar.broker.schema.registry import (
    InvalidSchemaData,
    SchemaInfo,
    SchemaType,
    VersionedSchema,
)
from magnetar.core.errors import IncompatibleSchema, InvalidTopicName, NotFound, PreconditionFailed
from magnetar.core.names import TopicName, parse_topic
from magnetar.documents.resources import SchemaPayload
from magnetar.schemas import key_value_text

router = Routes(prefix="/admin/v2/schemas", tags=("schemas",))

_TOPIC: Final = "/{tenant:name}/{namespace:name}/{topic:name}"
_BODY: Final = described(
    body="Schema",
    example={
        "type": "AVRO",
        "schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
        "properties": {},
    },
)
NO_VERSION: Final = -1
_OF_CLIENTS: Final = ("AUTO", "AUTO_PUBLISH")
"""Types that only exist in clients, and are never stored."""


@router.get(_TOPIC + "/schema", summary="A topic's schema")
async def get_schema(request: Request) -> Response:
    return answer(_document(await service_of(request).schemas.latest(_topic(request))))


@router.get(_TOPIC + "/schema/{version:number}", summary="One version of a topic's schema")
async def get_version(request: Request) -> Response:
    version = number_of(request, "version")
    return answer(_document(await service_of(request).schemas.get(_topic(request), version)))


@router.get(_TOPIC + "/schemas", summary="All versions of a topic's schema")
async def get_versions(request: Request) -> Response:
    versions = await service_of(request).schemas.versions(_topic(request))
    return answer({"getSchemaResponses": [_document(version) for version in versions]})


@router.get(_TOPIC + "/metadata", summary="All versions ever; a deletion counts as a version")
async def get_metadata(request: Request) -> Response:
    versions = await service_of(request).schemas.versions(_topic(request), with_deleted=True)
    # Pulsar stores schemas in ledgers, Magnetar in the metadata store: there are no ids.
    index = [{"ledgerId": -1, "entryId": -1, "version": version.version} for version in versions]
    return answer({"info": index[-1], "index": index}) if index else empty()


@router.post(_TOPIC + "/schema", summary="Register a schema", openapi_extra=_BODY)
async def post_schema(request: Request) -> Response:
    service, topic = service_of(request), _topic(request)
    schema = await _schema(request)
    if schema.type is SchemaType.BYTES:  # as in Pulsar, no schema at all is stored as NONE
        schema = replace(schema, type=SchemaType.NONE)
    await require_namespace(service, topic.namespace, "Namespace does not exist")
    policy = service.topic_schemas.policy(topic)
    version = await service.schemas.put(topic, schema, policy.strategy)
    return answer({"version": {"version": version}})


@router.delete(
    _TOPIC + "/schema",
    summary="Delete a topic's schema",
    openapi_extra=described(
        query("force", "boolean", "Delete all versions and start over with version 0")
    ),
)
async def delete_schema(request: Request) -> Response:
    schemas, topic = service_of(request).schemas, _topic(request)
    if bodies.flag(request, "force"):
        version = await schemas.forget(topic)
        return answer({"version": NO_VERSION if version is None else version})
    return answer({"version": await schemas.delete(topic)})


@router.post(
    _TOPIC + "/compatibility", summary="Whether a schema could be registered", openapi_extra=_BODY
)
async def test_compatibility(request: Request) -> Response:
    service, topic = service_of(request), _topic(request)
    schema = await _schema(request)
    await require_namespace(service, topic.namespace, "Namespace does not exist")
    policy = service.topic_schemas.policy(topic)
    try:
        await service.schemas.check(topic, schema, policy.strategy)
    except InvalidSchemaData:
        raise
    except IncompatibleSchema:
        compatible = False
    else:
        compatible = True
    document = {
        "schemaCompatibilityStrategy": policy.strategy.value,
        "compatibility": compatible,
    }
    return answer(document, 202)


@router.post(_TOPIC + "/version", summary="The version of a given schema", openapi_extra=_BODY)
async def find_version(request: Request) -> Response:
    version = await service_of(request).schemas.find(_topic(request), await _schema(request))
    return answer({"version": NO_VERSION if version is None else version})


def _topic(request: Request) -> TopicName:
    tenant, namespace = text_of(request, "tenant"), text_of(request, "namespace")
    try:
        return parse_topic(f"persistent://{tenant}/{namespace}/{text_of(request, 'topic')}")
    except InvalidTopicName as error:
        raise PreconditionFailed(f"Topic name is not valid: {error.message}") from None


async def _schema(request: Request) -> SchemaInfo:
    payload = await bodies.parse(request, SchemaPayload)
    if payload is None:
        raise HTTPException(400, "The body must be a schema")
    if payload.type.upper() in _OF_CLIENTS:
        raise InvalidSchemaData(f"Schema {payload.type.upper()} is a client-side schema type")
    try:
        kind = SchemaType[payload.type.upper()]
    except KeyError:
        raise InvalidSchemaData(f"Unknown schema type {payload.type}") from None
    if kind is SchemaType.KEY_VALUE:
        data = key_value_text.encode(payload.schema)
    else:
        data = payload.schema.encode()
    return SchemaInfo(kind, data, payload.properties)


def _document(version: VersionedSchema | None) -> dict[str, object]:
    if version is None:
        raise NotFound("Schema not found")
    schema = version.schema
    if schema.type is SchemaType.KEY_VALUE:
        data = key_value_text.decode(schema.data)
    else:
        data = schema.data.decode("utf-8", "replace")
    return {
        "version": version.version,
        "type": schema.type.name,
        "timestamp": version.timestamp_ms,
        "data": data,
        "properties": dict(schema.properties),
    }
