"""The choice between the copies of an offloaded ledger."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.unit.ledger.stage import NAME, turns
from tests.unit.offload.test_cold_reads import ENTRIES, SMALL, ColdStage, data_of

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.settings import Retention
from magnetar.metadata.records import encode
from magnetar.offload.cold import file_ref
from magnetar.offload.records import offload_key, offloads_prefix


@pytest.fixture
def stage(tmp_path: Path) -> ColdStage:
    return ColdStage(tmp_path)


async def test_a_file_that_another_one_replaced_is_read_at_the_next_attempt(
    stage: ColdStage,
) -> None:
    """The reader of the old file is not kept once that file is deleted."""
    first = stage.factory()
    (ledger_id,) = await stage.move(await stage.filled(first), 1)
    await first.close()
    factory = stage.factory(replace(SMALL, cold_cache_bytes_max=1))
    ledger = await factory.open(NAME)
    assert data_of(await ledger.read(EARLIEST, 1, 1 << 20)) == ENTRIES[:1]
    record = await factory.cold.record(NAME, ledger_id)
    assert record is not None
    newer = msgspec.structs.replace(record, path=record.path.replace("-test", "-newer"))
    (stage.folder / record.path).rename(stage.folder / newer.path)
    await stage.store.put(offload_key(NAME, ledger_id), encode(newer))
    factory.cold.files.forget(file_ref(record))
    with pytest.raises(MagnetarError):
        await ledger.read(Position(ledger_id, 15), 1, 1 << 20)
    assert data_of(await ledger.read(Position(ledger_id, 15), 1, 1 << 20)) == ENTRIES[15:16]
    assert data_of(await ledger.read(EARLIEST, 1, 1 << 20)) == ENTRIES[:1]
    await factory.close()


async def test_a_ledger_that_cannot_be_deleted_keeps_its_file(stage: ColdStage) -> None:
    """A job may be about to commit another one: only without the ledger's record it cannot."""
    factory = stage.factory()
    ledger = await stage.filled(factory)
    ids = await stage.move(ledger, 3, release=False)
    key = ledger_key(ids[0])
    stored = await stage.store.get(key)
    assert stored is not None
    await stage.store.put(key, b"unreadable")
    ledger.retention = Retention()
    ledger.cursors["sub"].ack_cumulative(Position(ids[2], 19))
    await ledger.trim()
    while len(await stage.store.list(offloads_prefix(NAME))) > 1:
        await turns(20)
    assert await stage.store.get(offload_key(NAME, ids[0])) is not None
    await stage.emptied()
    assert stage.files() == [f"{ids[0]:020d}-test.parquet"]
    await stage.store.put(key, stored.value)
    await ledger.trim()
    while await stage.store.list(offloads_prefix(NAME)):
        await turns(20)
    await stage.emptied()
    assert stage.files() == []
    await factory.close()
