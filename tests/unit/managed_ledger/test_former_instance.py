"""An instance that was given up or closed writes nothing beside the one that is opened next."""

import asyncio

import pytest
from tests.support.held_store import HeldStore, puts
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.test_guarded import WRITES, Owner, Write

from magnetar.core.errors import MagnetarError, MetadataError, ServiceNotReady
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger import cursor_log
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.errors import CursorClosed, ManagedLedgerFenced
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import (
    CURSORS_PREFIX,
    MANAGED_LEDGERS_PREFIX,
    cursor_key,
    decode_cursor,
)
from magnetar.metadata.store import Record

SWITCH = puts(CURSORS_PREFIX)
LOG = puts(MANAGED_LEDGERS_PREFIX)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)


class Scene:
    """A topic of twenty entries with a cursor, under a claim, and a store to hold writes in."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.stage.store = self.store = HeldStore()
        self.owner = Owner(self.store)

    async def open(self) -> tuple[ManagedLedgerFactory, ManagedLedger, Cursor, int]:
        await self.owner.claim()
        factory = self.stage.factory(guard=self.owner.guard)
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("old", initial=EARLIEST)
        ledger_id, _ = await publish(ledger, *[b"x"] * 20)
        return factory, ledger, cursor, ledger_id

    async def records(self) -> list[Record]:
        return await self.store.list("/managed-ledgers")

    async def reopened(self) -> ManagedLedger:
        """As by the next process."""
        return await self.stage.factory().open(NAME, create=False)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_an_instance_from_before_a_claim_was_lost_does_not_write_under_the_next(
    write: Write,
) -> None:
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    await scene.owner.claim()
    before = await scene.records()
    with pytest.raises(ManagedLedgerFenced):
        await write(ledger)
    assert await scene.records() == before
    assert ledger.fenced
    await factory.abandon()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "given up"])
async def test_an_instance_that_has_ended_writes_nothing(write: Write, closed: bool) -> None:
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    if closed:
        await ledger.close()
    else:
        ledger.abandon()
    before = await scene.records()
    with pytest.raises(ServiceNotReady):
        await write(ledger)
    await turns()
    assert await scene.records() == before
    await factory.abandon()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_write_without_an_answer_is_not_repeated_after_the_end(write: Write) -> None:
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    held = scene.store.hold(
        lambda operation: operation.key.startswith("/managed-ledgers"), lands=False
    )
    writing = asyncio.ensure_future(write(ledger))
    await held.reached.wait()
    ledger.abandon()
    before = await scene.records()
    held.go.set()
    await asyncio.wait([writing])
    assert isinstance(writing.exception(), MagnetarError)
    await ledger.tenure.settled()
    assert await scene.records() == before
    await factory.abandon()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_a_name_is_free_when_the_last_write_is_done(write: Write) -> None:
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    held = scene.store.hold(lambda operation: operation.key.startswith("/managed-ledgers"))
    writing = asyncio.ensure_future(write(ledger))
    await held.reached.wait()
    closing = asyncio.ensure_future(ledger.close())
    await turns(50)
    assert not closing.done()
    assert factory.opened
    held.go.set()
    await closing
    await asyncio.wait([writing])
    before = await scene.records()
    await turns(50)
    assert await scene.records() == before
    again = await factory.open(NAME)
    await again.set_properties({"by": "the next"})
    assert not again.fenced
    await factory.close()


async def test_an_instance_from_before_a_claim_was_lost_is_not_opened_again() -> None:
    """It may not have heard of that, and what others wrote in between it does not know."""
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    await scene.owner.split()
    assert await factory.open(NAME) is ledger
    await scene.owner.claim()
    again = await factory.open(NAME)
    assert again is not ledger
    await again.set_properties({"by": "the next"})
    with pytest.raises(ServiceNotReady):
        await ledger.set_properties({"by": "the former"})
    await factory.close()


async def test_what_an_opening_that_failed_has_begun_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    factory, ledger, _, go, _ = await switching(scene, monkeypatch)
    ledger.abandon()
    go.set()
    await ledger.tenure.settled()
    unreadable = cursor_key(NAME, "zzz")
    await scene.store.put(unreadable, b"no cursor")
    before = await scene.records()
    with pytest.raises(MetadataError, match="zzz"):
        await factory.open(NAME)
    await turns(100)
    assert await scene.records() == before
    await scene.store.delete(unreadable)
    assert not (await factory.open(NAME)).broken_cursors
    await factory.close()


# -- a cursor's switch to another ledger


async def switching(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> tuple[ManagedLedgerFactory, ManagedLedger, int, asyncio.Event, list[MagnetarError | None]]:
    """A cursor whose ack of 5 is receipted, about to switch with an ack of 7."""
    monkeypatch.setattr(cursor_log, "LEDGER_BYTES_MIN", 1)
    monkeypatch.setattr(cursor_log, "LEDGER_SNAPSHOTS_MAX", 0)
    factory, ledger, cursor, ledger_id = await scene.open()
    cursor.ack(ledger_id, 5)
    await cursor.flush()
    # The first write announces the new ledger, the second switches to it.
    first = scene.store.hold(SWITCH)
    receipts: list[MagnetarError | None] = []
    cursor.ack(ledger_id, 7)
    cursor.when_durable(receipts.append)
    await first.reached.wait()
    second = scene.store.hold(SWITCH)
    first.go.set()
    await second.reached.wait()
    return factory, ledger, ledger_id, second.go, receipts


@pytest.mark.parametrize("lease_lost", [True, False], ids=["lease lost", "given up"])
async def test_a_late_switch_does_not_name_a_ledger_that_the_next_instance_deleted(
    lease_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    factory, ledger, ledger_id, go, receipts = await switching(scene, monkeypatch)
    if lease_lost:
        await scene.owner.claim()
    ledger.abandon()
    again = await factory.open(NAME)
    assert again.cursors["old"].is_acked(ledger_id, 5)
    await turns(100)  # it deletes the ledger that the record announces
    go.set()
    await turns(100)
    assert isinstance(receipts[0], CursorClosed)
    assert not again.fenced
    await factory.abandon()
    reopened = await scene.reopened()
    assert not reopened.broken_cursors
    assert reopened.cursors["old"].is_acked(ledger_id, 5)


async def test_an_instance_that_read_a_record_just_before_the_switch_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    factory, ledger, ledger_id, go, _ = await switching(scene, monkeypatch)
    ledger.abandon()
    retiring = scene.store.hold(SWITCH)
    again = await factory.open(NAME)
    await retiring.reached.wait()
    go.set()
    await turns(50)
    retiring.go.set()
    await turns(50)
    assert again.fenced, "the record is not what it has read"
    third = await factory.open(NAME)
    assert third.cursors["old"].is_acked(ledger_id, 5)
    assert third.cursors["old"].is_acked(ledger_id, 7)
    await factory.close()


async def test_ledgers_that_were_left_to_be_deleted_leave_record_and_disk() -> None:
    scene = Scene()
    factory, _, cursor, ledger_id = await scene.open()
    cursor.ack(ledger_id, 5)
    held = scene.store.hold(SWITCH)
    cursor.when_durable(lambda _: None)
    await held.reached.wait()
    second = scene.store.hold(SWITCH, lands=False)
    held.go.set()
    await second.reached.wait()
    await factory.abandon()
    key = cursor_key(NAME, "old")
    stored = await scene.store.get(key)
    assert stored is not None
    (announced,) = decode_cursor(key, stored.value).deleting
    assert announced in await scene.stage.bookie.list_ledgers()
    again = await scene.reopened()
    await turns(100)
    assert announced not in await scene.stage.bookie.list_ledgers()
    stored = await scene.store.get(key)
    assert stored is not None
    assert decode_cursor(key, stored.value).deleting == ()
    assert not again.fenced


# -- acks


async def test_no_ack_is_receipted_after_the_instance_was_given_up() -> None:
    """The next instance may have read the cursor before it was written."""
    scene = Scene()
    factory, ledger, cursor, ledger_id = await scene.open()
    cursor.ack(ledger_id, 5)
    await cursor.flush()
    scene.stage.bookie.hold = True
    receipts: list[MagnetarError | None] = []
    cursor.ack(ledger_id, 7)
    cursor.when_durable(receipts.append)
    await turns()
    ledger.abandon()
    scene.stage.bookie.release()
    await turns()
    assert [type(error) for error in receipts] == [CursorClosed]
    await factory.abandon()


async def test_an_ack_while_its_cursor_is_being_closed_gets_an_error() -> None:
    scene = Scene()
    factory, ledger, cursor, ledger_id = await scene.open()
    await ledger.roll_over()
    cursor.ack(ledger_id, 5)
    await cursor.flush()
    assert cursor.log is not None
    own = f"/ledgers/{cursor.log.ledger_id:020d}"
    ending = scene.store.hold(puts(own))
    closing = asyncio.ensure_future(ledger.close())
    await ending.reached.wait()
    receipts: list[MagnetarError | None] = []
    cursor.ack(ledger_id, 7)
    cursor.when_durable(receipts.append)
    await turns()
    assert [type(error) for error in receipts] == [CursorClosed]
    ending.go.set()
    await closing
    before = await scene.records()
    again = await factory.open(NAME)
    await turns(100)
    assert await scene.records() == before
    assert again.cursors["old"].is_acked(ledger_id, 5)
    await factory.close()


async def test_an_ack_in_the_moment_of_closing_undoes_none_that_was_receipted() -> None:
    scene = Scene()
    factory, _, cursor, ledger_id = await scene.open()
    cursor.ack(ledger_id, 5)
    await cursor.flush()
    await factory.abandon()
    reopened = await scene.reopened()
    cursor = reopened.cursors["old"]
    closing = asyncio.ensure_future(reopened.close())
    for _ in range(10):  # whenever the cursor's turn comes
        await asyncio.sleep(0)
        cursor.ack(ledger_id, 0)
        cursor.ack(ledger_id, 8)
    await closing
    assert (await scene.reopened()).cursors["old"].is_acked(ledger_id, 5)


# -- trimming


async def test_a_trim_of_a_former_instance_takes_no_ledger_from_the_next() -> None:
    scene = Scene()
    factory, ledger, cursor, ledger_id = await scene.open()
    await ledger.roll_over()
    await publish(ledger, b"y")
    cursor.ack_cumulative(Position(ledger_id, 19))
    await cursor.flush()
    held = scene.store.hold(LOG, lands=False)
    ledger.set_retention(0, 0)
    await held.reached.wait()
    await scene.owner.claim()
    ledger.abandon()
    again = await factory.open(NAME)
    await again.cursors["old"].reset(Position(ledger_id, 0))
    held.go.set()
    await ledger.tenure.settled()
    await turns(50)
    assert len(await again.read(Position(ledger_id, 0), 100, 1 << 20)) == 20
    assert not again.fenced
    await factory.close()


async def test_a_cursors_deletion_that_lands_late_does_not_take_it_from_the_next_instance() -> None:
    """The claim is the same one: only another revision of the record keeps the deletion out."""
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    held = scene.store.hold(lambda operation: operation.key.endswith("/old"))
    deleting = asyncio.ensure_future(ledger.delete_cursor("old"))
    await held.reached.wait()
    ledger.abandon()
    again = await factory.open(NAME)
    cursor = again.cursors["old"]
    held.go.set()
    await asyncio.wait([deleting])
    assert isinstance(deleting.exception(), MagnetarError)
    assert [record for record in await scene.records() if record.key.endswith("/old")]
    cursor.ack_cumulative(again.last_confirmed)
    await cursor.flush()
    assert not again.fenced
    await factory.close()


async def test_an_opening_writes_nothing_if_all_of_the_last_instance_was_answered() -> None:
    scene = Scene()
    factory, ledger, _, _ = await scene.open()
    await ledger.set_properties({"by": "the first"})
    await ledger.close()
    before = await scene.records()
    await factory.open(NAME)
    assert await scene.records() == before
    await factory.close()


async def test_an_instance_that_reads_a_broken_cursor_finds_out_that_its_claim_was_lost() -> None:
    """Nobody writes to an idle topic: it would be served by its former instance for ever."""
    scene = Scene()
    factory, ledger, cursor, ledger_id = await scene.open()
    cursor.ack(ledger_id, 1)
    await cursor.flush()
    assert cursor.log is not None
    lost = ledger_key(cursor.log.ledger_id)
    await ledger.close()
    await scene.store.delete(lost)
    former = await factory.open(NAME)
    assert set(former.broken_cursors) == {"old"}
    await scene.owner.claim()
    with pytest.raises(ManagedLedgerFenced):
        await former.restore_cursor("old")
    assert former.fenced
    await factory.abandon()
