"""`…/stats` and what else looks into a topic without changing it."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer
from magnetar.admin.cluster import partitions as parts
from magnetar.admin.cluster.peers import Handler, Peers, together
from magnetar.admin.cluster.route import anywhere, at_owner, planned
from magnetar.admin.cluster.sending import Answer, query_of
from magnetar.admin.context import (
    existing_partitions,
    loaded_topic,
    refuse_partition_name,
    require_namespace,
    service_of,
    topic_not_found,
    topic_of,
)
from magnetar.admin.described import AUTHORITATIVE, described, query
from magnetar.admin.routers.partitioned import partitioned_metadata
from magnetar.admin.routes import Routes
from magnetar.admin.stats.internal import internal_info, internal_stats
from magnetar.admin.stats.partitioned import partitioned_stats
from magnetar.admin.stats.topic import TopicStats, add_earliest_times, compaction_stats, topic_stats
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic_ledgers import ledger_name
from magnetar.broker.topics import Topic
from magnetar.core.errors import NotAllowed, NotFound
from magnetar.core.names import TopicName

router = Routes(prefix="/admin/v2", tags=("topics",), placing=at_owner)

_TOPIC: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"
_LEFT_OUT: Final = (
    query("excludePublishers", "boolean", "Without the list of producers"),
    query("excludeConsumers", "boolean", "Without the lists of consumers"),
)


@router.get(
    _TOPIC + "/stats",
    summary="A topic's producers, subscriptions, rates and backlog",
    openapi_extra=described(
        query("getPreciseBacklog", "boolean", "It is always precise"),
        query("subscriptionBacklogSize", "boolean", "It is always there"),
        query("getEarliestTimeInBacklog", "boolean", "Also when backlogs begin (reads messages)"),
        *_LEFT_OUT,
        AUTHORITATIVE,
    ),
)
async def stats(request: Request) -> Response:
    service = service_of(request)
    topic = await loaded_topic(service, topic_of(request))
    found = await _stats(request, topic)
    if bodies.flag(request, "getEarliestTimeInBacklog"):
        await add_earliest_times(found, topic)
    return answer(found)


@router.get(_TOPIC + "/internalStats", summary="A topic's ledgers and cursors")
async def get_internal_stats(request: Request) -> Response:
    service = service_of(request)
    return answer(await _internal(service, await loaded_topic(service, topic_of(request))))


@router.get(_TOPIC + "/internal-info", summary="A topic's records in the metadata store")
@anywhere
async def get_internal_info(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    if not name.persistent:
        raise NotAllowed("A non-persistent topic is not recorded")
    try:
        info = await service.ledgers.info(ledger_name(name))
    except NotFound:
        raise topic_not_found(name) from None
    live = await service.offloading.cold.records(info.name) if info.record.ledgers else {}
    return answer(internal_info(info, live))


async def _of_parts(
    peers: Peers, request: Request, name: TopicName, partitions: int, what: str
) -> dict[str, Answer]:
    """What the owners of the partitions say of them; those that do not exist are left out."""
    found = await together(
        [
            peers.ask_topic(part, "GET", what, query=query_of(request))
            for part in await parts.existing(service_of(request), name, partitions)
        ]
    )
    parts.raise_refusal(found, parts.NOT_FOUND)
    return {each.about: each for each in found if each.good}


async def _cluster_stats(peers: Peers, request: Request, _: Handler) -> Response:
    """`get_partitioned_stats` over the brokers of a cluster."""
    service, name = service_of(request), topic_of(request)
    partitions = await _partitions(service, name)
    answers = await _of_parts(peers, request, name, partitions, "/stats")
    found = {
        about: msgspec.json.decode(each.body, type=TopicStats) for about, each in answers.items()
    }
    metadata = await partitioned_metadata(service, name, partitions)
    per_partition = bodies.flag(request, "perPartition", default=True)
    return answer(partitioned_stats(found, metadata, per_partition=per_partition))


async def _cluster_internal_stats(peers: Peers, request: Request, _: Handler) -> Response:
    """`get_partitioned_internal_stats` over the brokers of a cluster."""
    service, name = service_of(request), topic_of(request)
    partitions = await _partitions(service, name)
    answers = await _of_parts(peers, request, name, partitions, "/internalStats")
    found = {about: msgspec.Raw(each.body) for about, each in answers.items()}
    metadata = await partitioned_metadata(service, name, partitions)
    return answer({"metadata": metadata, "partitions": found})


@router.get(
    _TOPIC + "/partitioned-stats",
    summary="The same, summed over partitions",
    openapi_extra=described(
        query("perPartition", "boolean", "Also each partition (default)"), *_LEFT_OUT
    ),
)
@planned(_cluster_stats)
async def get_partitioned_stats(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    partitions = await _partitions(service, name)
    found: dict[str, TopicStats] = {}
    async for topic in existing_partitions(service, name, partitions):
        found[topic.full_name] = await _stats(request, topic)
    metadata = await partitioned_metadata(service, name, partitions)
    per_partition = bodies.flag(request, "perPartition", default=True)
    return answer(partitioned_stats(found, metadata, per_partition=per_partition))


@router.get(_TOPIC + "/partitioned-internalStats", summary="Ledgers and cursors of each partition")
@planned(_cluster_internal_stats)
async def get_partitioned_internal_stats(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    partitions = await service.resources.partitions(name)
    if not partitions:
        raise NotFound(f"Partitioned Topic {name} not found")
    found: dict[str, object] = {}
    async for topic in existing_partitions(service, name, partitions):
        found[topic.full_name] = await _internal(service, topic)
    metadata = await partitioned_metadata(service, name, partitions)
    return answer({"metadata": metadata, "partitions": found})


async def _internal(service: BrokerService, topic: Topic) -> dict[str, object]:
    if not isinstance(topic, PersistentTopic):
        return internal_stats(topic)
    moved = await service.offloading.refresh(topic.managed_ledger, always=True)
    facts = await service.compaction.facts(topic.managed_ledger)
    return internal_stats(topic, moved.sizes, facts.record)


async def _stats(request: Request, topic: Topic) -> TopicStats:
    """A topic's stats, without what the client does not want to see."""
    service = service_of(request)
    found = topic_stats(topic, service.broker_id)
    if isinstance(topic, PersistentTopic):
        moved = await service.offloading.refresh(topic.managed_ledger)
        found.offloaded_storage_size = moved.size_bytes
        found.last_offload_ledger_id = moved.last_ledger_id
        found.last_offload_success_time_stamp = moved.last_success_ms
        found.last_offload_failure_time_stamp = moved.last_failure_ms
        found.compaction = compaction_stats(await service.compaction.facts(topic.managed_ledger))
    if bodies.flag(request, "excludePublishers"):
        found.publishers = []
    if bodies.flag(request, "excludeConsumers"):
        for subscription in found.subscriptions.values():
            subscription.consumers = []
    return found


async def _partitions(service: BrokerService, name: TopicName) -> int:
    if name.partition_index >= 0:
        refuse_partition_name(name)
    await require_namespace(service, name.namespace)
    partitions = await service.resources.partitions(name)
    if not partitions:
        raise NotFound(f"Partitioned Topic {name} not found")
    return partitions
