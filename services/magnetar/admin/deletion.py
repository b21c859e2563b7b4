"""Deleting what holds other things: a topic with its schema, a partitioned topic, a namespace.

Pulsar's rule, kept here: clients that are connected stand in the way of a deletion (412, with how
many there are), subscriptions without consumers do not. Of a partitioned topic every partition is
checked before the first is deleted, so that a refusal leaves it whole. Nothing is created in what
is being deleted, and a deletion that was cut short can be repeated (`broker.deletion_mark`).
"""

import contextlib
from collections.abc import Sequence

from magnetar.admin.context import topic_not_found
from magnetar.broker.service import BrokerService
from magnetar.broker.system_topics import is_system_topic
from magnetar.broker.topics import Topic
from magnetar.core.errors import Conflict, NotAllowed, NotFound, PreconditionFailed
from magnetar.core.names import DOMAINS, NamespaceName, TopicName
from magnetar.metadata.store import Check


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


async def delete_topic(
    service: BrokerService, name: TopicName, *, force: bool, under: Check | None = None
) -> None:
    """One topic or partition, with its data, subscriptions and schema.

    `under` is the mark of the namespace or partitioned topic that is being deleted with it. Raises
    BadRevision if it does not hold any more.
    """
    loaded = service.topics.loaded(name)
    if loaded is not None and not force:
        check_unused(loaded)
    if loaded is None and not await service.topics.exists(name, half_deleted=True):
        raise topic_not_found(name)
    try:
        # Forced: subscriptions without consumers do not keep a topic, and clients were seen to.
        await service.topics.delete(name, force=True, under=under)
    except NotFound:
        raise topic_not_found(name) from None


async def delete_partitioned(
    service: BrokerService, name: TopicName, *, force: bool, under: Check | None = None
) -> None:
    """A partitioned topic: its partitions, then its metadata, then its schema.

    `under` is the mark of its namespace, if that is being deleted.
    """

    async def parts() -> list[TopicName]:
        return [name.partition(index) for index in range(await service.resources.partitions(name))]

    async def check() -> None:
        for part in [] if force else await parts():
            if (topic := service.topics.loaded(part)) is not None:
                check_unused(topic)

    async def empty(mark: Check) -> None:
        for part in await parts():
            await _delete_if_there(service, part, mark)

    await service.resources.partitioned_deletion(name, under).run(check, empty)
    await forget_partitioned(service, name)


async def forget_partitioned(service: BrokerService, name: TopicName) -> None:
    """Deletes what belonged to a partitioned topic whose record is deleted."""
    await service.policies.forget(name)
    await service.schemas.forget(name)


async def delete_namespace(
    service: BrokerService, namespace: NamespaceName, *, force: bool
) -> None:
    """A namespace; with its topics only where that is asked for and allowed."""

    async def topics(*, half_deleted: bool) -> list[TopicName]:
        found = [
            await service.topics.names(namespace, domain, half_deleted=half_deleted)
            for domain in DOMAINS
        ]
        return [name for names in found for name in names]

    async def check() -> None:
        names = await partitioned_topics(service, namespace) + await topics(half_deleted=False)
        await refuse_namespace_in_use(service, namespace, names, force=force)

    async def empty(mark: Check) -> None:
        for name in await partitioned_topics(service, namespace):
            with contextlib.suppress(NotFound):  # another request has deleted it
                await delete_partitioned(service, name, force=True, under=mark)
        for name in await topics(half_deleted=True):
            await _delete_if_there(service, name, mark)
        await forget_namespace(service, namespace, mark)

    await service.resources.namespace_deletion(namespace).run(check, empty)


async def _delete_if_there(service: BrokerService, name: TopicName, mark: Check) -> None:
    with contextlib.suppress(NotFound):
        await delete_topic(service, name, force=True, under=mark)


async def partitioned_topics(service: BrokerService, namespace: NamespaceName) -> list[TopicName]:
    """Those of both domains."""
    found = [await service.resources.partitioned_topics(namespace, domain) for domain in DOMAINS]
    return [name for names in found for name in names]


async def forget_namespace(service: BrokerService, namespace: NamespaceName, mark: Check) -> None:
    """Deletes what belongs to a marked namespace without topics.

    Raises Conflict if it has any: what is deleted next is the only way to find them. Raises
    BadRevision if the namespace's mark does not hold any more.
    """
    left = await service.topics.names(namespace, "persistent", half_deleted=True)
    if left or await partitioned_topics(service, namespace):
        raise Conflict(f"Namespace {namespace} still has topics: repeat its deletion")
    await service.policies.documents.forget_namespace(namespace, mark)
    await service.resources.forget_backlog(namespace, mark)


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
