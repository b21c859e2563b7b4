"""Ledgers that a record says were offloaded: what an opening and a reader make of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.ledger.stage import NAME, Stage, publish
from tests.unit.managed_ledger.cursor_stage import start

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.ids import Position
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.records import encode
from magnetar.metadata.store import Record
from magnetar.offload.records import OffloadRecord, offload_key
from magnetar.offload.stores import FILESYSTEM, StoreSpec


async def moved(stage: Stage, ledger_id: int, folder: Path) -> None:
    """Records a file of twenty entries, which is not there."""
    record = OffloadRecord(
        ledger_id, "1", StoreSpec(FILESYSTEM, str(folder)), "gone.parquet", 9, 20, 30, 0, 1, 77, 2
    )
    await stage.store.put(offload_key(NAME, ledger_id), encode(record))


async def test_the_newest_ledger_that_was_moved_ends_where_its_file_does(tmp_path: Path) -> None:
    stage = Stage()
    factory, _, _, ledger_id = await start(stage)
    await factory.abandon()
    await stage.client().delete(ledger_id)
    with pytest.raises(NoSuchLedger):
        await stage.factory().open(NAME)
    await moved(stage, ledger_id, tmp_path)
    ledger = await stage.factory().open(NAME)
    (info,) = ledger.ledgers
    assert (info.ledger_id, info.entries, info.size_bytes, info.closed_ms) == (
        ledger_id,
        20,
        30,
        77,
    )
    assert ledger.cursors["sub"].backlog == 20


@pytest.mark.parametrize(
    ("cold_first", "asked"),
    [
        (lambda _: True, 1),  # once: the copy that could be read is kept
        (lambda _: False, 0),
    ],
)
async def test_a_file_that_is_lost_is_read_around_while_bookies_have_the_ledger(
    cold_first: Callable[[str], bool], asked: int, tmp_path: Path
) -> None:
    stage = Stage()
    factory, ledger, _, ledger_id = await start(stage)
    await ledger.roll_over()
    await publish(ledger, b"next")
    await factory.close()
    await moved(stage, ledger_id, tmp_path)
    again: ManagedLedgerFactory = stage.factory(cold_first=cold_first)
    ledger = await again.open(NAME)
    get, seen = stage.store.get, list[str]()

    async def noted(key: str) -> Record | None:
        seen.append(key)
        return await get(key)

    stage.store.get = noted  # type: ignore[method-assign]
    for _ in range(3):
        found = await ledger.read(Position(ledger_id, 3), 2, 99)
        assert [entry.data for entry in found] == [b"3", b"4"]
    assert seen.count(offload_key(NAME, ledger_id)) == asked
    assert list(ledger._source._readers) == [ledger_id]
    await again.close()
