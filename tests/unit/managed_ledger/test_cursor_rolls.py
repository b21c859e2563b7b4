"""Acks around the start and the end of a cursor's ledger: acks with a receipt are read back."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.held_store import HeldStore, puts
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import cursor_ledgers, reopened, start
from tests.unit.managed_ledger.test_former_instance import Scene

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import Position
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE
from magnetar.managed_ledger.context import PERSIST_INTERVAL_S
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.record import CURSORS_PREFIX, NO_LEDGER

RECORD = puts(CURSORS_PREFIX)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)


def receipt(cursor: Cursor) -> list[MagnetarError | None]:
    """What the cursor answers about the acks so far."""
    answers: list[MagnetarError | None] = []
    cursor.when_durable(answers.append)
    return answers


async def test_an_ack_during_the_first_write_of_a_new_ledger_is_written_behind_it() -> None:
    stage = Stage()
    factory, _, cursor, ledger_id = await start(stage)
    stage.bookie.hold = True
    cursor.ack(ledger_id, 3)
    first = receipt(cursor)
    await turns(30)
    assert not first, "the snapshot is under way"
    cursor.ack(ledger_id, 5)
    second = receipt(cursor)
    await turns(30)
    stage.bookie.hold = False
    held, stage.bookie.held = stage.bookie.held, []
    stage.bookie.hold = True
    for on_added, error in held:
        on_added(error)
    await turns(30)
    assert (first, second) == ([None], []), "the second ack is not in the snapshot"
    stage.bookie.release()
    await turns(30)
    assert second == [None]
    await factory.abandon()
    again = await reopened(stage)
    assert [again.is_acked(ledger_id, each) for each in (3, 4, 5)] == [True, False, True]


async def test_a_record_does_not_claim_acks_that_its_ledger_does_not_have() -> None:
    """If the ledger cannot be read, the record's mark-delete decides which entries are kept."""
    stage = Stage()
    factory, _, cursor, ledger_id = await start(stage)
    stage.bookie.hold = True
    cursor.ack(ledger_id, 0)
    first = receipt(cursor)
    await turns(30)
    cursor.ack(ledger_id, 1)
    held, stage.bookie.held = stage.bookie.held, []
    for on_added, error in held:
        on_added(error)
    await turns(30)
    assert first == [None]
    assert cursor.log is not None
    assert cursor.log.record.mark_delete == (ledger_id, 0)
    await factory.abandon()
    assert (await reopened(stage)).mark_delete == (ledger_id, 0)


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "not landed"])
async def test_no_ack_is_receipted_in_a_ledger_that_the_record_may_not_name(
    landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    stage.store = store = HeldStore()
    hasty = replace(SINGLE, metadata_timeout_s=0.01)
    client = LedgerClient(store, LocalBookies([stage.bookie]), stage.clock, hasty)
    monkeypatch.setattr(stage, "client", lambda: client)
    factory, _, cursor, ledger_id = await start(stage)
    announced, switch = store.hold(RECORD), store.hold(RECORD)
    cursor.ack(ledger_id, 3)
    flushing = asyncio.ensure_future(cursor.flush())
    await announced.reached.wait()
    announced.go.set()
    await switch.reached.wait()
    store.lose(RECORD, lands=landed)
    switch.go.set()
    with pytest.raises(MagnetarError):
        await flushing
    cursor.ack(ledger_id, 5)
    second = receipt(cursor)
    await turns(50)
    assert None not in second, "bookies answer, but nothing says which ledger is the cursor's"
    store.away = False
    await cursor.flush()
    await factory.abandon()
    again = await reopened(stage)
    assert [again.is_acked(ledger_id, each) for each in (3, 4, 5)] == [True, False, True]


async def test_a_change_that_did_not_land_is_not_made_by_the_next_write() -> None:
    stage = Stage()
    stage.store = store = HeldStore()
    factory, ledger, cursor, ledger_id = await start(stage)
    for change in (cursor.set_properties, ledger.set_properties):
        store.lose(lambda operation: operation.key.startswith("/managed-ledgers"), lands=False)
        with pytest.raises(MagnetarError):
            await change({"not": "stored"})
        store.away = False
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await ledger.roll_over()
    await publish(ledger, b"next")
    await factory.abandon()
    again = await stage.factory().open(NAME)
    assert dict(again.properties) == {}
    assert dict(again.cursors["sub"].properties) == {}
    assert again.cursors["sub"].is_acked(ledger_id, 3)


def test_acks_that_no_caller_waits_for_are_written_once_the_bookies_are_back() -> None:
    async def run() -> bool:
        stage = Stage()
        factory, _, cursor, ledger_id = await start(stage)
        stage.bookie.refuse = lambda _ledger, _ids: True
        cursor.ack(ledger_id, 3)
        await asyncio.sleep(3 * PERSIST_INTERVAL_S)
        stage.bookie.refuse = lambda _ledger, _ids: False
        await asyncio.sleep(3 * PERSIST_INTERVAL_S)
        await factory.abandon()
        return (await reopened(stage)).is_acked(ledger_id, 3)

    assert virtual(run())


# -- closing


@pytest.mark.parametrize("acks", ["mark", "holes", "batches"])
async def test_a_close_stores_acks_of_any_kind(acks: str) -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    if acks == "mark":
        cursor.ack_cumulative((ledger_id, 4))
    elif acks == "holes":
        cursor.ack(ledger_id, 4)
    else:
        cursor.ack_batch(ledger_id, 4, 0b0110, 4)
    await factory.close()
    again = await reopened(stage)
    assert again.is_acked(ledger_id, 4) is (acks != "batches")
    assert again.is_acked(ledger_id, 3) is (acks == "mark")
    assert again.remaining_batch(ledger_id, 4) == (0b0110 if acks == "batches" else None)
    assert len(await cursor_ledgers(stage, ledger)) == (0 if acks == "mark" else 1)


async def test_a_close_waits_for_the_ledger_that_is_being_made() -> None:
    stage = Stage()
    stage.store = store = HeldStore()
    factory, ledger, cursor, ledger_id = await start(stage)
    held = store.hold(RECORD)
    cursor.ack_cumulative((ledger_id, 4))
    answers = receipt(cursor)
    await held.reached.wait()
    closing = asyncio.ensure_future(ledger.close())
    await turns(30)
    assert (answers, closing.done()) == ([], False)
    held.go.set()
    await closing
    assert answers == [None]
    await factory.close()
    assert (await reopened(stage)).mark_delete == (ledger_id, 4)


async def test_the_ledger_of_a_cursor_that_is_closed_into_its_record_is_deleted() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack_cumulative((ledger_id, 2))
    await cursor.flush()
    await factory.abandon()
    assert len(await cursor_ledgers(stage, ledger)) == 1
    second = stage.factory()
    (await second.open(NAME)).cursors["sub"].ack_cumulative((ledger_id, 6))
    await second.close()
    third = stage.factory()
    cursor = (await third.open(NAME)).cursors["sub"]
    assert cursor.mark_delete == (ledger_id, 6)
    assert cursor.log is not None
    assert cursor.log.ledger_id == NO_LEDGER
    await turns(60)
    assert await cursor_ledgers(stage, ledger) == []
    assert cursor.log.ledger_ids == []
    await third.close()


# -- another owner


async def test_a_former_owner_that_opens_the_topic_does_not_end_the_cursors_ledger() -> None:
    scene = Scene()
    factory, ledger, cursor, ledger_id = await scene.open()
    former = scene.owner.revision
    await scene.owner.claim()
    again = await factory.open(NAME)
    cursor = again.cursors["old"]
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await again.roll_over()
    await again.set_properties({"all ledgers": "are closed on record"})
    assert cursor.log is not None
    own = cursor.log.ledger_id

    async def guard(name: str):
        grant = await scene.owner.guard(name)
        (check,) = grant.checks
        return type(grant)(former, (type(check)(check.key, former),))

    stale = scene.stage.factory(guard=guard)
    with pytest.raises(ManagedLedgerFenced):
        await stale.open(NAME)
    cursor.ack(ledger_id, 5)
    await cursor.flush()
    assert cursor.log.ledger_id == own, "nobody fenced it"
    cursor.ack_cumulative(Position(ledger_id, 19))
    await cursor.flush()
    await factory.close()
    await stale.abandon()
    assert not ledger.cursors["old"].is_acked(ledger_id, 19)


async def test_a_cursor_whose_record_another_owner_wrote_gives_no_receipt_any_more() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    assert cursor.log is not None
    record = await stage.store.get(cursor.log.key)
    assert record is not None
    await stage.store.put(record.key, record.value)
    with pytest.raises(ManagedLedgerFenced):
        await cursor.set_properties({"a": "1"})
    cursor.ack(ledger_id, 7)
    later = receipt(cursor)
    await turns(50)
    assert [type(each) for each in later] == [ManagedLedgerFenced]
    assert (cursor.state, ledger.fenced) == ("Fenced", True)
