"""`…/stats` and other routes that show the state of a topic."""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import NOT_FOUND, raise_refusal
from magnetar.admin.cluster.partitions import existing_partition_names
from magnetar.admin.cluster.peers import Peers, gather_answers
from magnetar.admin.cluster.placement import any_broker, at_owner, planned
from magnetar.admin.cluster.sender import PeerAnswer, query_of
from magnetar.admin.context import (
    existing_partitions,
    loaded_topic,
    refuse_partition_name,
    require_namespace,
    service_of,
    topic_not_found,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer
from magnetar.admin.http.descriptions import AUTHORITATIVE, described, query
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Handler, Routes
from magnetar.admin.routers.partitioned import partitioned_metadata
from magnetar.admin.stats.internal import internal_info, internal_stats
from magnetar.admin.stats.partitioned import partitioned_stats
from magnetar.admin.stats.topic import TopicStats, add_earliest_times, compaction_stats, topic_stats
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import as_persistent
from magnetar.core.errors import NotAllowed, NotFound
from magnetar.core.names import TopicName
from magnetar.ledger.metadata import ledger_key

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)

_EXCLUDED: Final = (
    query("excludePublishers", "boolean", "Omit the list of producers"),
    query("excludeConsumers", "boolean", "Omit the lists of consumers"),
)


@router.get(
    TOPIC_PATH + "/stats",
    summary="A topic's producers, subscriptions, rates and backlog",
    openapi_extra=described(
        query("getPreciseBacklog", "boolean", "No effect: it is always precise"),
        query("subscriptionBacklogSize", "boolean", "No effect: it is always shown"),
        query(
            "getEarliestTimeInBacklog",
            "boolean",
            "Also the start times of backlogs (reads messages)",
        ),
        *_EXCLUDED,
        AUTHORITATIVE,
    ),
)
async def stats(request: Request) -> Response:
    service = service_of(request)
    topic = await loaded_topic(service, topic_of(request))
    document = await _stats(request, topic)
    if bodies.flag(request, "getEarliestTimeInBacklog"):
        await add_earliest_times(document, topic)
    return answer(document)


@router.get(
    TOPIC_PATH + "/internalStats",
    summary="A topic's ledgers and cursors",
    openapi_extra=described(
        query("metadata", "boolean", "Include the metadata store's record of each ledger")
    ),
)
async def get_internal_stats(request: Request) -> Response:
    service = service_of(request)
    document = await _internal(service, await loaded_topic(service, topic_of(request)))
    if bodies.flag(request, "metadata"):
        await _add_records(service, document)
    return answer(document)


async def _add_records(service: BrokerService, document: dict[str, Any]) -> None:
    """Adds the record of each ledger as a text; an offloaded ledger may have none any more."""
    for ledger in document.get("ledgers", ()):
        record = await service.store.get(ledger_key(ledger["ledgerId"]))
        if record is not None:
            ledger["metadata"] = record.value.decode()


@router.get(TOPIC_PATH + "/internal-info", summary="A topic's records in the metadata store")
@any_broker
async def get_internal_info(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await require_namespace(service, name.namespace)
    if not name.persistent:
        raise NotAllowed("A non-persistent topic is not recorded")
    try:
        info = await service.ledgers.info(ledger_name(name))
    except NotFound:
        raise topic_not_found(name) from None
    moved = await service.offloading.cold.records(info.name) if info.record.ledgers else {}
    return answer(internal_info(info, moved))


async def _request_partitions(
    peers: Peers, request: Request, name: TopicName, partitions: int, suffix: str
) -> dict[str, PeerAnswer]:
    """Requests a document of each partition at its owner; omits missing partitions."""
    answers = await gather_answers(
        [
            peers.request_topic(part, "GET", suffix, query=query_of(request))
            for part in await existing_partition_names(service_of(request), name, partitions)
        ]
    )
    raise_refusal(answers, NOT_FOUND)
    return {part.subject: part for part in answers if part.succeeded}


async def _cluster_stats(peers: Peers, request: Request, _: Handler) -> Response:
    """Merges the stats of partitions from their owners; the plan of `get_partitioned_stats`."""
    service, name = service_of(request), topic_of(request)
    partitions = await _partitions_with_stats(service, name)
    answers = await _request_partitions(peers, request, name, partitions, "/stats")
    by_partition = {
        partition: msgspec.json.decode(part.body, type=TopicStats)
        for partition, part in answers.items()
    }
    metadata = await partitioned_metadata(service, name, partitions)
    per_partition = bodies.flag(request, "perPartition", default=True)
    return answer(partitioned_stats(by_partition, metadata, per_partition=per_partition))


async def _cluster_internal_stats(peers: Peers, request: Request, _: Handler) -> Response:
    """Collects internal stats of partitions from their owners; the cluster's plan."""
    service, name = service_of(request), topic_of(request)
    partitions = await _partitions(service, name)
    answers = await _request_partitions(peers, request, name, partitions, "/internalStats")
    by_partition = {partition: msgspec.Raw(part.body) for partition, part in answers.items()}
    metadata = await partitioned_metadata(service, name, partitions)
    return answer({"metadata": metadata, "partitions": by_partition})


@router.get(
    TOPIC_PATH + "/partitioned-stats",
    summary="Stats summed over partitions",
    openapi_extra=described(
        query("perPartition", "boolean", "Also the stats of each partition (default)"), *_EXCLUDED
    ),
)
@planned(_cluster_stats)
async def get_partitioned_stats(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    partitions = await _partitions_with_stats(service, name)
    by_partition: dict[str, TopicStats] = {}
    async for topic in existing_partitions(service, name, partitions):
        by_partition[topic.full_name] = await _stats(request, topic)
    metadata = await partitioned_metadata(service, name, partitions)
    per_partition = bodies.flag(request, "perPartition", default=True)
    return answer(partitioned_stats(by_partition, metadata, per_partition=per_partition))


@router.get(
    TOPIC_PATH + "/partitioned-internalStats", summary="Ledgers and cursors of each partition"
)
@planned(_cluster_internal_stats)
async def get_partitioned_internal_stats(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    partitions = await _partitions(service, name)
    by_partition: dict[str, object] = {}
    async for topic in existing_partitions(service, name, partitions):
        by_partition[topic.full_name] = await _internal(service, topic)
    metadata = await partitioned_metadata(service, name, partitions)
    return answer({"metadata": metadata, "partitions": by_partition})


async def _internal(service: BrokerService, topic: Topic) -> dict[str, object]:
    persistent = as_persistent(topic)
    if persistent is None:
        return internal_stats(topic)
    moved = await service.offloading.refresh(persistent.managed_ledger, always=True)
    facts = await service.compaction.facts(persistent.managed_ledger)
    return internal_stats(topic, moved.sizes, facts.record)


async def _stats(request: Request, topic: Topic) -> TopicStats:
    """Returns a topic's stats without the lists that the client excludes."""
    service = service_of(request)
    stats = topic_stats(topic, service.broker_id)
    if (persistent := as_persistent(topic)) is not None:
        moved = await service.offloading.refresh(persistent.managed_ledger)
        stats.offloaded_storage_size = moved.size_bytes
        stats.last_offload_ledger_id = moved.last_ledger_id
        stats.last_offload_success_time_stamp = moved.last_success_ms
        stats.last_offload_failure_time_stamp = moved.last_failure_ms
        stats.compaction = compaction_stats(
            await service.compaction.facts(persistent.managed_ledger)
        )
    if bodies.flag(request, "excludePublishers"):
        stats.publishers = []
    if bodies.flag(request, "excludeConsumers"):
        for subscription in stats.subscriptions.values():
            subscription.consumers = []
    return stats


async def _partitions_with_stats(service: BrokerService, name: TopicName) -> int:
    """Returns the number of partitions; unlike for internal stats, Pulsar refuses a partition."""
    if name.partition_index >= 0:
        refuse_partition_name(name)
    return await _partitions(service, name)


async def _partitions(service: BrokerService, name: TopicName) -> int:
    """Returns the number of partitions; raises NotFound if the topic is not partitioned."""
    await require_namespace(service, name.namespace)
    partitions = await service.resources.partitions(name)
    if not partitions:
        raise NotFound(f"Partitioned Topic {name} not found")
    return partitions
