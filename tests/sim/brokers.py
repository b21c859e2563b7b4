"""A broker's life in the simulation, wired as its process wires it."""

import socket
from typing import TYPE_CHECKING, Final, cast

from tests.sim.admin import Admin
from tests.sim.bookies import SESSION_TTL_S, registered_bookies
from tests.sim.clocks import SimClock
from tests.sim.metadata import MetadataClient, MetadataServer
from tests.sim.nodes import Node
from tests.sim.object_store import SPEC
from tests.sim.transport import SimSocket
from tests.support.settings import changed

from magnetar.broker.assemble import assemble, describe_broker
from magnetar.broker.catalog.defaults import ensure_defaults
from magnetar.broker.catalog.resources import Resources
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import LedgerSettings
from magnetar.managed_ledger.settings import ManagedLedgerSettings
from magnetar.metadata.session import MetadataSession
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

if TYPE_CHECKING:
    from tests.sim.plan import Plan
    from tests.sim.world import World

BROKER_PORT: Final = 6650
CACHE_BYTES: Final = 64 << 10

SETTINGS: Final = compose(
    BrokerSettings,
    keep_alive_interval_s=5,
    retention_check_interval_s=3,
    compaction_check_interval_s=0,
    delete_inactive_topics=False,
    shutdown_timeout_ms=10_000,
)


MESSAGE_TTL_S: Final = 1_800
"""More than a run lasts: nothing may expire, whatever the clocks say."""
AGES_EVERY_S: Final = 1.0
TELLS_EVERY_S: Final = 0.3
NEVER_S: Final = 1e6
"""Beyond the end of any run."""


async def prepare_cluster(metadata: MetadataServer) -> None:
    """What the first broker of a cluster makes."""
    store = MetadataClient(metadata, SimClock(metadata.loop))
    await ensure_defaults(
        Resources(store), SETTINGS.cluster_name, service_url="", http_url="", only_broker=False
    )


async def broker_main(node: Node, world: "World") -> None:
    """Finds the bookies, registers, serves."""
    clock, plan = node.clock, world.plan
    store = MetadataClient(world.metadata, clock)
    bookies = registered_bookies(node, store)
    ledgers = LedgerClient(store, bookies, clock, ledger_settings(world), rng=node.rng)
    session = MetadataSession(store, SESSION_TTL_S, clock, node.name)
    settings = _settings(plan)
    listener = cast("socket.socket", SimSocket(node.name, BROKER_PORT))
    await bookies.start()
    record = await describe_broker(
        store,
        clock,
        listener,
        service_url=f"pulsar://{node.name}:{BROKER_PORT}",
        http_url=f"http://{node.name}:8080",
    )
    service = assemble(
        settings,
        store,
        ledgers,
        clock,
        record,
        session=session,
        managed_ledger=ManagedLedgerSettings(
            rollover_entries_max=plan.rollover_entries,
            rollover_ms_min=0,
            cache_bytes_max=CACHE_BYTES,
        ),
    )
    if plan.table.messages:
        service.compactor.artifacts = SPEC
    await service.start(listener)
    node.service, node.store, node.ledgers = service, store, service.ledgers

    async def stop() -> None:
        await service.stop()
        await service.ledgers.close()
        await bookies.stop()
        await store.close()

    node.stop, node.admin = stop, Admin(service)
    node.ready = True


def _settings(plan: "Plan") -> BrokerSettings:
    """The settings of a broker that the plan needs."""
    settings = SETTINGS
    if plan.ages:
        every = AGES_EVERY_S / 60
        settings = changed(SETTINGS, message_ttl_s=MESSAGE_TTL_S, ttl_check_interval_minutes=every)
    if plan.hazards.retention_s:
        kept = round(plan.hazards.retention_s / 60)
        settings = changed(settings, retention_minutes=kept, retention_size_mb=-1)
    if plan.hazards.quota_s:
        settings = changed(
            settings,
            backlog_quota_s=plan.hazards.quota_s,
            backlog_quota_action="consumer_backlog_eviction",
            backlog_quota_check_interval_s=AGES_EVERY_S,
        )
    if plan.deduplicates:
        settings = changed(
            settings, deduplication=True, deduplication_snapshot_entries=plan.deduplicates
        )
    if plan.delays.chance:
        settings = changed(
            settings,
            delayed_delivery_strict=plan.delays.strict,
            delayed_delivery_tick_ms=plan.delays.tick_ms,
        )
    if plan.table.messages:
        settings = changed(settings, compaction_check_interval_s=plan.table.check_s)
    if plan.txn.messages:
        settings = changed(
            settings, transactions=True, transaction_outcome_retention_s=plan.txn.retention_s
        )
    return settings


def ledger_settings(world: "World") -> LedgerSettings:
    """The plan's quorums, and deadlines that suit its virtual time."""
    ensemble_size, write_quorum, ack_quorum = world.plan.quorum
    return LedgerSettings(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        stripe_entries=world.plan.stripe_entries,
        avoid_s=10.0,
        regrow_interval_s=2.0,
        explicit_lac_interval_s=TELLS_EVERY_S if world.plan.tells else NEVER_S,
    )
