"""Which topics may come to be: by use, as a namespace's policies or the broker's settings say, and
no more of a namespace than its cap allows.

The cap counts persistent topics and partitions, not system topics. Of partitions all are counted
when their topic is made or grows, and are in from then on. What this broker creates is counted one
creation at a time; two brokers that create at the same moment may go beyond the cap by one each, as
in Pulsar.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.system_topics import is_system_topic
from magnetar.core.errors import NotAllowed, PreconditionFailed
from magnetar.core.names import NamespaceName, TopicName
from magnetar.policies.admission import AUTO_TOPIC_CREATION
from magnetar.policies.caps import MAX_TOPICS

FULL: Final = "Exceed maximum number of topics in namespace."

ListTopics = Callable[[NamespaceName, str], Awaitable[list[TopicName]]]


class TopicCreation:
    """See the module's text. `lock` is held from `check_room` until the topic is there."""

    def __init__(
        self, policies: BrokerPolicies, default_partitions: int, topics: ListTopics
    ) -> None:
        self._policies = policies
        self._default_partitions = default_partitions
        self._topics = topics
        self.lock = asyncio.Lock()

    def by_use(self, name: TopicName) -> bool:
        """Whether a client that asks for the topic makes it."""
        return bool(self._automatic(name)["allowAutoTopicCreation"])

    def partitions_by_use(self, name: TopicName) -> int:
        """Partitions of a topic that is made by use; 0: it has none."""
        automatic = self._automatic(name)
        if automatic.get("topicType") != "partitioned":
            return 0
        return int(automatic.get("defaultNumPartitions") or self._default_partitions)

    def _automatic(self, name: TopicName) -> dict[str, Any]:
        value: dict[str, Any] = self._policies.namespace_value(name.namespace, AUTO_TOPIC_CREATION)
        return value

    def capped(self, name: TopicName) -> bool:
        """Whether there is a cap that may stand in the way."""
        return self._cap(name) > 0 and name.persistent and not is_system_topic(name)

    async def check_topic(self, name: TopicName) -> None:
        """Raises NotAllowed where the namespace has no room for one more."""
        if self.capped(name) and await self._count(name) + 1 > self._cap(name):
            raise NotAllowed(FULL, http_status=409)

    async def check_partitions(self, name: TopicName, more: int) -> None:
        """Raises PreconditionFailed where the namespace has no room for so many more."""
        if self.capped(name) and await self._count(name) + more > self._cap(name):
            raise PreconditionFailed(FULL)

    def _cap(self, name: TopicName) -> int:
        return int(self._policies.namespace_value(name.namespace, MAX_TOPICS) or 0)

    async def _count(self, name: TopicName) -> int:
        names = await self._topics(name.namespace, "persistent")
        return sum(not is_system_topic(each) for each in names)
