"""A bookie on a real or simulated disk, and shorthands to fill and read it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.api import BookieError
from magnetar.bookie.entry_log.collector import GcReport
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.settings import BookieSettings

DATA = Path("/data")
SMALL = BookieSettings(
    journal_preallocate_bytes=64 << 10,
    journal_reserve_bytes=4 << 10,
    write_cache_bytes=1 << 20,
    block_bytes=4 << 10,
    block_bytes_max=8 << 10,
    entry_log_bytes=64 << 10,
    tick_s=0.005,
    disk_usage_high=1.0,
    disk_usage_low=1.0,
    disk_free_bytes_min=0,
    disk_reserve_bytes=16 << 10,
    disk_check_interval_s=0.01,
    flush_retry_s=0.01,
)

Opener = Callable[..., Awaitable[LocalBookie]]


def entry(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    return (b"%d:%d " % (ledger_id, entry_id)).ljust(size, b".")


async def add(
    bookie: LocalBookie, ledger_id: int, ids: Sequence[int], *, size: int = 100
) -> BookieError | None:
    """Adds a group; returns its error, None if it is durable."""
    answer: asyncio.Future[BookieError | None] = asyncio.get_running_loop().create_future()
    entries = [entry(ledger_id, entry_id, size) for entry_id in ids]
    bookie.add_entries(ledger_id, ids, entries, last_add_confirmed=-1, on_added=answer.set_result)
    return await asyncio.wait_for(answer, 20)


async def read_all(bookie: LocalBookie, ledger_id: int, *, size: int = 100) -> list[int]:
    """The ids of a ledger's entries, each checked."""
    end = await bookie.ledger_end(ledger_id)
    ids: list[int] = []
    while not ids or ids[-1] < end.last_entry:
        first = ids[-1] + 1 if ids else 0
        result = await bookie.read_entries(ledger_id, first, end.last_entry, bytes_max=20_000)
        assert all(item.data == entry(ledger_id, item.entry_id, size) for item in result)
        ids += [item.entry_id for item in result]
    return ids


async def collect_garbage(bookie: LocalBookie) -> GcReport:
    """Runs a major collection."""
    return await bookie._keeper.collect(bookie._settings.gc_major_live_ratio)


async def until(met: Callable[[], bool]) -> None:
    """Waits for periodic work of the bookie."""
    async with asyncio.timeout(20):
        while not met():  # noqa: ASYNC110 - the bookie has no event for it
            await asyncio.sleep(0.001)


async def open_sim(
    disk: SimDisk, index: SimIndexStore, settings: BookieSettings = SMALL
) -> LocalBookie:
    return await LocalBookie.open(
        DATA, "b1", settings=settings, files=disk, open_index=lambda _: index, threads=False
    )


@pytest.fixture
async def open_bookie(tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens bookies in one directory and closes those that are still open."""
    opened: list[LocalBookie] = []

    async def open_(settings: BookieSettings = SMALL, bookie_id: str = "b1") -> LocalBookie:
        bookie = await LocalBookie.open(tmp_path / "data", bookie_id, settings=settings)
        opened.append(bookie)
        return bookie

    yield partial(open_)
    for bookie in opened:
        await bookie.close()
