"""A bookie's process: its disks, its server and registration, its health, and autorecovery.

Both ports are taken first, then the metadata store is waited for, then the disks are opened (and
held to this cluster), and last the session is started, which registers the bookie. It stops the
other way round: not ready, no longer registered, all answered, all flushed.
"""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from magnetar import __version__
from magnetar.admin.metrics.bookie_series import bookie_families
from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.malloc import release_freed_memory
from magnetar.bookie.service import BookieService, BookieServiceSettings
from magnetar.cluster.bookie_settings import BookieProcessSettings
from magnetar.cluster.identity import hold_to_cluster
from magnetar.cluster.ledger_count import LedgerCount
from magnetar.cluster.membership import Membership, join, session_families
from magnetar.cluster.nodes import Readiness, serve_health, session_reason
from magnetar.core.clock import Clock, SystemClock
from magnetar.metadata.session import MetadataSession
from magnetar.observe.listen import bind
from magnetar.observe.metrics import single

if TYPE_CHECKING:
    from magnetar.autorecovery.former_copies import FormerCopies
    from magnetar.cluster.autorecovery_part import AutorecoveryPart


@dataclass(slots=True)
class BookieProcess:
    """A running bookie."""

    identity: BookieIdentity
    address: str
    http_url: str
    _parts: "_Parts"
    _closing: AsyncExitStack

    async def stop(self) -> None:
        """Deregisters, answers what was asked, flushes and closes everything."""
        self._parts.readiness.close()
        await self._closing.aclose()


@dataclass(slots=True)
class _Parts:
    """What health and metrics look at; there bit by bit while the process starts."""

    settings: BookieProcessSettings
    readiness: Readiness = field(default_factory=Readiness)
    session: MetadataSession | None = None
    service: BookieService | None = None
    ledgers: LedgerCount | None = None
    recovery: "AutorecoveryPart | None" = None

    def status(self) -> Mapping[str, object]:
        told: dict[str, object] = {
            "role": "bookie",
            "version": __version__,
            "cluster": self.settings.cluster_name,
            "bookie_id": self.settings.identity,
        }
        if self.service is not None:
            bookie = self.service.bookie
            stats = bookie.stats()
            told |= {
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
            told["autorecovery"] = self.recovery.status()
        return told

    def metrics(self) -> Iterable[str]:
        if self.session is not None:
            yield from session_families(self.session)
        if self.service is not None:
            yield from bookie_families([self.service.bookie])
        if self.ledgers is not None:
            yield single("bookie_ledgers_count", "", self.ledgers.count)
        if self.recovery is not None:
            yield from self.recovery.families()

    def registered_reason(self) -> str:
        """A bookie that is read-only is ready: it can be read from, and says so elsewhere."""
        if self.service is None or self.service.registered:
            return ""
        return str(self.service.server.add_refusal)

    def storage_reason(self) -> str:
        """Why the storage is not well, although it may still answer reads."""
        return "" if self.service is None else self.service.bookie.stats().fault


async def start(settings: BookieProcessSettings) -> BookieProcess:
    """Raises OSError for a port in use, or what is wrong with the disks or the metadata store."""
    clock = SystemClock()
    parts = _Parts(settings)
    async with AsyncExitStack() as opened:
        listener = bind(settings.host, settings.port)
        opened.callback(listener.close)
        http_port = await serve_health(
            opened,
            settings.host,
            settings.http_port,
            parts.readiness,
            parts.status,
            parts.metrics,
        )
        member = await join(settings, settings.cluster_name, clock, f"bookie {settings.identity}")
        parts.session = member.session
        opened.push_async_callback(member.store.close)
        # Whatever is registered under the session goes with it, and before the store.
        opened.push_async_callback(member.session.stop)
        service = await _open(opened, settings, member, clock, http_port)
        service.garbage.former = await _former_copies(opened, settings, member, clock, service)
        await service.start(listener)
        if settings.autorecovery:
            from magnetar.cluster.autorecovery_part import AutorecoveryPart

            part = AutorecoveryPart(member, clock, settings, settings.identity)
            opened.push_async_callback(part.stop)
            await part.open()
            parts.recovery = part
        parts.service, parts.ledgers = service, LedgerCount(service.bookie)
        opened.push_async_callback(parts.ledgers.stop)
        await member.session.start()
        if parts.recovery is not None:
            await parts.recovery.start()
        release_freed_memory()
        parts.readiness.open(
            parts.registered_reason,
            parts.storage_reason,
            lambda: session_reason(member.session),
        )
        host = settings.advertised_host or settings.host
        return BookieProcess(
            service.bookie.identity,
            f"{host}:{service.server.port}",
            f"http://{host}:{http_port}",
            parts,
            opened.pop_all(),
        )
    raise AssertionError("unreachable")


async def _former_copies(
    opened: AsyncExitStack,
    settings: BookieProcessSettings,
    member: Membership,
    clock: Clock,
    service: BookieService,
) -> "FormerCopies":
    """Proves copies on the other bookies, so it needs them, with or without autorecovery here."""
    from magnetar.autorecovery.former_copies import FormerCopies
    from magnetar.autorecovery.ledger_check import LedgerChecker
    from magnetar.autorecovery.proving import Prover
    from magnetar.autorecovery.rate import ByteRate
    from magnetar.cluster.autorecovery_part import recovery_settings
    from magnetar.ledger.registered_bookies import RegisteredBookies

    client = f"former copies {settings.identity}"
    cluster_id = member.cluster.cluster_id
    bookies = RegisteredBookies(member.store, clock, cluster=cluster_id, client=client)
    opened.push_async_callback(bookies.stop)
    await bookies.start()
    recovery = recovery_settings(settings)
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
) -> BookieService:
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
    )
    opened.push_async_callback(service.stop)
    hold_to_cluster(settings.data_dir, member.cluster)
    return service
