"""The context of a request: the broker that serves it, and the validated names in its path.

The texts of errors are Pulsar's: `Namespace not found`, `Topic persistent://… not found`.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from magnetar.broker.catalog.resources import Document
from magnetar.broker.ownership.bundles import bundle_of
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import PersistentTopic, require_persistent
from magnetar.core.errors import (
    InvalidTopicName,
    NotAllowed,
    NotFound,
    PersistenceError,
    PreconditionFailed,
    ServiceNotReady,
    TopicNotFound,
)
from magnetar.core.names import (
    PARTITION_SUFFIX,
    NamespaceName,
    TopicName,
    check_entity_name,
    is_entity_name,
    parse_topic,
)
from magnetar.ledger.bookies import BookieSet

if TYPE_CHECKING:
    from magnetar.admin.metrics.page import MetricsPage
    from magnetar.broker.balance.service import Balance


def service_of(request: Request) -> BrokerService:
    """Returns the broker that the application belongs to."""
    return cast("BrokerService", request.app.state.service)


def balance_of(request: Request) -> "Balance | None":
    """Returns the load balancer of the cluster; None for a single broker."""
    return cast("Balance | None", request.app.state.balance)


def metrics_page_of(request: Request) -> "MetricsPage":
    """Returns the broker's metrics page."""
    return cast("MetricsPage", request.app.state.metrics)


def bookies_of(request: Request) -> BookieSet | None:
    """Returns the bookies of the cluster; None in a standalone."""
    return cast("BookieSet | None", request.app.state.bookies)


def text_of(request: Request, parameter: str) -> str:
    """Returns a parameter of the path, decoded."""
    return str(request.path_params[parameter])


def number_of(request: Request, parameter: str) -> int:
    """Returns a parameter of the path that is a number."""
    return int(request.path_params[parameter])


def checked_name(name: str, kind: str) -> str:
    """Returns a valid name of a tenant, namespace or cluster; else raises PreconditionFailed."""
    try:
        check_entity_name(name, kind)
    except PreconditionFailed:
        raise PreconditionFailed(f"{kind} name is not valid") from None
    return name


def namespace_of(request: Request) -> NamespaceName:
    """Returns the namespace in the path, `{tenant}/{namespace}`; raises PreconditionFailed."""
    tenant = checked_name(text_of(request, "tenant"), "Tenant")
    return NamespaceName(tenant, checked_name(text_of(request, "namespace"), "Namespace"))


def topic_of(request: Request) -> TopicName:
    """Returns the topic's name in the path (`paths.TOPIC_PATH`); raises PreconditionFailed.

    Without a domain in the path, the topic is persistent.
    """
    params = request.path_params
    domain = params.get("domain", "persistent")
    full = f"{domain}://{params['tenant']}/{params['namespace']}/{params['topic']}"
    try:
        return parse_topic(full)
    except InvalidTopicName as error:
        for part in (params["tenant"], params["namespace"]):
            if not is_entity_name(part):
                raise PreconditionFailed("Namespace name is not valid") from None
        raise PreconditionFailed(f"Topic name is not valid: {error.message}") from None


async def existing_namespace(request: Request) -> NamespaceName:
    """Returns the namespace in the path; raises NotFound if it does not exist."""
    namespace = namespace_of(request)
    await require_namespace(service_of(request), namespace)
    return namespace


async def require_namespace(
    service: BrokerService, namespace: NamespaceName, text: str = "Namespace not found"
) -> None:
    """Raises NotFound with `text` if the namespace does not exist."""
    if not await service.resources.namespace_exists(namespace):
        raise NotFound(text)


async def loaded_topic(service: BrokerService, name: TopicName) -> Topic:
    """Loads and returns the topic; raises NotFound if it or its namespace does not exist."""
    await require_namespace(service, name.namespace)
    try:
        return await service.topics.get_or_open(name, create=False)
    except (TopicNotFound, NotAllowed):
        if name.partition_index >= 0 and await service.resources.partitions(name.base):
            raise NotFound("Topic partitions were not yet created") from None
        raise topic_not_found(name) from None
    except ServiceNotReady:
        # Every broker answers for a partitioned topic as a whole, even if it lacks the bundle.
        if name.partition_index < 0 and await service.resources.partitions(name):
            raise topic_not_found(name) from None
        raise


def topic_not_found(name: TopicName) -> NotFound:
    """Returns Pulsar's error for a topic that does not exist."""
    return NotFound(f"Topic {name} not found")


def subscription_not_found(subscription: str, name: TopicName) -> NotFound:
    """Returns Pulsar's error for a subscription that does not exist."""
    return NotFound(f"Subscription {subscription} not found for topic {name}")


class BundleNames:
    """Finds the bundles of many topics; reads each namespace's policies once."""

    def __init__(self, service: BrokerService) -> None:
        self._resources = service.resources
        self._policies: dict[NamespaceName, Document] = {}

    async def of(self, name: TopicName) -> str:
        """Returns the topic's bundle, `0x00000000_0x40000000`."""
        policies = self._policies.get(name.namespace)
        if policies is None:
            policies = self._policies[name.namespace] = await self._resources.policies(
                name.namespace
            )
        return bundle_of(policies, name)


def refuse_broken(topic: Topic, subscription: str) -> None:
    """Raises SubscriptionBroken if the subscription's cursor cannot be read."""
    error = topic.broken_subscriptions.get(subscription)
    if error is not None:
        raise SubscriptionBroken(
            f"Subscription {subscription} of topic {topic.full_name} cannot be read: "
            f"{error.message}. Subscribe to it once the bookies of its ledger are back, or "
            "delete it: until then the topic keeps all messages"
        )


def has_subscription(topic: Topic, subscription: str) -> bool:
    """Whether the topic has the subscription, even if its cursor cannot be read."""
    return subscription in topic.subscriptions or subscription in topic.broken_subscriptions


class SubscriptionBroken(PersistenceError):
    """The subscription exists, but its cursor cannot be read."""


async def persistent_topic(
    service: BrokerService, name: TopicName, operation: str
) -> PersistentTopic:
    """Loads and returns a persistent topic; raises NotAllowed for a non-persistent one."""
    topic = await loaded_topic(service, name)
    return require_persistent(topic, f"{operation} on a non-persistent topic is not allowed")


async def loaded_parts(service: BrokerService, name: TopicName) -> list[Topic]:
    """Returns the loaded partitions of a partitioned topic, or else the loaded topic.

    A deleted partition is omitted: a query must not create it again.
    """
    partitions = await service.resources.partitions(name)
    if not partitions:
        return [await loaded_topic(service, name)]
    return [topic async for topic in existing_partitions(service, name, partitions)]


async def existing_partitions(
    service: BrokerService, name: TopicName, partitions: int
) -> AsyncIterator[Topic]:
    """Loads and yields those of the declared partitions that exist."""
    for index in range(partitions):
        part = name.partition(index)
        # A non-persistent partition is created by its first use.
        if not part.persistent or await service.topics.exists(part):
            with contextlib.suppress(TopicNotFound):  # deleted meanwhile
                yield await service.topics.get_or_open(part, create=True)


async def refuse_partitioned(service: BrokerService, name: TopicName, text: str) -> None:
    """Raises NotAllowed with `text` if the topic is partitioned."""
    if await service.resources.partitions(name):
        raise NotAllowed(text)


def refuse_partition_name(name: TopicName) -> None:
    """Raises PreconditionFailed if a partitioned topic's name looks like a partition's."""
    if PARTITION_SUFFIX in name.local:
        raise PreconditionFailed(f"Partitioned Topic Name should not contain '{PARTITION_SUFFIX}'")
