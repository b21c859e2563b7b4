"""Trims and deletions that race with changes: no entry that a cursor needs is deleted."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.held_store import HeldStore, deletes, puts
from tests.unit.ledger.stage import NAME, Appends, Stage, publish, turns

from magnetar.bookie.api import BookieError
from magnetar.compaction.records import compaction_key
from magnetar.core.errors import MagnetarError, MetadataError
from magnetar.core.ids import EARLIEST, Position
from magnetar.ledger.metadata import ledger_key
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import (
    CURSORS_PREFIX,
    MANAGED_LEDGERS_PREFIX,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.metadata.store import ABSENT

LOG = puts(MANAGED_LEDGERS_PREFIX)
ENTRIES = [b"a", b"b", b"c"]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.tenure.RETRY_S_MAX", 0.001)
    monkeypatch.setattr("magnetar.managed_ledger.cursors.SETTLE_RETRY_S", 0.001)


class Scene:
    """A closed ledger of three entries and an open one; the cursor `sub` has acked all of them."""

    def __init__(self, **hooks: Any) -> None:
        self.stage = Stage()
        self.stage.store = self.store = HeldStore()
        self.factory: ManagedLedgerFactory = self.stage.factory(**hooks)

    async def open(self, *, acked: bool = True, entries: int = len(ENTRIES)) -> ManagedLedger:
        ledger = await self.factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        self.first, _ = await publish(ledger, *ENTRIES[:entries])
        await ledger.roll_over()
        await publish(ledger, b"newest")
        if acked:
            cursor.ack_cumulative(Position(self.first, 2))
            await cursor.flush()
        return ledger

    async def recorded(self) -> tuple[list[int], tuple[int, ...]]:
        """The ledgers that the record lists, and those that it has to be deleted."""
        stored = await self.store.get(managed_ledger_key(NAME))
        assert stored is not None
        record = decode_managed_ledger(stored.key, stored.value)
        return [item.ledger_id for item in record.ledgers], record.deleting


async def readable(ledger: ManagedLedger, first: int) -> bool:
    """Whether the closed ledger's entries can be read."""
    found = await ledger.read(Position(first, 0), 9, 99)
    return [entry.data for entry in found] == ENTRIES


async def seek_back(ledger: ManagedLedger) -> None:
    await ledger.cursors["sub"].reset(EARLIEST)


async def keep_all(ledger: ManagedLedger) -> None:
    ledger.set_retention(-1, -1)


CHANGES: dict[str, Callable[[ManagedLedger], Awaitable[object]]] = {
    "a new cursor": lambda ledger: ledger.open_cursor("new", initial=EARLIEST),
    "a seek": seek_back,
    "other retention": keep_all,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("asked", ["confirm", "limit"])
async def test_a_trim_takes_nothing_that_is_needed_since_it_began(
    change: Callable[[ManagedLedger], Awaitable[object]], asked: str
) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def confirm(_name: str) -> None:
        began.set()
        await go.wait()

    async def limit(_name: str, _created_ms: int) -> Position | None:
        await confirm("")
        return None

    scene = Scene(**({"confirm": confirm} if asked == "confirm" else {"trim_limit": limit}))
    ledger = await scene.open()
    ledger.set_retention(0, 0)
    await began.wait()
    await change(ledger)
    go.set()
    await turns(60)
    assert await readable(ledger, scene.first)
    assert (await scene.recorded())[0][0] == scene.first


@pytest.mark.parametrize("first", [True, False], ids=["first artifact", "former log's before"])
async def test_a_trim_takes_nothing_once_the_log_has_an_artifact(first: bool) -> None:
    """The artifact may end before the ledgers that the trim would remove."""

    async def limit(_name: str, _created_ms: int) -> Position | None:
        return None

    scene = Scene(trim_limit=limit)
    ledger = await scene.open()
    if not first:
        await scene.store.put(compaction_key(NAME), b"former", expected=ABSENT)
    held = scene.store.hold(LOG)
    ledger.set_retention(0, 0)
    await held.reached.wait()
    await scene.store.put(compaction_key(NAME), b"live")
    held.go.set()
    await turns(60)
    assert await readable(ledger, scene.first)
    assert (await scene.recorded())[0][0] == scene.first
    assert not ledger.fenced
    await ledger.trim()
    assert (await scene.recorded())[0][0] != scene.first


@pytest.mark.parametrize("how", ["trim", "truncate"])
async def test_a_cursor_whose_creation_is_under_way_holds_data_back(how: str) -> None:
    """Its record may have landed: the broker that opens the topic next would miss the data."""
    scene = Scene()
    ledger = await scene.open()
    held = scene.store.hold(puts(CURSORS_PREFIX))
    opening = asyncio.ensure_future(ledger.open_cursor("new", initial=EARLIEST))
    await held.reached.wait()
    trimming = asyncio.ensure_future(ledger.trim() if how == "trim" else ledger.truncate())
    await turns(60)
    held.go.set()
    cursor = await opening
    await trimming
    assert cursor.backlog == 4
    assert await readable(ledger, scene.first)


@pytest.mark.parametrize("landed", [True, False], ids=["deleted", "not deleted"])
async def test_data_of_a_cursor_goes_when_its_deletion_is_known_and_not_before(
    landed: bool,
) -> None:
    scene = Scene()
    ledger = await scene.open(acked=False)
    ledger.set_retention(0, 0)
    held = scene.store.hold(deletes(CURSORS_PREFIX))
    scene.store.lose(deletes(CURSORS_PREFIX), lands=landed)
    deleting = asyncio.ensure_future(ledger.delete_cursor("sub"))
    await held.reached.wait()
    await ledger.trim()
    assert await readable(ledger, scene.first)
    held.go.set()
    with pytest.raises(MagnetarError):
        await deleting
    assert ledger.cursor_in_doubt("sub")
    await ledger.trim()
    assert await readable(ledger, scene.first)
    settled = asyncio.Event()
    ledger.when_settled(lambda _name: settled.set())
    scene.store.away = False
    await settled.wait()
    await ledger.trim()
    await turns(60)
    assert await readable(ledger, scene.first) is not landed
    assert ("sub" in ledger.cursors) is not landed


async def test_a_truncation_takes_only_what_was_readable_when_it_was_requested() -> None:
    scene = Scene()
    ledger = await scene.open()
    held = scene.store.hold(LOG)
    writing = asyncio.ensure_future(ledger.set_properties({"a": "1"}))
    await held.reached.wait()
    truncating = asyncio.ensure_future(ledger.truncate())
    await turns(60)
    later = asyncio.ensure_future(publish(ledger, b"later"))
    held.go.set()
    await asyncio.gather(writing, truncating)
    ledger_id, _ = await later
    await ledger.roll_over()
    await turns(60)
    assert [info.ledger_id for info in ledger.ledgers] == [ledger_id]
    assert (await ledger.read_entry(Position(ledger_id, 0))).data == b"later"


@pytest.mark.parametrize("entries", [1, 3])
async def test_a_broken_cursor_keeps_its_data_from_a_truncation(entries: int) -> None:
    scene = Scene()
    ledger = await scene.open(acked=False, entries=entries)
    cursor = ledger.cursors["sub"]
    cursor.ack_batch(scene.first, entries - 1, 0b1, 2)
    await cursor.flush()
    assert cursor.log is not None
    own = cursor.log.ledger_id
    await scene.factory.close()
    await scene.stage.bookie.delete_ledger(own)
    again = await scene.stage.factory().open(NAME)
    assert set(again.broken_cursors) == {"sub"}
    await again.truncate()
    await turns(60)
    kept = await again.read(Position(scene.first, 0), 9, 99)
    assert [entry.data for entry in kept] == ENTRIES[:entries]


async def test_a_ledger_is_there_until_the_record_says_that_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    ledger = await scene.open()

    async def refused(*_: object, **__: object) -> int:
        raise MetadataError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "put", refused)
        with pytest.raises(MetadataError, match="refused"):
            await ledger.trim()
    await turns(60)
    assert await readable(ledger, scene.first)
    assert ledger.entries_total == 4
    held = scene.store.hold(LOG)
    trimming = asyncio.ensure_future(ledger.trim())
    await held.reached.wait()
    assert await readable(ledger, scene.first)
    assert scene.first in await scene.stage.bookie.list_ledgers()
    held.go.set()
    await trimming
    await turns(60)
    assert not await readable(ledger, scene.first)
    assert scene.first not in await scene.stage.bookie.list_ledgers()


async def test_an_empty_ledger_that_ends_during_a_write_is_deleted_after_the_next() -> None:
    """The write under way lists it still, so a later one has to retire it."""
    scene = Scene()
    ledger = await scene.open()
    await ledger.roll_over()
    scene.stage.bookie.refuse = lambda _ledger, _ids: True
    scene.stage.bookie.hold = True
    appends = Appends()
    ledger.append([b"fails first"], appends)
    await turns(30)
    empty = ledger.ledgers[-1].ledger_id
    held = scene.store.hold(LOG)
    writing = asyncio.ensure_future(ledger.set_properties({"a": "1"}))
    await held.reached.wait()
    scene.stage.bookie.release()
    await turns(30)
    scene.stage.bookie.refuse = lambda _ledger, _ids: False
    held.go.set()
    await writing
    ((ledger_id, _, error),) = await appends.wait(1)
    assert error is None
    assert ledger_id > empty
    await turns(60)
    await ledger.set_properties({"a": "2"})
    listed, deleting = await scene.recorded()
    assert empty not in listed
    assert deleting == ()
    assert await scene.store.get(ledger_key(empty)) is None


async def test_what_is_to_be_deleted_stays_on_record_when_a_cursor_is_deleted() -> None:
    scene = Scene()
    ledger = await scene.open()
    delete, failing = scene.stage.bookie.delete_ledger, True

    async def refuses(gone: int) -> None:
        if gone == scene.first and failing:
            raise BookieError("its disk fails")
        await delete(gone)

    scene.stage.bookie.delete_ledger = refuses  # type: ignore[assignment,method-assign]
    await ledger.trim()
    await turns(60)
    assert (await scene.recorded())[1] == (scene.first,)
    await ledger.delete_cursor("sub")
    await turns(60)
    assert scene.first in (await scene.recorded())[1]
    failing = False
    await ledger.trim()
    await turns(60)
    await scene.factory.close()
    again = await scene.stage.factory().open(NAME)
    await turns(60)
    assert await scene.stage.bookie.list_ledgers() == [i.ledger_id for i in again.ledgers]


async def test_an_instance_that_was_given_up_deletes_no_further_ledger() -> None:
    scene = Scene()
    ledger = await scene.open()
    await ledger.roll_over()
    delete, deleted = scene.stage.bookie.delete_ledger, list[int]()

    async def given_up(gone: int) -> None:
        deleted.append(gone)
        ledger.abandon()
        await delete(gone)

    scene.stage.bookie.delete_ledger = given_up  # type: ignore[assignment,method-assign]
    await ledger.truncate()
    await turns(100)
    assert deleted == [scene.first]


async def test_terminating_a_topic_again_writes_nothing() -> None:
    scene = Scene()
    ledger = await scene.open()
    await ledger.roll_over()
    before = await scene.store.revision() + 1
    ends = await asyncio.gather(*(ledger.terminate() for _ in range(3)))
    ends += [await ledger.terminate(), await ledger.terminate()]
    assert set(ends) == {ledger.last_confirmed}
    assert await scene.store.revision() == before
    await scene.factory.close()
    after = await scene.store.revision()
    reopened = await scene.stage.factory().open(NAME)
    assert await reopened.terminate() == ledger.last_confirmed
    await reopened.close()
    assert await reopened.terminate() == ledger.last_confirmed  # also of one that is closed
    assert await scene.store.revision() == after
