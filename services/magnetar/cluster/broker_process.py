"""A broker's process: it keeps nothing on disk, and takes its place among others by a lease.

Ports are taken first, then the metadata store is waited for; its health is served from the start
on its HTTP port, by the admin REST once there is a broker. The broker registers when it listens.
It stops the other way round: not ready, its bundles handed over, no longer registered, clients
sent away, the lease given back.
"""

import socket
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from magnetar.admin.cluster.routing import InCluster, OwnershipRouting
from magnetar.admin.probes import broker_status
from magnetar.admin.server import AdminServer
from magnetar.broker.balance.service import Balance, Place
from magnetar.broker.defaults import ensure_defaults
from magnetar.broker.ledger_settings import managed_ledger_settings
from magnetar.broker.service import BrokerService
from magnetar.cluster.broker_balance import BrokerWork, choose_by
from magnetar.cluster.broker_ledgers import BrokerLedgers
from magnetar.cluster.listeners import Advertised, advertised
from magnetar.cluster.membership import Membership, join
from magnetar.cluster.nodes import Readiness, session_reason
from magnetar.cluster.settings import BrokerProcessSettings
from magnetar.core.clock import Clock, SystemClock
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.observe.health import HealthServer, Probes
from magnetar.observe.listen import bind


@dataclass(slots=True)
class BrokerProcess:
    """A running broker."""

    service_url: str
    http_url: str
    _parts: "_Parts"
    _closing: AsyncExitStack

    async def stop(self) -> None:
        """Hands over what it owns, sends its clients away and closes everything."""
        self._parts.readiness.close()
        await self._closing.aclose()


@dataclass(slots=True)
class _Parts:
    """What health looks at; there bit by bit while the process starts."""

    settings: BrokerProcessSettings
    readiness: Readiness = field(default_factory=Readiness)
    service: BrokerService | None = None
    ledgers: BrokerLedgers | None = None

    def status(self) -> Mapping[str, object]:
        if self.service is None:
            return {"role": "broker", "cluster": self.settings.cluster_name}
        told = broker_status(self.service)
        if (ownership := self.service.cluster_ownership) is not None:
            told["bundles"] = len(ownership.owned())
            told["brokers"] = [each.broker_id for each in ownership.brokers.living()]
        if self.ledgers is not None:
            told |= self.ledgers.status()
        return told

    def families(self) -> Iterable[str]:
        return () if self.ledgers is None else self.ledgers.families()

    @property
    def probes(self) -> Probes:
        return Probes(self.readiness, self.status)


async def start(settings: BrokerProcessSettings) -> BrokerProcess:
    """Raises OSError for a port in use, or what is wrong with the metadata store."""
    clock = SystemClock()
    parts = _Parts(settings)
    async with AsyncExitStack() as opened:
        binary = bind(settings.host, settings.port)
        opened.callback(binary.close)
        http = bind(settings.host, settings.http_port)
        opened.callback(http.close)
        known = advertised(
            settings.advertised_listeners,
            settings.internal_listener_name,
            settings.advertised_host or settings.host,
            binary.getsockname()[1],
            http.getsockname()[1],
        )
        member = await _join(settings, known, parts, http, clock)
        opened.push_async_callback(member.store.close)
        service, balance = await _serve(opened, settings, member, parts, known, binary, clock)
        await _serve_rest(opened, settings, service, balance, parts, http)
        # Last: the load that it reports shall not be that of the start.
        opened.push_async_callback(balance.stop)
        balance.start()
        session = member.session
        parts.readiness.open(lambda: session_reason(session))
        return BrokerProcess(known.urls.service_url, known.urls.http_url, parts, opened.pop_all())
    raise AssertionError("unreachable")


async def _join(
    settings: BrokerProcessSettings,
    known: Advertised,
    parts: _Parts,
    http: socket.socket,
    clock: Clock,
) -> Membership:
    """The way into the cluster; meanwhile probes are answered on a copy of the HTTP socket."""
    waiting = HealthServer(parts.probes, tuple)
    await waiting.start(http.dup())
    try:
        name = f"broker {known.urls.http_url.partition('://')[2]}"
        return await join(settings, settings.cluster_name, clock, name)
    finally:
        await waiting.stop()


async def _serve(
    opened: AsyncExitStack,
    settings: BrokerProcessSettings,
    member: Membership,
    parts: _Parts,
    known: Advertised,
    binary: socket.socket,
    clock: Clock,
) -> tuple[BrokerService, Balance]:
    """A broker that listens, is registered and owns bundles as they are asked for."""
    store, session = member.store, member.session
    opened.push_async_callback(session.stop)
    broker_id = known.urls.http_url.partition("://")[2]
    ledgers = BrokerLedgers(settings, member, clock, broker_id)
    opened.push_async_callback(ledgers.stop)
    await ledgers.start()
    factory = ManagedLedgerFactory(store, ledgers.client, clock, managed_ledger_settings(settings))
    opened.push_async_callback(factory.close)
    service = BrokerService(settings, store, factory, clock, session)
    await ensure_defaults(
        service.resources,
        service.cluster,
        service_url=known.urls.service_url,
        http_url=known.urls.http_url,
        only_broker=False,
    )
    work = BrokerWork(service)
    place = Place(
        broker_id=broker_id,
        http_url=known.urls.http_url,
        serving=work,
        owner=work,
        living=work.living,
    )
    balance = Balance(settings, store, session, clock, place)
    opened.push_async_callback(service.stop)
    await service.start(
        binary,
        service_url=known.urls.service_url,
        http_url=known.urls.http_url,
        listeners=known.listeners,
        address=known.address,
    )
    parts.service, parts.ledgers = service, ledgers
    work.ownership.choose = choose_by(balance.placement)
    return service, balance


async def _serve_rest(
    opened: AsyncExitStack,
    settings: BrokerProcessSettings,
    service: BrokerService,
    balance: Balance,
    parts: _Parts,
    http: socket.socket,
) -> None:
    ownership = service.cluster_ownership
    assert ownership is not None  # noqa: S101
    admin = AdminServer()
    opened.push_async_callback(admin.stop)
    await admin.start(
        service,
        settings.host,
        settings.http_port,
        http,
        probes=parts.probes,
        cluster=InCluster(
            OwnershipRouting(ownership),
            balance,
            None if parts.ledgers is None else parts.ledgers.bookies,
            parts.families,
        ),
    )
    await admin.ready()
