"""Cursors whose writes fail, whose place another owner took, and whose stored state is harmed."""

import pytest
from tests.unit.ledger.stage import NAME, Stage, turns
from tests.unit.managed_ledger.cursor_stage import cursor_ledgers, reopened, start

from magnetar.bookie.api import EntryCorrupt, StoredEntry
from magnetar.core.errors import MagnetarError
from magnetar.managed_ledger import cursor_log
from magnetar.managed_ledger.errors import CursorCorrupt, ManagedLedgerFenced


async def test_a_failed_write_is_made_good_in_a_new_ledger() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 0)
    await cursor.flush()
    (old,) = await cursor_ledgers(stage, ledger)
    stage.bookie.refuse = lambda ledger, _ids: ledger == old
    cursor.ack(ledger_id, 4)
    await cursor.flush()
    await turns(20)
    assert old not in await cursor_ledgers(stage, ledger)
    await factory.abandon()
    assert (await reopened(stage)).is_acked(ledger_id, 4)


@pytest.mark.parametrize("stored_before", [False, True])
async def test_while_nothing_can_be_written_waiters_hear_it_and_later_all_is_well(
    stored_before: bool,
) -> None:
    stage = Stage()
    factory, _, cursor, ledger_id = await start(stage)
    if stored_before:
        cursor.ack(ledger_id, 0)
        await cursor.flush()
    stage.bookie.read_only = True
    stage.bookie.refuse = lambda _ledger, _ids: True
    cursor.ack(ledger_id, 3)
    for _ in range(2):  # no receipt for an ack of which nothing is stored, however often asked
        with pytest.raises(MagnetarError, match="take adds"):
            await cursor.flush()
    stage.bookie.read_only = False
    stage.bookie.refuse = lambda _ledger, _ids: False
    cursor.ack(ledger_id, 5)
    await cursor.flush()
    await factory.abandon()
    cursor = await reopened(stage)
    assert cursor.is_acked(ledger_id, 3)
    assert cursor.is_acked(ledger_id, 5)


async def test_a_cursor_with_another_owner_is_fenced() -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 0)
    await cursor.flush()
    other = await reopened(stage)
    other.ack(ledger_id, 1)
    await other.flush()
    for entry_id in (2, 3):
        cursor.ack(ledger_id, entry_id)
        with pytest.raises(MagnetarError):
            await cursor.flush()
    assert cursor.state == "Fenced"
    other.ack(ledger_id, 4)
    await other.flush()


async def test_an_idle_cursor_with_another_owner_is_fenced_by_the_record() -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage)
    other = await reopened(stage)
    other.ack(ledger_id, 1)
    await other.flush()
    cursor.ack(ledger_id, 2)
    with pytest.raises(ManagedLedgerFenced):
        await cursor.flush()


async def test_a_harmed_record_is_named_and_nothing_is_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    ledger.set_retention(0, 0)
    cursor.ack(ledger_id, 4)
    await cursor.flush()
    (log_ledger,) = await cursor_ledgers(stage, ledger)
    await ledger.roll_over()
    await factory.abandon()
    read = stage.bookie.read_entries

    async def harmed(
        ledger_id: int, first: int, last: int, *, bytes_max: int, fence: bool = False
    ) -> list[StoredEntry]:
        found = await read(ledger_id, first, last, bytes_max=bytes_max, fence=fence)
        if ledger_id != log_ledger:
            return found
        return [StoredEntry(e.entry_id, e.data[:-9] + b"!" + e.data[-8:]) for e in found]

    monkeypatch.setattr(stage.bookie, "read_entries", harmed)
    factory = stage.factory()
    ledger = await factory.open(NAME)
    assert ledger.cursors == {}
    for _ in range(2):
        with pytest.raises(CursorCorrupt, match=f"entry 0 of cursor ledger {log_ledger}: CRC"):
            await ledger.open_cursor("sub")
    ledger.set_retention(0, 0)
    await ledger.trim()
    assert ledger.entries_total == 20  # the entries that it may need are kept
    await ledger.delete_cursor("sub")
    await turns(20)
    assert ledger.entries_total == 0
    assert (await ledger.open_cursor("sub")).backlog == 0


async def test_what_the_bookie_cannot_read_is_corrupt_not_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 4)
    await cursor.flush()
    await factory.abandon()

    async def corrupt(*_: int, bytes_max: int, fence: bool = False) -> list[StoredEntry]:
        raise EntryCorrupt("CRC", "entry-log-7", 4096)

    monkeypatch.setattr(stage.bookie, "read_entries", corrupt)
    ledger = await stage.factory().open(NAME)
    with pytest.raises(CursorCorrupt, match=r"sub: entry 0 of cursor ledger \d+: CRC"):
        await ledger.open_cursor("sub")
    monkeypatch.undo()  # the bookie is well again
    assert (await ledger.open_cursor("sub")).is_acked(ledger_id, 4)
    assert not ledger.broken_cursors


async def test_a_snapshot_without_its_last_part_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage, 2000)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    monkeypatch.setattr("magnetar.managed_ledger.cursor_codec_v1.PART_BYTES", 200)
    (log_ledger,) = await cursor_ledgers(stage, ledger)
    for entry_id in range(5, 2000, 2):
        cursor.ack_batch(ledger_id, entry_id, 1 << 80, 100)
    monkeypatch.setattr(cursor_log, "DELTA_BYTES_MAX", 0)
    # The bookie stores the first parts, and fails before the last one.
    stage.bookie.refuse = lambda ledger, ids: ledger == log_ledger and ids[0] > 40
    stage.bookie.hold = True
    cursor.when_durable(lambda _error: None)
    await turns(2)
    await factory.abandon()
    assert (await stage.bookie.ledger_end(log_ledger)).last_entry == 40
    stage.bookie.hold = False
    cursor = await reopened(stage)
    assert cursor.is_acked(ledger_id, 3)
    assert cursor.batches == {}
