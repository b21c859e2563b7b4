"""What handlers need of a request: the broker, and the names in the path, checked.

Texts are Pulsar's: a namespace that is missing is `Namespace not found`, a topic
`Topic persistent://… not found`.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import cast

from starlette.requests import Request

from magnetar.broker.balance.service import Balance
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topics import Topic
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


def service_of(request: Request) -> BrokerService:
    """The broker that this application belongs to."""
    return cast("BrokerService", request.app.state.service)


def balance_of(request: Request) -> Balance | None:
    """The load balance between the brokers; None where there is only this one."""
    return cast("Balance | None", request.app.state.balance)


def bookies_of(request: Request) -> BookieSet | None:
    """The bookies of the cluster; None where this process is all there is."""
    return cast("BookieSet | None", request.app.state.bookies)


def text_of(request: Request, parameter: str) -> str:
    """A parameter of the path, decoded."""
    return str(request.path_params[parameter])


def number_of(request: Request, parameter: str) -> int:
    """A number in the path."""
    return int(request.path_params[parameter])


def checked_name(name: str, kind: str) -> str:
    """The name of a tenant, namespace or cluster; PreconditionFailed with Pulsar's text."""
    try:
        check_entity_name(name, kind)
    except PreconditionFailed:
        raise PreconditionFailed(f"{kind} name is not valid") from None
    return name


def namespace_of(request: Request) -> NamespaceName:
    """`{tenant}/{namespace}` of the path."""
    tenant = checked_name(text_of(request, "tenant"), "Tenant")
    return NamespaceName(tenant, checked_name(text_of(request, "namespace"), "Namespace"))


def topic_of(request: Request) -> TopicName:
    """`{domain}/{tenant}/{namespace}/{topic}` of the path."""
    params = request.path_params
    full = f"{params['domain']}://{params['tenant']}/{params['namespace']}/{params['topic']}"
    try:
        return parse_topic(full)
    except InvalidTopicName as error:
        for part in (params["tenant"], params["namespace"]):
            if not is_entity_name(part):
                raise PreconditionFailed("Namespace name is not valid") from None
        raise PreconditionFailed(f"Topic name is not valid: {error.message}") from None


async def existing_namespace(request: Request) -> NamespaceName:
    """The namespace of the path; NotFound where there is none."""
    namespace = namespace_of(request)
    await require_namespace(service_of(request), namespace)
    return namespace


async def require_namespace(
    service: BrokerService, namespace: NamespaceName, text: str = "Namespace not found"
) -> None:
    if not await service.resources.namespace_exists(namespace):
        raise NotFound(text)


async def loaded_topic(service: BrokerService, name: TopicName) -> Topic:
    """The topic, loaded; NotFound where it (or its namespace) does not exist."""
    await require_namespace(service, name.namespace)
    try:
        return await service.topics.get_or_open(name, create=False)
    except (TopicNotFound, NotAllowed):
        if name.partition_index >= 0 and await service.resources.partitions(name.base):
            raise NotFound("Topic partitions were not yet created") from None
        raise topic_not_found(name) from None
    except ServiceNotReady:
        # Any broker answers about a partitioned topic as a whole, also one that has not its bundle.
        if name.partition_index < 0 and await service.resources.partitions(name):
            raise topic_not_found(name) from None
        raise


def topic_not_found(name: TopicName) -> NotFound:
    return NotFound(f"Topic {name} not found")


def subscription_not_found(subscription: str, name: TopicName) -> NotFound:
    return NotFound(f"Subscription {subscription} not found for topic {name}")


def refuse_broken(topic: Topic, subscription: str) -> None:
    """Raises SubscriptionBroken if the subscription's cursor cannot be read."""
    if isinstance(topic, PersistentTopic):
        error = topic.broken_subscriptions.get(subscription)
        if error is not None:
            raise SubscriptionBroken(
                f"Subscription {subscription} of topic {topic.full_name} cannot be read: "
                f"{error.message}. Subscribe to it once the bookies of its ledger are back, or "
                "delete it: until then the topic keeps all messages"
            )


def has_subscription(topic: Topic, subscription: str) -> bool:
    """Also one whose cursor cannot be read."""
    if subscription in topic.subscriptions:
        return True
    return isinstance(topic, PersistentTopic) and subscription in topic.broken_subscriptions


class SubscriptionBroken(PersistenceError):
    """The subscription exists, but where it stands cannot be read."""


async def persistent_topic(service: BrokerService, name: TopicName, doing: str) -> PersistentTopic:
    """A loaded persistent topic; NotAllowed where what is done needs one."""
    topic = await loaded_topic(service, name)
    if not isinstance(topic, PersistentTopic):
        raise NotAllowed(f"{doing} on a non-persistent topic is not allowed")
    return topic


async def loaded_parts(service: BrokerService, name: TopicName) -> list[Topic]:
    """A topic's partitions where it is partitioned, else the topic itself.

    A partition that was deleted is left out: to look must not create it again.
    """
    partitions = await service.resources.partitions(name)
    if not partitions:
        return [await loaded_topic(service, name)]
    return [topic async for topic in existing_partitions(service, name, partitions)]


async def existing_partitions(
    service: BrokerService, name: TopicName, partitions: int
) -> AsyncIterator[Topic]:
    """Those of the declared partitions that exist, loaded."""
    for index in range(partitions):
        part = name.partition(index)
        # A non-persistent one exists as soon as somebody asks for it.
        if not part.persistent or await service.topics.exists(part):
            with contextlib.suppress(TopicNotFound):  # deleted meanwhile
                yield await service.topics.get_or_open(part, create=True)


async def refuse_partitioned(service: BrokerService, name: TopicName, text: str) -> None:
    """NotAllowed with `text` where the topic is partitioned."""
    if await service.resources.partitions(name):
        raise NotAllowed(text)


def refuse_partition_name(name: TopicName) -> None:
    """A partitioned topic's own name cannot look like a partition's."""
    if PARTITION_SUFFIX in name.local:
        raise PreconditionFailed(f"Partitioned Topic Name should not contain '{PARTITION_SUFFIX}'")
