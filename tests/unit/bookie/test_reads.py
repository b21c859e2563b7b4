"""Reads: the caches, read-ahead, and answers without yielding."""

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookie.api import ID_END, EntryCorrupt
from magnetar.bookie.cache.read_cache import ENTRY_OVERHEAD_BYTES, CachedBlock, ReadCache
from magnetar.bookie.entry_log.codec_v1 import Block
from magnetar.bookie.entry_log.logs import adjacent
from magnetar.bookie.index.index import View
from magnetar.disk.os_files import OsFiles

from .conftest import SMALL, Opener, add, entry, read_all


def at_once(work: Coroutine[Any, Any, Any]) -> object:
    """The result of a coroutine that must not wait for anything."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise AssertionError("it waited")


async def test_reads_from_memory_do_not_yield(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(100))
    assert len(at_once(bookie.read_entries(1, 0, 99, bytes_max=1 << 20))) == 100  # type: ignore[arg-type]
    await bookie.flush()
    await bookie.read_entries(1, 0, 99, bytes_max=1 << 20)
    assert len(at_once(bookie.read_entries(1, 0, 99, bytes_max=1 << 20))) == 100  # type: ignore[arg-type]


async def test_sequential_reader_triggers_read_ahead(open_bookie: Opener) -> None:
    bookie = await open_bookie(replace(SMALL, read_ahead_bytes=50_000))
    await add(bookie, 1, range(1000))
    await bookie.flush()
    assert await read_all(bookie, 1) == list(range(1000))
    stats = bookie.stats()
    # 100,000 bytes in blocks of 4 KiB: most of them came with another's turn.
    assert stats.read_cache_misses < 10
    assert stats.read_cache_hits > 5


async def test_stripes_read_from_other_bookies_are_not_read_ahead(open_bookie: Opener) -> None:
    bookie = await open_bookie(replace(SMALL, read_ahead_bytes=50_000, read_cache_bytes=1 << 20))
    stripes = [range(first, first + 160) for first in range(0, 4800, 160)]
    local = [stripe for number, stripe in enumerate(stripes) if number % 3 != 1]
    for stripe in local:
        for first in range(stripe[0], stripe[-1], 40):
            await add(bookie, 1, range(first, first + 40))
        await bookie.flush()  # no block has two of them
    await bookie.read_entries(1, 0, 79, bytes_max=1 << 20)
    for stripe in stripes[::3]:
        first = stripe[0] or 80  # the first in two parts: what follows it is read ahead
        result = await bookie.read_entries(1, first, stripe[-1], bytes_max=1 << 20)
        assert [item.entry_id for item in result] == list(range(first, stripe[-1] + 1))
    block_bytes = 160 * (100 + ENTRY_OVERHEAD_BYTES)
    assert bookie.stats().read_cache_bytes < block_bytes * len(local) * 3 // 4


async def test_single_reads_load_only_their_block(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(1000))
    await bookie.flush()
    for entry_id in (999, 0, 500, 501, 40):
        (result,) = await bookie.read_entries(1, entry_id, entry_id, bytes_max=1 << 20)
        assert result.data == entry(1, entry_id)
    assert bookie.stats().read_cache_bytes < 40_000


async def test_reads_cross_from_logs_into_both_halves(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(100))
    await bookie.flush()
    await add(bookie, 1, range(100, 150))
    result = await bookie.read_entries(1, 90, 120, bytes_max=1 << 20)
    assert [item.entry_id for item in result] == list(range(90, 121))


def block(ledger_id: int, first: int, count: int, size: int = 52) -> CachedBlock:
    data = Block(
        ledger_id, first, first + count - 1, ((first, count),), [bytes(size)] * count, size * count
    )
    return CachedBlock(ledger_id, first, first + count - 1, data)


def test_the_read_cache_is_bounded_and_drops_the_least_recent() -> None:
    cache = ReadCache(3000)
    for first in range(0, 100, 10):
        cache.add(block(1, first, 10))
        assert cache.find(1, 0) is not None or first > 90
    assert cache.bytes <= 3000
    assert len(cache) == 3
    # The first was used all the time, the last two came last.
    assert [cache.find(1, first) is not None for first in (0, 10, 70, 80, 90)] == [
        True,
        False,
        False,
        True,
        True,
    ]


def test_a_block_as_large_as_the_read_cache_is_cached_and_a_larger_one_evicts_nothing() -> None:
    small, whole, larger = block(1, 0, 10), block(2, 0, 30), block(3, 0, 31)
    cache = ReadCache(whole.charge)
    cache.add(small)
    cache.add(larger)
    assert [each is not None for each in (cache.find(1, 0), cache.find(3, 0))] == [True, False]
    cache.add(whole)
    assert [each is not None for each in (cache.find(1, 0), cache.find(2, 0))] == [False, True]
    assert cache.bytes == whole.charge == cache.bytes_max
    cache.add(small)
    assert (cache.bytes, len(cache)) == (small.charge, 1)


def test_read_cache_looks_up_by_range_and_drops_ledgers() -> None:
    cache = ReadCache(100_000)
    cache.add(block(1, 10, 10))
    cache.add(block(1, 30, 10))
    cache.add(block(2, 10, 10))
    cache.add(block(1, 10, 10))
    assert [cache.find(1, entry_id) is not None for entry_id in (9, 10, 19, 20, 35, 40)] == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]
    cache.drop_ledger(1)
    cache.drop_ledger(1)
    assert cache.find(1, 10) is None
    assert cache.find(2, 10) is not None
    assert cache.bytes == block(2, 10, 10).charge
    cache.add(block(3, 0, 2000))
    assert cache.find(3, 0) is None


async def test_a_long_read_ends_before_a_damaged_block(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(1000))
    await bookie.close()
    logs = (tmp_path / "data" / "entry-logs").iterdir()
    log = next(path for path in logs if b"1:500 " in path.read_bytes())
    content = bytearray(log.read_bytes())
    content[content.index(b"1:500 ")] ^= 1
    log.write_bytes(content)
    bookie = await open_bookie()
    result = await bookie.read_entries(1, 0, 999, bytes_max=1 << 20)
    assert [item.entry_id for item in result] == list(range(len(result)))
    assert 400 < len(result) <= 500
    with pytest.raises(EntryCorrupt, match=rf"{log}"):
        await bookie.read_entries(1, len(result), 999, bytes_max=1 << 20)
    # Behind the block all is well.
    result = await bookie.read_entries(1, 600, 999, bytes_max=1 << 20)
    assert [item.entry_id for item in result] == list(range(600, 1000))


def view(log_id: int, offset: int, length: int) -> View:
    return View(1, offset, offset + length - 1, log_id, offset, length)


def test_adjacent_blocks_are_read_together() -> None:
    views = [view(1, 0, 10), view(1, 10, 20), view(1, 30, 5), view(1, 40, 5), view(2, 45, 5)]
    assert list(adjacent(views, 100)) == views[:3]
    assert list(adjacent(views, 34)) == views[:2]
    assert list(adjacent(views, 1)) == views[:1]
    assert list(adjacent(views[3:], 100)) == views[3:4]


def test_direct_reads_return_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100 + b"end")
    file = OsFiles().open(path, read_only=True)
    size = file.size()
    for offset in (0, 1, 4095, 4096, 5000, size - 5, size, size + 10):
        for length in (1, 4096, 9000, 1 << 20, 4 << 20):
            assert file.read_once(offset, length) == file.read(offset, length)
    file.close()


def test_a_removed_file_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    file = OsFiles().open(path, read_only=True)
    path.unlink()
    assert file.read_once(10, 100) == b"x" * 100
    file.close()


async def test_a_block_read_before_its_ledger_was_rewritten_is_not_cached(
    open_bookie: Opener,
) -> None:
    """Otherwise entries that filled a hole meanwhile would be skipped as absent."""
    bookie = await open_bookie(replace(SMALL, read_ahead_bytes=0))
    await add(bookie, 1, (0, 1, 2, 4, 5, 6))
    await bookie.flush()
    reader = bookie._reader
    started, resume = threading.Event(), threading.Event()
    load_run = reader._load_run

    def slow(ledger_id: int, position: int, last: int, bytes_wanted: int) -> list[CachedBlock]:
        blocks = load_run(ledger_id, position, last, bytes_wanted)
        started.set()
        resume.wait(20)
        return blocks

    reader._load_run = slow  # type: ignore[method-assign]
    reading = asyncio.ensure_future(bookie.read_entries(1, 0, 2, bytes_max=1 << 20))
    await asyncio.to_thread(started.wait, 20)
    reader._load_run = load_run  # type: ignore[method-assign]
    await add(bookie, 1, range(3, 4))
    await bookie.flush()
    resume.set()
    await reading
    result = await bookie.read_entries(1, 3, 3, bytes_max=1 << 20)
    assert [item.entry_id for item in result] == [3]
    assert await read_all(bookie, 1) == list(range(7))


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 2), (0, ID_END + 1)])
async def test_invalid_ranges_are_refused(first: int, last: int, open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(10))
    with pytest.raises(ValueError, match="not a range of ids"):
        await bookie.read_entries(1, first, last, bytes_max=100)
    with pytest.raises(ValueError, match="not a range of ids"):
        await bookie.prove_entries(1, first, last, count_max=10)
