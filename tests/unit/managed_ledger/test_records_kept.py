"""A managed ledger's record after each step, and the records that a deletion removes."""

import asyncio

import pytest
from tests.support.held_store import HeldStore, deletes
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import start

from magnetar.bookie.api import BookieError
from magnetar.compaction.records import request_key as compaction_request_key
from magnetar.core.errors import MetadataError, NotFound
from magnetar.core.ids import EARLIEST, Position
from magnetar.core.names import NamespaceName
from magnetar.documents.backlog import BacklogRecord
from magnetar.managed_ledger.backlog_record import (
    ANALYTICS_PREFIX,
    decoded,
    read_backlog_record,
    record_key,
)
from magnetar.managed_ledger.errors import ManagedLedgerClosed
from magnetar.managed_ledger.record import (
    LedgerItem,
    ManagedLedgerRecord,
    cursor_key,
    cursor_name,
    decode_cursor,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.metadata.store import BadRevision, Check, Record
from magnetar.offload.records import request_key


async def recorded(stage: Stage) -> ManagedLedgerRecord:
    stored = await stage.store.get(managed_ledger_key(NAME))
    assert stored is not None
    return decode_managed_ledger(stored.key, stored.value)


async def test_the_record_has_each_ledger_with_its_times_and_sizes() -> None:
    stage = Stage()
    begun = stage.clock.time_ms
    ledger = await stage.factory().open(NAME)
    stage.clock.advance(10)
    first, _ = await publish(ledger, b"abc", b"de")
    stage.clock.advance(100)
    await ledger.roll_over()
    stage.clock.advance(1000)
    second, _ = await publish(ledger, b"f")
    record = await recorded(stage)
    assert record.created_ms == begun
    assert record.modified_ms == begun + 1110
    assert record.ledgers == (
        LedgerItem(first, begun + 10, begun + 110, 2, 5),
        LedgerItem(second, begun + 1110),
    )
    assert (record.last_position, record.terminated_at, record.deleting) == (EARLIEST, None, ())
    stage.clock.advance(5)
    await ledger.set_properties({"a": "1"})
    await ledger.set_properties({"b": "2"})
    await ledger.delete_property("a")
    await ledger.delete_property("a")
    record = await recorded(stage)
    assert (record.properties, record.modified_ms) == ({"b": "2"}, begun + 1115)
    assert len(record.ledgers) == 2
    await ledger.truncate()
    await turns(60)
    record = await recorded(stage)
    assert record.last_position == (second, 0)
    assert record.ledgers == ()
    await ledger.set_properties({"b": "3"})
    assert (await recorded(stage)).deleting == ()
    assert ledger.trimmed_to == (second, 0)
    assert await ledger.terminate() == (second, 0)
    assert (await recorded(stage)).terminated_at == (second, 0)
    assert (await recorded(stage)).properties == {"b": "3"}


async def test_a_retired_ledger_is_deleted_once_however_often_it_is_requested() -> None:
    stage = Stage()
    _, ledger, _, ledger_id = await start(stage)
    await ledger.roll_over()
    delete, deleted = stage.bookie.delete_ledger, list[int]()

    async def slowly(gone: int) -> None:
        deleted.append(gone)
        await turns(20)
        await delete(gone)

    stage.bookie.delete_ledger = slowly  # type: ignore[assignment,method-assign]
    truncating = asyncio.ensure_future(ledger.truncate())
    for _ in range(30):
        ledger._list.delete_retired_soon()
        await turns(1)
    await truncating
    await turns(60)
    assert deleted == [ledger_id]
    assert ledger._list.record.deleting == ()


async def test_a_ledger_that_cannot_be_deleted_stays_on_record_and_the_others_go() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    ids = []
    for _ in range(3):
        ids.append((await publish(ledger, b"x"))[0])
        await ledger.roll_over()
    delete, failing = stage.bookie.delete_ledger, True

    async def refuses(gone: int) -> None:
        if gone == ids[1] and failing:
            raise BookieError("its disk fails")
        await delete(gone)

    stage.bookie.delete_ledger = refuses  # type: ignore[assignment,method-assign]
    await ledger.truncate()
    await turns(60)
    assert ledger._list.record.deleting == (ids[1],)
    assert await stage.bookie.list_ledgers() == [ids[1]]
    failing = False
    ledger.set_retention(0, 0)
    assert ledger.has_to_trim
    await ledger.trim()
    await turns(60)
    assert await stage.bookie.list_ledgers() == []
    assert not ledger.has_to_trim


async def test_opening_and_deleting_one_name_exclude_each_other() -> None:
    stage = Stage()
    stage.store = store = HeldStore()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    await publish(ledger, b"x")
    held = store.hold(deletes(managed_ledger_key(NAME)))
    deleting = asyncio.ensure_future(factory.delete(NAME))
    await held.reached.wait()
    opening = asyncio.ensure_future(factory.open(NAME))
    other = await factory.open(NAME + "-2")  # other names do not wait
    await turns(30)
    assert not opening.done()
    held.go.set()
    await deleting
    again = await opening
    assert again is not ledger
    assert again.entries_total == 0
    assert factory.opened == {NAME: again, NAME + "-2": other}
    assert not factory._locks


async def test_what_is_deleted_is_gone_with_its_cursors_and_memory() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    assert factory.cache.size_bytes > 0
    await factory.delete(NAME)
    assert factory.cache.size_bytes == 0
    assert await stage.bookie.list_ledgers() == []
    assert await stage.store.list("/managed-ledgers") == []
    assert factory.opened == {}
    for attempt in (factory.delete(NAME), factory.info(NAME), factory.open(NAME, create=False)):
        with pytest.raises(NotFound):
            await attempt
    with pytest.raises(ManagedLedgerClosed):
        await publish(ledger, b"x")


@pytest.mark.parametrize("trimmed", [False, True])
async def test_requests_for_a_topic_are_deleted_with_it(trimmed: bool) -> None:
    stage = Stage()
    factory, ledger, _, _ = await start(stage)
    if trimmed:
        await ledger.truncate()
        await turns(60)
        assert ledger.ledgers == []
    wanted = [compaction_request_key(NAME), *([] if trimmed else [request_key(NAME)])]
    for key in wanted:
        await stage.store.put(key, b"{}")
    await factory.delete(NAME)
    for key in wanted:
        assert await stage.store.get(key) is None


async def test_closing_frees_what_was_cached() -> None:
    stage = Stage()
    factory, ledger, _, ledger_id = await start(stage)
    await ledger.roll_over()
    await publish(ledger, b"next")
    assert ledger.read_cached(Position(ledger_id, 0), 1, 99)
    await ledger.close()
    assert factory.cache.size_bytes == 0
    assert factory.opened == {}


async def test_a_factory_that_was_closed_opens_nothing() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack_cumulative((ledger_id, 4))
    await factory.close()
    await factory.close()
    assert (ledger.state, cursor.state) == ("Closed", "Closed")
    with pytest.raises(ManagedLedgerClosed):
        await factory.open(NAME)
    assert (await stage.factory().open(NAME)).cursors["sub"].mark_delete == (ledger_id, 4)


async def test_what_is_declared_or_created_needs_its_checks() -> None:
    stage = Stage()
    factory = stage.factory()
    revision = await stage.store.put("/namespace", b"")
    for attempt in (
        factory.declare(NAME, [Check("/namespace", revision + 1)]),
        factory.open(NAME, checks=[Check("/namespace", revision + 1)]),
    ):
        with pytest.raises(BadRevision, match="/namespace"):
            await attempt
    assert not await factory.exists(NAME)
    await factory.declare(NAME, [Check("/namespace", revision)])
    assert await factory.exists(NAME)
    await factory.declare(NAME, [Check("/namespace", revision)])
    assert await factory.names("public/") == [NAME]
    assert factory.opened == {}
    assert (await factory.open(NAME, create=False)).entries_total == 0


async def test_a_deletion_needs_its_checks() -> None:
    stage = Stage()
    revision = await stage.store.put("/namespace", b"")
    factory, _, _, ledger_id = await start(stage)
    with pytest.raises(BadRevision, match="/namespace"):
        await factory.delete(NAME, [Check("/namespace", revision + 1)])
    assert ledger_id in await stage.bookie.list_ledgers()
    assert (await factory.open(NAME, create=False)).entries_total == 20
    await factory.delete(NAME, [Check("/namespace", revision)])
    assert await stage.bookie.list_ledgers() == []


async def test_an_outline_says_what_records_say() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage, entries=4)
    await ledger.roll_over()
    shown = await stage.factory().outline(NAME)
    assert shown.exact is True  # its own record says that it ended
    await ledger.set_properties({"a": "1"})
    shown = await stage.factory().outline(NAME)
    assert shown.exact is True
    assert (shown.index.entries, shown.index.size_bytes) == (4, 4)
    assert shown.cursors["sub"].backlog == 4
    assert shown.cursors["sub"].durable
    assert shown.created_ms == ledger.created_ms
    await ledger.open_cursor("other")
    second, _ = await publish(ledger, b"x")
    await publish(ledger, b"y")
    shown = await stage.factory().outline(NAME)
    assert shown.exact is False
    assert shown.index.last_confirmed == (second, 0)  # what its bookie knows to be confirmed
    assert ledger.fenced is False
    cursor.ack(ledger_id, 2)
    await cursor.flush()
    await ledger.close()
    shown = await stage.factory().outline(NAME)
    assert shown.exact is False  # the cursor has a ledger of its own
    assert shown.index.entries == 6
    assert set(shown.cursors) == {"other", "sub"}
    await stage.bookie.delete_ledger(second)
    assert factory.opened == {}


async def test_records_that_cannot_be_read_are_named() -> None:
    for decode, key in (
        (decode_managed_ledger, managed_ledger_key(NAME)),
        (decode_cursor, cursor_key(NAME, "a/b c")),
    ):
        with pytest.raises(MetadataError, match=key):
            decode(key, b"{")
    assert cursor_name(cursor_key(NAME, "a/b c")) == "a/b c"
    for value in (b"{", b"\xff\xfe", b'{"atMs": "x"}'):
        with pytest.raises(MetadataError, match="writes it anew"):
            decoded(Record(record_key("a/b"), value, 1))


async def test_the_newest_backlog_record_of_a_namespace_is_read() -> None:
    stage = Stage()
    namespace = NamespaceName("public", "default")
    assert await read_backlog_record(stage.store, namespace) is None
    await stage.store.put(ANALYTICS_PREFIX + "public/default", b'{"atMs": 7, "newer": [1]}')
    assert await read_backlog_record(stage.store, namespace) == BacklogRecord(at_ms=7)
