"""`/admin/v2/{domain}/{tenant}/{namespace}`: unpartitioned topics, and single partitions."""

from dataclasses import replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.bulk import for_each
from magnetar.admin.cluster.answers import all_succeeded
from magnetar.admin.cluster.deletion import mark_of
from magnetar.admin.cluster.namespaces import topic_names
from magnetar.admin.cluster.partitions import each_partition
from magnetar.admin.cluster.placement import at_owner, planned
from magnetar.admin.context import (
    loaded_parts,
    loaded_topic,
    namespace_of,
    require_namespace,
    service_of,
    text_of,
    topic_of,
)
from magnetar.admin.deletion import delete_topic
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done, empty
from magnetar.admin.http.descriptions import AUTHORITATIVE, FORCE, described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.ownership import bundles
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.own_properties import check_keys
from magnetar.broker.topic.persistent import as_persistent, require_persistent
from magnetar.core.errors import Conflict, NotAllowed, PreconditionFailed
from magnetar.core.names import TopicName
from magnetar.metadata.store import BadRevision

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)

_NAMESPACE: Final = "/{domain:domain}/{tenant:name}/{namespace:name}"
_NO_PROPERTIES: Final = "A non-persistent topic keeps no properties"
_PROPERTIES: Final = described(body="Properties", example={"team": "payments"})


@router.get(
    _NAMESPACE,
    summary="List a namespace's topics, partitions one by one",
    openapi_extra=described(
        query("bundle", "string", "Only topics in this bundle"),
        query("includeSystemTopic", "boolean", "Also system topics"),
    ),
)
async def list_topics(request: Request) -> Response:
    service, namespace = service_of(request), namespace_of(request)
    await require_namespace(service, namespace, "Namespace does not exist")
    names = await topic_names(request, namespace, text_of(request, "domain"))
    if not bodies.flag(request, "includeSystemTopic"):
        names = [name for name in names if not is_system_topic(name)]
    if bundle := request.query_params.get("bundle"):
        policies = await service.resources.policies(namespace)
        bundle = bundles.checked(policies, namespace, bundle.lower())
        names = [name for name in names if bundles.bundle_of(policies, name) == bundle]
    return answer(sorted(map(str, names)))


@router.put(TOPIC_PATH, summary="Create an unpartitioned topic", openapi_extra=_PROPERTIES)
async def create_topic(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    properties = await bodies.parse(request, dict[str, str]) or {}
    await require_namespace(service, name.namespace)
    await _check_partition_name(service, name)
    if properties and not name.persistent:
        raise NotAllowed(_NO_PROPERTIES)
    if await service.resources.partitions(name) or await service.topics.exists(name):
        raise Conflict("This topic already exists")
    await service.topics.create(name, properties)
    return done()


async def _check_partition_name(service: BrokerService, name: TopicName) -> None:
    """Raises PreconditionFailed if the name is a partition's, unless the partition is declared."""
    if not name.numbered:
        return
    base = replace(name, local=name.numbered)
    partitions = await service.resources.partitions(base)
    if not partitions:
        raise PreconditionFailed(
            f'Can\'t create topic {name.local} with "-partition-" followed by numeric value '
            f"if there isn't a partitioned topic {base.local} created."
        )
    if name.partition_index >= partitions:
        raise PreconditionFailed(
            f'Can\'t create topic {name.local} with "-partition-" followed by a number smaller '
            f"than number of partition of partitioned topic {name.base.local}"
        )


@router.delete(
    TOPIC_PATH,
    summary="Delete an unpartitioned topic, or a partition",
    openapi_extra=described(FORCE, AUTHORITATIVE),
)
async def remove_topic(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if await service.resources.partitions(name):
        raise Conflict(
            f"{name} is a partitioned topic, instead of calling delete topic, please call "
            "delete-partitioned-topic."
        )
    mark = mark_of(request)
    try:
        await delete_topic(service, name, force=bodies.flag(request, "force"), under=mark)
    except BadRevision as error:
        if mark is None or error.key != mark.key:
            raise
        raise PreconditionFailed(f"{mark.key} was changed: its deletion starts over") from error
    return done()


@router.put(TOPIC_PATH + "/unload", summary="Unload a topic: clients look it up again")
@planned(each_partition(all_succeeded()))
async def unload(request: Request) -> Response:
    service = service_of(request)
    parts = await loaded_parts(service, topic_of(request))
    await for_each(parts, lambda topic: service.topics.unload(topic.name))
    return done()


@router.delete(TOPIC_PATH + "/truncate", summary="Delete all messages of a topic")
@planned(each_partition(all_succeeded()))
async def truncate(request: Request) -> Response:
    async def truncate_log(topic: Topic) -> None:
        await require_persistent(topic, "unsupport truncate").managed_ledger.truncate()

    await for_each(await loaded_parts(service_of(request), topic_of(request)), truncate_log)
    return done()


@router.get(TOPIC_PATH + "/properties", summary="A topic's properties")
async def get_properties(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if await service.resources.partitions(name):
        stored = await service.resources.partitioned_properties(name)
        return answer(stored) if stored else empty()
    topic = await loaded_topic(service, name)
    return answer(dict(topic.properties))


@router.put(
    TOPIC_PATH + "/properties", summary="Add or replace properties", openapi_extra=_PROPERTIES
)
async def put_properties(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    added = await bodies.parse(request, dict[str, str]) or {}
    check_keys(added)
    if await service.resources.partitions(name):
        await service.resources.update_partitioned_properties(name, lambda old: old | added)
        return done()
    topic = await loaded_topic(service, name)
    persistent = require_persistent(topic, _NO_PROPERTIES)
    await persistent.set_properties(added)
    return done()


@router.delete(
    TOPIC_PATH + "/properties",
    summary="Remove a property",
    openapi_extra=described(query("key", "string", "The key of the property")),
)
async def delete_property(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    key = request.query_params.get("key")
    if not key:
        raise HTTPException(400, "Query parameter key is missing: which property to remove")
    if await service.resources.partitions(name):
        await service.resources.update_partitioned_properties(
            name, lambda old: {k: v for k, v in old.items() if k != key}
        )
        return done()
    topic = as_persistent(await loaded_topic(service, name))
    if topic is not None:
        await topic.delete_property(key)
    return done()
