"""Load balance wired to a broker: what it reports of it, and how orders are carried out by it."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from magnetar.broker.balance.placement import Placement
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.ownership import Choose, ClusterOwnership
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.service import BrokerService
from magnetar.broker.topics import Topic
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName


class BrokerWork:
    """What this broker serves, and what it is told to do with it; see `balance.load.Serving`.

    Made before the broker starts, and asked once it has: its ownership comes with the start.
    """

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    @property
    def ownership(self) -> ClusterOwnership:
        """Of the broker; raises ServiceNotReady before it has started."""
        ownership = self._service.cluster_ownership
        if ownership is None:
            raise ServiceNotReady("The broker has not started yet, please retry")
        return ownership

    @property
    def broker_id(self) -> str:
        return self._service.broker_id

    @property
    def draining(self) -> bool:
        return self.ownership.draining

    def connections(self) -> int:
        return len(self._service.sessions)

    def topics(self) -> Iterable[Topic]:
        return self._service.topics

    def owned(self) -> Iterable[str]:
        return [str(bundle) for bundle in self.ownership.owned()]

    def bundle_of(self, name: TopicName) -> str | None:
        bundle = self.ownership.bundle_of(name)
        return str(bundle) if bundle is not None and self.ownership.has(bundle) else None

    def living(self) -> Collection[str]:
        """The brokers that may be given bundles."""
        return [each.broker_id for each in self.ownership.brokers.living() if each.active]

    def owns(self, bundle: str) -> bool:
        return self.ownership.has(Bundle.parse(bundle))

    async def unload(self, bundle: str, destination: str | None) -> None:
        """An order's."""
        await self.ownership.unload(bundle, destination)

    async def split(self, bundle: str, algorithm: str, *, unload: bool) -> None:
        """An order's; with `unload` the second half goes to another broker at once."""
        parts = await self.ownership.split(bundle, algorithm)
        if unload and len(parts) > 1:
            await self.ownership.unload(parts[-1])


def choose_by(placement: Placement) -> Choose:
    """By load, as `Placement` chooses."""

    def choose(
        _bundle: Bundle, brokers: Sequence[BrokerRecord], owned: Mapping[str, int], _own_id: str
    ) -> str | None:
        ids = [broker.broker_id for broker in brokers]
        return placement.choose(ids, owned) if ids else None

    return choose
