"""Joint commits: one durable record decides several transactions of a coordinator."""

import asyncio

import pytest
from tests.unit.broker.transactions.stage import OTHER, TOPIC, Connection, Stage, turns
from tests.unit.broker.transactions.test_coordinator import quickly, with_topic

from magnetar.broker.transactions import transitions
from magnetar.broker.transactions.coordinator import Coordinator
from magnetar.core.errors import (
    InvalidTxnStatus,
    NotAllowed,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.transactions.model import Outcome, TxnId, TxnState

TIMEOUT_MS = 60_000

__all__ = ["quickly"]


async def three(stage: Stage, coordinator: Coordinator) -> tuple[TxnId, TxnId, TxnId]:
    """A leading transaction without participants, and two with a topic."""
    first, second = [await with_topic(stage, coordinator) for _ in range(2)]
    return await coordinator.begin(None, TIMEOUT_MS), first, second


async def test_all_are_committed_and_the_leading_one_last() -> None:
    stage = Stage()
    coordinator = await stage.load()
    lead, first, second = await three(stage, coordinator)
    await coordinator.add(lead.least, stage.caller(), [OTHER])
    joined = (first.least, second.least)
    await coordinator.end(lead.least, stage.caller(), Outcome.COMMIT, joined)
    assert stage.participants.told == [
        (TOPIC, first, Outcome.COMMIT),
        (TOPIC, second, Outcome.COMMIT),
        (OTHER, lead, Outcome.COMMIT),
    ]
    again = stage.caller(connection=Connection())
    await coordinator.end(lead.least, again, Outcome.COMMIT, joined)
    assert coordinator.active_count == 0
    await coordinator.close()


async def test_nobody_hears_of_it_before_the_list_is_durable_and_nothing_else_ends_them() -> None:
    stage = Stage()
    coordinator = await stage.load()
    lead, first, second = await three(stage, coordinator)
    stage.store.holding = True
    ending = asyncio.ensure_future(
        coordinator.end(lead.least, stage.caller(), Outcome.COMMIT, (first.least, second.least))
    )
    await turns()
    aborts = [
        asyncio.ensure_future(
            coordinator.end(txn.least, stage.caller(connection=Connection()), Outcome.ABORT)
        )
        for txn in (first, second)
    ]
    stage.set_clock.ms += 2 * TIMEOUT_MS
    coordinator.tick()
    await turns()
    assert not stage.participants.told
    assert not any(abort.done() for abort in aborts)
    record = await stage.stored(first)
    assert record is not None
    assert record.state is TxnState.OPEN
    stage.store.holding = False
    await stage.store.held[0].lands()
    await ending
    for abort in aborts:
        with pytest.raises(InvalidTxnStatus):
            await abort
    assert {outcome for _, _, outcome in stage.participants.told} == {Outcome.COMMIT}
    await coordinator.close()


async def test_a_new_owner_commits_those_of_a_list_though_their_deadline_has_passed() -> None:
    stage = Stage()
    former = await stage.load("a")
    lead, first, second = await three(stage, former)
    stage.participants.holding = True
    ending = asyncio.ensure_future(
        former.end(lead.least, stage.caller(), Outcome.COMMIT, (first.least, second.least))
    )
    stage.store.holding = True
    await turns()
    await stage.store.held.pop(0).lands()  # the list only, not the records of the others
    await former.close()
    with pytest.raises(TransactionCoordinatorNotFound):
        await ending
    stage.store.holding = stage.participants.holding = False
    stage.set_clock.ms += 2 * TIMEOUT_MS
    successor = await stage.load("b")
    successor.tick()
    with pytest.raises(InvalidTxnStatus):
        await successor.end(second.least, stage.caller(), Outcome.ABORT)
    await successor.end(lead.least, stage.caller(), Outcome.COMMIT, (first.least, second.least))
    assert sorted(stage.participants.told) == [
        (TOPIC, first, Outcome.COMMIT),
        (TOPIC, second, Outcome.COMMIT),
    ]
    await successor.close()


@pytest.mark.parametrize("closed", [False, True])
async def test_those_that_wait_for_a_joint_commit_are_answered_if_it_is_not_written(
    closed: bool,
) -> None:
    stage = Stage()
    coordinator = await stage.load()
    lead, first, second = await three(stage, coordinator)
    stage.store.holding = True
    waiting = [
        asyncio.ensure_future(
            coordinator.end(lead.least, stage.caller(), Outcome.COMMIT, (first.least, second.least))
        )
    ]
    await turns()
    for txn in (first, second):
        other = stage.caller(connection=Connection())
        waiting.append(asyncio.ensure_future(coordinator.end(txn.least, other, Outcome.COMMIT)))
    await turns()
    stage.store.holding = False
    if closed:
        await coordinator.close()
    else:
        successor = await stage.load("b")
        await stage.store.held[0].lands()
        await successor.close()
    for ending in waiting:
        with pytest.raises(TransactionCoordinatorNotFound):
            await ending
    await coordinator.close()


async def test_one_that_is_not_open_refuses_the_whole() -> None:
    stage = Stage()
    coordinator = await stage.load()
    lead, first, second = await three(stage, coordinator)
    joined = (first.least, second.least)
    stage.participants.holding = True
    abort = asyncio.ensure_future(coordinator.end(second.least, stage.caller(), Outcome.ABORT))
    await turns()
    with pytest.raises(InvalidTxnStatus, match="ABORTING"):
        await coordinator.end(lead.least, stage.caller(), Outcome.COMMIT, joined)
    stage.participants.holding = False
    stage.participants.held[0].set_result(None)
    await abort
    with pytest.raises(TransactionNotFound):
        await coordinator.end(lead.least, stage.caller(), Outcome.COMMIT, joined)
    for txn in (lead, first):
        record = coordinator.active[txn]
        assert record.state is TxnState.OPEN
    # A leading transaction that was committed without them does not answer for them.
    await coordinator.end(lead.least, stage.caller(), Outcome.COMMIT)
    again = stage.caller(connection=Connection())
    with pytest.raises(InvalidTxnStatus):
        await coordinator.end(lead.least, again, Outcome.COMMIT, joined)
    await coordinator.close()


async def test_transactions_of_another_role_are_not_joined() -> None:
    stage = Stage()
    coordinator = await stage.load()
    lead = await coordinator.begin("shop", TIMEOUT_MS)
    other = await coordinator.begin("bank", TIMEOUT_MS)
    with pytest.raises(TransactionNotFound, match="neither the owner"):
        await coordinator.end(lead.least, stage.caller("shop"), Outcome.COMMIT, (other.least,))
    assert coordinator.active_count == 2
    await coordinator.close()


async def test_what_cannot_be_joined_is_refused() -> None:
    stage = Stage()
    coordinator = await stage.load()
    lead, first, _ = await three(stage, coordinator)
    for outcome, joined, text in [
        (Outcome.ABORT, (first.least,), "one by one"),
        (Outcome.COMMIT, (lead.least,), "to itself"),
        (Outcome.COMMIT, tuple(range(100, 101 + transitions.JOINED_MAX)), "At most"),
    ]:
        with pytest.raises(NotAllowed, match=text):
            await coordinator.end(lead.least, stage.caller(), outcome, joined)
    await coordinator.close()
