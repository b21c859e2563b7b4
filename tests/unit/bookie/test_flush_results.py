"""Flushes and collections: exact usage of logs, blocks within bounds, no leftovers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest
from tests.unit.bookie.test_collector import BROKEN, Rig
from tests.unit.bookie.test_upkeep import BY_HAND
from tests.unit.bookie.test_upkeep import Rig as BookieRig

from magnetar.bookie.cache.write_cache import LedgerEntries, segment_of
from magnetar.bookie.entry_log import flush
from magnetar.bookie.entry_log.flush import pieces
from magnetar.bookie.index.index import FLAG_DELETED

from .conftest import SMALL, add, read_all

P = ParamSpec("P")
R = TypeVar("R")


def logs_of(rig: BookieRig) -> list[str]:
    return [path.name for path in rig.disk.inodes if path.suffix == ".log"]


@pytest.mark.parametrize("log_bytes", [64 << 10, 10_000], ids=["one log", "several"])
async def test_the_usage_of_a_log_is_the_sum_of_its_blocks(log_bytes: int) -> None:
    """The collector rewrites a log by its usage: too low a sum rewrites live logs each time."""
    rig = await BookieRig.open(replace(BY_HAND, entry_log_bytes=log_bytes))
    bookie = rig.bookie
    for ledger_id, count in ((1, 200), (2, 3)):
        for first in range(0, count, 10):
            group = range(first, min(first + 10, count))
            assert await add(bookie, ledger_id, group) is None
    await bookie.flush()
    index = bookie._parts.index
    expected: dict[tuple[int, int], int] = {}
    for view in index.all_views():
        key = (view.log_id, view.ledger_id)
        expected[key] = expected.get(key, 0) + view.length
    assert len(list(index.views(1))) > 3
    assert (len(bookie._parts.logs.ids()) > 1) == (log_bytes == 10_000)
    usage = {
        (log_id, ledger_id): length
        for log_id in bookie._parts.logs.ids()
        for ledger_id, length in index.usage(log_id)
    }
    assert usage == expected
    await bookie.close()


@pytest.mark.parametrize("step", ["write", "sync"])
async def test_a_failed_flush_leaves_no_log(step: str) -> None:
    """A disk that fails for hours would fill with the logs of the attempts."""
    rig = await BookieRig.open()
    bookie = rig.bookie
    await rig.add(0, 10)
    began: list[str] = []

    def fault(kind: str, path: Path) -> OSError | None:
        if path.suffix != ".log" or kind != step:
            return None
        began.append(path.name)
        header = step == "write" and len(began) % 2
        return None if header else BROKEN

    rig.disk.fault = fault
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            await bookie.flush()
    assert len(set(began)) == 3, "each attempt begins a log"
    assert logs_of(rig) == []
    rig.disk.fault = None
    await bookie.flush()
    assert len(logs_of(rig)) == 1
    assert await read_all(bookie, 1) == list(range(10))
    await bookie.close()


def test_a_failed_copy_leaves_no_log() -> None:
    rig = Rig()
    rig.log(1, 2)
    rig.record(1, FLAG_DELETED, deleted_ms=0)
    rig.disk.fault = lambda step, path: (
        BROKEN if step == "sync" and path.name != "0000000001.log" else None
    )
    for _ in range(3):
        assert rig.collector.collect(0.9, 0, join_small=False).logs_compacted == 0
    assert rig.logs.ids() == [1]
    rig.disk.fault = None
    assert rig.collector.collect(0.9, 0, join_small=False).logs_compacted == 1
    assert len(rig.logs.ids()) == 1
    rig.readable([2])


def test_copies_are_garbage_for_the_next_collection() -> None:
    """The log of the copies must not stay open, or the last one would never be removed."""
    rig = Rig()
    rig.log(1, 2)
    rig.record(1, FLAG_DELETED, deleted_ms=0)
    assert rig.collector.collect(0.9, 0, join_small=False).logs_compacted == 1
    assert rig.logs.sealed_ids() == rig.logs.ids() == [2]
    rig.record(2, FLAG_DELETED, deleted_ms=0)
    assert rig.collector.collect(0.9, 0, join_small=False).logs_removed == 1
    assert rig.logs.ids() == []


@pytest.mark.parametrize("failing_call", range(1, 11))
def test_a_collection_that_fails_unexpectedly_is_continued_by_the_next(failing_call: int) -> None:
    rig = Rig()
    for ledger_id in (1, 2):
        rig.log(ledger_id, 10 + ledger_id)
        rig.record(10 + ledger_id, FLAG_DELETED, deleted_ms=0)
    calls = 0

    def failing_once(call: Callable[P, R]) -> Callable[P, R]:
        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            nonlocal calls
            calls += 1
            if calls == failing_call:
                raise RuntimeError("a bug")
            return call(*args, **kwargs)

        return counted

    rig.index.usage = failing_once(rig.index.usage)  # type: ignore[method-assign]
    rig.logs.remove = failing_once(rig.logs.remove)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        rig.collector.collect(0.9, 0, join_small=False)
    rig.readable([1, 2])
    assert rig.logs.sealed_ids() == rig.logs.ids()
    rig.collector.collect(0.9, 0, join_small=False)
    rig.readable([1, 2])
    for ledger_id in (1, 2):
        rig.record(ledger_id, FLAG_DELETED, deleted_ms=0)
    rig.collector.collect(0.9, 0, join_small=False)
    assert rig.logs.ids() == []


def test_a_group_that_just_fits_a_block_keeps_its_crc() -> None:
    """Cutting it again would compute every CRC a second time."""
    settings = replace(SMALL, block_bytes=100, block_bytes_max=200)
    for size, counts in ((100, [2]), (101, [1, 1])):
        held = LedgerEntries()
        entries = [bytes(size)] * 2
        segment = segment_of(entries)
        held.append(range(2), entries, segment)
        cut = [segments for segments, _, _ in pieces(held, settings, merge=True)]
        assert [part.count for segments in cut for part in segments] == counts
        assert (cut[0][0] is segment) == (counts == [2])


@pytest.mark.parametrize("runs", [2, 3, 4, 7])
def test_a_block_has_a_bounded_number_of_ranges(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "RANGES_PER_BLOCK_MAX", 3)
    held = LedgerEntries()
    for number in range(runs):
        held.append((number * 2,), [b"%d" % number], segment_of([b"%d" % number]))
    result = list(pieces(held, SMALL, merge=True))
    full, rest = divmod(runs, 3)
    assert [len(ranges) for _, ranges, _ in result] == [3] * full + [rest] * bool(rest)
    assert [first for _, ranges, _ in result for first, _ in ranges] == list(range(0, runs * 2, 2))
