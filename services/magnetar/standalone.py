"""Everything in one process: metadata store, bookie, broker and admin REST, wired together.

Ports are bound and the data directory is locked before anything is opened, so that a second start
is told at once which of them is taken. Start-up order is upwards, shutdown the same downwards.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from magnetar.admin.server import AdminServer, bind
from magnetar.bookie.local import LocalBookie
from magnetar.broker.namespace_policies import default_policies
from magnetar.broker.service import BrokerService
from magnetar.broker.settings import StandaloneSettings
from magnetar.core.clock import SystemClock
from magnetar.core.errors import Conflict
from magnetar.core.log import get_logger
from magnetar.core.names import NamespaceName
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.embedded import open_embedded

log = get_logger("magnetar.standalone")

BOOKIE_ID: Final = "standalone"
DEFAULT_NAMESPACES: Final = ("public/default", "pulsar/system")


@dataclass(slots=True)
class Standalone:
    """A running standalone."""

    service: BrokerService
    bookie: LocalBookie
    service_url: str
    http_url: str
    _closing: AsyncExitStack

    async def stop(self) -> None:
        """Drains and closes everything; what was receipted is on disk before and after."""
        await self._closing.aclose()


async def start(settings: StandaloneSettings) -> Standalone:
    """Raises OSError for a port in use, or the store's and the bookie's errors; leaves no trace."""
    clock = SystemClock()
    async with AsyncExitStack() as opened:
        binary = bind(settings.host, settings.port)
        opened.callback(binary.close)
        http = bind(settings.host, settings.http_port)
        opened.callback(http.close)
        data_dir = settings.data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        bookie = await LocalBookie.open(data_dir / "bookie", BOOKIE_ID, clock=clock)
        opened.push_async_callback(bookie.close)
        store = await open_embedded(data_dir / "metadata", clock)
        opened.push_async_callback(store.close)
        ledgers = LedgerClient(store, {BOOKIE_ID: bookie}, clock)
        factory = ManagedLedgerFactory(store, ledgers, clock, _ledger_settings(settings))
        opened.push_async_callback(factory.close)
        service = BrokerService(settings, store, factory, clock)
        host = settings.advertised_host or settings.host
        service_url = f"pulsar://{host}:{binary.getsockname()[1]}"
        http_url = f"http://{host}:{http.getsockname()[1]}"
        await _ensure_defaults(service, service_url, http_url)
        opened.push_async_callback(service.stop)
        await service.start(binary, service_url=service_url, http_url=http_url, only_broker=True)
        admin = AdminServer()
        opened.push_async_callback(admin.stop)
        # It listens from here on; requests wait for the application, which a thread loads.
        await admin.start(service, settings.host, settings.http_port, http, bookies=[bookie])
        return Standalone(service, bookie, service_url, http_url, opened.pop_all())


def _ledger_settings(settings: StandaloneSettings) -> ManagedLedgerSettings:
    return ManagedLedgerSettings(
        rollover_entries_max=settings.ledger_entries_max,
        rollover_bytes_max=settings.ledger_size_max_mb << 20,
        rollover_ms_min=settings.ledger_rollover_min_minutes * 60_000,
        rollover_ms_max=settings.ledger_rollover_max_minutes * 60_000,
        cache_bytes_max=settings.cache_size_mb << 20,
    )


async def _ensure_defaults(service: BrokerService, service_url: str, http_url: str) -> None:
    """What every Pulsar user finds at the first start."""
    resources, cluster = service.resources, service.cluster
    urls = {"serviceUrl": http_url, "brokerServiceUrl": service_url}
    if cluster in await resources.clusters():
        await resources.update_cluster(cluster, {**await resources.cluster(cluster), **urls})
    else:
        await resources.create_cluster(cluster, urls)
    tenants = await resources.tenants()
    for name in DEFAULT_NAMESPACES:
        namespace = NamespaceName.parse(name)
        if namespace.tenant not in tenants:
            await resources.create_tenant(
                namespace.tenant, {"adminRoles": [], "allowedClusters": [cluster]}
            )
        if not await resources.namespace_exists(namespace):
            try:
                await resources.create_namespace(namespace, default_policies(cluster))
            except Conflict:
                continue  # another process of the cluster made it at this moment
