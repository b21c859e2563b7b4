"""Routing of REST requests: the owners of topics and bundles, and the living brokers."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from magnetar.broker.ownership.bundles import Bundle
from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.core.errors import ServiceNotReady
from magnetar.core.names import TopicName
from magnetar.ledger.bookies import BookieSet
from magnetar.security.credentials import Credentials
from magnetar.security.tls.reload import ClientTls

if TYPE_CHECKING:
    from magnetar.broker.balance.service import Balance


@dataclass(frozen=True, slots=True)
class Peer:
    """The addresses of a broker; `local` is set for this broker."""

    broker_id: str
    http_url: str
    local: bool
    http_url_tls: str = ""

    def url(self, *, secure: bool) -> str:
        """Returns the address with or without TLS; the other one if the broker lacks it."""
        if secure:
            return self.http_url_tls or self.http_url
        return self.http_url or self.http_url_tls


class Routing(Protocol):
    """Finds brokers and owners. Bundles are named `tenant/namespace/0x00000000_0x40000000`."""

    def brokers(self) -> Sequence[Peer]:
        """Returns all living brokers, sorted by id."""

    async def bundle_of(self, name: TopicName) -> str:
        """Returns the topic's bundle; raises TopicNotFound if its namespace does not exist."""

    async def owner(self, name: TopicName, *, claim: bool) -> Peer:
        """Returns the topic's owner.

        If the topic has none, this chooses one or, with `claim`, claims the bundle for this broker.
        Raises ServiceNotReady if the owner is unknown at the moment.
        """

    async def bundle_owner(self, bundle: str, *, claim: bool) -> Peer | None:
        """Returns the bundle's owner; with `claim`, this broker claims a bundle without one."""

    def owned(self) -> Sequence[str]:
        """Returns the bundles of this broker."""


@dataclass(slots=True)
class ClusterParts:
    """The parts of a cluster that the admin REST of one of its brokers uses."""

    routing: Routing
    balance: "Balance | None" = None
    bookies: BookieSet | None = None
    """The bookies of the cluster."""
    credentials: Credentials | None = None
    """What this broker presents to the others; None while authentication is off."""
    families: Callable[[], Iterable[str]] = tuple
    """Further metrics, of the broker's clients of bookies and metadata."""
    tls: ClientTls | None = None
    """The TLS of requests to other brokers; None if they are plain."""
    closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Called by `close`; the application adds its own."""

    async def close(self) -> None:
        """Closes the connections to the other brokers."""
        for close in self.closing:
            await close()
        self.closing.clear()


class OwnershipRouting:
    """Routing based on the bundle ownership of this broker."""

    def __init__(self, ownership: ClusterOwnership) -> None:
        self._ownership = ownership

    def brokers(self) -> Sequence[Peer]:
        return [self._peer(broker) for broker in self._ownership.brokers.living()]

    async def bundle_of(self, name: TopicName) -> str:
        return str(await self._ownership.rings.bundle_of(name))

    async def owner(self, name: TopicName, *, claim: bool) -> Peer:
        located = await self._ownership.locate(name, authoritative=claim)
        return self._peer(located.broker or self._ownership.brokers.own)

    async def bundle_owner(self, bundle: str, *, claim: bool) -> Peer | None:
        ownership, parsed = self._ownership, Bundle.parse(bundle)
        if ownership.has(parsed):
            return self._peer(ownership.brokers.own)
        unowned = ownership.owner_of(parsed) is None
        if claim and unowned and await ownership.claims.acquire(parsed) is not None:
            return self._peer(ownership.brokers.own)
        owner = ownership.owner_of(parsed)
        if owner is not None and ownership.claims.is_own(owner):
            # The bundle was handed over to this broker, which has not confirmed it yet.
            await ownership.claims.confirm(parsed)
            if not ownership.has(parsed):
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
        urls, local = broker.urls, broker.broker_id == own.broker_id
        return Peer(broker.broker_id, urls.http_url, local, urls.http_url_tls)
