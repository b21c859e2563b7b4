"""What a topic's name says: system topics, partitions, and the name of its managed ledger.

A partition below its topic's count may always be created, whatever auto-creation says. A partition
beyond the count may never be created, nor a partition of a topic that is not partitioned. The
errors are Pulsar 4.2's.
"""

from magnetar.broker.catalog.resources import Resources
from magnetar.core.errors import NotAllowed, TopicNotFound
from magnetar.core.names import NamespaceName, TopicName


def is_system_topic(name: TopicName) -> bool:
    """Whether the topic is for internal use, as in Pulsar: not listed, without caps and rates."""
    return name.local.startswith("__") or "__transaction" in name.local


def ledger_name(topic: TopicName) -> str:
    """Returns the name of a persistent topic's managed ledger."""
    return f"{topic.namespace}/persistent/{topic.encoded_local}"


def topic_of_ledger(name: str) -> TopicName:
    """Returns the topic of a managed ledger: the inverse of `ledger_name`."""
    tenant, namespace, domain, encoded = name.split("/", 3)
    return TopicName.from_encoded(domain, NamespaceName(tenant, namespace), encoded)


def may_be_partition(name: TopicName, partitions: int, *, create: bool) -> bool:
    """Whether a topic that does not exist is a partition below its topic's count of `partitions`.

    `create` says whether any other topic may be created. Raises TopicNotFound or NotAllowed if this
    one may not.
    """
    index = name.partition_index
    if index < 0 and partitions:
        raise NotAllowed(f"{name} is a partitioned topic: attach to its partitions")
    if partitions and index >= partitions:
        raise TopicNotFound(
            f"Illegal topic partition name {name} with max allowed {partitions} partitions"
        )
    if not create and not 0 <= index < partitions:
        raise TopicNotFound(f"Topic {name} does not exist")
    if index >= 0 and not partitions:
        raise NotAllowed(f"Partition metadata not found for the partitioned topic: {name}")
    return 0 <= index < partitions


async def may_be_asked_for(resources: Resources, name: TopicName, *, by_use: bool) -> bool:
    """Whether a client may request the metadata of a partition that may not exist.

    If its topic is not partitioned and clients create topics `by_use`, the client's next request,
    which attaches, is refused instead.
    """
    partitions = await resources.partitions(name.base)
    return name.partition_index < partitions or (by_use and not partitions)
