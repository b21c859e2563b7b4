"""The index's usage of a log matches its views, as the collector selects logs by it."""

import asyncio
import errno
from collections import Counter
from pathlib import Path

import pytest
from tests.support.sim_disk import SimDisk, SimIndexStore

from magnetar.bookie.entry_log.codec_v1 import FILE_HEADER_BYTES
from magnetar.bookie.index.index import Index

from .conftest import DATA, add, open_sim


def named(index: Index) -> dict[tuple[int, int], int]:
    """Returns the bytes of blocks with views, by log and ledger; counts a cut block once."""
    blocks = {(view.log_id, view.offset): view for view in index.all_views()}
    result = Counter[tuple[int, int]]()
    for view in blocks.values():
        result[view.log_id, view.ledger_id] += view.length
    return dict(result)


def usage(index: Index) -> dict[tuple[int, int], int]:
    used = {(1, ledger_id): size for ledger_id, size in index.usage(1)}
    return {key: size for key, size in used.items() if size}


@pytest.mark.parametrize("again", [range(10), range(3, 6), range(5), range(5, 15), range(20)])
async def test_rewritten_bytes_are_dead_in_their_log(again: range) -> None:
    disk = SimDisk()
    store = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, store)
    index = Index(store)
    for ledger_id in (7, 8):
        await add(bookie, ledger_id, range(10))
    await bookie.flush()
    before = usage(index)
    assert before == named(index)
    await add(bookie, 7, again, size=120)
    await bookie.flush()
    assert usage(index) == named(index)
    assert usage(index)[1, 8] == before[1, 8]
    await bookie.abort()


async def test_a_flush_whose_checkpoint_failed_writes_no_block_twice() -> None:
    disk = SimDisk()
    store = SimIndexStore(disk, DATA / "index")
    bookie = await open_sim(disk, store)
    await add(bookie, 1, range(10))

    def fault(_: str, path: Path) -> OSError | None:
        failed = path.name.startswith("checkpoint")
        return OSError(errno.EIO, "Input/output error", str(path)) if failed else None

    disk.fault = fault
    with pytest.raises(OSError, match="Input/output"):
        await bookie.flush()
    disk.fault = None
    await bookie.flush()
    (log,) = [path for path in disk.inodes if path.suffix == ".log"]
    size = FILE_HEADER_BYTES + sum(named(Index(store)).values())
    assert len(disk.inodes[log].data) == size
    await bookie.abort()


async def test_flush_requested_during_another_is_one_more_flush() -> None:
    """Changes during a flush wait for the next one, which runs at once only on request."""
    disk = SimDisk()
    bookie = await open_sim(disk, SimIndexStore(disk, DATA / "index"))
    await add(bookie, 1, range(10))
    async with asyncio.TaskGroup() as flushes:
        flushes.create_task(bookie.flush())
        await asyncio.sleep(0)
        await bookie.note_confirmed([(1, 1)])
        flushes.create_task(bookie.flush())
    assert bookie.stats().flushes == 2
    await bookie.note_confirmed([(1, 2)])
    flushing = asyncio.ensure_future(bookie.flush())
    await asyncio.sleep(0)
    await bookie.note_confirmed([(1, 3)])
    await flushing
    for _ in range(5):
        await asyncio.sleep(0)
    assert bookie.stats().flushes == 3
    await bookie.abort()
