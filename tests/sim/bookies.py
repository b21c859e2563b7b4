"""A bookie's life in the simulation: the real storage on a simulated disk, and the real server."""

from typing import TYPE_CHECKING, Final

from tests.sim.nodes import DATA_DIR, Node

from magnetar.bookie.local import LocalBookie
from magnetar.bookie.net.server import BookieServer
from magnetar.bookie.settings import KIB, BookieSettings

if TYPE_CHECKING:
    from tests.sim.world import World

BOOKIE_PORT: Final = 3181
CAPACITY_BYTES: Final = 64 << 20

STORAGE: Final = BookieSettings(
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


async def bookie_main(node: Node, world: "World") -> None:
    """Opens what the disk has, registers, serves."""
    node.capacity = CAPACITY_BYTES
    bookie = await open_storage(node)
    server = BookieServer(bookie, pressure=bookie)
    await server.start(host=node.name, port=BOOKIE_PORT)
    node.service = bookie

    async def stop() -> None:
        await server.stop()
        await bookie.close()

    node.stop = stop
    node.ready = True


async def open_storage(node: Node) -> LocalBookie:
    """The bookie of the node's disk."""
    disk = node.mount(CAPACITY_BYTES)
    return await LocalBookie.open(
        DATA_DIR,
        node.name,
        settings=STORAGE,
        clock=node.clock,
        files=disk,
        open_index=node.open_index,
        threads=False,
    )
