"""A broker's life in the simulation, wired as its process wires it."""

from typing import Final

from tests.sim.metadata import MetadataClient, MetadataServer
from tests.sim.nodes import DATA_DIR, Node
from tests.sim.transport import SimSocket

from magnetar.bookie.local import LocalBookie
from magnetar.bookie.settings import BookieSettings
from magnetar.broker.namespace_policies import default_policies
from magnetar.broker.service import BrokerService
from magnetar.broker.settings import BrokerSettings
from magnetar.core.names import NamespaceName
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.settings import ManagedLedgerSettings

BROKER_PORT: Final = 6650
KIB: Final = 1 << 10

BOOKIE_SETTINGS: Final = BookieSettings(
    journal_file_bytes=64 * KIB,
    journal_preallocate_bytes=16 * KIB,
    journal_reserve_bytes=1 * KIB,
    journal_recycled_files_max=2,
    write_cache_bytes=24 * KIB,
    flush_age_s=8.0,
    flush_idle_s=2.0,
    flush_idle_bytes_min=2 * KIB,
    block_bytes=2 * KIB,
    block_bytes_max=4 * KIB,
    entry_log_bytes=32 * KIB,
    read_cache_bytes=16 * KIB,
    gc_interval_s=6.0,
    gc_minor_interval_s=12.0,
    gc_major_interval_s=24.0,
    tombstone_kept_s=5.0,
    disk_free_bytes_min=0,
    disk_reserve_bytes=4 * KIB,
    disk_usage_high=0.9,
    disk_usage_low=0.8,
    disk_check_interval_s=2.0,
)


async def broker_main(node: Node, metadata: MetadataServer) -> None:
    """A broker with a bookie in the same process."""
    clock = node.clock
    node.mount(64 << 20)
    assert node.disk is not None
    bookie = await LocalBookie.open(
        DATA_DIR,
        "local",
        settings=BOOKIE_SETTINGS,
        clock=clock,
        files=node.disk,
        open_index=node.open_index,
        threads=False,
    )
    store = MetadataClient(metadata, clock)
    ledgers = LedgerClient(store, {"local": bookie}, clock)
    factory = ManagedLedgerFactory(
        store,
        ledgers,
        clock,
        ManagedLedgerSettings(rollover_entries_max=20, rollover_ms_min=0, cache_bytes_max=64 * KIB),
    )
    settings = BrokerSettings(
        keep_alive_interval_s=5, retention_check_interval_s=3, delete_inactive_topics=False
    )
    service = BrokerService(settings, store, factory, clock)
    resources = service.resources
    if service.cluster not in await resources.clusters():
        await resources.create_cluster(service.cluster, {})
    if "public" not in await resources.tenants():
        await resources.create_tenant(
            "public", {"adminRoles": [], "allowedClusters": [service.cluster]}
        )
    namespace = NamespaceName.parse("public/default")
    if not await resources.namespace_exists(namespace):
        await resources.create_namespace(namespace, default_policies(service.cluster))
    await service.start(
        SimSocket(node.name, BROKER_PORT),  # type: ignore[arg-type]
        service_url=f"pulsar://{node.name}:{BROKER_PORT}",
        http_url=f"http://{node.name}:8080",
    )
    node.service = service
    node.ready = True
