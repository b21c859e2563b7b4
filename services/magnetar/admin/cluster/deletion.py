"""Deleting what lies on several brokers: partitions, subscriptions on them, namespaces.

As in a broker alone, everything is checked before the first part is deleted: clients that are
connected anywhere refuse the whole. What a failure leaves half deleted can be deleted again.
"""

import contextlib
from typing import Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import done
from magnetar.admin.cluster.listing import topic_names
from magnetar.admin.cluster.partitions import (
    NOT_FOUND,
    clients_of,
    existing,
    raise_refusal,
    refused,
    stats_of,
)
from magnetar.admin.cluster.peers import Handler, Peers, together
from magnetar.admin.cluster.sending import UNDER_HEADER
from magnetar.admin.context import service_of, subscription_not_found, text_of, topic_of
from magnetar.admin.deletion import (
    forget_namespace,
    forget_partitioned,
    partitioned_topics,
    refuse_namespace_in_use,
    refuse_topic_in_use,
)
from magnetar.broker.service import BrokerService
from magnetar.core.errors import NotFound, PreconditionFailed
from magnetar.core.names import DOMAINS, NamespaceName, TopicName
from magnetar.metadata.store import BadRevision, Check

TOPICS_AT_ONCE: Final = 64
MARK_LOST: Final = 412
"""A peer's answer to a deletion whose mark does not hold any more."""
UNKNOWN_REVISION: Final = -1


def mark_of(request: Request) -> Check | None:
    """The mark that a peer's deletion of a topic is to check."""
    given = request.headers.get(UNDER_HEADER)
    if given is None:
        return None
    revision, _, key = given.partition(" ")
    if not revision.isdecimal() or not key:
        raise PreconditionFailed(f"{UNDER_HEADER} must be a revision and a key")
    return Check(unquote(key), int(revision))


async def delete_partitioned(
    peers: Peers,
    service: BrokerService,
    name: TopicName,
    *,
    force: bool,
    under: Check | None = None,
) -> None:
    """A partitioned topic: its partitions, then its metadata, then its schema.

    `under` is the mark of its namespace, if that is being deleted.
    """

    async def parts(*, half_deleted: bool) -> list[TopicName]:
        partitions = await service.resources.partitions(name)
        return await existing(service, name, partitions, half_deleted=half_deleted)

    async def check() -> None:
        for part in [] if force else await parts(half_deleted=False):
            if stats := await stats_of(peers, part):
                refuse_topic_in_use(*clients_of(stats))

    async def empty(mark: Check) -> None:
        await delete_topics(peers, await parts(half_deleted=True), mark)

    await service.resources.partitioned_deletion(name, under).run(check, empty)
    await forget_partitioned(service, name)


async def delete_topics(peers: Peers, names: list[TopicName], mark: Check) -> None:
    """Each at its owner, whatever is connected; those that are gone already are gone.

    Raises BadRevision if the mark of what they are deleted with does not hold any more.
    """
    headers = {UNDER_HEADER: f"{mark.expected} {quote(mark.key)}"}
    for start in range(0, len(names), TOPICS_AT_ONCE):
        some = names[start : start + TOPICS_AT_ONCE]
        answers = await together(
            [peers.ask_topic(name, "DELETE", query="force=true", headers=headers) for name in some]
        )
        if any(answer.status == MARK_LOST for answer in answers):
            raise BadRevision(mark.key, mark.expected, actual=UNKNOWN_REVISION)
        raise_refusal(answers, NOT_FOUND)


async def delete_namespace(
    peers: Peers, request: Request, namespace: NamespaceName, *, force: bool
) -> None:
    """A namespace; with its topics only where that is asked for and allowed.

    The owners of its bundles release them once they see that it does not exist any more.
    """
    service = service_of(request)

    async def topics() -> list[TopicName]:
        return [
            name for domain in DOMAINS for name in await topic_names(request, namespace, domain)
        ]

    async def check() -> None:
        names = [*await partitioned_topics(service, namespace), *await topics()]
        await refuse_namespace_in_use(service, namespace, names, force=force)

    async def empty(mark: Check) -> None:
        for name in await partitioned_topics(service, namespace):
            with contextlib.suppress(NotFound):  # another request has deleted it
                await delete_partitioned(peers, service, name, force=True, under=mark)
        # Also those whose deletion was cut short: their owners finish it.
        stored = await service.topics.names(namespace, "persistent", half_deleted=True)
        served = [name for name in await topics() if not name.persistent]
        await delete_topics(peers, stored + served, mark)
        await forget_namespace(service, namespace, mark)

    await service.resources.namespace_deletion(namespace).run(check, empty)


async def delete_subscriptions(peers: Peers, request: Request, handler: Handler) -> Response:
    """A subscription of a topic, or of all its partitions that have it."""
    service, name = service_of(request), topic_of(request)
    partitions = await service.resources.partitions(name)
    if not partitions:
        return await peers.at_topic_owner(name, request, handler)
    subscription, force = text_of(request, "subscription"), bodies.flag(request, "force")
    having = []
    for part in await existing(service, name, partitions):
        stats = (await stats_of(peers, part)).get("subscriptions") or {}
        if subscription not in stats:
            continue
        if not force and stats[subscription].get("consumers"):
            raise PreconditionFailed("Subscription has active connected consumers")
        having.append(part)
    if not having:
        raise subscription_not_found(subscription, name)
    suffix = f"/subscription/{quote(subscription, safe='')}"
    query = "force=true" if force else ""
    answers = await together(
        [peers.ask_topic(part, "DELETE", suffix, query=query) for part in having]
    )
    return refused(answers, NOT_FOUND) or done()
