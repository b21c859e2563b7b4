"""Deleting what lies on several brokers: partitions, subscriptions on them, namespaces.

As in a broker alone, everything is checked before the first part is deleted: clients that are
connected anywhere refuse the whole. What a failure leaves half deleted can be deleted again.
"""

from typing import Final
from urllib.parse import quote

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
from magnetar.admin.context import service_of, subscription_not_found, text_of, topic_of
from magnetar.admin.deletion import refuse_namespace_in_use, refuse_topic_in_use
from magnetar.broker.service import BrokerService
from magnetar.core.errors import PreconditionFailed
from magnetar.core.names import DOMAINS, NamespaceName, TopicName

TOPICS_AT_ONCE: Final = 64


async def delete_partitioned(
    peers: Peers, service: BrokerService, name: TopicName, partitions: int, *, force: bool
) -> None:
    """A partitioned topic: its partitions, then its metadata, then its schema."""
    parts = await existing(service, name, partitions)
    if not force:
        for part in parts:
            if stats := await stats_of(peers, part):
                refuse_topic_in_use(*clients_of(stats))
    await delete_topics(peers, parts)
    await service.resources.delete_partitioned(name)
    await service.policies.forget(name)
    await service.schemas.forget(name)


async def delete_topics(peers: Peers, names: list[TopicName]) -> None:
    """Each at its owner, whatever is connected; those that are gone already are gone."""
    for start in range(0, len(names), TOPICS_AT_ONCE):
        some = names[start : start + TOPICS_AT_ONCE]
        answers = await together(
            [peers.ask_topic(name, "DELETE", query="force=true") for name in some]
        )
        raise_refusal(answers, NOT_FOUND)


async def delete_namespace(
    peers: Peers, request: Request, namespace: NamespaceName, *, force: bool
) -> None:
    """A namespace; with its topics only where that is asked for and allowed."""
    service = service_of(request)
    resources = service.resources
    partitioned = [
        name for domain in DOMAINS for name in await resources.partitioned_topics(namespace, domain)
    ]
    topics = [name for domain in DOMAINS for name in await topic_names(request, namespace, domain)]
    await refuse_namespace_in_use(service, namespace, [*partitioned, *topics], force=force)
    for name in partitioned:
        partitions = await resources.partitions(name)
        await delete_partitioned(peers, service, name, partitions, force=True)
        topics = [topic for topic in topics if topic.base != name]
    await delete_topics(peers, topics)
    # Its bundles are let go of by their owners once they see that it is not there any more.
    await service.policies.documents.forget_namespace(namespace)
    await resources.delete_namespace(namespace)


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
