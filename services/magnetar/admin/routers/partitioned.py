"""`…/{topic}/partitions`: partitioned topics."""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer, done
from magnetar.admin.cluster import deletion as cluster_deletion
from magnetar.admin.cluster import partitions as parts
from magnetar.admin.cluster.route import peers_of
from magnetar.admin.context import (
    namespace_of,
    refuse_partition_name,
    require_namespace,
    service_of,
    text_of,
    topic_of,
)
from magnetar.admin.deletion import delete_partitioned
from magnetar.admin.described import AUTHORITATIVE, FORCE, described, query
from magnetar.admin.documents import PartitionedMetadata
from magnetar.admin.routes import Routes
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import Conflict, MetadataError, NotFound
from magnetar.core.ids import EARLIEST
from magnetar.core.names import TopicName

router = Routes(prefix="/admin/v2", tags=("topics",))
"""Metadata answers these, and partitions are deleted where they are: any broker can."""

_NAMESPACE: Final = "/{domain:domain}/{tenant:name}/{namespace:name}"
_PARTITIONS: Final = _NAMESPACE + "/{topic:name}/partitions"
_BODY: Final = described(body="How many partitions", example=4)

NOT_ACCEPTABLE: Final = 406
UNPROCESSABLE: Final = 422


@router.get(_NAMESPACE + "/partitioned", summary="List a namespace's partitioned topics")
async def list_partitioned(request: Request) -> Response:
    service, namespace = service_of(request), namespace_of(request)
    await require_namespace(service, namespace, "Namespace does not exist")
    names = await service.resources.partitioned_topics(namespace, text_of(request, "domain"))
    return answer(sorted(map(str, names)))


@router.get(
    _PARTITIONS,
    summary="How many partitions a topic has",
    openapi_extra=described(
        query("checkAllowAutoCreation", "boolean", "Answer also for what may be auto-created"),
        AUTHORITATIVE,
    ),
)
async def get_partitions(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    may_create = bodies.flag(request, "checkAllowAutoCreation")
    partitions = await service.topics.partitions_or_create(name, auto_create=may_create)
    return answer(await partitioned_metadata(service, name, partitions))


async def partitioned_metadata(
    service: BrokerService, name: TopicName, partitions: int
) -> dict[str, object]:
    """The answer to `GET …/partitions`, and a part of the partitioned stats."""
    document: dict[str, object] = {"partitions": partitions, "deleted": False}
    if partitions and (found := await service.resources.partitioned_properties(name)):
        document["properties"] = found
    return document


@router.put(_PARTITIONS, summary="Create a partitioned topic", openapi_extra=_BODY)
async def create_partitioned(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    wanted = await _wanted(request)
    refuse_partition_name(name)
    await require_namespace(service, name.namespace)
    _check_count(service, wanted.partitions)
    if await service.topics.exists(name):
        raise Conflict("This topic already exists")
    await service.topics.creation.check_partitions(name, wanted.partitions)
    await service.resources.create_partitioned(name, wanted.partitions, wanted.properties)
    await service.topics.create_partitions(name, 0, wanted.partitions)
    return done()


@router.post(_PARTITIONS, summary="Add partitions", openapi_extra=_BODY)
async def grow(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    wanted = await _wanted(request)
    if wanted.properties:
        raise HTTPException(400, "properties of a topic are not changed here: PUT …/properties")
    desired = wanted.partitions
    refuse_partition_name(name)
    await require_namespace(service, name.namespace)
    current = await service.resources.partitions(name)
    if not current:
        raise Conflict(f"Topic {name} is not the partitioned topic.")
    if desired < current:
        raise MetadataError(
            f"Desired partitions {desired} can't be less than the current partitions {current}.",
            http_status=UNPROCESSABLE,
        )
    if desired > current:
        _check_count(service, desired)
        await service.topics.creation.check_partitions(name, desired - current)
        await service.resources.grow_partitions(name, desired)
        await service.topics.create_partitions(name, current, desired)
        if (peers := peers_of(request)) is not None:
            await parts.copy_subscriptions(peers, name, current, desired)
        else:
            await _copy_subscriptions(service, name, current, desired)
    return done()


async def _copy_subscriptions(
    service: BrokerService, name: TopicName, first: int, end: int
) -> None:
    """New partitions get the first one's subscriptions, so that these miss nothing on them."""
    if not name.persistent:
        return
    model = await service.topics.get_or_open(name.partition(0), create=True)
    if not isinstance(model, PersistentTopic):
        return
    wanted = {
        subscription: dict(each.cursor.properties)
        for subscription, each in model.subscriptions.items()
        if each.cursor.durable
    }
    for subscription, (cursor_log, _) in model.managed_ledger.broken_cursors.items():
        wanted[subscription] = dict(cursor_log.record.properties)
    for index in range(first, end):
        topic = await service.topics.get_or_open(name.partition(index), create=True)
        if isinstance(topic, PersistentTopic):
            for subscription, properties in wanted.items():
                if subscription not in topic.subscriptions:
                    await topic.create_subscription(subscription, EARLIEST, properties)


@router.delete(
    _PARTITIONS, summary="Delete a partitioned topic", openapi_extra=described(FORCE, AUTHORITATIVE)
)
async def remove_partitioned(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    refuse_partition_name(name)
    if not await service.resources.partitions(name):
        if await service.topics.exists(name):
            raise Conflict(
                f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic "
                "please call delete."
            )
        raise NotFound(f"Topic {name} not found.")
    force = bodies.flag(request, "force")
    if (peers := peers_of(request)) is not None:
        await cluster_deletion.delete_partitioned(peers, service, name, force=force)
    else:
        await delete_partitioned(service, name, force=force)
    return done()


@router.post(
    _NAMESPACE + "/{topic:name}/createMissedPartitions",
    summary="Create partitions that are declared and do not exist",
)
async def create_missed(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    partitions = await service.resources.partitions(name)
    if not partitions:
        raise NotFound(f"Topic {name} does not exist")
    await service.topics.create_partitions(name, 0, partitions)
    return done()


async def _wanted(request: Request) -> PartitionedMetadata:
    body = await bodies.parse(
        request,
        int | PartitionedMetadata,  # type: ignore[arg-type]
        plain=True,
    )
    if body is None:
        raise HTTPException(400, "The body must say how many partitions")
    if isinstance(body, PartitionedMetadata):
        return body
    return PartitionedMetadata(int(body))


def _check_count(service: BrokerService, partitions: int) -> None:
    most = service.settings.partitions_max
    if partitions <= 0:
        raise MetadataError(
            "Number of partitions should be more than 0", http_status=NOT_ACCEPTABLE
        )
    if most and partitions > most:
        raise MetadataError(
            f"Number of partitions should be less than or equal to {most}",
            http_status=NOT_ACCEPTABLE,
        )
