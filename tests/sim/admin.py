"""An operator's requests to one broker, as the handlers of the admin REST carry them out."""

from collections.abc import Awaitable
from typing import Final

from magnetar.admin.deletion import LocalRemover, delete_namespace, delete_topic
from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.ownership.split_algorithms import RANGE, TOPIC_COUNT
from magnetar.broker.redrive.progress import Order
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import MagnetarError, NotFound, SubscriptionNotFound
from magnetar.core.names import NamespaceName, parse_topic

ALGORITHMS: Final = (RANGE, TOPIC_COUNT)


class Admin:
    """Requests run in the broker's process; each returns the error that answers it, or None."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def owns(self, topic: str) -> bool:
        """Whether this broker serves the topic now."""
        return self._service.ownership.owns(parse_topic(topic))

    async def unload_topic(self, topic: str) -> MagnetarError | None:
        """The topic stays with this broker, which opens it again for the next client."""
        return await _answer(self._service.topics.unload(parse_topic(topic)))

    async def unload_bundle(self, topic: str) -> MagnetarError | None:
        """Unloads the topic's bundle, to another broker if there is one."""
        return await _answer(self._unload_bundle(topic))

    async def split_bundle(
        self, topic: str, algorithm: str, *, unload: bool
    ) -> MagnetarError | None:
        """Splits the topic's bundle; with `unload` its parts go to other brokers."""
        return await _answer(self._split(topic, algorithm, unload))

    async def delete_subscription(
        self, topic: str, subscription: str, *, force: bool
    ) -> MagnetarError | None:
        """Deletes a subscription of a topic that this broker serves."""
        return await _answer(self._delete_subscription(topic, subscription, force))

    async def delete_topic(self, topic: str) -> MagnetarError | None:
        """Deletes a topic with its clients connected."""
        return await _answer(delete_topic(self._service, parse_topic(topic), force=True))

    async def delete_namespace(self, namespace: str) -> MagnetarError | None:
        """Deletes a namespace that must hold no topics."""
        name = NamespaceName.parse(namespace)
        return await _answer(
            delete_namespace(self._service, LocalRemover(self._service), name, force=False)
        )

    async def create_namespace(self, namespace: str) -> MagnetarError | None:
        """Creates a namespace with the default policies."""
        name, policies = NamespaceName.parse(namespace), default_policies(self._service.cluster)
        return await _answer(self._service.resources.create_namespace(name, policies))

    async def compact(self, topic: str) -> MagnetarError | None:
        """Requests the compaction of a topic that this broker serves."""
        return await _answer(self._compact(topic))

    async def redrive(self, topic: str, subscription: str) -> MagnetarError | None:
        """Starts to move all letters of a subscription to their origins."""
        return await _answer(self._redrive(topic, subscription))

    # -- the handlers ----------------------------------------------------------------------

    def _ownership(self) -> ClusterOwnership:
        ownership = self._service.cluster_ownership
        assert ownership is not None
        return ownership

    async def _unload_bundle(self, topic: str) -> None:
        ownership = self._ownership()
        bundle = ownership.bundle_of(parse_topic(topic))
        if bundle is not None and ownership.has(bundle):
            await ownership.unload(bundle)

    async def _split(self, topic: str, algorithm: str, unload: bool) -> None:
        ownership = self._ownership()
        bundle = ownership.bundle_of(parse_topic(topic))
        if bundle is None or not ownership.has(bundle):
            return
        for part in await ownership.split(bundle, algorithm):
            if unload:
                await ownership.unload(part)

    async def _compact(self, topic: str) -> None:
        logs = [ledger_name(parse_topic(topic))]
        await self._service.topics.get_or_open(parse_topic(topic), create=False)
        try:
            await self._service.compaction.request(logs)
        finally:
            self._service.compactor.requested(logs)

    async def _redrive(self, topic: str, subscription: str) -> None:
        found = await self._service.topics.get_or_open(parse_topic(topic), create=False)
        if not isinstance(found, PersistentTopic):
            raise NotFound(topic)
        order = Order(to=None, accepts=None, rate=None, limit=None, dry_run=False)
        await self._service.redrives.start(found, subscription, order, None)

    async def _delete_subscription(self, topic: str, subscription: str, force: bool) -> None:
        found = await self._service.topics.get_or_open(parse_topic(topic), create=False)
        if not isinstance(found, PersistentTopic):
            raise NotFound(topic)
        if subscription not in found.subscriptions:
            raise SubscriptionNotFound(f"Subscription {subscription} not found")
        await found.delete_subscription(subscription, force=force)


async def _answer(request: Awaitable[object]) -> MagnetarError | None:
    try:
        await request
    except MagnetarError as error:
        return error
    return None
