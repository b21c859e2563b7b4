"""Deletion of a cursor: its topic continues, and an unknown outcome is resolved."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.held_store import HeldStore, deletes, puts
from tests.unit.ledger.stage import NAME, Stage, publish, turns

from magnetar.bookie.api import EntryCorrupt
from magnetar.core.errors import MagnetarError, MetadataError, NotFound
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.errors import CursorClosed, CursorCorrupt
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import CURSORS_PREFIX, cursor_key

WITHIN_S = 20.0
DELETION = deletes(CURSORS_PREFIX)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.cursors.SETTLE_RETRY_S", 0.001)


Opened = tuple[Stage, HeldStore, ManagedLedgerFactory, ManagedLedger, Cursor, int]


async def opened(*, acked: bool = True) -> Opened:
    """A topic of twenty entries, and a cursor that may have a ledger of its own."""
    stage = Stage()
    stage.store = store = HeldStore()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    ledger_id, _ = await publish(ledger, *[b"x"] * 20)
    if acked:
        cursor.ack(ledger_id, 3)
        await cursor.flush()
    return stage, store, factory, ledger, cursor, ledger_id


async def persisted(cursor: Cursor) -> None:
    cursor.persist()
    await turns()


async def used(cursor: Cursor) -> None:
    cursor.last_active_ms += 1_000
    await cursor.record_use(1)


CURSOR_WRITES: dict[str, Callable[[Cursor], Awaitable[object]]] = {
    "acks": persisted,
    "use": used,
    "properties": lambda cursor: cursor.set_properties({"a": "1"}),
}


@pytest.mark.parametrize("write", CURSOR_WRITES.values(), ids=CURSOR_WRITES)
@pytest.mark.parametrize("before", [True, False], ids=["before the deletion", "during it"])
async def test_a_cursors_last_write_never_takes_its_deletion_for_another_owner(
    write: Callable[[Cursor], Awaitable[object]], before: bool
) -> None:
    _, store, factory, ledger, cursor, ledger_id = await opened(acked=False)
    cursor.ack(ledger_id, 0)
    held = store.hold(puts(CURSORS_PREFIX) if before else DELETION)
    if before:
        writing = asyncio.ensure_future(write(cursor))
        await held.reached.wait()
        deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
        await turns()
    else:
        deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
        await held.reached.wait()
        writing = asyncio.ensure_future(write(cursor))
        await turns()
    held.go.set()
    await deleting
    await asyncio.wait([writing])
    assert isinstance(writing.exception(), CursorClosed | None)
    await turns(50)
    assert not ledger.fenced
    assert "sub" not in ledger.cursors
    await publish(ledger, b"y")
    await factory.close()


async def test_a_cursor_that_could_not_be_deleted_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, store, factory, ledger, cursor, ledger_id = await opened()

    async def refused(*_: object) -> int:
        raise MetadataError("refused")

    cursor.ack(ledger_id, 5)
    with monkeypatch.context() as patch:
        patch.setattr(store, "transact", refused)
        with pytest.raises(MetadataError, match="refused"):
            await ledger.delete_cursor("sub")
    assert ledger.cursors["sub"] is cursor
    assert not ledger.cursor_in_doubt("sub")
    await cursor.flush()
    await factory.abandon()
    reopened = await stage.factory().open(NAME)
    assert reopened.cursors["sub"].is_acked(ledger_id, 5)


# -- unknown outcomes


async def doubted(opened: Opened, *, landed: bool) -> list[str]:
    """Deletes the cursor while the store fails; returns the outcomes that become known."""
    _, store, _, ledger, _, _ = opened
    settled: list[str] = []
    ledger.when_settled(settled.append)
    store.lose(DELETION, lands=landed)
    with pytest.raises(MagnetarError):
        await ledger.delete_cursor("sub")
    assert ledger.cursor_in_doubt("sub")
    return settled


LANDED = pytest.mark.parametrize("landed", [True, False], ids=["deleted", "not deleted"])
ACKED = pytest.mark.parametrize("acked", [True, False], ids=["with a ledger", "without"])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - seen from outside, there is no event
            await asyncio.sleep(0.001)


@LANDED
@ACKED
async def test_a_doubt_ends_when_the_store_is_back(landed: bool, acked: bool) -> None:
    rig = await opened(acked=acked)
    stage, store, factory, ledger, cursor, ledger_id = rig
    settled = await doubted(rig, landed=landed)
    receipts: list[MagnetarError | None] = []
    cursor.ack(ledger_id, 5)
    cursor.when_durable(receipts.append)
    await turns()
    assert [type(error) for error in receipts] == [CursorClosed]
    store.away = False
    await until(lambda: bool(settled))
    assert settled == ["sub"]
    assert ("sub" in ledger.cursors) is not landed
    if not landed:
        assert ledger.cursors["sub"] is cursor
        await cursor.flush()
    await publish(ledger, b"y")
    await ledger.set_properties({"a": "1"})
    assert not ledger.fenced
    await factory.abandon()
    reopened = await stage.factory().open(NAME)
    assert ("sub" in reopened.cursors) is not landed
    if not landed:
        assert reopened.cursors["sub"].is_acked(ledger_id, 5)


@LANDED
@ACKED
async def test_a_cursor_in_doubt_is_opened_as_the_store_has_it(landed: bool, acked: bool) -> None:
    rig = await opened(acked=acked)
    stage, store, factory, ledger, cursor, ledger_id = rig
    await doubted(rig, landed=landed)
    with pytest.raises(MetadataError):
        await ledger.open_cursor("sub")
    store.away = False
    again = await ledger.open_cursor("sub", initial=EARLIEST)
    assert (again is cursor) is not landed
    assert again.is_acked(ledger_id, 3) is (acked and not landed)
    again.ack(ledger_id, 5)
    await again.flush()
    assert not ledger.fenced
    await factory.abandon()
    reopened = await stage.factory().open(NAME)
    assert reopened.cursors["sub"].is_acked(ledger_id, 5)
    assert reopened.cursors["sub"].is_acked(ledger_id, 3) is (acked and not landed)


@LANDED
async def test_a_cursor_in_doubt_can_be_deleted_again(landed: bool) -> None:
    rig = await opened()
    stage, store, factory, ledger, _, _ = rig
    await doubted(rig, landed=landed)
    store.away = False
    await ledger.delete_cursor("sub")
    assert not ledger.cursors
    assert not ledger.cursor_in_doubt("sub")
    assert not ledger.fenced
    await factory.close()
    assert not (await stage.factory().open(NAME)).cursors


async def test_a_deletion_does_not_land_after_the_cursor_was_found() -> None:
    rig = await opened()
    _, store, factory, ledger, _, _ = rig
    revision = (await store.get(cursor_key(NAME, "sub"))).revision  # type: ignore[union-attr]
    await doubted(rig, landed=False)
    store.away = False
    await ledger.open_cursor("sub")
    stored = await store.get(cursor_key(NAME, "sub"))
    assert stored is not None
    assert stored.revision > revision, "what the deletion compares with"
    await factory.close()


@pytest.mark.parametrize("landed", [True, False], ids=["created", "not created"])
async def test_a_cursor_whose_creation_was_not_answered_is_opened_at_the_next_attempt(
    landed: bool,
) -> None:
    stage, store, factory, ledger, _, ledger_id = await opened()
    store.lose(puts(cursor_key(NAME, "new")), lands=landed)
    with pytest.raises(MetadataError):
        await ledger.open_cursor("new", initial=EARLIEST, properties={"a": "1"})
    store.away = False
    cursor = await ledger.open_cursor("new", initial=EARLIEST, properties={"a": "1"})
    assert not ledger.fenced
    cursor.ack(ledger_id, 0)
    await cursor.flush()
    await factory.abandon()
    reopened = (await stage.factory().open(NAME)).cursors["new"]
    assert reopened.is_acked(ledger_id, 0)
    assert reopened.properties == {"a": "1"}


async def test_no_cursor_is_created_in_a_managed_ledger_that_was_deleted() -> None:
    """It would be one of the next managed ledger of that name."""
    stage, store, _, ledger, _, _ = await opened()
    held = store.hold(puts(cursor_key(NAME, "new")))
    creating = asyncio.ensure_future(ledger.open_cursor("new"))
    await held.reached.wait()
    await stage.factory().delete(NAME)
    held.go.set()
    await asyncio.wait([creating])
    assert isinstance(creating.exception(), MagnetarError)
    assert not await store.list(CURSORS_PREFIX)


# -- broken cursors


async def test_a_broken_cursor_that_is_read_back_during_its_deletion_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, store, factory, _, _, _ = await opened()
    await factory.abandon()
    reading, going_on = asyncio.Event(), asyncio.Event()
    read = stage.bookie.read_entries

    async def corrupt(*_: int, **__: object) -> None:
        raise EntryCorrupt("CRC", "entry-log-7", 4096)

    async def slow(*args: int, bytes_max: int, fence: bool = False) -> object:
        reading.set()
        await going_on.wait()
        return await read(*args, bytes_max=bytes_max, fence=fence)

    monkeypatch.setattr(stage.bookie, "read_entries", corrupt)
    ledger = await stage.factory().open(NAME)
    with pytest.raises(CursorCorrupt):
        await ledger.open_cursor("sub")
    monkeypatch.setattr(stage.bookie, "read_entries", slow)
    opening = asyncio.ensure_future(ledger.open_cursor("sub"))
    await reading.wait()
    deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
    await turns()
    going_on.set()
    await deleting
    await asyncio.wait([opening])
    assert not ledger.cursors
    assert not ledger.broken_cursors
    assert not await store.list(CURSORS_PREFIX)
    if opening.exception() is None:
        with pytest.raises(CursorClosed):
            await opening.result().flush()
    assert not ledger.fenced


async def test_a_broken_cursor_that_is_requested_during_its_deletion_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bookies are back by then: it could be read."""
    stage, store, factory, _, _, _ = await opened()
    await factory.abandon()
    with monkeypatch.context() as away:

        async def corrupt(*_: int, **__: object) -> None:
            raise EntryCorrupt("CRC", "entry-log-7", 4096)

        away.setattr(stage.bookie, "read_entries", corrupt)
        ledger = await stage.factory().open(NAME)
    assert set(ledger.broken_cursors) == {"sub"}
    held = store.hold(DELETION)
    deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
    await held.reached.wait()
    opening = asyncio.ensure_future(ledger.open_cursor("sub"))
    await turns()
    held.go.set()
    await deleting
    with pytest.raises(NotFound):
        await opening
    assert not ledger.cursors
    assert not ledger.broken_cursors
    assert not await store.list(CURSORS_PREFIX)
    assert not ledger.fenced
