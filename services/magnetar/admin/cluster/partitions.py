"""Requests about a partitioned topic whose partitions are on several brokers.

The plans here (`route.planned`) send the request to each partition's owner, as one about that
partition, and merge the answers as the handler merges what is local. Partitions that do not exist
are left out, as the handlers do. Where all refuse, the first refusal is the answer; where one
refuses for another reason than that it has nothing to do, so is that one.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.answers import JSON, answer, done
from magnetar.admin.cluster.peers import Handler, Peers, together
from magnetar.admin.cluster.route import Plan
from magnetar.admin.cluster.sending import Answer
from magnetar.admin.context import service_of, topic_of
from magnetar.broker.service import BrokerService
from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName

Merge = Callable[[Sequence[Answer]], Response]

NOT_FOUND: Final = frozenset({404})
NOT_FOUND_OR_THERE: Final = frozenset({404, 409})
STARTS_AT_EARLIEST: Final[dict[str, Any]] = {"ledgerId": -1, "entryId": -1}


def each_partition(merge: Merge) -> Plan:
    """The request is sent to each partition; one about a topic without any, to its owner."""

    async def plan(peers: Peers, request: Request, handler: Handler) -> Response:
        service, name = service_of(request), topic_of(request)
        partitions = await service.resources.partitions(name)
        if not partitions:
            return await peers.at_topic_owner(name, request, handler)
        parts = await existing(service, name, partitions)
        return merge(await peers.same_of_topics(request, parts))

    return plan


async def existing(
    service: BrokerService, name: TopicName, partitions: int, *, half_deleted: bool = False
) -> list[TopicName]:
    """The declared partitions that exist; non-persistent ones do as soon as they are asked for.

    With `half_deleted`, also those whose deletion was cut short.
    """
    parts = [name.partition(index) for index in range(partitions)]
    return [
        part
        for part in parts
        if not part.persistent or await service.topics.exists(part, half_deleted=half_deleted)
    ]


# -- merging


def refused(answers: Sequence[Answer], tolerated: Collection[int]) -> Response | None:
    """The refusal that stands for all, if any: see the module's text."""
    bad = [each for each in answers if not each.good]
    worse = [each for each in bad if each.status not in tolerated]
    chosen = worse or (bad if len(bad) == len(answers) else [])
    if not chosen:
        return None
    return Response(chosen[0].body, chosen[0].status, media_type=JSON)


def all_done(tolerated: Collection[int] = NOT_FOUND) -> Merge:
    """204 where at least one did it and no other refused."""

    def merge(answers: Sequence[Answer]) -> Response:
        return refused(answers, tolerated) or done()

    return merge


def union(answers: Sequence[Answer]) -> Response:
    """The lists of all, as one in order."""
    if (refusal := refused(answers, NOT_FOUND)) is not None:
        return refusal
    found: set[str] = set()
    for each in answers:
        if each.good:
            found.update(msgspec.json.decode(each.body, type=list[str]))
    return answer(sorted(found))


def merged(answers: Sequence[Answer]) -> Response:
    """The objects of all, as one."""
    if (refusal := refused(answers, NOT_FOUND)) is not None:
        return refusal
    found: dict[str, Any] = {}
    for each in answers:
        if each.good:
            found |= msgspec.json.decode(each.body, type=dict[str, Any])
    return answer(found)


# -- what handlers ask for


class Refused(MagnetarError):
    """A peer's refusal, to be passed on."""


def raise_refusal(answers: Sequence[Answer], tolerated: Collection[int]) -> None:
    """Raises what one of them said, unless it is tolerated."""
    for each in answers:
        if not each.good and each.status not in tolerated:
            raise Refused(reason_of(each), http_status=each.status)


def reason_of(each: Answer) -> str:
    """The text of a refusal."""
    try:
        found = msgspec.json.decode(each.body, type=dict[str, Any]).get("reason")
    except msgspec.MsgspecError:
        found = None
    return str(found or each.body.decode("utf-8", "replace") or f"status {each.status}")


async def copy_subscriptions(peers: Peers, name: TopicName, first: int, end: int) -> None:
    """New partitions get the first one's subscriptions, so that these miss nothing on them."""
    if not name.persistent:
        return
    model = await stats_of(peers, name.partition(0))
    wanted = {
        subscription: stats.get("subscriptionProperties") or {}
        for subscription, stats in (model.get("subscriptions") or {}).items()
        if stats.get("isDurable", stats.get("durable", True))
    }
    asking = [
        peers.ask_topic(
            name.partition(index),
            "PUT",
            f"/subscription/{quote(subscription, safe='')}",
            body=msgspec.json.encode(STARTS_AT_EARLIEST | {"properties": properties}),
            headers={"content-type": JSON},
        )
        for index in range(first, end)
        for subscription, properties in wanted.items()
    ]
    raise_refusal(await together(asking), {409})


async def stats_of(peers: Peers, name: TopicName, query: str = "") -> dict[str, Any]:
    """A topic's stats, empty where it does not exist."""
    found = await peers.ask_topic(name, "GET", "/stats", query=query)
    if found.status in NOT_FOUND:
        return {}
    raise_refusal([found], ())
    stats: dict[str, Any] = msgspec.json.decode(found.body)
    return stats


def clients_of(stats: dict[str, Any]) -> tuple[int, int]:
    """(producers, consumers) that are connected, by a topic's stats."""
    consumers = sum(len(each.get("consumers") or ()) for each in stats["subscriptions"].values())
    return len(stats["publishers"]), consumers
