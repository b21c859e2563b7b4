"""Deletion of topics, partitioned topics and namespaces, with everything that they contain.

As in Pulsar, connected clients prevent a deletion (412, with their number), subscriptions without
consumers do not. All partitions of a topic are checked before the first is deleted, so that a
refusal leaves the topic complete. No topic is created in a parent that is being deleted, and an
interrupted deletion can be repeated (`broker.deletion_mark`).
"""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from magnetar.admin.context import topic_not_found
from magnetar.broker.balance.quotas import QUOTAS, without_namespace
from magnetar.broker.catalog.namespace_policies import granted_on_topics, without_topics
from magnetar.broker.catalog.resources import Document
from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic
from magnetar.core.errors import Conflict, NotAllowed, NotFound, PreconditionFailed
from magnetar.core.names import DOMAINS, NamespaceName, TopicName, parse_topic
from magnetar.metadata.store import Check


def check_unused(topic: Topic) -> None:
    """Raises PreconditionFailed, with Pulsar's count, if clients are connected to the topic."""
    producers = len(topic.producers)
    consumers = sum(len(subscription.consumers) for subscription in topic.subscriptions.values())
    refuse_topic_in_use(producers, consumers)


def refuse_topic_in_use(producers: int, consumers: int) -> None:
    """Raises PreconditionFailed if any client is connected."""
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
    """Deletes a topic or partition, with its data, subscriptions and schema.

    `under` is the mark of the namespace or partitioned topic whose deletion includes this topic.
    Raises BadRevision if the mark is no longer valid.
    """
    loaded = service.topics.loaded(name)
    if loaded is not None and not force:
        check_unused(loaded)
    if not await service.topics.exists(name, half_deleted=True):
        raise topic_not_found(name)
    try:
        # Forced: clients were checked above, and subscriptions without consumers do not count.
        await service.topics.delete(name, force=True, under=under)
    except NotFound:
        raise topic_not_found(name) from None


class TopicRemover(Protocol):
    """The steps of a deletion that depend on where topics are served: by one broker or by many."""

    async def topics(self, namespace: NamespaceName, *, half_deleted: bool) -> list[TopicName]:
        """Returns the topics and partitions of the namespace, of both domains.

        `half_deleted` includes topics whose deletion was interrupted.
        """

    async def partitions(self, name: TopicName) -> list[TopicName]:
        """Returns the partitions of a partitioned topic; it may omit those that do not exist.

        Includes partitions whose deletion was interrupted.
        """

    async def refuse_if_used(self, name: TopicName) -> None:
        """Raises PreconditionFailed if clients are connected to the topic."""

    async def remove(self, names: Sequence[TopicName], mark: Check) -> None:
        """Deletes the topics that still exist; raises BadRevision if the mark is not valid."""


class LocalRemover:
    """Deletes the topics of a single broker."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    async def topics(self, namespace: NamespaceName, *, half_deleted: bool) -> list[TopicName]:
        domains = [
            await self._service.topics.names(namespace, domain, half_deleted=half_deleted)
            for domain in DOMAINS
        ]
        return [name for names in domains for name in names]

    async def partitions(self, name: TopicName) -> list[TopicName]:
        partitions = await self._service.resources.partitions(name)
        return [name.partition(index) for index in range(partitions)]

    async def refuse_if_used(self, name: TopicName) -> None:
        if (topic := self._service.topics.loaded(name)) is not None:
            check_unused(topic)

    async def remove(self, names: Sequence[TopicName], mark: Check) -> None:
        for name in names:
            with contextlib.suppress(NotFound):
                await delete_topic(self._service, name, force=True, under=mark)


async def delete_partitioned(
    service: BrokerService,
    remover: TopicRemover,
    name: TopicName,
    *,
    force: bool,
    under: Check | None = None,
) -> None:
    """Deletes a partitioned topic: its partitions, then its metadata, then its schema.

    `under` is the mark of its namespace, if that is being deleted.
    """

    async def check() -> None:
        for part in [] if force else await remover.partitions(name):
            await remover.refuse_if_used(part)

    async def empty(mark: Check) -> None:
        await remover.remove(await remover.partitions(name), mark)
        # Before the record: its clients may create the topic again as soon as that is deleted.
        await service.schemas.forget(name, (mark,))
        await service.policies.forget(name, (mark,))

    await service.resources.partitioned_deletion(name, under).run(check, empty)


async def delete_namespace(
    service: BrokerService, remover: TopicRemover, namespace: NamespaceName, *, force: bool
) -> None:
    """Deletes a namespace; with its topics only if `force` is set and allowed.

    In a cluster, the owners of its bundles release them once they observe the deletion.
    """

    async def check() -> None:
        names = await partitioned_topics(service, namespace)
        names += await remover.topics(namespace, half_deleted=False)
        await refuse_namespace_in_use(service, namespace, names, force=force)

    async def empty(mark: Check) -> None:
        for name in await partitioned_topics(service, namespace):
            with contextlib.suppress(NotFound):  # another request has deleted it
                await delete_partitioned(service, remover, name, force=True, under=mark)
        await remover.remove(await remover.topics(namespace, half_deleted=True), mark)
        await forget_namespace(service, namespace, mark)

    async def restored(document: Document) -> Document:
        """Without the permissions on topics that are gone: the next of that name has others."""
        granted = [parse_topic(name) for name in granted_on_topics(document)]
        if not granted:
            return document
        left = set(await partitioned_topics(service, namespace))
        left.update(await remover.topics(namespace, half_deleted=False))
        gone = {str(name) for name in granted if name not in left and name.base not in left}
        return without_topics(document, gone)

    await service.resources.namespace_deletion(namespace, restored).run(check, empty)


async def partitioned_topics(service: BrokerService, namespace: NamespaceName) -> list[TopicName]:
    """Returns the partitioned topics of the namespace, of both domains."""
    domains = [await service.resources.partitioned_topics(namespace, domain) for domain in DOMAINS]
    return [name for names in domains for name in names]


async def forget_namespace(service: BrokerService, namespace: NamespaceName, mark: Check) -> None:
    """Deletes the records of a namespace that is marked and has no topics.

    Raises Conflict if it has topics: without these records, nothing would lead to them. Raises
    BadRevision if the namespace's mark is no longer valid.
    """
    remaining = await service.topics.names(namespace, "persistent", half_deleted=True)
    if remaining or await partitioned_topics(service, namespace):
        raise Conflict(f"Namespace {namespace} still has topics: repeat its deletion")
    await service.policies.documents.forget_namespace(namespace, mark)
    await service.resources.forget_backlog(namespace, mark)
    without_quotas = partial(without_namespace, namespace=str(namespace))
    await QUOTAS.change(service.store, without_quotas, (mark,))
    for encoded in await service.schemas.topics(namespace):
        # Left by producers that attached during the deletion of their topics.
        topic = TopicName.from_encoded(DOMAINS[0], namespace, encoded)
        await service.schemas.forget(topic, (mark,))


async def refuse_namespace_in_use(
    service: BrokerService, namespace: NamespaceName, topics: Sequence[TopicName], *, force: bool
) -> None:
    """Raises the reason why the namespace cannot be deleted; `topics` are all of its topics."""
    if not await service.resources.namespace_exists(namespace):
        raise NotFound(f"Namespace {namespace} does not exist.")
    if force and not service.settings.operation.force_delete_namespace:
        raise NotAllowed("Broker doesn't allow forced deletion of namespaces")
    if not force and any(not is_system_topic(name) for name in topics):
        raise Conflict("Cannot delete non empty namespace")
