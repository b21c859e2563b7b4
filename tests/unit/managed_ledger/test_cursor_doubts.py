"""Writes of a cursor without an answer, and concurrent changes."""

import asyncio

import pytest
from tests.support.held_store import HeldStore, deletes, puts
from tests.unit.ledger.stage import NAME, Stage, publish, turns

from magnetar.bookie.api import EntryCorrupt, NoSuchLedger
from magnetar.core.errors import NotFound
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import CURSORS_PREFIX, cursor_key
from magnetar.metadata.store import MetadataUnavailable

DELETION = deletes(CURSORS_PREFIX)
RECORD = puts(cursor_key(NAME, "sub"))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)


async def opened() -> tuple[Stage, HeldStore, ManagedLedgerFactory, ManagedLedger, Cursor, int]:
    """A topic of twenty entries, and a cursor with a ledger of its own."""
    stage = Stage()
    stage.store = store = HeldStore()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    ledger_id, _ = await publish(ledger, *[b"x"] * 20)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    return stage, store, factory, ledger, cursor, ledger_id


async def test_a_topic_continues_although_the_write_that_keeps_a_cursor_was_not_answered() -> None:
    _, store, factory, ledger, cursor, ledger_id = await opened()
    store.lose(DELETION, lands=False)
    with pytest.raises(MetadataUnavailable):
        await ledger.delete_cursor("sub")
    store.lose(RECORD, lands=True)
    store.away = False
    with pytest.raises(MetadataUnavailable):
        await ledger.open_cursor("sub")
    store.away = False
    assert await ledger.open_cursor("sub") is cursor
    assert not ledger.fenced
    cursor.ack(ledger_id, 5)
    await cursor.flush()
    await ledger.delete_cursor("sub")
    assert not ledger.fenced
    await factory.close()


@pytest.mark.parametrize("landed", [True, False], ids=["deleted", "not deleted"])
async def test_two_callers_that_settle_a_doubt_get_the_same_cursor(landed: bool) -> None:
    _, store, factory, ledger, cursor, _ = await opened()
    settled: list[str] = []
    ledger.when_settled(settled.append)
    store.lose(DELETION, lands=landed)
    with pytest.raises(MetadataUnavailable):
        await ledger.delete_cursor("sub")
    store.away = False
    first, second = await asyncio.gather(ledger.open_cursor("sub"), ledger.open_cursor("sub"))
    assert first is second
    assert (first is cursor) is not landed
    assert settled == ["sub"]
    assert not ledger.cursor_in_doubt("sub")
    await factory.close()


async def test_a_cursor_is_deleted_by_one_of_two_callers() -> None:
    _, store, factory, ledger, _, _ = await opened()
    held = store.hold(DELETION)
    deleting = [asyncio.ensure_future(ledger.delete_cursor("sub")) for _ in range(2)]
    await held.reached.wait()
    await turns()
    held.go.set()
    outcomes = await asyncio.gather(*deleting, return_exceptions=True)
    assert [type(each) for each in outcomes] == [type(None), NotFound]
    assert not ledger.fenced
    again = await ledger.open_cursor("sub", initial=EARLIEST)
    await again.flush()
    await factory.close()


async def test_a_deletion_that_waited_for_one_without_an_answer_finds_out_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.WRITE_ATTEMPTS_MAX", 1)
    _, store, factory, ledger, _, _ = await opened()
    lost = store.lose(DELETION, lands=True)
    both = [asyncio.ensure_future(ledger.delete_cursor("sub")) for _ in range(2)]
    await lost.reached.wait()
    store.away = False
    await asyncio.wait(both)
    assert isinstance(both[0].exception(), MetadataUnavailable)
    assert both[1].exception() is None
    assert not ledger.cursors
    assert not ledger.fenced
    await factory.close()


async def test_an_ack_that_could_not_be_written_is_stored_if_the_cursor_resumes() -> None:
    stage, store, factory, ledger, cursor, ledger_id = await opened()
    stage.bookie.hold = True
    stage.bookie.refuse = lambda _ledger, _ids: stage.bookie.hold
    cursor.ack(ledger_id, 5)
    cursor.persist()
    store.lose(DELETION, lands=False)
    deletion = store.hold(DELETION)
    deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
    await deletion.reached.wait()
    stage.bookie.release()
    await turns()
    deletion.go.set()
    with pytest.raises(MetadataUnavailable):
        await deleting
    await turns()
    store.away = False
    assert await ledger.open_cursor("sub") is cursor
    await cursor.flush()
    await factory.abandon()
    assert (await stage.factory().open(NAME)).cursors["sub"].is_acked(ledger_id, 5)


async def test_a_deletion_finds_out_about_a_write_that_ended_with_the_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.05)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.05)
    _, store, factory, ledger, cursor, _ = await opened()
    lost = store.lose(RECORD, lands=True)
    writing = asyncio.ensure_future(cursor.set_properties({"a": "1"}))
    await lost.reached.wait()
    writing.cancel()
    deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
    await turns()
    store.away = False
    await deleting
    assert not ledger.cursors
    assert not ledger.fenced
    await factory.close()


async def test_a_broken_cursor_that_is_deleted_while_a_subscriber_waits_for_it_stays_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read back again, it would hold all data of the topic, and no record would tell of it."""
    stage, store, factory, _, _, _ = await opened()
    await factory.abandon()

    async def corrupt(*_: int, **__: object) -> None:
        raise EntryCorrupt("CRC", "entry-log-7", 4096)

    monkeypatch.setattr(stage.bookie, "read_entries", corrupt)
    factory = stage.factory()
    ledger = await factory.open(NAME)
    assert list(ledger.broken_cursors) == ["sub"]
    deletion = store.hold(DELETION)
    deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
    await deletion.reached.wait()
    opening = asyncio.ensure_future(ledger.open_cursor("sub"))
    await turns()
    deletion.go.set()
    await deleting
    with pytest.raises(NotFound, match="deleted meanwhile"):
        await opening
    assert (dict(ledger.broken_cursors), dict(ledger.cursors)) == ({}, {})
    monkeypatch.undo()
    assert (await ledger.open_cursor("sub")).backlog == 0, "a new one, at the end"
    await factory.close()


async def test_what_a_cursor_stored_is_freed_when_its_lost_deletion_is_found_out() -> None:
    stage, store, factory, ledger, cursor, _ = await opened()
    assert cursor.log is not None
    ledger_id = cursor.log.ledger_id
    store.lose(DELETION, lands=True)
    with pytest.raises(MetadataUnavailable):
        await ledger.delete_cursor("sub")
    store.away = False
    await ledger.delete_cursor("sub")
    await turns(50)
    with pytest.raises(NoSuchLedger):
        await stage.bookie.ledger_end(ledger_id, fence=False)
    await factory.close()
