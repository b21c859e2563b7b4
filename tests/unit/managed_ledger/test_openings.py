"""Opening a managed ledger: what its record may say, who changes it meanwhile; the one timer."""

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import start

from magnetar.bookie.api import BookieError
from magnetar.core.errors import MetadataError, NotFound
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed_ledger.context import PERSIST_INTERVAL_S, PersistTimer
from magnetar.managed_ledger.lifecycle import ATTEMPTS_MAX, CURSORS_LOADED_AT_ONCE_MAX
from magnetar.managed_ledger.record import (
    LedgerItem,
    cursor_key,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.metadata.records import encode

KEY = managed_ledger_key(NAME)


async def test_all_cursors_are_restored_however_many_there_are() -> None:
    stage = Stage()
    factory, ledger, _, ledger_id = await start(stage)
    count = 2 * CURSORS_LOADED_AT_ONCE_MAX + 3
    for number in range(count):
        cursor = await ledger.open_cursor(f"c{number}", initial=EARLIEST)
        cursor.ack_cumulative((ledger_id, number % 20))
    await factory.close()
    again = await stage.factory().open(NAME)
    assert len(again.cursors) == count + 1
    for number in range(count):
        assert again.cursors[f"c{number}"].mark_delete == (ledger_id, number % 20)


async def test_an_unfinished_ledger_that_is_not_the_last_is_named() -> None:
    stage = Stage()
    factory, ledger, _, ledger_id = await start(stage)
    await factory.abandon()
    stored = await stage.store.get(KEY)
    assert stored is not None
    record = decode_managed_ledger(KEY, stored.value)
    wrong = msgspec.structs.replace(record, ledgers=(*record.ledgers, LedgerItem(99, 1, 5, 1, 1)))
    await stage.store.put(KEY, encode(wrong))
    with pytest.raises(MetadataError, match=f"ledger {ledger_id} is unfinished, but not the last"):
        await stage.factory().open(NAME)
    assert ledger.state == "Closed"


async def test_a_deletion_that_was_cut_short_is_finished_by_the_next_opening() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await factory.abandon()
    stored = await stage.store.get(KEY)
    assert stored is not None
    record = decode_managed_ledger(KEY, stored.value)
    await stage.store.put(KEY, encode(msgspec.structs.replace(record, deleted=True)))
    fresh = stage.factory()
    assert not await fresh.exists(NAME)
    assert await fresh.exists(NAME, half_deleted=True)
    assert await fresh.names("") == []
    assert await fresh.names("", half_deleted=True) == [NAME]
    with pytest.raises(NotFound):
        await fresh.info(NAME)
    with pytest.raises(NotFound):
        await fresh.open(NAME, create=False)
    assert await stage.store.list("/managed-ledgers") == []
    assert await stage.bookie.list_ledgers() == []
    anew = await fresh.open(NAME)
    assert (anew.entries_total, anew.cursors) == (0, {})
    assert ledger.state == "Closed"


@pytest.mark.parametrize("times", [ATTEMPTS_MAX - 1, ATTEMPTS_MAX])
async def test_a_record_that_others_create_and_delete_is_given_up_in_the_end(times: int) -> None:
    stage = Stage()
    put, left = stage.store.put, times

    async def contended(key: str, value: bytes, **more: int | None) -> int:
        nonlocal left
        if key == KEY and left > 0:
            left -= 1
            await put(key, value)
            try:
                return await put(key, value, **more)
            finally:
                await stage.store.delete(key)
        return await put(key, value, **more)

    stage.store.put = contended  # type: ignore[method-assign]
    if times < ATTEMPTS_MAX:
        assert (await stage.factory().open(NAME)).entries_total == 0
    else:
        with pytest.raises(MetadataError, match=f"changed {ATTEMPTS_MAX} times"):
            await stage.factory().open(NAME)
    assert left == 0


async def test_a_cursor_beyond_the_log_is_put_at_its_end() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack_cumulative((ledger_id, 4))
    await factory.close()
    key = cursor_key(NAME, "sub")
    stored = await stage.store.get(key)
    assert stored is not None
    record = msgspec.json.decode(stored.value)
    for beyond in ([ledger_id, 99], [ledger_id + 50, 0]):
        record["mark_delete"] = beyond
        await stage.store.put(key, msgspec.json.encode(record))
        again = await stage.factory().open(NAME)
        assert again.cursors["sub"].mark_delete == again.last_confirmed == (ledger_id, 19)
        assert again.cursors["sub"].backlog == 0
        await again.close()
    assert ledger.state == "Closed"


async def test_what_a_crash_left_to_be_deleted_is_deleted_by_the_next_opening() -> None:
    stage = Stage()
    factory, ledger, _, ledger_id = await start(stage)
    await ledger.roll_over()
    stage.bookie.delete_ledger, delete = refuses, stage.bookie.delete_ledger  # type: ignore[assignment,method-assign]
    await ledger.truncate()
    await turns(60)
    await factory.abandon()
    assert await stage.bookie.list_ledgers() == [ledger_id]
    stage.bookie.delete_ledger = delete  # type: ignore[method-assign]
    again = await stage.factory().open(NAME)
    await turns(60)
    assert await stage.bookie.list_ledgers() == []
    assert again.ledgers == []
    await again.set_properties({})
    stored = await stage.store.get(KEY)
    assert stored is not None
    assert decode_managed_ledger(KEY, stored.value).deleting == ()


async def refuses(_ledger_id: int) -> None:
    raise BookieError("its disk fails")


async def test_an_opening_looks_for_nothing_to_trim_before_it_knows_retention() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    await ledger.roll_over()
    cursor.ack_cumulative((ledger_id, 19))
    await factory.close()
    again = await stage.factory().open(NAME)
    await turns(60)
    assert again.entries_total == 20
    again.set_retention(0, 0)
    await turns(60)
    assert again.entries_total == 0


@pytest.mark.parametrize("count", [0, 1, 2, 9, 10])
async def test_the_last_entry_of_a_head_is_found(count: int) -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    places: list[Position] = []
    for number in range(10):
        places.append(Position(*await publish(ledger, b"%d" % number)))
        if number in (3, 7):
            await ledger.roll_over()
    asked = 0

    def early(data: bytes) -> bool:
        nonlocal asked
        asked += 1
        return int(data) < count

    assert await ledger.find_by(early) == (places[count - 1] if count else None)
    assert asked <= 5
    for after in range(10):
        expected = places[count - 1] if count - 1 > after else None
        assert await ledger.find_by(early, places[after]) == expected
    assert await ledger.find_by(early, LATEST) is None
    assert await ledger.find_by(early, EARLIEST, published_before_ms=1) == (
        places[count - 1] if count else None
    )


@pytest.mark.parametrize(("count", "found"), [(2, None), (9, 8)])
async def test_a_search_continues_behind_what_is_trimmed_meanwhile(
    count: int, found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    places: list[Position] = []
    for number in range(10):
        places.append(Position(*await publish(ledger, b"%d" % number)))
        if number in (3, 7):
            await ledger.roll_over()
    read = stage.bookie.read_entries

    async def trimming(*args: int, bytes_max: int, fence: bool = False) -> object:
        entries = await read(*args, bytes_max=bytes_max, fence=fence)
        await ledger.trim()
        return entries

    monkeypatch.setattr(stage.bookie, "read_entries", trimming)
    last = await ledger.find_by(lambda data: int(data) < count)
    assert last == (None if found is None else places[found])
    assert ledger.entries_total == 2


@dataclass(eq=False)
class Item:
    name: str
    log: list[str] = field(default_factory=list)

    def persist(self) -> None:
        self.log.append(self.name)


def test_what_waits_is_persisted_together_within_the_interval_and_once() -> None:
    async def main() -> None:
        timer, log = PersistTimer(), list[str]()
        first, second, third = (Item(name, log) for name in "abc")
        timer.add(first)
        await asyncio.sleep(0.6 * PERSIST_INTERVAL_S)
        timer.add(second)
        timer.add(second)
        timer.add(third)
        timer.discard(third)
        timer.discard(Item("d"))
        assert log == []
        await asyncio.sleep(0.5 * PERSIST_INTERVAL_S)
        assert sorted(log) == ["a", "b"]
        await asyncio.sleep(5 * PERSIST_INTERVAL_S)
        assert len(log) == 2
        timer.add(first)
        await asyncio.sleep(0.9 * PERSIST_INTERVAL_S)
        assert len(log) == 2
        await asyncio.sleep(0.2 * PERSIST_INTERVAL_S)
        assert len(log) == 3
        timer.add(second)
        timer.stop()
        timer.add(first)
        await asyncio.sleep(5 * PERSIST_INTERVAL_S)
        assert len(log) == 3
        timer.stop()

    virtual(main())


async def test_what_is_stored_by_an_opening_that_fails_continues_no_further() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await factory.close()
    await stage.store.put(cursor_key(NAME, "zz"), b"no cursor")
    fresh = stage.factory()
    revision = await stage.store.revision()
    with pytest.raises(MetadataError, match="holds no cursor"):
        await fresh.open(NAME)
    await turns(30)
    assert fresh.opened == {}
    await stage.store.delete(cursor_key(NAME, "zz"))
    assert (await fresh.open(NAME)).cursors["sub"].is_acked(ledger_id, 3)
    assert revision
    assert ledger.state == "Closed"
