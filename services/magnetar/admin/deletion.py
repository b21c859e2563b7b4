"""Deleting what holds other things: a topic with its schema, a partitioned topic, a namespace.

Pulsar's rule, kept here: clients that are connected stand in the way of a deletion (412, with how
many there are), subscriptions without consumers do not. Of a partitioned topic every partition is
checked before the first is deleted, so that a refusal leaves it whole.
"""

from collections.abc import Sequence

from magnetar.admin.context import topic_not_found
from magnetar.broker.service import BrokerService
from magnetar.broker.system_topics import is_system_topic
from magnetar.broker.topics import Topic
from magnetar.core.errors import Conflict, NotAllowed, NotFound, PreconditionFailed
from magnetar.core.names import DOMAINS, NamespaceName, TopicName


def check_unused(topic: Topic) -> None:
    """PreconditionFailed while clients are connected, with Pulsar's count of them."""
    producers = len(topic.producers)
    consumers = sum(len(subscription.consumers) for subscription in topic.subscriptions.values())
    refuse_topic_in_use(producers, consumers)


def refuse_topic_in_use(producers: int, consumers: int) -> None:
    """PreconditionFailed where there are any."""
    clients = producers + consumers
    if clients:
        noun = "client" if clients == 1 else "clients"
        raise PreconditionFailed(
            f"Topic has {clients} {noun} connected Including {consumers} consumers, "
            f"{producers} producers, and 0 replicators."
        )


async def delete_topic(service: BrokerService, name: TopicName, *, force: bool) -> None:
    """One topic or partition, with its data, subscriptions and schema."""
    loaded = service.topics.loaded(name)
    if loaded is not None and not force:
        check_unused(loaded)
    if loaded is None and not await service.topics.exists(name):
        raise topic_not_found(name)
    try:
        # Forced: subscriptions without consumers do not keep a topic, and clients were seen to.
        await service.topics.delete(name, force=True)
    except NotFound:
        raise topic_not_found(name) from None
    if name.partition_index < 0:
        await service.schemas.forget(name)


async def delete_partitioned(
    service: BrokerService, name: TopicName, partitions: int, *, force: bool
) -> None:
    """A partitioned topic: its partitions, then its metadata, then its schema."""
    parts = [name.partition(index) for index in range(partitions)]
    if not force:
        for part in parts:
            if (topic := service.topics.loaded(part)) is not None:
                check_unused(topic)
    for part in parts:
        if await service.topics.exists(part):
            await delete_topic(service, part, force=force)
    await service.resources.delete_partitioned(name)
    await service.policies.forget(name)
    await service.schemas.forget(name)


async def delete_namespace(
    service: BrokerService, namespace: NamespaceName, *, force: bool
) -> None:
    """A namespace; with its topics only where that is asked for and allowed."""
    partitioned = [
        name
        for domain in DOMAINS
        for name in await service.resources.partitioned_topics(namespace, domain)
    ]
    topics = [name for domain in DOMAINS for name in await service.topics.names(namespace, domain)]
    await refuse_namespace_in_use(service, namespace, [*partitioned, *topics], force=force)
    for name in partitioned:
        partitions = await service.resources.partitions(name)
        await delete_partitioned(service, name, partitions, force=True)
    for name in topics:
        if await service.topics.exists(name):
            await delete_topic(service, name, force=True)
    await service.policies.documents.forget_namespace(namespace)
    await service.resources.delete_namespace(namespace)


async def refuse_namespace_in_use(
    service: BrokerService, namespace: NamespaceName, topics: Sequence[TopicName], *, force: bool
) -> None:
    """Raises what keeps the namespace from being deleted; `topics` are all that it has."""
    if not await service.resources.namespace_exists(namespace):
        raise NotFound(f"Namespace {namespace} does not exist.")
    if force and not service.settings.force_delete_namespace:
        raise NotAllowed("Broker doesn't allow forced deletion of namespaces")
    if not force and any(not is_system_topic(name) for name in topics):
        raise Conflict("Cannot delete non empty namespace")
