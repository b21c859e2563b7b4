"""The topics that messages can be moved to."""

from magnetar.broker.catalog.resources import Resources
from magnetar.broker.topic.registry import TopicRegistry
from magnetar.core.names import TopicName


class Targets:
    """Decides whether a topic can be a target, from the metadata of the cluster."""

    def __init__(self, resources: Resources, topics: TopicRegistry) -> None:
        self._resources = resources
        self._topics = topics

    async def exist(self, target: TopicName) -> bool:
        """Whether the topic is persistent and exists.

        A topic that the move would create has no subscription, and would lose the messages.
        """
        if not target.persistent:
            return False
        return bool(await self._resources.partitions(target)) or await self._topics.exists(target)
