"""A cursor that ends stops its writes, and one without changes writes nothing."""

import asyncio
from typing import Any

import pytest
from tests.support.held_store import HeldStore, puts
from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.stage import Stage, publish, turns
from tests.unit.managed_ledger.cursor_stage import cursor_ledgers, reopened, start

from magnetar.core.errors import MagnetarError
from magnetar.core.ids import EARLIEST
from magnetar.core.tasks import TaskSet
from magnetar.managed_ledger.context import PERSIST_INTERVAL_S, REMOVALS_AT_ONCE_MAX
from magnetar.managed_ledger.errors import CursorClosed
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.record import CURSORS_PREFIX, MANAGED_LEDGERS_PREFIX, NO_LEDGER

RECORD = puts(CURSORS_PREFIX)


async def test_a_cursor_that_is_abandoned_during_its_roll_does_not_switch_its_record() -> None:
    """The next owner may have read the record before the switch."""
    stage = Stage()
    stage.store = store = HeldStore()
    factory, _, cursor, ledger_id = await start(stage)
    cursor.ack(ledger_id, 3)
    announced = store.hold(RECORD)
    answers: list[MagnetarError | None] = []
    cursor.when_durable(answers.append)
    await announced.reached.wait()
    error = CursorClosed("abandoned")
    cursor.abandon(error)
    assert answers == [error]
    announced.go.set()
    await turns(50)
    assert cursor.log is not None
    assert cursor.log.record.ledger_id == NO_LEDGER
    await factory.abandon()
    assert not (await reopened(stage)).is_acked(ledger_id, 3)


async def test_a_write_of_an_unchanged_cursor_writes_nothing() -> None:
    stage = Stage()
    _, ledger, cursor, ledger_id = await start(stage)
    cursor.persist()
    await turns()
    assert await cursor_ledgers(stage, ledger) == []
    cursor.ack(ledger_id, 0)
    await cursor.flush()
    assert cursor.log is not None
    written = cursor.log.last_entry
    cursor.persist()
    await turns()
    assert cursor.log.last_entry == written
    cursor.ack(ledger_id, 1)
    await cursor.flush()
    assert cursor.log.last_entry == written + 1


@pytest.mark.parametrize("awaited", [True, False], ids=["with a receipt", "by the timer"])
def test_a_cursor_whose_process_stops_ends_with_the_reason(
    awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise try to make a ledger once a second for as long as the loop runs."""

    async def main() -> tuple[str, list[MagnetarError | None], int]:
        stage = Stage()
        factory, _, cursor, ledger_id = await start(stage)
        context = factory._context
        await context.tasks.stop()
        starts, start_task = [0], TaskSet.start

        def counted(tasks: TaskSet, *args: Any) -> object:
            starts[0] += tasks is context.tasks
            return start_task(tasks, *args)

        monkeypatch.setattr(TaskSet, "start", counted)
        cursor.ack(ledger_id, 3)
        answers: list[MagnetarError | None] = []
        if awaited:
            cursor.when_durable(answers.append)
        await asyncio.sleep(10 * PERSIST_INTERVAL_S)
        cursor.ack(ledger_id, 5)
        cursor.when_durable(answers.append)
        await asyncio.sleep(10 * PERSIST_INTERVAL_S)
        return cursor.state, answers, starts[0]

    state, answers, starts = virtual(main())
    assert (state, starts) == ("Closed", 1)
    assert [str(answer) for answer in answers] == [
        "cursor sub: the broker is stopping" for _ in range(1 + awaited)
    ]


async def test_so_many_logs_at_once_remove_ledgers_from_their_records() -> None:
    """One change of retention may make all logs of a broker trim at once."""
    stage = Stage()
    stage.store = store = HeldStore()
    factory = stage.factory()
    logs: list[ManagedLedger] = []
    for number in range(REMOVALS_AT_ONCE_MAX + 3):
        log = await factory.open(f"public/default/persistent/t{number}")
        await publish(log, b"x")
        await log.roll_over()
        logs.append(log)
    held = [store.hold(puts(MANAGED_LEDGERS_PREFIX)) for _ in logs]
    for log in logs:
        log.set_retention(0, 0)
    await turns(50)
    assert sum(each.reached.is_set() for each in held) == REMOVALS_AT_ONCE_MAX
    for number, each in enumerate(held, REMOVALS_AT_ONCE_MAX):
        each.go.set()
        await turns(50)
        reached = sum(each.reached.is_set() for each in held)
        assert reached == min(number + 1, len(held))
    await turns(50)
    assert [log.entries_total for log in logs] == [0] * len(logs)
    assert all(log.first_position > EARLIEST for log in logs)
    await factory.close()
