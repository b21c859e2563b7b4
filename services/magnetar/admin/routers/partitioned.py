"""`…/{topic}/partitions`: partitioned topics."""

from typing import Final, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster import partitions as parts
from magnetar.admin.cluster.deletion import remover_of
from magnetar.admin.cluster.placement import peers_of
from magnetar.admin.context import (
    namespace_of,
    refuse_partition_name,
    require_namespace,
    service_of,
    text_of,
    topic_of,
)
from magnetar.admin.deletion import delete_partitioned
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import AUTHORITATIVE, FORCE, described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.own_properties import check_keys
from magnetar.broker.topic.persistent import as_persistent
from magnetar.broker.transactions.assignment import ASSIGN_TOPIC
from magnetar.core.errors import Conflict, MetadataError, NotFound
from magnetar.core.ids import EARLIEST
from magnetar.core.names import TopicName
from magnetar.documents.resources import PartitionedMetadata

router = Routes(prefix="/admin/v2", tags=("topics",))
"""Any broker serves these routes: it answers from metadata, and owners delete partitions."""

_NAMESPACE: Final = "/{domain:domain}/{tenant:name}/{namespace:name}"
_PARTITIONS: Final = TOPIC_PATH + "/partitions"
_BODY: Final = described(body="The number of partitions", example=4)

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
    summary="The number of a topic's partitions",
    openapi_extra=described(
        query("checkAllowAutoCreation", "boolean", "Also create a topic that may be auto-created"),
        AUTHORITATIVE,
    ),
)
async def get_partitions(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    if service.transactions is not None and name == ASSIGN_TOPIC:
        # Clients with an HTTP service URL count the transaction coordinators by it.
        return answer({"partitions": await service.transactions.coordinator_count()})
    await require_namespace(service, name.namespace)
    may_create = bodies.flag(request, "checkAllowAutoCreation")
    partitions = await service.topics.partitions_or_create(name, auto_create=may_create)
    return answer(await partitioned_metadata(service, name, partitions))


async def partitioned_metadata(
    service: BrokerService, name: TopicName, partitions: int
) -> dict[str, object]:
    """Returns the answer to `GET …/partitions`, which partitioned stats contain as well."""
    document: dict[str, object] = {"partitions": partitions, "deleted": False}
    if partitions and (properties := await service.resources.partitioned_properties(name)):
        document["properties"] = properties
    return document


@router.put(_PARTITIONS, summary="Create a partitioned topic", openapi_extra=_BODY)
async def create_partitioned(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    body = await _body(request)
    refuse_partition_name(name)
    check_keys(body.properties)
    await require_namespace(service, name.namespace)
    _check_count(service, body.partitions)
    if await service.topics.exists(name):
        raise Conflict("This topic already exists")
    await service.topics.creation.check_partitions(name, body.partitions)
    await service.resources.create_partitioned(name, body.partitions, body.properties)
    await service.topics.create_partitions(name, 0, body.partitions)
    return done()


@router.post(_PARTITIONS, summary="Add partitions", openapi_extra=_BODY)
async def grow(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    body = await _body(request)
    if body.properties:
        raise HTTPException(400, "properties of a topic are not changed here: PUT …/properties")
    desired = body.partitions
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
    """Creates the first partition's subscriptions on new ones, as the cluster's plan does."""
    if not name.persistent:
        return
    model = as_persistent(await service.topics.get_or_open(name.partition(0), create=True))
    if model is None:
        return
    properties_of = {
        name: dict(subscription.cursor.properties)
        for name, subscription in model.subscriptions.items()
        if subscription.cursor.durable
    }
    for subscription, (cursor_log, _) in model.managed_ledger.broken_cursors.items():
        properties_of[subscription] = dict(cursor_log.record.properties)
    for index in range(first, end):
        topic = as_persistent(await service.topics.get_or_open(name.partition(index), create=True))
        if topic is not None:
            for subscription, properties in properties_of.items():
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
    await delete_partitioned(service, remover_of(request), name, force=force)
    return done()


@router.post(
    TOPIC_PATH + "/createMissedPartitions",
    summary="Create the declared partitions that do not exist",
)
async def create_missed(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    refuse_partition_name(name)
    partitions = await service.resources.partitions(name)
    if not partitions:
        raise NotFound(f"Topic {name} does not exist")
    await service.topics.create_partitions(name, 0, partitions)
    return done()


async def _body(request: Request) -> PartitionedMetadata:
    """Returns the parsed body, which may be the bare number of partitions."""
    # mypy does not accept a union as a type argument; msgspec does.
    kind = cast("type[int | PartitionedMetadata]", int | PartitionedMetadata)
    body = await bodies.parse(request, kind, plain=True)
    if body is None:
        raise HTTPException(400, "The body must say how many partitions")
    if isinstance(body, PartitionedMetadata):
        if body.deleted:
            raise HTTPException(400, "deleted must be false")
        return body
    return PartitionedMetadata(int(body))


def _check_count(service: BrokerService, partitions: int) -> None:
    if partitions <= 0:
        raise MetadataError(
            "Number of partitions should be more than 0", http_status=NOT_ACCEPTABLE
        )
    service.topics.creation.check_count(partitions)
