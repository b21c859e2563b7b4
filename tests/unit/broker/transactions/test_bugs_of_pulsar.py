"""Known bugs of Pulsar's coordinators: each test has the number of its thread, apache/pulsar#N."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.broker.transactions.stage import TOPIC, Connection, Stage, turns

from magnetar.broker.transactions import writer
from magnetar.broker.transactions.coordinator import Coordinator, Limits
from magnetar.core.errors import (
    InvalidTxnStatus,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.transactions.model import Outcome, SubscriptionInTxn, TxnId, TxnState

ACKED = SubscriptionInTxn(TOPIC, "s")
NOT_FOUND = TransactionNotFound
INVALID = InvalidTxnStatus


@pytest.mark.parametrize("writes", range(1, 4))
@pytest.mark.parametrize("outcome", list(Outcome))
async def test_20150_a_restart_after_any_write_does_not_reopen_a_transaction(
    monkeypatch: pytest.MonkeyPatch, writes: int, outcome: Outcome
) -> None:
    monkeypatch.setattr(writer, "IDLE_DELAY_S", 0.0)
    stage = Stage()
    coordinator = await stage.load()
    txn = await coordinator.begin(None, 60_000)
    await coordinator.add(txn.least, stage.caller(), topics=[TOPIC])
    stage.store.holding = True
    task = asyncio.create_task(coordinator.end(txn.least, stage.caller(), outcome))
    landed = 0
    seen: list[TxnState] = []
    while not task.done() and landed < writes:
        await turns(10)
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


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_20150_a_restart_between_each_pair_of_writes_keeps_the_outcome(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    """apache/pulsar#20150: every coordinator dies after its first write, whose answer is lost."""
    monkeypatch.setattr(writer, "IDLE_DELAY_S", 0.0)
    stage = Stage()
    stage.store.holding = True
    states: list[TxnState] = []
    lives = 0

    async def one_write(coordinator: Coordinator) -> bool:
        """Lets one write reach the store, and kills the coordinator; False if there was none."""
        nonlocal lives
        for _ in range(20):
            if stage.store.held:
                break
            await turns(10)
        wrote = bool(stage.store.held)
        if wrote:
            await stage.store.held.pop(0).lands_unanswered()
        await coordinator.close()
        stage.store.held.clear()
        lives += 1
        if (record := await stage.stored(txn)) is not None:
            states.append(record.state)
        return wrote

    async def asked(request: Callable[[Coordinator], Awaitable[object]]) -> None:
        coordinator = await stage.load(str(lives))
        task = asyncio.ensure_future(request(coordinator))
        assert await one_write(coordinator)
        with pytest.raises(TransactionCoordinatorNotFound):
            await task

    txn = TxnId(0, 0)
    await asked(lambda at: at.begin(None, 60_000))
    for _ in range(2):  # each is repeated after its answer was lost
        await asked(lambda at: at.add(txn.least, stage.caller(), topics=[TOPIC]))
        await asked(lambda at: at.add(txn.least, stage.caller(), subscriptions=[ACKED]))
    await asked(lambda at: at.end(txn.least, stage.caller(), outcome))
    while await one_write(await stage.load(str(lives))):
        assert lives < 20
    ended = TxnState.COMMITTED if outcome is Outcome.COMMIT else TxnState.ABORTED
    assert states[:5] == [TxnState.OPEN] * 5
    assert states[-1] is ended
    assert {state.outcome for state in states[5:]} == {outcome}
    ends = [state.ended for state in states]
    assert ends == sorted(ends)
    told = stage.participants.told
    assert {name for name, _, _ in told} == {TOPIC, f"{TOPIC} s"}
    assert {(of, how) for _, of, how in told} == {(txn, outcome)}


@pytest.mark.parametrize(
    ("state", "outcome", "elsewhere", "answers"),
    [
        # The state; the END_TXN that comes late; whether on another connection than the first;
        # the answers to END_TXN and to ADD_PARTITION_TO_TXN.
        (TxnState.COMMITTING, Outcome.COMMIT, True, (None, INVALID)),
        (TxnState.COMMITTING, Outcome.COMMIT, False, (None, INVALID)),
        (TxnState.COMMITTING, Outcome.ABORT, True, (INVALID, INVALID)),
        (TxnState.ABORTING, Outcome.ABORT, True, (None, INVALID)),
        (TxnState.ABORTING, Outcome.COMMIT, True, (INVALID, INVALID)),
        (TxnState.COMMITTED, Outcome.COMMIT, True, (None, NOT_FOUND)),
        (TxnState.COMMITTED, Outcome.COMMIT, False, (NOT_FOUND, NOT_FOUND)),
        (TxnState.COMMITTED, Outcome.ABORT, True, (INVALID, NOT_FOUND)),
        (TxnState.ABORTED, Outcome.ABORT, True, (None, NOT_FOUND)),
        (TxnState.ABORTED, Outcome.ABORT, False, (NOT_FOUND, NOT_FOUND)),
        (TxnState.ABORTED, Outcome.COMMIT, True, (INVALID, NOT_FOUND)),
        (None, Outcome.COMMIT, True, (NOT_FOUND, NOT_FOUND)),
        (None, Outcome.ABORT, True, (NOT_FOUND, NOT_FOUND)),
    ],
)
async def test_a_late_end_changes_no_outcome_and_hits_no_other_transaction(
    state: TxnState | None,
    outcome: Outcome,
    elsewhere: bool,
    answers: tuple[type[Exception] | None, type[Exception] | None],
) -> None:
    """Kafka's KIP-890: a late END_TXN ended the producer's next transaction."""
    stage = Stage(Limits(retention_ms=60_000))
    coordinator = await stage.load()
    txn = await coordinator.begin(None, 60_000)
    await coordinator.add(txn.least, stage.caller(), topics=[TOPIC])
    stage.participants.holding = state in (TxnState.COMMITTING, TxnState.ABORTING)
    first = state.outcome if state is not None else outcome
    assert first is not None
    ending = asyncio.create_task(coordinator.end(txn.least, stage.caller(), first))
    await turns()
    following = await coordinator.begin(None, 60_000)
    if state is None:
        stage.set_clock.ms += 60_001
        coordinator.tick()
    caller = stage.caller(connection=Connection() if elsewhere else None)
    late = [
        asyncio.create_task(coordinator.end(txn.least, caller, outcome)),
        asyncio.create_task(coordinator.add(txn.least, caller, topics=["late"])),
    ]
    await turns()
    stage.participants.holding = False
    for held in stage.participants.held:
        held.set_result(None)
    await ending
    found = await asyncio.gather(*late, return_exceptions=True)
    assert tuple(None if error is None else type(error) for error in found) == answers
    assert {how for _, of, how in stage.participants.told if of == txn} == {first}
    assert not [of for _, of, _ in stage.participants.told if of == following]
    if state is not None:
        assert coordinator.active[following].state is TxnState.OPEN
    await coordinator.close()


@pytest.mark.parametrize("leap_ms", [-31_536_000_000, 31_536_000_000])
async def test_a_leap_of_the_clock_neither_shortens_nor_lengthens_a_timeout(leap_ms: int) -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await coordinator.begin(None, 60_000)
    await coordinator.add(txn.least, stage.caller(), topics=[TOPIC])
    for elapsed_ms in (30_000, 29_999):
        stage.set_clock.leap_ms = leap_ms - stage.set_clock.leap_ms
        stage.set_clock.ms += elapsed_ms
        coordinator.tick()
        await turns()
        assert coordinator.active[txn].state is TxnState.OPEN
    stage.set_clock.ms += 1
    coordinator.tick()
    coordinator.tick()
    await turns()
    assert stage.participants.told == [(TOPIC, txn, Outcome.ABORT)]
    assert coordinator.counts.timed_out == 1
    await coordinator.close()


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
