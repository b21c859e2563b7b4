"""Names of partitions: which of them a topic may have, by its partition count.

A partition below the count may be created at any time, whatever auto-creation says; one beyond the
count never, nor a partition of a topic that is not partitioned. Errors are Pulsar 4.2's.
"""

from magnetar.broker.resources import Resources
from magnetar.core.errors import NotAllowed, TopicNotFound
from magnetar.core.names import TopicName


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
    """Whether a client may ask for the metadata of a partition that may not exist.

    Where its topic is not partitioned and clients create topics `by_use`, the client learns with
    its next request, which attaches, that it may not create a partition.
    """
    partitions = await resources.partitions(name.base)
    return name.partition_index < partitions or (by_use and not partitions)
