"""A topic's deletion takes every ledger with it: retired ones, and those that came meanwhile."""

import asyncio

import msgspec
import pytest
from tests.support.held_store import HeldStore, deletes, puts
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import start

from magnetar.bookie.api import BookieError
from magnetar.compaction.records import CompactionRecord, compaction_key
from magnetar.core.ids import Position
from magnetar.managed_ledger.record import (
    CURSORS_PREFIX,
    MANAGED_LEDGERS_PREFIX,
    cursor_key,
    decode_cursor,
    decode_managed_ledger,
    managed_ledger_key,
)
from magnetar.metadata.records import encode
from magnetar.offload.stores import StoreSpec

CURSOR = cursor_key(NAME, "sub")


async def nothing_is_left(stage: Stage) -> bool:
    """Whether neither the store nor the bookies have anything of any topic."""
    records = await stage.store.list("/managed-ledgers")
    ledgers = await stage.store.list("/ledgers/")
    return not records and not ledgers and not await stage.bookie.list_ledgers()


@pytest.mark.parametrize("whose", ["the topic's", "a cursor's"])
async def test_ledgers_that_were_retired_and_not_deleted_yet_go_with_the_topic(whose: str) -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    await ledger.roll_over()
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await factory.abandon()
    client = stage.client()
    retired = (await client.create({})).ledger_id
    key = managed_ledger_key(NAME) if whose == "the topic's" else CURSOR
    stored = await stage.store.get(key)
    assert stored is not None
    decode = decode_managed_ledger if whose == "the topic's" else decode_cursor
    record = decode(stored.key, stored.value)
    await stage.store.put(key, encode(msgspec.structs.replace(record, deleting=(retired,))))
    await stage.factory().delete(NAME)
    assert await nothing_is_left(stage)


@pytest.mark.parametrize("trimmed", [True, False])
async def test_what_was_compacted_goes_with_the_topic(trimmed: bool) -> None:
    """Also if retention has deleted all ledgers before: the artifact outlives them."""
    stage = Stage()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    ledger_id, _ = await publish(ledger, b"x")
    await ledger.roll_over()
    if trimmed:
        ledger.set_retention(0, 0)
        await ledger.trim()
        await turns(60)
        await ledger.set_properties({"a": "1"})
        stored = await stage.store.get(managed_ledger_key(NAME))
        assert stored is not None
        log = decode_managed_ledger(stored.key, stored.value)
        assert (log.ledgers, log.deleting) == ((), ())
    record = CompactionRecord(
        horizon=Position(ledger_id, 0),
        log_created_ms=ledger.created_ms,
        attempt="1",
        store=StoreSpec("filesystem", "/nowhere"),
        compacted_ms=1,
        files=(),
    )
    await factory.close()
    await stage.store.put(compaction_key(NAME), encode(record))
    await stage.factory().delete(NAME)
    assert await stage.store.get(compaction_key(NAME)) is None
    assert await nothing_is_left(stage)


async def test_a_cursor_that_changes_its_ledger_during_the_deletion_leaves_none() -> None:
    stage = Stage()
    stage.store = store = HeldStore()
    factory, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await factory.abandon()
    held = store.hold(deletes(CURSORS_PREFIX))
    deleting = asyncio.ensure_future(stage.factory().delete(NAME))
    await held.reached.wait()
    other = (await stage.client().create({})).ledger_id
    stored = await store.get(CURSOR)
    assert stored is not None
    record = decode_cursor(stored.key, stored.value)
    await store.put(CURSOR, encode(msgspec.structs.replace(record, ledger_id=other)))
    held.go.set()
    await deleting
    assert await nothing_is_left(stage)


async def test_what_the_owner_wrote_just_before_the_mark_is_deleted_too() -> None:
    stage = Stage()
    stage.store = store = HeldStore()
    _, ledger, _, _ = await start(stage)
    held = store.hold(puts(MANAGED_LEDGERS_PREFIX))
    deleting = asyncio.ensure_future(stage.factory().delete(NAME))
    await held.reached.wait()
    await ledger.roll_over()
    await publish(ledger, b"in a ledger that the deletion has not read of")
    held.go.set()
    await deleting
    ledger.abandon()
    assert await nothing_is_left(stage)


async def test_a_topic_whose_ledgers_cannot_be_deleted_stays_marked_until_they_can() -> None:
    stage = Stage()
    factory, ledger, _, ledger_id = await start(stage)
    await ledger.roll_over()
    await publish(ledger, b"x")
    delete, failing = stage.bookie.delete_ledger, True

    async def refuses(gone: int) -> None:
        if gone == ledger_id and failing:
            raise BookieError("its disk fails")
        await delete(gone)

    stage.bookie.delete_ledger = refuses  # type: ignore[assignment,method-assign]
    with pytest.raises(BookieError):
        await factory.delete(NAME)
    stored = await stage.store.get(managed_ledger_key(NAME))
    assert stored is not None
    record = decode_managed_ledger(stored.key, stored.value)
    assert record.deleted
    assert ledger_id in [item.ledger_id for item in record.ledgers]
    assert not await factory.exists(NAME)
    failing = False
    await factory.delete(NAME)
    await turns(10)
    assert await nothing_is_left(stage)
