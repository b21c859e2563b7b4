"""The assignment of coordinators to brokers, by the partitions of the assign topic.

Clients ask for the number of partitions of this topic, look each one up, and send the commands of
coordinator N to the broker that serves partition N. The topic has metadata only, and no messages.
Source: Pulsar's `SystemTopicNames.TRANSACTION_COORDINATOR_ASSIGN`.
"""

import contextlib
from functools import lru_cache
from typing import Final

from magnetar.broker.catalog.namespace_policies import default_policies
from magnetar.broker.catalog.resources import Resources
from magnetar.core.errors import Conflict
from magnetar.core.names import TopicName, parse_topic

ASSIGN_TOPIC: Final = parse_topic("persistent://pulsar/system/transaction_coordinator_assign")
COORDINATORS_DEFAULT: Final = 16
COORDINATORS_MAX: Final = 1_024


@lru_cache(maxsize=COORDINATORS_MAX)
def assign_partition(coordinator: int) -> TopicName:
    """Returns the partition whose owner serves the coordinator."""
    return ASSIGN_TOPIC.partition(coordinator)


def is_assignment(name: TopicName) -> bool:
    """Whether the name is that of the assign topic or of one of its partitions."""
    return name.base == ASSIGN_TOPIC


async def ensure_assign_topic(resources: Resources, cluster: str, bundles: int) -> int:
    """Returns the number of coordinators; creates the topic with its namespace at first use.

    A new namespace gets so many bundles.
    """
    partitions = await resources.partitions(ASSIGN_TOPIC)
    if partitions:
        return partitions
    namespace = ASSIGN_TOPIC.namespace
    with contextlib.suppress(Conflict):
        await resources.create_tenant(
            namespace.tenant, {"adminRoles": [], "allowedClusters": [cluster]}
        )
    with contextlib.suppress(Conflict):
        await resources.create_namespace(namespace, default_policies(cluster, bundles))
    with contextlib.suppress(Conflict):
        await resources.create_partitioned(ASSIGN_TOPIC, COORDINATORS_DEFAULT, {})
    return await resources.partitions(ASSIGN_TOPIC)
