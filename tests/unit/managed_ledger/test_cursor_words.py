"""What a cursor says of itself, where it reads, and when its use is put on record."""

import asyncio

import pytest
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import cursor_ledgers, start

from magnetar.bookie.api import LedgerFenced
from magnetar.core.errors import Conflict, MagnetarError, NotFound, PersistenceError
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed_ledger.cache import ENTRY_OVERHEAD_BYTES
from magnetar.managed_ledger.cursor import FLUSH_TIMEOUT_S, RANGES_SHOWN_MAX, mark_delete_before
from magnetar.managed_ledger.cursor_log import SMALL_BATCHES_MAX
from magnetar.managed_ledger.errors import CursorClosed, ManagedLedgerFenced
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.stats import CursorStats, LedgerStats, iso_time, managed_ledger_stats


async def test_a_cursors_state_is_shown_as_pulsar_does() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    other = ledger.new_non_durable_cursor("reader", EARLIEST)
    assert (cursor.state, other.state) == ("NoLedger", "NoLedger")
    assert (cursor.durable, other.durable) == (True, False)
    cursor.ack(ledger_id, 3)
    assert cursor.state == "NoLedger"
    await cursor.flush()
    assert cursor.state == "Open"
    await cursor.close()
    ledger.forget_cursor(other)
    assert (cursor.state, other.state) == ("Closed", "Closed")
    _, ledger, cursor, ledger_id = await start(Stage())
    cursor.abandon(ManagedLedgerFenced("another owner"))
    assert cursor.state == "Fenced"
    _, ledger, cursor, ledger_id = await start(Stage())
    cursor.abandon(LedgerFenced("another owner"))
    assert cursor.state == "Fenced"


async def test_a_cursor_without_a_log_is_durable_at_once_and_keeps_properties() -> None:
    stage = Stage()
    _, ledger, _, ledger_id = await start(stage)
    reader = ledger.new_non_durable_cursor("reader", Position(ledger_id, 5))
    assert (reader.mark_delete, reader.read_position) == ((ledger_id, 4), (ledger_id, 5))
    reader.ack(ledger_id, 7)
    await reader.flush()
    await reader.set_properties({"a": "1"})
    assert reader.properties == {"a": "1"}
    await reader.record_use(0)
    await reader.reset(Position(ledger_id, 2))
    assert (reader.mark_delete, reader.read_position) == ((ledger_id, 1), (ledger_id, 2))
    await reader.close()
    assert await cursor_ledgers(stage, ledger) == []
    with pytest.raises(CursorClosed):
        await reader.set_properties({})


async def test_a_cursor_has_one_name_and_one_kind() -> None:
    _, ledger, cursor, _ = await start(Stage())
    assert await ledger.open_cursor("sub", initial=LATEST) is cursor
    with pytest.raises(Conflict, match="durable cursor"):
        ledger.new_non_durable_cursor("sub", EARLIEST)
    reader = ledger.new_non_durable_cursor("reader", EARLIEST)
    with pytest.raises(Conflict, match="non-durable cursor"):
        await ledger.open_cursor("reader")
    with pytest.raises(NotFound, match="no cursor nobody"):
        await ledger.delete_cursor("nobody")
    assert set(ledger.cursors) == {"sub", "reader"}
    await ledger.delete_cursor("reader")
    assert set(ledger.cursors) == {"sub"}
    ledger.forget_cursor(reader)
    second = ledger.new_non_durable_cursor("reader", EARLIEST)
    ledger.forget_cursor(reader)  # of the same name, but another one
    assert ledger.cursors["reader"] is second


async def test_entries_are_cached_while_there_is_a_cursor() -> None:
    stage = Stage()
    _, ledger, _, ledger_id = await start(stage)
    assert ledger.read_cached(Position(ledger_id, 0), 99, 1 << 20) is not None
    await ledger.delete_cursor("sub")
    _, first = await publish(ledger, b"unread")
    assert ledger.read_cached(Position(ledger_id, first), 1, 99) is None
    reader = ledger.new_non_durable_cursor("reader", LATEST)
    _, first = await publish(ledger, b"read")
    assert ledger.read_cached(Position(ledger_id, first), 1, 99) is not None
    ledger.forget_cursor(reader)
    _, first = await publish(ledger, b"unread")
    assert ledger.read_cached(Position(ledger_id, first), 1, 99) is None


async def test_what_is_cached_is_read_by_count_and_by_bytes() -> None:
    stage = Stage()
    _, ledger, _, first = await start(stage, entries=1)
    await ledger.roll_over()
    second, _ = await publish(ledger, *[b"x" * 10] * 5)
    for start_at in (Position(second, 0), Position(first, 1)):  # the end of one is the next's head
        for count, size, expected in ((2, 99, 2), (9, 30, 3), (9, 29, 2), (9, 1, 1), (9, 99, 5)):
            found = ledger.read_cached(start_at, count, size)
            assert found is not None
            assert [one.position for one in found] == [(second, n) for n in range(expected)]
            assert await ledger.read(start_at, count, size) == found


async def test_a_run_that_has_a_gap_begins_again_and_the_old_one_takes_no_memory() -> None:
    stage = Stage()
    factory, ledger, _, _ = await start(stage)
    await ledger.delete_cursor("sub")
    await publish(ledger, b"not cached")
    ledger.new_non_durable_cursor("reader", LATEST)
    ledger_id, first = await publish(ledger, b"cached")
    assert factory.cache.size_bytes == len(b"cached") + ENTRY_OVERHEAD_BYTES
    assert ledger.read_cached(Position(ledger_id, first - 1), 9, 99) is None
    assert ledger.read_cached(Position(ledger_id, 0), 9, 99) is None


def test_a_cursor_that_resumes_writes_what_it_has_to_by_itself() -> None:
    async def main() -> None:
        stage = Stage()
        _, _, cursor, ledger_id = await start(stage)
        cursor.ack(ledger_id, 3)
        await cursor.flush()
        error, another = CursorClosed("to be deleted"), CursorClosed("another end")
        cursor.abandon(error)
        cursor.ack(ledger_id, 5)
        await asyncio.sleep(10)
        cursor.resume(another)  # not what it ended with
        assert cursor.state == "Closed"
        cursor.resume(error)
        assert cursor.state == "Open"
        await asyncio.sleep(2)
        assert (await stage.factory().open(NAME)).cursors["sub"].is_acked(ledger_id, 5)

    virtual(main())


async def test_the_last_slow_cursors_deletion_frees_what_it_held() -> None:
    stage = Stage()
    _, ledger, cursor, _ = await start(stage)
    ledger.set_retention(0, 0)
    await ledger.roll_over()
    await publish(ledger, b"next")
    await turns(30)
    assert len(ledger.ledgers) == 2
    await ledger.delete_cursor("sub")
    await turns(60)
    assert len(ledger.ledgers) == 1
    assert len(await stage.bookie.list_ledgers()) == 1
    assert cursor.state == "Closed"


@pytest.mark.parametrize(
    ("position", "before_kept", "mark"),
    [
        (EARLIEST, False, (3, -1)),
        (EARLIEST, True, EARLIEST),
        (Position(1, 5), False, (3, -1)),
        (Position(1, 5), True, (1, 4)),
        (Position(1, 0), True, (1, -1)),
        (Position(3, -1), False, (3, -1)),
        (Position(3, -1), True, (3, -2)),
        (Position(3, 0), False, (3, -1)),
        (Position(3, 0), True, (3, -1)),
        (Position(3, 1), False, (3, 0)),
        (Position(5, 0), False, (3, 2)),
        (Position(5, 1), True, (5, 0)),
        (Position(5, 2), False, (5, 1)),
        (Position(9, 0), False, (5, 1)),
        (LATEST, False, (5, 1)),
    ],
)
def test_a_cursors_mark_is_right_before_what_it_reads_first(
    position: Position, before_kept: bool, mark: Position
) -> None:
    index = LedgerIndex()
    for ledger_id, entries in ((3, 3), (5, 2)):
        index.add(LedgerInfo(ledger_id, 1, entries=entries, closed_ms=1))
    assert mark_delete_before(index, position, before_kept=before_kept) == mark


async def test_reading_continues_behind_what_was_acked() -> None:
    _, _, cursor, ledger_id = await start(Stage())
    await cursor.reset(Position(ledger_id, 0))
    assert cursor.read_position == (ledger_id, 0)
    cursor.ack_cumulative((ledger_id, 4))
    assert cursor.read_position == (ledger_id, 5)
    cursor.read_position = Position(ledger_id, 12)
    cursor.ack_cumulative((ledger_id, 8))
    assert cursor.read_position == (ledger_id, 12)
    assert cursor.entries_since_first_unacked == 3
    cursor.ack_cumulative((ledger_id, 12))
    assert cursor.read_position == (ledger_id, 13)
    assert cursor.entries_since_first_unacked == 0
    await cursor.reset(Position(ledger_id, 10))
    assert cursor.read_position == (ledger_id, 10)
    cursor.read_position = Position(ledger_id, 5)
    assert cursor.entries_since_first_unacked == 0


async def test_acked_ranges_are_shown_in_pulsars_form_and_not_too_many() -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage, entries=2 * RANGES_SHOWN_MAX + 10)
    assert cursor.individually_deleted() == "[]"
    for entry_id in (1, 2, 4):
        cursor.ack(ledger_id, entry_id)
    assert cursor.individually_deleted() == (
        f"[({ledger_id}:0..{ledger_id}:2],({ledger_id}:3..{ledger_id}:4]]"
    )
    for entry_id in range(6, 2 * RANGES_SHOWN_MAX + 10, 2):
        cursor.ack(ledger_id, entry_id)
    assert cursor.ranges_count == RANGES_SHOWN_MAX + 4
    assert cursor.individually_deleted().count("..") == RANGES_SHOWN_MAX


async def test_a_cursors_use_is_recorded_where_the_record_is_older_by_so_much() -> None:
    stage = Stage()
    _, _, cursor, _ = await start(stage)
    assert cursor.log is not None
    created = cursor.last_active_ms
    revision = cursor.log.revision
    cursor.last_active_ms = created + 99
    await cursor.record_use(100)
    assert (cursor.log.record.last_active_ms, cursor.log.revision) == (created, revision)
    cursor.last_active_ms = created + 100
    await cursor.record_use(100)
    assert cursor.log.record.last_active_ms == created + 100
    assert cursor.log.revision > revision
    reopened = (await stage.factory().open(NAME)).cursors["sub"]
    assert reopened.last_active_ms == created + 100
    await cursor.close()
    cursor.last_active_ms += 1000
    await cursor.record_use(100)  # closed: nothing is written


def test_acks_that_cannot_be_written_fail_after_the_named_time() -> None:
    async def main() -> None:
        stage = Stage()
        _, _, cursor, ledger_id = await start(stage)
        cursor.ack(ledger_id, 3)
        await cursor.flush()
        stage.bookie.hold = True
        cursor.ack(ledger_id, 5)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(PersistenceError, match="not durable within 30 s"):
            await cursor.flush()
        assert asyncio.get_running_loop().time() - begun == pytest.approx(FLUSH_TIMEOUT_S)

    virtual(main())


@pytest.mark.parametrize("count", [SMALL_BATCHES_MAX, SMALL_BATCHES_MAX + 1])
async def test_few_batch_remains_are_written_whole_and_many_as_what_changed(count: int) -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage, entries=2 * SMALL_BATCHES_MAX)
    for entry_id in range(1, count + 1):
        cursor.ack_batch(ledger_id, entry_id, 0b01, 2)
    await cursor.flush()
    assert cursor.log is not None
    base = cursor.log._base
    cursor.ack_batch(ledger_id, count, 0b01, 2)
    cursor.ack(ledger_id, 0)
    await cursor.flush()
    assert (cursor.log._base == base) is (count > SMALL_BATCHES_MAX)
    again = (await stage.factory().open(NAME)).cursors["sub"]
    assert (again.mark_delete, again.batches) == (cursor.mark_delete, cursor.batches)
    assert ledger.cursors["sub"] is cursor


async def test_waiters_of_a_cursor_that_ends_hear_why_once() -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    stage.bookie.hold = True
    heard: list[MagnetarError | None] = []
    cursor.ack(ledger_id, 5)
    cursor.when_durable(heard.append)
    await turns()
    cursor.ack(ledger_id, 7)
    cursor.when_durable(heard.append)
    assert heard == []
    error = CursorClosed("ended")
    cursor.abandon(error)
    assert heard == [error, error]
    stage.bookie.release()
    await turns()
    assert heard == [error, error]
    cursor.when_durable(heard.append)
    assert len(heard) == 2  # never at once
    await turns()
    assert heard == [error] * 3


async def test_stats_of_a_log_without_a_ledger_have_the_time_of_its_creation() -> None:
    stage = Stage()
    ledger = await stage.factory().open(NAME)
    created = iso_time(stage.clock.time_ms)
    stage.clock.advance(1_000)
    stats = managed_ledger_stats(ledger)
    assert stats.last_ledger_created_timestamp == created
    assert (stats.ledgers, stats.current_ledger_entries, stats.current_ledger_size) == ([], 0, 0)
    assert (stats.state, stats.last_confirmed_entry) == ("ClosedLedger", "-1:-1")


async def test_stats_say_what_there_is() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage, entries=6)
    reader = ledger.new_non_durable_cursor("reader", LATEST)
    cursor.ack(ledger_id, 0)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    cursor.read_position = Position(ledger_id, 5)
    cursor.pending_read_ops = 1
    assert cursor.log is not None
    now = iso_time(stage.clock.time_ms)
    stats = managed_ledger_stats(ledger)
    assert stats.cursors["sub"] == CursorStats(
        mark_delete_position=f"{ledger_id}:0",
        read_position=f"{ledger_id}:5",
        waiting_read_op=False,
        pending_read_ops=1,
        messages_consumed_counter=2,
        cursor_ledger=cursor.log.ledger_id,
        cursor_ledger_last_entry=0,
        individually_deleted_messages=f"[({ledger_id}:2..{ledger_id}:3]]",
        last_ledger_switch_timestamp=now,
        state="Open",
        active=False,
        number_of_entries_since_first_not_acked_message=4,
        total_non_contiguous_deleted_messages_range=1,
    )
    shown = stats.cursors["reader"]
    assert (shown.cursor_ledger, shown.cursor_ledger_last_entry) == (-1, -1)
    assert (shown.waiting_read_op, shown.active, shown.messages_consumed_counter) == (True, True, 6)
    assert shown.last_ledger_switch_timestamp == now
    assert reader.backlog == 0
    assert (stats.waiting_cursors_count, stats.pending_add_entries_count) == (1, 0)
    assert (stats.entries_added_counter, stats.number_of_entries, stats.total_size) == (6, 6, 6)
    assert (stats.current_ledger_entries, stats.current_ledger_size) == (6, 6)
    assert stats.last_confirmed_entry == f"{ledger_id}:5"
    assert stats.ledgers == [LedgerStats(ledger_id, 6, 6)]
    stage.clock.advance(1500)
    await ledger.roll_over()
    closed = managed_ledger_stats(ledger)
    assert (closed.current_ledger_entries, closed.current_ledger_size) == (0, 0)
    assert closed.last_ledger_created_timestamp == now
    assert iso_time(1_700_000_000_123) == "2023-11-14T22:13:20.123+00:00"
    again = managed_ledger_stats(await stage.factory().open(NAME))
    assert (again.entries_added_counter, again.number_of_entries) == (0, 6)
