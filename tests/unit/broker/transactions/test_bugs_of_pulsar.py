"""Known bugs of Pulsar's coordinators, each by its number."""

import asyncio

import pytest
from tests.unit.broker.transactions.stage import TOPIC, Connection, Stage, turns

from magnetar.broker.transactions.coordinator import Limits
from magnetar.core.errors import (
    InvalidTxnStatus,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.transactions.model import Outcome, TxnState


@pytest.mark.parametrize("writes", range(1, 8))
@pytest.mark.parametrize("outcome", list(Outcome))
async def test_20150_a_restart_after_any_write_does_not_reopen_a_transaction(
    writes: int, outcome: Outcome
) -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await coordinator.begin(None, 60_000)
    await coordinator.add(txn.least, stage.caller(), topics=[TOPIC])
    stage.store.holding = True
    task = asyncio.create_task(coordinator.end(txn.least, stage.caller(), outcome))
    landed = 0
    seen: list[TxnState] = []
    while not task.done() and landed < writes:
        await turns()
        while stage.store.held and landed < writes:
            await stage.store.held.pop(0).lands_unanswered()
            landed += 1
            record = await stage.stored(txn)
            if record is not None:
                seen.append(record.state)
    stage.store.holding = False
    task.cancel()
    await coordinator.close()
    for _ in range(3):
        coordinator = await stage.load()
        await turns(200)
        record = await stage.stored(txn)
        assert record is not None
        seen.append(record.state)
        await coordinator.close()
    decided = [state for state in seen if state.outcome is not None]
    assert all(state.outcome is outcome for state in decided)
    first = next(i for i, state in enumerate(seen) if state.outcome is not None)
    assert all(state.outcome is outcome for state in seen[first:])


async def test_19629_a_commit_whose_answers_are_all_lost_succeeds_on_each_new_connection() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await coordinator.begin(None, 60_000)
    for _ in range(5):
        caller = stage.caller(connection=Connection())
        await coordinator.end(txn.least, caller, Outcome.COMMIT)
        with pytest.raises(TransactionNotFound):
            await coordinator.end(txn.least, caller, Outcome.COMMIT)
        await coordinator.close()
        coordinator = await stage.load()
    with pytest.raises(InvalidTxnStatus):
        await coordinator.end(txn.least, stage.caller(connection=Connection()), Outcome.ABORT)
    await coordinator.close()


async def test_15133_too_many_open_transactions_get_an_answer() -> None:
    stage = Stage(Limits(open_max=2))
    coordinator = await stage.load()
    open_ones = [await coordinator.begin(None, 60_000) for _ in range(2)]
    with pytest.raises(TransactionCoordinatorNotFound, match="maxActiveTransactionsPerCoordinator"):
        await coordinator.begin(None, 60_000)
    await coordinator.end(open_ones[0].least, stage.caller(), Outcome.ABORT)
    assert await coordinator.begin(None, 60_000) > open_ones[1]
    await coordinator.close()
