"""A broker's life in the simulation, wired as its process wires it."""

from typing import TYPE_CHECKING, Final

from tests.sim.bookies import open_storage
from tests.sim.clocks import SimClock
from tests.sim.metadata import MetadataClient, MetadataServer
from tests.sim.nodes import Node
from tests.sim.transport import SimSocket

from magnetar.broker.defaults import ensure_defaults
from magnetar.broker.resources import Resources
from magnetar.broker.service import BrokerService
from magnetar.broker.settings import BrokerSettings
from magnetar.core.names import parse_topic
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.settings import ManagedLedgerSettings

if TYPE_CHECKING:
    from tests.sim.world import World

BROKER_PORT: Final = 6650
CACHE_BYTES: Final = 64 << 10

SETTINGS: Final = BrokerSettings(
    keep_alive_interval_s=5, retention_check_interval_s=3, delete_inactive_topics=False
)


async def prepare_cluster(metadata: MetadataServer) -> None:
    """What the first broker of a cluster makes."""
    store = MetadataClient(metadata, SimClock(metadata.loop))
    await ensure_defaults(
        Resources(store), SETTINGS.cluster_name, service_url="", http_url="", only_broker=False
    )


async def broker_main(node: Node, world: "World") -> None:
    """A broker with a bookie in the same process."""
    clock = node.clock
    bookie = await open_storage(node)
    store = MetadataClient(world.metadata, clock)
    ledgers = LedgerClient(store, {node.name: bookie}, clock)
    factory = ManagedLedgerFactory(
        store,
        ledgers,
        clock,
        ManagedLedgerSettings(
            rollover_entries_max=world.plan.rollover_entries,
            rollover_ms_min=0,
            cache_bytes_max=CACHE_BYTES,
        ),
    )
    service = BrokerService(SETTINGS, store, factory, clock)
    await service.start(
        SimSocket(node.name, BROKER_PORT),  # type: ignore[arg-type]  # has what is asked of it
        service_url=f"pulsar://{node.name}:{BROKER_PORT}",
        http_url=f"http://{node.name}:8080",
    )
    node.service = service

    async def unload(topic: str) -> None:
        await service.topics.unload(parse_topic(topic))

    async def stop() -> None:
        await service.stop()
        await factory.close()
        await bookie.close()

    node.stop, node.unload = stop, unload
    node.ready = True
