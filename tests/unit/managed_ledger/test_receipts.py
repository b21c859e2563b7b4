"""When an ack gets its receipt: with the write that holds it, whatever else is under way."""

import pytest
from tests.unit.ledger.stage import NAME, Stage, turns
from tests.unit.managed_ledger.cursor_stage import start

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.errors import ManagedLedgerFenced


async def writing(stage: Stage) -> tuple[Cursor, int, list[str]]:
    """A cursor with a ledger, whose next writes are held back, and where receipts are noted."""
    _, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 1)
    await cursor.flush()
    stage.bookie.hold = True
    return cursor, ledger_id, []


def receipt(cursor: Cursor, heard: list[str], name: str) -> None:
    def on_durable(error: MagnetarError | None) -> None:
        heard.append(name if error is None else f"{name}: {type(error).__name__}")

    cursor.when_durable(on_durable)


async def test_who_asks_while_the_write_of_the_ack_is_under_way_waits_for_its_end() -> None:
    stage = Stage()
    cursor, ledger_id, heard = await writing(stage)
    cursor.ack(ledger_id, 3)
    cursor.persist()
    await turns()
    receipt(cursor, heard, "first")  # nothing is dirty, and nothing is on disk
    receipt(cursor, heard, "second")
    await turns(30)
    assert heard == []
    stage.bookie.release()
    await turns()
    assert heard == ["first", "second"]
    assert (await stage.factory().open(NAME)).cursors["sub"].is_acked(ledger_id, 3)


async def test_an_ack_behind_the_write_under_way_waits_for_the_next() -> None:
    stage = Stage()
    cursor, ledger_id, heard = await writing(stage)
    cursor.ack(ledger_id, 3)
    receipt(cursor, heard, "first")
    await turns()
    cursor.ack(ledger_id, 5)
    receipt(cursor, heard, "second")
    receipt(cursor, heard, "third")
    held, stage.bookie.held = stage.bookie.held, []
    for on_added, error in held:  # the first write only
        on_added(error)
    assert heard == ["first"]
    await turns()
    assert heard == ["first"]
    stage.bookie.release()
    await turns()
    assert heard == ["first", "second", "third"]


async def test_without_anything_to_write_a_receipt_comes_on_the_next_turn() -> None:
    stage = Stage()
    cursor, ledger_id, heard = await writing(stage)
    revision = await stage.store.revision()
    cursor.ack(ledger_id, 1)  # again
    receipt(cursor, heard, "known")
    assert heard == []
    await turns()
    assert heard == ["known"]
    assert await stage.store.revision() == revision


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_write_that_fails_gives_receipts_only_once_it_was_made_good(fenced: bool) -> None:
    stage = Stage()
    cursor, ledger_id, heard = await writing(stage)
    assert cursor.log is not None
    own = cursor.log.ledger_id
    if fenced:
        await stage.bookie.ledger_end(own, fence=True)
    else:
        stage.bookie.refuse = lambda one, _ids: one == own
    cursor.ack(ledger_id, 3)
    receipt(cursor, heard, "first")
    await turns(60)
    assert heard == []
    stage.bookie.release()
    await turns(60)
    if fenced:
        assert heard == ["first: LedgerFenced"]
        assert cursor.state == "Fenced"
        receipt(cursor, heard, "later")
        await turns()
        assert heard[1:] == ["later: LedgerFenced"]
        assert cursor.log.ledger_id == own
    else:
        assert heard == ["first"]
        assert cursor.log.ledger_id != own
        assert cursor.state == "Open"


async def test_a_seek_is_receipted_with_its_snapshot() -> None:
    stage = Stage()
    cursor, ledger_id, heard = await writing(stage)
    cursor.ack(ledger_id, 3)
    receipt(cursor, heard, "ack")
    await turns()
    cursor._reset(Position(ledger_id, 9))
    assert cursor.log is not None
    cursor.log.rebase()
    receipt(cursor, heard, "seek")
    stage.bookie.release()
    await turns()
    assert heard == ["ack", "seek"]
    again = (await stage.factory().open(NAME)).cursors["sub"]
    assert (again.mark_delete, again.holes_count) == ((ledger_id, 9), 0)


async def test_a_cursor_that_another_write_shows_to_be_fenced_ends_its_instance() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    stored = await stage.store.get("/managed-ledgers-cursors/" + NAME + "/sub")
    assert stored is not None
    await stage.store.put(stored.key, stored.value)  # the next owner wrote it
    for write in (cursor.set_properties({"a": "1"}), cursor.flush()):
        cursor.ack(ledger_id, 3)
        with pytest.raises(ManagedLedgerFenced):
            await write
    assert (cursor.state, ledger.state) == ("Fenced", "Fenced")
    assert isinstance(ledger.tenure.error, ManagedLedgerFenced)
