"""How much a cursor's ledger holds, how long its writes take at most, who hears of their end."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import cursor_ledgers, reopened, start
from tests.unit.managed_ledger.test_cursor_deletion import DELETION, opened, quickly

from magnetar.bookie.api import BookieError
from magnetar.core.errors import PersistenceError
from magnetar.ledger.metadata import LedgerState, decode, ledger_key
from magnetar.managed_ledger import cursor_log
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.cursor_codec_v1 import RecordKind
from magnetar.managed_ledger.cursor_codec_v1 import decode as decode_record
from magnetar.managed_ledger.cursor_log import DELETE_ATTEMPTS_MAX, WRITE_TIMEOUT_S, CursorLog
from magnetar.managed_ledger.errors import CursorClosed, CursorCorrupt, ManagedLedgerFenced
from magnetar.managed_ledger.record import NO_LEDGER, CursorRecord, cursor_key, decode_cursor
from magnetar.metadata.store import MetadataUnavailable, Record

__all__ = ["quickly"]


def log_of(cursor: Cursor) -> CursorLog:
    assert cursor.log is not None
    return cursor.log


async def recorded(stage: Stage) -> CursorRecord:
    stored = await stage.store.get(cursor_key(NAME, "sub"))
    assert stored is not None
    return decode_cursor(stored.key, stored.value)


async def written(stage: Stage, ledger_id: int) -> list[bytes]:
    found = await stage.bookie.read_entries(ledger_id, 0, 10**6, bytes_max=1 << 30)
    return [entry.data for entry in found]


@pytest.mark.parametrize("snapshots_max", [2, 4])
async def test_deltas_and_ledgers_are_bounded_by_the_size_of_the_state(
    snapshots_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_log, "DELTAS_BYTES_MIN", 1)
    monkeypatch.setattr(cursor_log, "LEDGER_BYTES_MIN", 1)
    monkeypatch.setattr(cursor_log, "LEDGER_SNAPSHOTS_MAX", snapshots_max)
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage, 500)
    for entry_id in range(2, 200, 2):
        cursor.ack(ledger_id, entry_id)
    await cursor.flush()
    sizes: dict[int, int] = {}
    for entry_id in range(201, 260, 2):
        cursor.ack(ledger_id, entry_id)
        await cursor.flush()
        own = log_of(cursor).ledger_id
        records = await written(stage, own)
        sizes[own] = sum(map(len, records))
        snapshot = deltas = 0
        for data in records:
            if decode_record(data).kind is RecordKind.SNAPSHOT:
                snapshot, deltas = len(data), 0
            else:
                deltas += len(data)
            assert deltas <= snapshot
        bound = snapshots_max * snapshot
        assert log_of(cursor).ready is (sizes[own] < bound)
        assert sizes[own] < bound + snapshot + 200
    assert len(sizes) > 1
    assert len(await cursor_ledgers(stage, ledger)) <= 2
    assert (await reopened(stage)).holes == cursor.holes


async def test_with_holes_a_write_holds_what_changed() -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage)
    for entry_id in (3, 5, 7):
        cursor.ack(ledger_id, entry_id)
        await cursor.flush()
    kinds = [decode_record(data).kind for data in await written(stage, log_of(cursor).ledger_id)]
    assert kinds == [RecordKind.SNAPSHOT, RecordKind.DELTA, RecordKind.DELTA]
    await cursor.reset(cursor.mark_delete)
    cursor.ack_cumulative((ledger_id, 9))
    await cursor.flush()
    cursor.ack_cumulative((ledger_id, 11))
    await cursor.flush()
    records = [decode_record(data) for data in await written(stage, log_of(cursor).ledger_id)]
    assert [one.kind for one in records[3:]] == [RecordKind.SNAPSHOT] * 3  # small as they are
    assert [one.base for one in records] == [0, 0, 0, 3, 4, 5]


async def test_a_delta_that_is_too_large_is_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage, 300)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    monkeypatch.setattr(cursor_log, "DELTA_BYTES_MAX", 100)
    for entry_id in range(11, 299, 2):
        cursor.ack(ledger_id, entry_id)
    await cursor.flush()
    cursor.ack(ledger_id, 5)
    await cursor.flush()
    kinds = [decode_record(data).kind for data in await written(stage, log_of(cursor).ledger_id)]
    assert kinds == [RecordKind.SNAPSHOT, RecordKind.SNAPSHOT, RecordKind.DELTA]


def test_a_roll_that_is_not_durable_in_time_fails_and_the_next_makes_it_good() -> None:
    async def main() -> None:
        stage = Stage()
        _, ledger, cursor, ledger_id = await start(stage)
        cursor.ack(ledger_id, 3)
        stage.bookie.hold = True
        begun = asyncio.get_running_loop().time()
        with pytest.raises(PersistenceError, match="its state was not durable within 30 s"):
            await log_of(cursor).roll(cursor)
        assert asyncio.get_running_loop().time() - begun == pytest.approx(WRITE_TIMEOUT_S)
        assert not log_of(cursor).writing
        stage.bookie.release()
        cursor._dirty = True
        await cursor.flush()
        await asyncio.sleep(1)
        assert len(await cursor_ledgers(stage, ledger)) == 1
        assert (await reopened(stage)).is_acked(ledger_id, 3)

    virtual(main())


async def test_one_roll_or_change_of_the_record_at_a_time() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    async with log_of(cursor).locked():
        flushing = asyncio.ensure_future(cursor.flush())
        named = asyncio.ensure_future(cursor.set_properties({"a": "1"}))
        await turns(60)
        assert await cursor_ledgers(stage, ledger) == []
        assert (await recorded(stage)).properties == {}
    await asyncio.gather(flushing, named)
    record = await recorded(stage)
    assert (record.properties, record.ledger_id) == ({"a": "1"}, log_of(cursor).ledger_id)


async def test_a_switch_is_recorded_with_its_time_mark_and_what_it_retires() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    begun = stage.clock.time_ms
    assert (await recorded(stage)).ledger_id == NO_LEDGER
    stage.clock.advance(7)
    cursor.ack(ledger_id, 0)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    record = await recorded(stage)
    first = record.ledger_id
    assert (record.mark_delete, record.switched_ms, record.last_active_ms, record.created_ms) == (
        (ledger_id, 0),
        begun + 7,
        begun + 7,
        begun,
    )
    assert record.deleting == ()
    assert log_of(cursor).ledger_ids == [first]
    stage.clock.advance(5)
    stage.bookie.refuse = lambda one, _ids: one == first
    cursor.ack(ledger_id, 1)
    await cursor.flush()
    second = log_of(cursor).ledger_id
    assert second != first
    record = await recorded(stage)
    assert (record.mark_delete, record.switched_ms) == ((ledger_id, 1), begun + 12)
    assert record.deleting == (first,)
    await turns(60)
    assert await cursor_ledgers(stage, ledger) == [second]
    await cursor.set_properties({})
    assert (await recorded(stage)).deleting == ()


async def test_writes_that_are_answered_read_no_record() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    get, asked = stage.store.get, list[str]()

    async def noted(key: str) -> Record | None:
        asked.append(key)
        return await get(key)

    stage.store.get = noted  # type: ignore[method-assign]
    await cursor.set_properties({"a": "1"})
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await ledger.set_properties({"a": "1"})
    await ledger.delete_cursor("sub")
    assert not [key for key in asked if key.startswith("/managed-ledgers")]


async def test_a_mark_alone_is_closed_into_the_record() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.ack_cumulative((ledger_id, 4))
    stage.clock.advance(3)
    await cursor.close()
    record = await recorded(stage)
    assert (record.mark_delete, record.ledger_id) == ((ledger_id, 4), NO_LEDGER)
    assert record.last_active_ms == stage.clock.time_ms
    assert await cursor_ledgers(stage, ledger) == []
    with pytest.raises(CursorClosed):
        await cursor.flush()
    assert (await reopened(stage)).mark_delete == (ledger_id, 4)


def test_a_ledger_that_cannot_be_deleted_is_tried_so_often_and_left_to_the_next() -> None:
    async def main() -> None:
        stage = Stage()
        factory, ledger, cursor, ledger_id = await start(stage)
        cursor.ack(ledger_id, 3)
        await cursor.flush()
        first, tried = log_of(cursor).ledger_id, 0
        delete = stage.bookie.delete_ledger

        async def refuses(gone: int) -> None:
            nonlocal tried
            tried += gone == first
            raise BookieError("its disk fails")

        stage.bookie.delete_ledger = refuses  # type: ignore[assignment,method-assign]
        stage.bookie.refuse = lambda one, _ids: one == first
        cursor.ack(ledger_id, 5)
        await cursor.flush()
        await asyncio.sleep(3600)
        assert tried == DELETE_ATTEMPTS_MAX
        assert log_of(cursor).record.deleting == (first,)
        await factory.close()
        stage.bookie.delete_ledger = delete  # type: ignore[method-assign]
        again = await stage.factory().open(NAME)
        await asyncio.sleep(10)
        assert (await recorded(stage)).deleting == ()
        assert first not in await stage.bookie.list_ledgers()
        assert again.cursors["sub"].is_acked(ledger_id, 5)
        assert ledger.state == "Closed"

    virtual(main())


async def test_a_doubt_that_another_owner_has_ended_fences_the_instance() -> None:
    _, store, _, ledger, cursor, _ = await opened(acked=False)
    store.lose(DELETION, lands=False)
    with pytest.raises(MetadataUnavailable):
        await ledger.delete_cursor("sub")
    assert ledger.cursor_in_doubt("sub")
    store.away = False
    stored = await store.get(cursor_key(NAME, "sub"))
    assert stored is not None
    await store.put(stored.key, stored.value)  # the next owner has it now
    with pytest.raises(ManagedLedgerFenced):
        await ledger.open_cursor("sub")
    assert ledger.fenced
    assert cursor.state == "Closed"


async def test_a_fenced_instance_only_ends() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    revision = await stage.store.revision()
    ledger.cursor_fenced(ManagedLedgerFenced("another owner"))
    await ledger.close()
    assert await stage.store.revision() == revision
    record = await stage.store.get(ledger_key(ledger_id))
    assert record is not None
    assert decode(record.key, record.value).state is LedgerState.OPEN


async def test_a_cursor_ledger_that_bookies_do_not_have_is_named() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    own = log_of(cursor).ledger_id
    await ledger.close()
    await ledger._context.ledgers.delete(own)
    again = await stage.factory().open(NAME)
    _, error = again.broken_cursors["sub"]
    assert isinstance(error, CursorCorrupt)
    said = f"cursor {cursor_key(NAME, 'sub')}: entry 0 of cursor ledger {own}: "
    assert str(error).startswith(said)
    with pytest.raises(CursorCorrupt):
        await again.open_cursor("sub")
    await publish(again, b"x")


async def test_a_cursor_that_was_lost_and_is_back_is_opened_at_the_next_attempt() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    await ledger.close()
    end = stage.bookie.read_entries

    async def fails(*_: object, **__: object) -> Sequence[object]:
        raise BookieError("away")

    stage.bookie.read_entries = fails  # type: ignore[assignment,method-assign]
    again = await stage.factory().open(NAME)
    assert set(again.broken_cursors) == {"sub"}
    assert again.cursors == {}
    with pytest.raises(CursorCorrupt, match="away"):
        await again.open_cursor("sub")
    stage.bookie.read_entries = end  # type: ignore[method-assign]
    back = await again.open_cursor("sub")
    assert back.is_acked(ledger_id, 3)
    assert again.broken_cursors == {}
    assert again.cursors["sub"] is back
    assert await again.open_cursor("sub") is back


def test_a_ledger_retired_during_the_deletion_of_another_stays_on_record() -> None:
    """Without the record, nothing would ever delete it."""

    async def main() -> None:
        stage = Stage()
        factory, _, cursor, ledger_id = await start(stage)
        delete = stage.bookie.delete_ledger
        deleting: dict[int, asyncio.Event] = {}

        async def held(gone: int) -> None:
            deleting[gone] = asyncio.Event()
            await deleting[gone].wait()
            await delete(gone)

        async def rolled(acked: int) -> int:
            """Writes an ack after a failure of the ledger, which it returns."""
            former = log_of(cursor).ledger_id
            stage.bookie.refuse = lambda one, _ids: one == former
            cursor.ack(ledger_id, acked)
            await cursor.flush()
            return former

        cursor.ack(ledger_id, 2)
        await cursor.flush()
        stage.bookie.delete_ledger = held  # type: ignore[assignment,method-assign]
        first, second = await rolled(4), await rolled(6)
        assert first in deleting
        assert set(log_of(cursor).record.deleting) == {first, second}
        deleting[first].set()
        await asyncio.sleep(0.1)
        assert log_of(cursor).record.deleting == (second,)
        await factory.abandon()
        stage.bookie.delete_ledger = delete  # type: ignore[method-assign]
        await stage.factory().open(NAME)
        await asyncio.sleep(10)
        assert (await recorded(stage)).deleting == ()
        assert not {first, second} & set(await stage.bookie.list_ledgers())

    virtual(main())
