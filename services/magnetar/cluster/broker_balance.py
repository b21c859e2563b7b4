"""Connects the load balance to a broker: the load it reports, and the moves it executes."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from magnetar.broker.balance.placement import Placement
from magnetar.broker.ownership.api import Choose
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.service import BrokerService
from magnetar.broker.topic.api import Topic
from magnetar.core.names import TopicName


class BrokerWork:
    """This broker's bundles and topics for the load balance (`balance.load.Serving`)."""

    def __init__(self, service: BrokerService, ownership: ClusterOwnership) -> None:
        self._service = service
        self.ownership = ownership

    @property
    def broker_id(self) -> str:
        """The id of this broker."""
        return self._service.broker_id

    @property
    def draining(self) -> bool:
        """Whether this broker hands its bundles over and claims none."""
        return self.ownership.draining

    def connections(self) -> int:
        """Returns the number of client connections."""
        return len(self._service.sessions)

    def topics(self) -> Iterable[Topic]:
        """Returns the loaded topics."""
        return self._service.topics

    def owned(self) -> Iterable[str]:
        """Returns the bundles that this broker owns."""
        return [str(bundle) for bundle in self.ownership.owned()]

    def bundle_of(self, name: TopicName) -> str | None:
        """Returns the topic's bundle if this broker owns it."""
        bundle = self.ownership.bundle_of(name)
        return str(bundle) if bundle is not None and self.ownership.has(bundle) else None

    def living(self) -> Collection[str]:
        """The ids of the brokers that may own bundles."""
        return [broker.broker_id for broker in self.ownership.brokers.living() if broker.active]

    def allowed(self, bundle: str, brokers: Sequence[str]) -> Collection[str]:
        """Returns the brokers that may own the bundle by the rules of placement, of those given."""
        parsed = Bundle.parse(bundle)
        allowed = [b for b in self.ownership.allowed(parsed) if b.broker_id in brokers]
        return [b.broker_id for b in self.ownership.preferred(parsed, allowed)]

    def owns(self, bundle: str) -> bool:
        """Whether this broker owns the bundle."""
        return self.ownership.has(Bundle.parse(bundle))

    async def unload(self, bundle: str, destination: str | None) -> None:
        """Unloads a bundle, on an order of the leader."""
        await self.ownership.unload(bundle, destination)

    async def split(self, bundle: str, algorithm: str, *, unload: bool) -> None:
        """Splits a bundle, on an order of the leader; `unload` also moves its second half away."""
        parts = await self.ownership.split(bundle, algorithm)
        if unload and len(parts) > 1:
            await self.ownership.unload(parts[-1])


def choose_by(placement: Placement) -> Choose:
    """Returns the choice of a broker for a bundle by load (`Placement`)."""

    def choose(
        _bundle: Bundle, brokers: Sequence[BrokerRecord], owned: Mapping[str, int], _own_id: str
    ) -> str | None:
        ids = [broker.broker_id for broker in brokers]
        return placement.choose(ids, owned) if ids else None

    return choose
