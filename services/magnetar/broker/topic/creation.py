"""Decides whether a topic may be created: by auto-creation, and within its namespace's cap.

The cap counts persistent topics and partitions, not system topics. A topic's partitions are counted
when the topic is created or grows, and not again when the partitions are opened. This broker counts
and creates one topic at a time; brokers that create at the same moment may each exceed the cap by
one, as in Pulsar.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from magnetar.broker.catalog.topic_names import is_system_topic
from magnetar.broker.policies.applied_policies import BrokerPolicies
from magnetar.core.errors import NotAllowed, PreconditionFailed
from magnetar.core.names import NamespaceName, TopicName
from magnetar.policies.admission import AUTO_TOPIC_CREATION
from magnetar.policies.caps import MAX_TOPICS

FULL: Final = "Exceed maximum number of topics in namespace."
TOO_MANY_PARTITIONS: Final = "Number of partitions should be less than or equal to {}"

ListTopics = Callable[[NamespaceName, str], Awaitable[list[TopicName]]]


class TopicCreation:
    """Checks creations. Hold `lock` from `check_topic` until the topic is created."""

    def __init__(
        self, policies: BrokerPolicies, default_partitions: int, topics: ListTopics
    ) -> None:
        self._policies = policies
        self._default_partitions = default_partitions
        self._topics = topics
        self.partitions_max = 0
        """Maximum number of partitions of a topic, set with the settings; 0: no limit."""
        self.lock = asyncio.Lock()

    def by_use(self, name: TopicName) -> bool:
        """Whether the topic is created when a client first uses it."""
        return bool(self._automatic(name)["allowAutoTopicCreation"])

    def partitions_by_use(self, name: TopicName) -> int:
        """Returns how many partitions an auto-created topic gets; 0: it is not partitioned."""
        automatic = self._automatic(name)
        if automatic.get("topicType") != "partitioned":
            return 0
        return int(automatic.get("defaultNumPartitions") or self._default_partitions)

    def check_count(self, partitions: int) -> None:
        """Raises NotAllowed if a topic may not have so many partitions."""
        if 0 < self.partitions_max < partitions:
            raise NotAllowed(TOO_MANY_PARTITIONS.format(self.partitions_max), http_status=406)

    def _automatic(self, name: TopicName) -> dict[str, Any]:
        value: dict[str, Any] = self._policies.namespace_value(name.namespace, AUTO_TOPIC_CREATION)
        return value

    def capped(self, name: TopicName) -> bool:
        """Whether a cap applies to the topic."""
        return self._cap(name) > 0 and name.persistent and not is_system_topic(name)

    async def check_topic(self, name: TopicName) -> None:
        """Raises NotAllowed if the namespace has no room for another topic."""
        if self.capped(name) and await self._count(name) + 1 > self._cap(name):
            raise NotAllowed(FULL, http_status=409)

    async def check_partitions(self, name: TopicName, more: int) -> None:
        """Raises PreconditionFailed if the namespace has no room for `more` partitions."""
        if self.capped(name) and await self._count(name) + more > self._cap(name):
            raise PreconditionFailed(FULL)

    def _cap(self, name: TopicName) -> int:
        return int(self._policies.namespace_value(name.namespace, MAX_TOPICS) or 0)

    async def _count(self, name: TopicName) -> int:
        names = await self._topics(name.namespace, "persistent")
        return sum(not is_system_topic(topic) for topic in names)
