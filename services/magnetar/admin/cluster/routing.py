"""What the REST side asks of ownership: who serves a topic or a bundle, and who is there at all."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.broker.balance.service import Balance
from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.ledger.bookies import BookieSet


@dataclass(frozen=True, slots=True)
class Peer:
    """A broker as an address to send requests to; `here` is this one."""

    broker_id: str
    http_url: str
    here: bool


class Routing(Protocol):
    """Bundles are named `tenant/namespace/0x00000000_0x40000000`."""

    def brokers(self) -> Sequence[Peer]:
        """Every living broker, in order of ids."""

    async def bundle_of(self, name: TopicName) -> str:
        """The topic's bundle; raises TopicNotFound where its namespace does not exist."""

    async def owner(self, name: TopicName, *, claim: bool) -> Peer:
        """Who serves the topic. Where nobody does, an owner is chosen, or, with `claim`, this
        broker takes it. Raises ServiceNotReady where that cannot be said now."""

    async def bundle_owner(self, bundle: str, *, take: bool) -> Peer | None:
        """Who owns the bundle. Where nobody does, this broker takes it with `take`."""

    def owned(self) -> Sequence[str]:
        """The bundles of this broker."""


@dataclass(slots=True)
class InCluster:
    """What makes a broker's REST one of several. `closing` is what the application adds."""

    routing: Routing
    balance: Balance | None = None
    bookies: BookieSet | None = None
    """Where entries are stored."""
    families: Callable[[], Iterable[str]] = tuple
    """Further metrics, of what the broker works with."""
    closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    async def close(self) -> None:
        """Closes the connections to the other brokers."""
        for close in self.closing:
            await close()
        self.closing.clear()


class OwnershipRouting:
    """Routing by a broker's ownership."""

    def __init__(self, ownership: ClusterOwnership) -> None:
        self._ownership = ownership

    def brokers(self) -> Sequence[Peer]:
        return [self._peer(broker) for broker in self._ownership.brokers.living()]

    async def bundle_of(self, name: TopicName) -> str:
        return str(await self._ownership.rings.bundle_of(name))

    async def owner(self, name: TopicName, *, claim: bool) -> Peer:
        located = await self._ownership.locate(name, authoritative=claim)
        return self._peer(located.broker or self._ownership.brokers.own)

    async def bundle_owner(self, bundle: str, *, take: bool) -> Peer | None:
        ownership, wanted = self._ownership, Bundle.parse(bundle)
        if ownership.has(wanted):
            return self._peer(ownership.brokers.own)
        owner = ownership.owner_of(wanted)
        if owner is None and take and await ownership.claims.take(wanted) is not None:
            return self._peer(ownership.brokers.own)
        owner = owner or ownership.owner_of(wanted)
        if owner is not None and ownership.claims.is_own(owner):
            # Handed over to this broker, and not asked for since.
            await ownership.claims.confirm(wanted)
            if not ownership.has(wanted):
                raise ServiceNotReady(f"Bundle {bundle} is being moved, please retry")
            return self._peer(ownership.brokers.own)
        broker = None if owner is None else ownership.brokers.get(owner.broker_id)
        if owner is not None and (broker is None or broker.start != owner.start):
            raise ServiceNotReady(f"The owner of {bundle} has gone, please retry")
        return None if broker is None else self._peer(broker)

    def owned(self) -> Sequence[str]:
        return sorted(map(str, self._ownership.owned()))

    def _peer(self, broker: BrokerRecord) -> Peer:
        own = self._ownership.brokers.own
        return Peer(broker.broker_id, broker.urls.http_url, broker.broker_id == own.broker_id)
