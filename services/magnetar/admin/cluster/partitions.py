"""Requests about a partitioned topic whose partitions are on several brokers.

The plans of this module (`placement.planned`) send the request to each partition's owner and merge
the answers in the same way as the handler merges local results. Like the handlers, they omit
partitions that do not exist.
"""

from typing import Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import NOT_FOUND, Merge, raise_refusal
from magnetar.admin.cluster.peers import Peers, gather_answers
from magnetar.admin.cluster.placement import Plan
from magnetar.admin.context import service_of, topic_of
from magnetar.admin.http.answers import JSON
from magnetar.admin.http.routes import Handler
from magnetar.broker.service import BrokerService
from magnetar.core.names import TopicName
from magnetar.documents.stats import TopicSummary

STARTS_AT_EARLIEST: Final = {"ledgerId": -1, "entryId": -1}


def each_partition(merge: Merge) -> Plan:
    """Returns the plan that sends a request to each partition, or to the unpartitioned topic."""

    async def plan(peers: Peers, request: Request, handler: Handler) -> Response:
        service, name = service_of(request), topic_of(request)
        partitions = await service.resources.partitions(name)
        if not partitions:
            return await peers.at_topic_owner(name, request, handler)
        parts = await existing_partition_names(service, name, partitions)
        return merge(await peers.repeat_for_topics(request, parts))

    return plan


async def existing_partition_names(
    service: BrokerService, name: TopicName, partitions: int, *, half_deleted: bool = False
) -> list[TopicName]:
    """Returns the declared partitions that exist; a non-persistent one is created by its first use.

    `half_deleted` includes partitions whose deletion was interrupted.
    """
    parts = [name.partition(index) for index in range(partitions)]
    return [
        part
        for part in parts
        if not part.persistent or await service.topics.exists(part, half_deleted=half_deleted)
    ]


async def copy_subscriptions(peers: Peers, name: TopicName, first: int, end: int) -> None:
    """Creates the first partition's subscriptions on new partitions, at the earliest message.

    Their consumers therefore miss no message of the new partitions.
    """
    if not name.persistent:
        return
    model = await stats_of(peers, name.partition(0))
    if model is None:
        return
    requests = [
        peers.request_topic(
            name.partition(index),
            "PUT",
            f"/subscription/{quote(subscription, safe='')}",
            body=msgspec.json.encode(
                STARTS_AT_EARLIEST | {"properties": stats.subscription_properties or {}}
            ),
            headers={"content-type": JSON},
        )
        for index in range(first, end)
        for subscription, stats in model.subscriptions.items()
        if stats.is_durable
    ]
    raise_refusal(await gather_answers(requests), {409})


async def stats_of(peers: Peers, name: TopicName) -> TopicSummary | None:
    """Requests a topic's stats at its owner; None if the topic does not exist."""
    response = await peers.request_topic(name, "GET", "/stats")
    if response.status in NOT_FOUND:
        return None
    raise_refusal([response], ())
    return msgspec.json.decode(response.body, type=TopicSummary)


def connected_clients(stats: TopicSummary) -> tuple[int, int]:
    """Returns the numbers of connected producers and consumers."""
    consumers = sum(
        len(subscription.consumers or ()) for subscription in stats.subscriptions.values()
    )
    return len(stats.publishers), consumers
