"""An ownership that a test revokes and grants again, for a broker without a cluster."""

from magnetar.broker.ownership.always import AlwaysOwned
from magnetar.broker.service import BrokerService
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName


class MovableOwnership(AlwaysOwned):
    """Owns all topics except those that the test has moved away."""

    def __init__(self, service: BrokerService) -> None:
        super().__init__(service.resources, service.open_topics)
        self.away: set[TopicName] = set()
        self.doubted: list[TopicName] = []
        self.answers_doubt = True

    def owns(self, name: TopicName) -> bool:
        return name not in self.away

    async def require(self, name: TopicName) -> None:
        if name in self.away:
            raise ServiceNotReady(f"{name} belongs to another broker")

    async def doubt(self, name: TopicName) -> None:
        self.doubted.append(name)
        if not self.answers_doubt:
            raise ServiceNotReady("the store does not answer")


def movable(service: BrokerService) -> MovableOwnership:
    """Replaces the ownership of a broker that serves every topic."""
    service.topics.ownership = ownership = MovableOwnership(service)
    return ownership
