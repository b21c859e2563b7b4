"""A bookie's process: storage, server, registration, health, and autorecovery.

It binds both ports, waits for the metadata store, opens its storage (and checks that it belongs to
this cluster), and last starts the session, which registers the bookie. It stops in reverse: it
reports not ready, deregisters, answers the requests under way, and flushes.
"""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random

from magnetar import __version__
from magnetar.admin.metrics.bookie_series import BookieSeries
from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair.former_copies import FormerCopies
from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.net.access import Access
from magnetar.bookie.service import BookieService, BookieServiceSettings
from magnetar.cluster.autorecovery_part import AutorecoveryPart
from magnetar.cluster.identity import hold_to_cluster
from magnetar.cluster.ledger_count import LedgerCount
from magnetar.cluster.membership import Membership, join
from magnetar.cluster.nodes import (
    Node,
    NodeHealth,
    launch,
    serve_health,
    session_families,
    session_reason,
)
from magnetar.core.clock import Clock, SystemClock
from magnetar.core.malloc import release_freed_memory
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.observe.listen import bind
from magnetar.observe.metrics import single
from magnetar.security.tls.reload import ServerTls
from magnetar.settings.bookie import BookieProcessSettings


@dataclass(slots=True, kw_only=True)
class BookieProcess(Node):
    """A running bookie."""

    identity: BookieIdentity
    address: str


@dataclass(slots=True, kw_only=True)
class BookieHealth(NodeHealth):
    """The health of a bookie's process."""

    role: str = "bookie"
    bookie_id: str
    service: BookieService | None = None
    ledgers: LedgerCount | None = None
    series: BookieSeries = field(default_factory=BookieSeries)

    def status(self) -> Mapping[str, object]:
        """The document of /status."""
        status: dict[str, object] = {
            "role": self.role,
            "version": __version__,
            "cluster": self.cluster_name,
            "bookie_id": self.bookie_id,
        }
        if self.service is not None:
            bookie = self.service.bookie
            stats = bookie.stats()
            status |= {
                "incarnation": bookie.identity.incarnation,
                "registered": self.service.registered,
                "writable": self.service.server.writable,
                "read_only_reason": stats.read_only_reason,
                "fault": stats.fault,
                "connections": len(self.service.server.connections),
                "ledgers": self.ledgers.count if self.ledgers is not None else 0,
                "entries_added": stats.entries_added,
                "entries_read": stats.entries_read,
                "disk_bytes_total": stats.disk_bytes_total,
                "disk_used_bytes": stats.disk_bytes_total - stats.disk_bytes_free,
            }
        if self.recovery is not None:
            status["autorecovery"] = self.recovery.status()
        return status

    def metrics(self) -> Iterable[str]:
        """The families of /metrics."""
        if self.session is not None:
            yield from session_families(self.session)
        if self.service is not None:
            yield from self.series.families([self.service.bookie])
        if self.ledgers is not None:
            yield single("bookie_ledgers_count", "", self.ledgers.count)
            yield single("bookie_ACTIVE_LEDGER_TOTAL", "", self.ledgers.count)
        if self.recovery is not None:
            yield from self.recovery.families()

    def registered_reason(self) -> str:
        """Returns why the bookie is not registered; empty if it is, also if it is read-only."""
        if self.service is None or self.service.registered:
            return ""
        return str(self.service.server.add_refusal)

    def storage_reason(self) -> str:
        """Returns why the storage has failed, even if it still answers reads."""
        return "" if self.service is None else self.service.bookie.stats().fault


async def start(settings: BookieProcessSettings) -> BookieProcess:
    """Starts the process. Raises OSError for a port in use, BookieError or MetadataError."""
    return await launch(lambda opened: _start(opened, settings))


async def _start(opened: AsyncExitStack, settings: BookieProcessSettings) -> BookieProcess:
    clock = SystemClock()
    health = BookieHealth(cluster_name=settings.cluster_name, bookie_id=settings.identity)
    listener = bind(settings.host, settings.port)
    opened.callback(listener.close)
    opened.push_async_callback(health.tls.stop)
    bookie_tls = (
        health.tls.server(settings.tls.server_tls()) if settings.bookie_tls != "off" else None
    )
    http_port = await serve_health(
        opened,
        settings.host,
        settings.http_port,
        health,
        settings.storage_tls.health_tls(settings.tls),
    )
    name = f"bookie {settings.identity}"
    member = await join(opened, settings, clock, name, health.tls)
    health.session = member.session
    service = await _open(opened, settings, member, clock, http_port, bookie_tls)
    service.garbage.former = await _former_copies(opened, settings, member, clock, service)
    await service.start(listener)
    if settings.autorecovery:
        part = AutorecoveryPart(member, clock, settings.recovery, settings.identity)
        opened.push_async_callback(part.stop)
        await part.open()
        health.recovery = part
    health.service, health.ledgers = service, LedgerCount(service.bookie)
    opened.push_async_callback(health.ledgers.stop)
    await member.session.start()
    if health.recovery is not None:
        await health.recovery.start()
    release_freed_memory()
    health.readiness.open(
        health.registered_reason,
        health.storage_reason,
        lambda: session_reason(member.session),
    )
    host = settings.advertised_host or settings.host
    return BookieProcess(
        http_url=f"{'https' if settings.storage_tls.http_tls else 'http'}://{host}:{http_port}",
        readiness=health.readiness,
        closing=opened,
        identity=service.bookie.identity,
        address=f"{host}:{service.server.port}",
    )


async def _former_copies(
    opened: AsyncExitStack,
    settings: BookieProcessSettings,
    member: Membership,
    clock: Clock,
    service: BookieService,
) -> FormerCopies:
    """Returns the deletion of former copies, which every bookie runs, also without autorecovery."""
    client = f"former copies {settings.identity}"
    cluster_id = member.cluster.cluster_id
    bookies = RegisteredBookies(
        member.store, clock, cluster=cluster_id, client=client, tls=member.bookie_tls
    )
    opened.push_async_callback(bookies.stop)
    await bookies.start()
    recovery = settings.recovery.autorecovery_settings()
    prover = Prover(
        bookies, ByteRate(recovery.check_bytes_per_s_max, clock), recovery.request_timeout_s
    )
    checker = LedgerChecker(bookies, prover, None, recovery.request_timeout_s)
    token = f"{client} {Random().getrandbits(64):016x}"
    return FormerCopies(service.bookie, member.store, member.session, checker, clock, token)


async def _open(
    opened: AsyncExitStack,
    settings: BookieProcessSettings,
    member: Membership,
    clock: Clock,
    http_port: int,
    tls: ServerTls | None,
) -> BookieService:
    """Opens the storage and checks that it belongs to this cluster."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    service = await BookieService.open(
        settings.data_dir,
        member.store,
        member.session,
        clock,
        BookieServiceSettings(
            bookie_id=settings.identity,
            advertised_host=settings.advertised_host or settings.host,
            http_port=http_port,
            rack=settings.rack,
            cluster=member.cluster.cluster_id,
        ),
        bookie_settings=settings.storage(),
        tls=tls,
        plain=settings.bookie_tls == "optional",
        access=Access(
            frozenset(settings.bookie_member_roles), frozenset(settings.bookie_reader_roles)
        ),
    )
    opened.push_async_callback(service.stop)
    hold_to_cluster(settings.data_dir, member.cluster)
    return service
