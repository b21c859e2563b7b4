"""A bookie's life in the simulation: the real storage on a simulated disk, and the real server."""

from typing import TYPE_CHECKING, Final

from tests.sim.metadata import MetadataClient
from tests.sim.nodes import DATA_DIR, Node

from magnetar.autorecovery.check.ledger_check import LedgerChecker
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair.former_copies import FormerCopies
from magnetar.autorecovery.service import Autorecovery
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.service import BookieService, BookieServiceSettings
from magnetar.bookie.settings import BookieSettings
from magnetar.core.units import KIB
from magnetar.ledger.registered_bookies import RegisteredBookies, RegisteredSettings
from magnetar.metadata.session import MetadataSession

if TYPE_CHECKING:
    from tests.sim.world import World

BOOKIE_PORT: Final = 3181
CAPACITY_BYTES: Final = 64 << 20

STORAGE: Final = BookieSettings(
    journal_file_bytes=16 * KIB,
    journal_preallocate_bytes=4 * KIB,
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


RECOVERY: Final = AutorecoverySettings(
    lost_bookie_delay_s=4.0,
    open_ledger_grace_s=6.0,
    audit_interval_s=40.0,
    check_interval_s=30.0,
    poll_interval_s=5.0,
    attempts_max=8,
    backoff_first_s=1.0,
    backoff_max_s=10.0,
    request_timeout_s=5.0,
)

REGISTERED: Final = RegisteredSettings(quarantine_s=20.0, quarantine_late_s=5.0, keep_s=60.0)
SESSION_TTL_S: Final = 5.0


async def bookie_main(node: Node, world: "World") -> None:
    """Opens what the disk has, registers, serves; autorecovery runs beside it."""
    clock, rng = node.clock, node.rng
    node.capacity = CAPACITY_BYTES
    disk = node.mount(CAPACITY_BYTES)
    store = MetadataClient(world.metadata, clock)
    session = MetadataSession(store, SESSION_TTL_S, clock, node.name)
    service = await BookieService.open(
        DATA_DIR,
        store,
        session,
        clock,
        BookieServiceSettings(
            bookie_id=node.name,
            advertised_host=node.name,
            verify_s=5.0,
            garbage_interval_s=6.0,
            garbage_timeout_s=10.0,
        ),
        bookie_settings=STORAGE,
        files=disk,
        open_index=node.open_index,
        threads=False,
        random=rng,
    )
    node.promises.watch(service.bookie)
    await service.start(host=node.name, port=BOOKIE_PORT)
    bookies = registered_bookies(node, store)
    recovery = Autorecovery(store, bookies, session, clock, RECOVERY, name=node.name, rng=rng)
    prover = Prover(bookies, ByteRate(0, clock), RECOVERY.request_timeout_s)
    checker = LedgerChecker(bookies, prover, None, RECOVERY.request_timeout_s)
    token = f"{node.name} former copies {rng.getrandbits(64):016x}"
    service.garbage.former = FormerCopies(service.bookie, store, session, checker, clock, token)
    await bookies.start()
    await session.start()
    await recovery.start()
    node.service = service

    async def stop() -> None:
        await recovery.stop()
        await bookies.stop()
        await service.stop()
        await session.stop()
        await store.close()

    node.stop = stop
    node.ready = True


def registered_bookies(node: Node, store: MetadataClient) -> RegisteredBookies:
    """The bookies as a process of this node finds them."""
    return RegisteredBookies(
        store, node.clock, client=node.name, settings=REGISTERED, random=node.rng
    )
