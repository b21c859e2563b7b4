"""A broker's process: it keeps nothing on disk, and holds its bundles by a lease.

It binds its ports, then waits for the metadata store. Its HTTP port serves health from the start,
and the admin REST once the broker runs. The broker registers when it listens. It stops in reverse:
it reports not ready, hands its bundles over, deregisters, disconnects its clients, and revokes the
lease.
"""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from magnetar.admin.cluster.routing import ClusterParts, OwnershipRouting
from magnetar.admin.http.server import AdminServer
from magnetar.admin.probes import broker_status
from magnetar.broker.assemble import assemble, describe_broker
from magnetar.broker.balance.placement import Placement
from magnetar.broker.balance.rules import PlacementRules, usage_by
from magnetar.broker.balance.service import Balance, LocalBroker, Reports
from magnetar.broker.catalog.defaults import ensure_defaults
from magnetar.broker.listeners import BrokerListeners, bind_all
from magnetar.broker.peers.client import PeerClient
from magnetar.broker.security.opener import open_security
from magnetar.broker.service import BrokerService
from magnetar.cluster.broker_balance import BrokerWork, choose_by
from magnetar.cluster.broker_credentials import client_tls, own_credentials
from magnetar.cluster.broker_ledgers import BrokerLedgers
from magnetar.cluster.listeners import Advertised, advertised
from magnetar.cluster.membership import Membership, join
from magnetar.cluster.nodes import Node, Readiness, launch, session_reason
from magnetar.core.clock import Clock, SystemClock
from magnetar.observe.health import HealthServer, Probes
from magnetar.security.credentials import Credentials
from magnetar.security.tls.process import ProcessTls
from magnetar.security.tls.reload import ClientTls
from magnetar.security.tls.transport import server_factory
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.cluster_broker import BrokerProcessSettings


@dataclass(slots=True, kw_only=True)
class BrokerProcess(Node):
    """A running broker."""

    service_url: str


@dataclass(slots=True)
class _Health:
    """The health of a broker's process; its fields are set while the process starts."""

    settings: BrokerProcessSettings
    readiness: Readiness = field(default_factory=Readiness)
    service: BrokerService | None = None
    ledgers: BrokerLedgers | None = None
    tls: ProcessTls = field(default_factory=ProcessTls)

    def status(self) -> Mapping[str, object]:
        """The document of /status."""
        if self.service is None:
            return {"role": "broker", "cluster": self.settings.cluster_name}
        status = broker_status(self.service)
        if (ownership := self.service.cluster_ownership) is not None:
            status["bundles"] = len(ownership.owned())
            status["brokers"] = [broker.broker_id for broker in ownership.brokers.living()]
        if self.ledgers is not None:
            status |= self.ledgers.status()
        return status

    def families(self) -> Iterable[str]:
        """The families of /metrics that only a broker of a cluster has."""
        return () if self.ledgers is None else self.ledgers.families()

    @property
    def public(self) -> frozenset[str] | None:
        """The paths that need no credentials before the admin REST is up, as after it; None: all.

        /status names the cluster, so with authentication it needs a super user.
        """
        if not self.settings.security.authentication_enabled:
            return None
        metrics = () if self.settings.security.authenticate_metrics else ("/metrics",)
        return frozenset(("/healthz", "/readyz", *metrics))

    @property
    def probes(self) -> Probes:
        """The answers of the health endpoints."""
        return Probes(self.readiness, self.status)


async def start(settings: BrokerProcessSettings) -> BrokerProcess:
    """Starts the process. Raises OSError for a port in use, or MetadataError."""
    return await launch(lambda opened: _start(opened, settings))


async def _start(opened: AsyncExitStack, settings: BrokerProcessSettings) -> BrokerProcess:
    clock = SystemClock()
    health = _Health(settings)
    credentials = own_credentials(settings)
    if credentials is not None:
        opened.push_async_callback(credentials.close)
    opened.push_async_callback(health.tls.stop)
    listeners = bind_all(
        settings.host,
        port=settings.port,
        http_port=settings.http_port,
        port_tls=settings.broker_tls.port_tls,
        http_port_tls=settings.broker_tls.http_port_tls,
        tls=health.tls.server_if(settings.broker_tls.server_config(settings.tls)),
    )
    opened.callback(listeners.close)
    addresses = advertised(
        settings.advertised_listeners,
        settings.internal_listener_name,
        listeners.urls(settings.advertised_name),
    )
    member = await _join(opened, settings, addresses, health, listeners, clock)
    peer_tls = health.tls.client_if(client_tls(settings, credentials), "brokers")
    service, balance = await _serve(
        *(opened, settings, member, health, addresses, listeners, clock),
        PeerClient(credentials, peer_tls),
    )
    await _serve_rest(opened, settings, service, balance, health, listeners, credentials, peer_tls)
    # Last, so that the load that it reports does not include the start.
    opened.push_async_callback(balance.stop)
    balance.start()
    session = member.session
    health.readiness.open(lambda: session_reason(session))
    return BrokerProcess(
        http_url=service.http_url,
        readiness=health.readiness,
        closing=opened,
        service_url=service.service_url,
    )


async def _join(
    opened: AsyncExitStack,
    settings: BrokerProcessSettings,
    addresses: Advertised,
    health: _Health,
    listeners: BrokerListeners,
    clock: Clock,
) -> Membership:
    """Joins the cluster, and meanwhile answers probes on copies of the HTTP sockets."""
    waiting: list[HealthServer] = []
    try:
        if listeners.http is not None:
            waiting.append(HealthServer(health.probes, tuple, health.public))
            await waiting[-1].start(listeners.http.dup())
        if listeners.http_tls is not None:
            secure = listeners.http_tls
            waiting.append(HealthServer(health.probes, tuple, health.public))
            await waiting[-1].start(secure.socket.dup(), partial(server_factory, secure.tls))
        name = f"broker {addresses.broker_id}"
        return await join(opened, settings, clock, name, health.tls)
    finally:
        for server in waiting:
            await server.stop()


async def _serve(
    opened: AsyncExitStack,
    settings: BrokerProcessSettings,
    member: Membership,
    health: _Health,
    addresses: Advertised,
    listeners: BrokerListeners,
    clock: Clock,
    peers: PeerClient,
) -> tuple[BrokerService, Balance]:
    """Starts a broker that listens, is registered, and claims bundles when clients look them up."""
    store, session, urls = member.store, member.session, addresses.urls
    ledgers = BrokerLedgers(settings, member, clock, addresses.broker_id)
    opened.push_async_callback(ledgers.stop)
    await ledgers.start()
    record = await describe_broker(
        store,
        clock,
        listeners.reached,
        service_url=urls.service_url,
        http_url=urls.http_url,
        service_url_tls=urls.service_url_tls,
        http_url_tls=urls.http_url_tls,
        listeners=addresses.listeners,
        address=addresses.address,
    )
    reports = Reports(store)
    domains = settings.balance.failure_domains
    rules = PlacementRules(store, usage_by(reports.of), uses_domains=domains)
    security = open_security(
        settings.security, settings.audit, store, clock, up_to_date=lambda: session.valid
    )
    service = assemble(
        settings,
        store,
        ledgers.client,
        clock,
        record,
        session=session,
        choose=choose_by(Placement(reports.of, clock)),
        rules=rules,
        security=security,
        peers=peers,
    )
    opened.push_async_callback(service.ledgers.close)
    await ensure_defaults(
        *(service.resources, service.cluster),
        service_url=urls.service_url,
        http_url=urls.http_url,
        service_url_tls=urls.service_url_tls,
        http_url_tls=urls.http_url_tls,
        only_broker=False,
        bundles=settings.topics.default_namespace_bundles,
    )
    assert service.cluster_ownership is not None  # noqa: S101 - it has a session
    work = BrokerWork(service, service.cluster_ownership)
    local_broker = LocalBroker(
        broker_id=addresses.broker_id,
        http_url=service.http_url,
        serving=work,
        owner=work,
        living=work.living,
        allowed=work.allowed,
    )
    balance = Balance(settings.balance, store, session, clock, local_broker, reports)
    service.live.listen(partial(_settings_changed, balance, rules))
    opened.push_async_callback(service.stop)
    await service.start(listeners.binary, listeners.binary_tls)
    health.service, health.ledgers = service, ledgers
    return service, balance


def _settings_changed(balance: Balance, rules: PlacementRules, settings: BrokerSettings) -> None:
    if isinstance(settings, BrokerProcessSettings):
        rules.uses_domains = settings.balance.failure_domains
        balance.set_settings(settings.balance)


async def _serve_rest(
    opened: AsyncExitStack,
    settings: BrokerProcessSettings,
    service: BrokerService,
    balance: Balance,
    health: _Health,
    listeners: BrokerListeners,
    credentials: Credentials | None,
    peer_tls: ClientTls | None,
) -> None:
    """Starts the admin REST and waits until it answers."""
    ownership = service.cluster_ownership
    assert ownership is not None  # noqa: S101
    admin = AdminServer()
    opened.push_async_callback(admin.stop)
    await admin.start(
        service,
        settings.host,
        settings.http_port,
        listeners.http,
        secure=listeners.http_tls,
        families=health.tls.families,
        probes=health.probes,
        cluster=ClusterParts(
            OwnershipRouting(ownership),
            balance,
            None if health.ledgers is None else health.ledgers.bookies,
            credentials,
            health.families,
            tls=peer_tls,
        ),
    )
    await admin.ready()
