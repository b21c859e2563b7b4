"""Deletion of topics, subscriptions and namespaces whose parts are on several brokers.

As on a single broker, everything is checked before the first part is deleted: a client that is
connected to any broker prevents the whole deletion. A deletion that failed halfway can be repeated.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.answers import NOT_FOUND, raise_refusal, refusal_of
from magnetar.admin.cluster.namespaces import topic_names
from magnetar.admin.cluster.partitions import (
    connected_clients,
    existing_partition_names,
    stats_of,
)
from magnetar.admin.cluster.peers import Peers, gather_answers
from magnetar.admin.cluster.placement import peers_of
from magnetar.admin.cluster.sender import UNDER_HEADER
from magnetar.admin.context import service_of, subscription_not_found, text_of, topic_of
from magnetar.admin.deletion import LocalRemover, TopicRemover, refuse_topic_in_use
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import done
from magnetar.admin.http.routes import Handler
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import NamespaceName, TopicName
from magnetar.metadata.store import BadRevision, Check

TOPICS_AT_ONCE: Final = 64
MARK_LOST: Final = 412
"""A peer's answer to a deletion whose mark is no longer valid."""
UNKNOWN_REVISION: Final = -1


def mark_of(request: Request) -> Check | None:
    """Returns the mark that a peer's request to delete a topic must check; None if it has none."""
    header = request.headers.get(UNDER_HEADER)
    if header is None:
        return None
    revision, _, key = header.partition(" ")
    if not revision.isdecimal() or not key:
        raise PreconditionFailed(f"{UNDER_HEADER} must be a revision and a key")
    return Check(unquote(key), int(revision))


def remover_of(request: Request) -> TopicRemover:
    """Returns the remover for the topics of this broker, or of the cluster that it belongs to."""
    peers = peers_of(request)
    return LocalRemover(service_of(request)) if peers is None else ClusterRemover(peers, request)


class ClusterRemover:
    """Deletes topics at their owners, on behalf of a request."""

    def __init__(self, peers: Peers, request: Request) -> None:
        self._peers = peers
        self._request = request
        self._service = service_of(request)

    async def topics(self, namespace: NamespaceName, *, half_deleted: bool) -> list[TopicName]:
        stored = await self._service.topics.names(
            namespace, "persistent", half_deleted=half_deleted
        )
        return [*stored, *await topic_names(self._request, namespace, "non-persistent")]

    async def partitions(self, name: TopicName) -> list[TopicName]:
        partitions = await self._service.resources.partitions(name)
        return await existing_partition_names(self._service, name, partitions, half_deleted=True)

    async def refuse_if_used(self, name: TopicName) -> None:
        if (stats := await stats_of(self._peers, name)) is not None:
            refuse_topic_in_use(*connected_clients(stats))

    async def remove(self, names: Sequence[TopicName], mark: Check) -> None:
        await delete_topics(self._peers, names, mark)


async def delete_topics(peers: Peers, names: Sequence[TopicName], mark: Check) -> None:
    """Deletes the topics at their owners, even if clients are connected; skips missing topics.

    Raises BadRevision if the mark of the containing topic or namespace is no longer valid.
    """
    headers = {UNDER_HEADER: f"{mark.expected} {quote(mark.key)}"}
    for start in range(0, len(names), TOPICS_AT_ONCE):
        answers = await gather_answers(
            [
                peers.request_topic(name, "DELETE", query="force=true", headers=headers)
                for name in names[start : start + TOPICS_AT_ONCE]
            ]
        )
        if any(answer.status == MARK_LOST for answer in answers):
            raise BadRevision(mark.key, mark.expected, actual=UNKNOWN_REVISION)
        raise_refusal(answers, NOT_FOUND)


async def delete_subscriptions(peers: Peers, request: Request, handler: Handler) -> Response:
    """Deletes a subscription of a topic, or of all its partitions that have it."""
    service, name = service_of(request), topic_of(request)
    partitions = await service.resources.partitions(name)
    if not partitions:
        return await peers.at_topic_owner(name, request, handler)
    subscription, force = text_of(request, "subscription"), bodies.flag(request, "force")
    parts_with_it = []
    for part in await existing_partition_names(service, name, partitions):
        part_stats = await stats_of(peers, part)
        stats = None if part_stats is None else part_stats.subscriptions.get(subscription)
        if stats is None:
            continue
        if stats.consumers and not force:
            raise PreconditionFailed("Subscription has active connected consumers")
        parts_with_it.append(part)
    if not parts_with_it:
        raise subscription_not_found(subscription, name)
    suffix = f"/subscription/{quote(subscription, safe='')}"
    query = "force=true" if force else ""
    answers = await gather_answers(
        [peers.request_topic(part, "DELETE", suffix, query=query) for part in parts_with_it]
    )
    return refusal_of(answers, NOT_FOUND) or done()
