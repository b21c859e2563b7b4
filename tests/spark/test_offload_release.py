"""Bookies delete a ledger only if its file exists, and two clocks agree that it is due."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.unit.ledger.stage import NAME, Stage, write

from magnetar.jobs.log.log import Log
from magnetar.jobs.offload import release as releasing
from magnetar.jobs.offload.release import release
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import ledger_key
from magnetar.ledger.settings import SINGLE
from magnetar.metadata.records import encode
from magnetar.offload.records import OffloadRecord, decode_offload, offload_key
from magnetar.offload.stores import StoreSpec

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


class Moved:
    """A ledger whose file is live."""

    def __init__(self, stage: Stage, log: Log, whole: Path, ledger_id: int) -> None:
        self.stage = stage
        self.log = log
        self.whole = whole
        self.ledger_id = ledger_id
        spec = StoreSpec("filesystem", str(whole.parent))
        self.file = OffloadRecord(ledger_id, "a", spec, whole.name, 5, 1, 5, 0, 1, 2, 3)

    async def note(self, **fields: int) -> None:
        noted = msgspec.structs.replace(self.file, **fields)
        await self.stage.store.put(offload_key(NAME, self.ledger_id), encode(noted))

    async def on_bookies(self) -> bool:
        return await self.stage.store.get(ledger_key(self.ledger_id)) is not None


@pytest.fixture
async def moved(tmp_path: Path) -> AsyncIterator[Moved]:
    stage = Stage()
    client, bookies = stage.client(), LocalBookies([stage.bookie])
    writer = await client.create({})
    await write(writer, b"entry")
    await writer.close()
    context = LedgerContext(stage.store, bookies, stage.clock, SINGLE, Random(1))
    log = Log(stage.store, bookies, context, None)
    yield Moved(stage, log, tmp_path / "file.parquet", writer.ledger_id)
    await client.close()


async def test_a_file_that_went_missing_keeps_the_ledger(moved: Moved) -> None:
    """Even if an interrupted run has already recorded that bookies may delete the ledger."""
    for released_ms in (0, 9):
        await moved.note(released_ms=released_ms)
        found = await release(moved.log, [(NAME, 0)], now_ms=10)
        assert (found.ledgers, len(found.errors)) == (0, 1)
        assert await moved.on_bookies()
    moved.whole.write_bytes(b"whole")
    assert (await release(moved.log, [(NAME, 0)], now_ms=10)).ledgers == 1
    assert not await moved.on_bookies()


@pytest.mark.parametrize("ahead", ["the job's", "the writer's, behind"])
async def test_a_host_whose_clock_is_a_year_off_releases_nothing(moved: Moved, ahead: str) -> None:
    moved.whole.write_bytes(b"whole")
    now_ms = time.time_ns() // 1_000_000
    noted_ms, here_ms = (now_ms, now_ms + YEAR_MS)
    if ahead != "the job's":
        noted_ms, here_ms = noted_ms - YEAR_MS, now_ms
    await moved.note(offloaded_ms=noted_ms)
    found = await release(moved.log, [(NAME, 4 * HOUR_MS)], now_ms=here_ms)
    assert found.ledgers == 0
    ((_, ledger_id, error),) = found.errors
    assert ledger_id == moved.ledger_id
    assert "8,760.0 h old by the clocks of the jobs' hosts" in error
    assert f"0.0 h old by the clock of filesystem:{moved.whole.parent}" in error
    assert await moved.on_bookies()


async def test_what_both_clocks_say_is_due_goes(moved: Moved) -> None:
    """A ledger that is not due by the store's clock, within the tolerance, is not reported."""
    moved.whole.write_bytes(b"whole")
    now_ms = time.time_ns() // 1_000_000
    await moved.note(offloaded_ms=now_ms - HOUR_MS)
    for age_ms, ledgers in ((HOUR_MS - 60_000, 0), (HOUR_MS + 60_000, 1)):
        written_s = (now_ms - age_ms) / 1000
        os.utime(moved.whole, (written_s, written_s))
        found = await release(moved.log, [(NAME, HOUR_MS)], now_ms=now_ms)
        assert (found.ledgers, found.errors) == (ledgers, [])
    assert not await moved.on_bookies()
    files = [path for path in moved.whole.parent.rglob("*") if path.is_file()]
    assert files == [moved.whole]


async def test_without_a_lag_a_file_is_due_at_once_whatever_its_stores_clock_says(
    moved: Moved,
) -> None:
    moved.whole.write_bytes(b"whole")
    ahead_s = time.time() + HOUR_MS / 1000
    os.utime(moved.whole, (ahead_s, ahead_s))
    now_ms = time.time_ns() // 1_000_000
    await moved.note(offloaded_ms=now_ms)
    for lag_ms, ledgers in ((-1, 0), (0, 1)):
        found = await release(moved.log, [(NAME, lag_ms)], now_ms=now_ms)
        assert (found.ledgers, found.errors) == (ledgers, [])


@pytest.mark.parametrize("content", [b"whol", b"whole and more"])
async def test_a_file_of_another_size_keeps_the_ledger(moved: Moved, content: bytes) -> None:
    moved.whole.write_bytes(content)
    await moved.note()
    found = await release(moved.log, [(NAME, 0)], now_ms=10)
    assert (found.ledgers, len(found.errors)) == (0, 1)
    assert "bytes, not 5" in found.errors[0][2]
    assert await moved.on_bookies()


@pytest.mark.parametrize("record", ["is deleted", "is another"])
async def test_a_record_that_changes_meanwhile_keeps_the_ledger(
    moved: Moved, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    """The topic is trimmed, or another job continues with the file."""
    moved.whole.write_bytes(b"whole")
    now_ms = time.time_ns() // 1_000_000
    await moved.note(offloaded_ms=now_ms - 2 * HOUR_MS)
    store, key = moved.stage.store, offload_key(NAME, moved.ledger_id)

    async def changed(_: StoreSpec) -> int:
        if record == "is deleted":
            await store.delete(key)
        else:
            await moved.note(offloaded_ms=now_ms)
        return now_ms + 2 * HOUR_MS

    monkeypatch.setattr(releasing, "store_now_ms", changed)
    found = await release(moved.log, [(NAME, HOUR_MS)], now_ms=now_ms)
    assert (found.ledgers, found.errors) == (0, [])
    assert await moved.on_bookies()
    stored = await store.get(key)
    assert (stored is None) is (record == "is deleted")
    assert stored is None or decode_offload(key, stored.value).released_ms == 0
