"""What reaches the disk of a cursor, when, and what of it is there after a crash."""

import asyncio
from collections.abc import Callable

import looptime
import pytest
from tests.unit.ledger.stage import NAME, Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import cursor_ledgers, reopened, start

from magnetar.core.errors import Conflict, MagnetarError, NotFound
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.managed_ledger import cursor_log
from magnetar.managed_ledger.context import PERSIST_INTERVAL_S
from magnetar.managed_ledger.errors import CursorClosed
from magnetar.managed_ledger.settings import ManagedLedgerSettings


async def test_receipted_acks_survive_a_crash() -> None:
    stage = Stage()
    factory, _, cursor, ledger_id = await start(stage)
    for entry_id in (0, 1, 5, 6, 9):
        cursor.ack(ledger_id, entry_id)
    assert not cursor.ack_batch(ledger_id, 7, 0b0110, 4)
    await cursor.flush()
    cursor.ack(ledger_id, 12)
    await cursor.flush()
    cursor.ack(ledger_id, 2)  # never receipted
    await factory.abandon()
    cursor = await reopened(stage)
    assert cursor.mark_delete == (ledger_id, 1)
    assert cursor.individually_deleted() == (
        f"[({ledger_id}:4..{ledger_id}:6],({ledger_id}:8..{ledger_id}:9],"
        f"({ledger_id}:11..{ledger_id}:12]]"
    )
    assert cursor.remaining_batch(ledger_id, 7) == 0b0110
    assert cursor.backlog == 14
    assert cursor.read_position == (ledger_id, 2)


async def test_waiters_share_a_record() -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 0)
    await cursor.flush()
    assert cursor.log is not None
    before = cursor.log.last_entry
    order: list[int] = []
    done = asyncio.Event()

    def waiter(number: int) -> Callable[[MagnetarError | None], None]:
        def on_durable(error: MagnetarError | None) -> None:
            assert error is None
            order.append(number)
            if number == 9:
                done.set()

        return on_durable

    for number in range(5):
        cursor.ack(ledger_id, number + 1)
        cursor.when_durable(waiter(number))
    assert order == []
    await asyncio.sleep(0)  # one record is on its way now
    for number in range(5, 10):
        cursor.ack(ledger_id, number + 1)
        cursor.when_durable(waiter(number))
    await done.wait()
    assert order == list(range(10))
    assert cursor.log.last_entry == before + 2


async def test_an_earlier_write_does_not_answer_a_later_ack() -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 0)
    await cursor.flush()
    first: list[MagnetarError | None] = []
    second: list[MagnetarError | None] = []
    stage.bookie.hold = True
    cursor.ack(ledger_id, 1)
    cursor.when_durable(first.append)
    await turns()
    cursor.ack(ledger_id, 2)
    cursor.when_durable(second.append)
    await turns()
    assert (first, second) == ([], [])
    stage.bookie.release()
    stage.bookie.hold = True
    await turns()
    assert (first, second) == ([None], [])
    stage.bookie.release()
    assert second == [None]


@pytest.mark.parametrize("stored_before", [0, 1], ids=["first-ledger", "open-ledger"])
@pytest.mark.parametrize("awaited", [True, False])
async def test_a_receipt_for_an_ack_whose_write_is_under_way_waits_for_that_write(
    stored_before: int, awaited: bool
) -> None:
    """A client may repeat an ack and ask for its receipt while the first ack is being stored."""
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage)
    for entry_id in range(stored_before):
        cursor.ack(ledger_id, entry_id)
        await cursor.flush()
    stage.bookie.hold = True
    receipts: list[MagnetarError | None] = []
    cursor.ack(ledger_id, 5)
    if awaited:
        cursor.when_durable(receipts.append)
    else:
        cursor.persist()
    await turns()
    cursor.ack(ledger_id, 5)
    cursor.when_durable(receipts.append)
    await turns()
    assert receipts == []
    stage.bookie.release()
    await turns(20)
    assert receipts == [None] * (1 + awaited)


async def test_acks_during_the_creation_of_the_first_ledger_are_answered() -> None:
    stage = Stage()
    _, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 1)
    told: list[int] = []
    for number in range(4):
        cursor.when_durable(lambda _error, number=number: told.append(number))  # type: ignore[misc]
        await turns(1)
    await turns(20)
    assert told == [0, 1, 2, 3]


async def test_nothing_to_write_is_durable_already() -> None:
    stage = Stage()
    _, ledger, cursor, _ = await start(stage)
    await cursor.flush()
    assert await cursor_ledgers(stage, ledger) == []
    reader = ledger.new_non_durable_cursor("reader", Position(0, 0))
    reader.ack_cumulative(ledger.last_confirmed)
    await reader.flush()
    assert await cursor_ledgers(stage, ledger) == []


def test_acks_that_no_caller_waits_for_are_written_within_a_second() -> None:
    async def second_passes() -> int:
        stage = Stage()
        factory, _, cursor, ledger_id = await start(stage)
        cursor.ack(ledger_id, 0)
        cursor.ack(ledger_id, 4)
        await asyncio.sleep(PERSIST_INTERVAL_S + 0.01)
        await factory.abandon()
        return (await reopened(stage)).backlog

    # A loop whose sleeps take no time.
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        assert runner.run(second_passes()) == 18


async def test_closing_writes_the_rest_and_idle_state_fits_the_record() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 0)
    await factory.close()
    assert await cursor_ledgers(stage, ledger) == []
    with pytest.raises(CursorClosed):
        await cursor.flush()
    factory = stage.factory()
    cursor = (await factory.open(NAME)).cursors["sub"]
    assert cursor.mark_delete == (ledger_id, 0)
    cursor.ack(ledger_id, 7)
    await factory.close()
    assert (await reopened(stage)).is_acked(ledger_id, 7)


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_a_crash_at_any_step_of_a_roll_keeps_what_was_durable(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_log, "LEDGER_BYTES_MIN", 0)
    monkeypatch.setattr(cursor_log, "LEDGER_SNAPSHOTS_MAX", 0)
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    cursor.ack(ledger_id, 5)
    told: list[MagnetarError | None] = []
    cursor.when_durable(told.append)
    await turns(steps)
    receipted = told == [None]
    await factory.abandon()
    factory = stage.factory()
    ledger = await factory.open(NAME)
    cursor = ledger.cursors["sub"]
    assert cursor.is_acked(ledger_id, 3)
    assert cursor.is_acked(ledger_id, 5) or not receipted
    # Whatever the crash left behind is deleted.
    cursor.ack(ledger_id, 6)
    await cursor.flush()
    await turns(30)
    assert len(await cursor_ledgers(stage, ledger)) == 1


async def test_the_ledger_rolls_and_the_old_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_log, "LEDGER_BYTES_MIN", 500)
    monkeypatch.setattr(cursor_log, "LEDGER_SNAPSHOTS_MAX", 0)
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage, 300)
    seen = set()
    for entry_id in range(2, 300, 2):
        cursor.ack(ledger_id, entry_id)
        await cursor.flush()
        seen |= set(await cursor_ledgers(stage, ledger))
    await turns(20)
    assert len(seen) > 5
    assert len(await cursor_ledgers(stage, ledger)) == 1
    await factory.abandon()
    cursor = await reopened(stage)
    assert [e for e in range(300) if cursor.is_acked(ledger_id, e)] == list(range(2, 300, 2))


async def test_deltas_are_summed_up_in_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_log, "DELTAS_BYTES_MIN", 300)
    stage = Stage()
    factory, _, cursor, ledger_id = await start(stage, 100)
    for entry_id in range(2, 100, 2):
        cursor.ack(ledger_id, entry_id)
        if entry_id % 3 == 0:
            cursor.ack_batch(ledger_id, entry_id + 1, 0b01, 2)
        await cursor.flush()
    await factory.abandon()
    cursor = await reopened(stage)
    assert [e for e in range(100) if cursor.is_acked(ledger_id, e)] == list(range(2, 100, 2))
    assert sorted(cursor.batches) == [(ledger_id, e + 1) for e in range(6, 100, 6)]


async def test_a_seek_is_durable_and_undoes_acks() -> None:
    stage = Stage()
    factory, _, cursor, ledger_id = await start(stage)
    for entry_id in (0, 1, 2, 8):
        cursor.ack(ledger_id, entry_id)
    await cursor.flush()
    await cursor.reset(Position(ledger_id, 1))
    assert cursor.read_position == (ledger_id, 1)
    cursor.ack(ledger_id, 4)
    await cursor.flush()
    await factory.abandon()
    cursor = await reopened(stage)
    assert [e for e in range(20) if cursor.is_acked(ledger_id, e)] == [0, 4]
    await cursor.reset(Position(ledger_id, 99))
    assert (cursor.backlog, cursor.read_position) == (0, (ledger_id, 20))
    await cursor.reset(Position(-1, -1))
    assert (cursor.backlog, cursor.read_position) == (20, (ledger_id, 0))


async def test_acks_that_come_during_a_seek_count_from_there() -> None:
    stage = Stage()
    factory, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    stage.bookie.hold = True
    cursor.ack(ledger_id, 5)
    cursor.when_durable(lambda _error: None)
    await turns()
    seeking = asyncio.ensure_future(cursor.reset(Position(ledger_id, 0)))
    await turns()
    cursor.ack(ledger_id, 8)
    stage.bookie.release()
    await seeking
    await factory.abandon()
    cursor = await reopened(stage)
    assert [e for e in range(20) if cursor.is_acked(ledger_id, e)] == [8]


async def test_cursors_begin_at_the_given_position() -> None:
    stage = Stage()
    factory = stage.factory(ManagedLedgerSettings(rollover_entries_max=3, rollover_ms_min=0))
    ledger = await factory.open(NAME)
    places = [Position(*await publish(ledger, b"%d" % number)) for number in range(7)]
    begins = {EARLIEST: 7, LATEST: 0, places[3]: 4, places[6]: 1}
    for number, (initial, backlog) in enumerate(begins.items()):
        durable = await ledger.open_cursor(f"d{number}", initial=initial)
        assert durable.backlog == backlog
        if initial in places:
            assert durable.read_position == initial
            reader = ledger.new_non_durable_cursor(f"r{number}", initial)
            assert (reader.backlog, reader.read_position) == (backlog, initial)
    assert await ledger.open_cursor("d0", initial=LATEST) is ledger.cursors["d0"]
    with pytest.raises(Conflict):
        ledger.new_non_durable_cursor("d0", places[0])
    await factory.close()
    ledger = await stage.factory().open(NAME)
    assert [ledger.cursors[f"d{n}"].backlog for n in range(4)] == [7, 0, 4, 1]


async def test_a_cursor_does_not_look_older_than_its_last_use() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    await ledger.open_cursor("never used")
    created_ms = stage.clock.now_ms()
    stage.clock.advance(1000)
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    stage.clock.advance(1000)
    await factory.close()
    cursors = (await stage.factory().open(NAME)).cursors
    assert cursors["never used"].last_active_ms == created_ms
    # Uses since its ledger was made are not recorded: it may have been used until now.
    assert cursors["sub"].last_active_ms == stage.clock.now_ms() == created_ms + 2000


async def test_cursor_properties_and_deletion() -> None:
    stage = Stage()
    factory, ledger, cursor, ledger_id = await start(stage)
    await cursor.set_properties({"a": "1"})
    cursor.ack(ledger_id, 3)
    await cursor.flush()
    assert (await reopened(stage)).properties == {"a": "1"}
    factory = stage.factory()
    ledger = await factory.open(NAME)
    racing = await asyncio.gather(*(ledger.open_cursor("x/y z%") for _ in range(3)))
    assert len({id(cursor) for cursor in racing}) == 1
    await ledger.delete_cursor("sub")
    await turns(20)
    assert await cursor_ledgers(stage, ledger) == []
    with pytest.raises(NotFound):
        await ledger.delete_cursor("sub")
    assert list((await stage.factory().open(NAME)).cursors) == ["x/y z%"]
