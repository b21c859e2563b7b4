"""A caller is cancelled during a metadata write: the written state stays known."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.held_store import HeldStore, puts
from tests.support.late_store import LateStore
from tests.unit.ledger.stage import NAME, Stage, publish, turns

from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.claim import Grant, unguarded
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import MANAGED_LEDGERS_PREFIX
from magnetar.metadata.store import MetadataUnavailable

Write = Callable[[ManagedLedger], Awaitable[object]]

WRITES: dict[str, Write] = {
    "properties": lambda ledger: ledger.set_properties({"a": "1"}),
    "new cursor": lambda ledger: ledger.open_cursor("new"),
    "cursor deleted": lambda ledger: ledger.delete_cursor("old"),
    "cursor's properties": lambda ledger: ledger.cursors["old"].set_properties({"a": "1"}),
    "terminated": lambda ledger: ledger.terminate(),
    "trimmed": lambda ledger: ledger.truncate(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_cancelled_writer_leaves_nobody_fenced(write: Write) -> None:
    stage = Stage()
    stage.store = store = LateStore()
    ledger = await stage.factory().open(NAME)
    await ledger.open_cursor("old")
    await publish(ledger, b"a", b"b")
    store.hold()
    task = asyncio.ensure_future(write(ledger))
    await store.landed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.answering.set()
    # Whatever writes the same records next finds them as it left them.
    await ledger.set_properties({"b": "2"})
    assert not ledger.fenced
    assert ledger.properties["b"] == "2"
    for name in ("old", "new"):
        if name not in ledger.cursors and ledger.state != "Terminated":
            await ledger.open_cursor(name)
        if name in ledger.cursors:
            await ledger.cursors[name].set_properties({"c": "3"})
    if ledger.state == "Terminated":
        assert ledger.terminated, "what takes no more entries has its end on record"
    else:
        await publish(ledger, b"c")
    await ledger.close()


async def test_a_ledger_that_is_created_too_late_is_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.appender.CREATE_TIMEOUT_S", 0.01)
    stage = Stage()
    stage.store = store = LateStore()
    ledger = await stage.factory().open(NAME)
    store.hold()
    with pytest.raises(PersistenceError):
        await publish(ledger, b"a")
    store.answering.set()
    monkeypatch.setattr("magnetar.managed_ledger.appender.CREATE_TIMEOUT_S", 20.0)
    assert await publish(ledger, b"b") == (1, 0)
    await ledger.roll_over()
    assert await publish(ledger, b"c") == (2, 0)
    again = await stage.factory().open(NAME)
    assert [info.ledger_id for info in again.ledgers] == [1, 2]
    assert not again.fenced


async def test_a_creation_that_fails_too_late_fails_no_later_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.appender.CREATE_TIMEOUT_S", 0.01)
    split, splitting = asyncio.Event(), False

    async def guard(name: str) -> Grant:
        if splitting:
            await split.wait()
            raise MetadataUnavailable("the claim could not be read")
        return await unguarded(name)

    ledger = await Stage().factory(guard=guard).open(NAME)
    splitting = True
    with pytest.raises(PersistenceError):
        await publish(ledger, b"a")
    (creating,) = [task for task in asyncio.all_tasks() if "next ledger" in task.get_name()]
    split.set()
    await asyncio.wait([creating])
    splitting = False
    monkeypatch.setattr("magnetar.managed_ledger.appender.CREATE_TIMEOUT_S", 20.0)
    await publish(ledger, b"b")


async def test_a_creation_whose_roll_is_over_ends_with_the_factory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.appender.CREATE_TIMEOUT_S", 0.01)
    stage = Stage()
    stage.store = store = HeldStore()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    store.hold(puts(MANAGED_LEDGERS_PREFIX))
    with pytest.raises(PersistenceError):
        await publish(ledger, b"a")
    await factory.abandon()
    assert not [task for task in asyncio.all_tasks() if NAME in task.get_name()]


async def test_a_cursor_whose_write_took_too_long_is_written_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.cursor_log.WRITE_TIMEOUT_S", 0.01)
    stage = Stage()
    stage.store = store = LateStore()
    ledger = await stage.factory().open(NAME)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    await publish(ledger, b"a", b"b")
    cursor.ack(*ledger.last_confirmed)
    store.hold()
    with pytest.raises(PersistenceError):
        await cursor.flush()
    store.answering.set()
    monkeypatch.setattr("magnetar.managed_ledger.cursor_log.WRITE_TIMEOUT_S", 20.0)
    await cursor.flush()
    assert cursor.state == "Open"
    again = await stage.factory().open(NAME)
    assert again.cursors["sub"].is_acked(*ledger.last_confirmed)


async def test_a_factory_that_is_abandoned_leaves_no_write_on_its_way() -> None:
    """As if the process had been killed: what the store gets later is from the next process."""
    stage = Stage()
    stage.store = store = HeldStore()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    write = store.hold(puts(MANAGED_LEDGERS_PREFIX))
    writing = asyncio.ensure_future(ledger.set_properties({"a": "1"}))
    await write.reached.wait()
    await factory.abandon()
    write.go.set()
    await asyncio.wait([writing])
    await turns(20)
    assert (await stage.factory().open(NAME)).properties == {}
