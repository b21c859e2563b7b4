"""Bookies let go of a ledger only while its file is there."""

from pathlib import Path
from random import Random

import msgspec
from tests.unit.ledger.stage import NAME, Stage, write

from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import ledger_key
from magnetar.ledger.settings import SINGLE
from magnetar.offload.records import OffloadRecord, encode, offload_key
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs.offload.releasing import release
from magnetar_spark.log.access import Log


async def test_a_file_that_went_missing_keeps_the_ledger(tmp_path: Path) -> None:
    """Also where a run that was cut short has noted already that the ledger may go."""
    stage = Stage()
    client, bookies = stage.client(), LocalBookies([stage.bookie])
    writer = await client.create({})
    await write(writer, b"entry")
    await writer.close()
    context = LedgerContext(stage.store, bookies, stage.clock, SINGLE, Random(1))
    log = Log(stage.store, bookies, context, None)  # type: ignore[arg-type]
    whole = tmp_path / "file.parquet"
    spec, ledger_id = StoreSpec("filesystem", str(tmp_path)), writer.ledger_id
    file = OffloadRecord(ledger_id, "a", spec, whole.name, 5, 1, 5, 0, 1, 2, 3)
    key = offload_key(NAME, ledger_id)
    for released_ms in (0, 9):
        noted = msgspec.structs.replace(file, released_ms=released_ms)
        await stage.store.put(key, encode(noted))
        found = await release(log, [(NAME, 0)], now_ms=10)
        assert (found.ledgers, len(found.errors)) == (0, 1)
        assert await stage.store.get(ledger_key(ledger_id)) is not None
    whole.write_bytes(b"whole")
    assert (await release(log, [(NAME, 0)], now_ms=10)).ledgers == 1
    assert await stage.store.get(ledger_key(ledger_id)) is None
    await client.close()
