"""A coordinator: durability before answers, the rights to end a transaction, and recovery."""

import asyncio
from contextlib import suppress

import pytest
from tests.unit.broker.transactions.stage import OTHER, TOPIC, Connection, Stage, turns

from magnetar.broker.transactions import outcomes
from magnetar.broker.transactions.coordinator import Coordinator, Limits
from magnetar.core.errors import (
    InvalidTxnStatus,
    MagnetarError,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.transactions.model import Outcome, SubscriptionInTxn, TxnId, TxnState

TIMEOUT_MS = 60_000


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("groups", "participants"):
        for bound in ("RETRY_S_MIN", "RETRY_S_MAX"):
            monkeypatch.setattr(f"magnetar.broker.transactions.{module}.{bound}", 0.0)
    monkeypatch.setattr("magnetar.broker.transactions.writer.IDLE_DELAY_S", 0.0)


async def with_topic(stage: Stage, coordinator: Coordinator) -> TxnId:
    txn = await coordinator.begin(None, TIMEOUT_MS)
    await coordinator.add(txn.least, stage.caller(), [TOPIC])
    return txn


async def test_a_commit_reaches_every_participant_once_and_is_kept() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await coordinator.begin(None, TIMEOUT_MS)
    await coordinator.add(txn.least, stage.caller(), [TOPIC, OTHER])
    await coordinator.add(txn.least, stage.caller(), subscriptions=[SubscriptionInTxn(TOPIC, "s")])
    await coordinator.end(txn.least, stage.caller(), Outcome.COMMIT)
    assert sorted(stage.participants.told) == [
        (TOPIC, txn, Outcome.COMMIT),
        (f"{TOPIC} s", txn, Outcome.COMMIT),
        (OTHER, txn, Outcome.COMMIT),
    ]
    await asyncio.sleep(0.01)
    stored = await stage.stored(txn)
    assert stored is not None
    assert stored.state is TxnState.COMMITTED
    await coordinator.close()


async def test_no_participant_hears_of_a_decision_that_is_not_durable() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    stage.store.holding = True
    ending = asyncio.ensure_future(coordinator.end(txn.least, stage.caller(), Outcome.COMMIT))
    await turns()
    assert not stage.participants.told
    await stage.store.held[0].lands()
    stage.store.holding = False
    await ending
    assert stage.participants.told == [(TOPIC, txn, Outcome.COMMIT)]
    await coordinator.close()


async def test_changes_that_arrive_during_a_write_share_the_next_one() -> None:
    stage = Stage()
    coordinator = await stage.load()
    before = stage.store.transactions
    stage.store.holding = True
    first = asyncio.ensure_future(coordinator.begin(None, TIMEOUT_MS))
    await turns()
    others = [asyncio.ensure_future(coordinator.begin(None, TIMEOUT_MS)) for _ in range(50)]
    await turns()
    assert len(stage.store.held) == 1
    stage.store.holding = False
    await stage.store.held[0].lands()
    ids = await asyncio.gather(first, *others)
    assert stage.store.transactions - before == 2
    assert sorted(txn.least for txn in ids) == list(range(51))
    await coordinator.close()


async def test_ids_are_not_used_again_by_the_next_owner_even_without_an_answer() -> None:
    stage = Stage()
    first = await stage.load("a")
    stage.store.holding = True
    begun = asyncio.ensure_future(first.begin(None, TIMEOUT_MS))
    await turns()
    stage.store.holding = False
    await stage.store.held[0].lands_unanswered()
    await first.close()
    with pytest.raises(TransactionCoordinatorNotFound):
        await begun
    second = await stage.load("b")
    txn = await second.begin(None, TIMEOUT_MS)
    assert txn == TxnId(0, 1)
    await second.close()


async def test_a_former_owner_writes_nothing_more() -> None:
    stage = Stage()
    first = await stage.load("a")
    txn = await with_topic(stage, first)
    second = await stage.load("b")
    with pytest.raises(TransactionCoordinatorNotFound):
        await first.end(txn.least, stage.caller(), Outcome.ABORT)
    assert first.failed
    assert not stage.participants.told
    await second.end(txn.least, stage.caller(), Outcome.COMMIT)
    assert stage.participants.told == [(TOPIC, txn, Outcome.COMMIT)]
    await first.close()
    await second.close()


async def test_a_late_write_of_a_former_owner_cannot_undo_a_decision() -> None:
    """apache/pulsar#20150: a committed transaction was open again after a restart."""
    stage = Stage()
    first = await stage.load("a")
    txn = await with_topic(stage, first)
    stage.store.holding = True
    adding = asyncio.ensure_future(first.add(txn.least, stage.caller(), [OTHER]))
    await turns()
    late = stage.store.held[0]
    stage.store.holding = False
    second = await stage.load("b")
    await second.end(txn.least, stage.caller(), Outcome.COMMIT)
    await late.lands()
    with pytest.raises(TransactionCoordinatorNotFound):
        await adding
    stored = await stage.stored(txn)
    assert stored is not None
    assert stored.state.outcome is Outcome.COMMIT
    await first.close()
    await second.close()


async def test_a_write_without_an_answer_is_recognized_when_it_landed() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    stage.store.holding = True
    ending = asyncio.ensure_future(coordinator.end(txn.least, stage.caller(), Outcome.COMMIT))
    await turns()
    stage.store.holding = False
    await stage.store.held[0].lands_unanswered()
    await ending
    assert not coordinator.failed
    await coordinator.close()


async def test_the_next_owner_finishes_what_was_decided() -> None:
    stage = Stage()
    first = await stage.load("a")
    txn = await with_topic(stage, first)
    stage.participants.failing.add(TOPIC)
    ending = asyncio.ensure_future(first.end(txn.least, stage.caller(), Outcome.ABORT))
    await turns()
    await first.close()
    with pytest.raises(TransactionCoordinatorNotFound):
        await ending
    stage.participants.failing.clear()
    second = await stage.load("b")
    await second.end(txn.least, stage.caller(connection=Connection()), Outcome.ABORT)
    assert stage.participants.told == [(TOPIC, txn, Outcome.ABORT)]
    await second.close()


async def test_a_participant_that_fails_is_notified_until_it_answers() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    stage.participants.failing.add(TOPIC)
    ending = asyncio.ensure_future(coordinator.end(txn.least, stage.caller(), Outcome.COMMIT))
    await turns()
    assert not ending.done()
    stage.participants.failing.clear()
    await ending
    await coordinator.close()


async def test_a_repeated_commit_succeeds_only_on_another_connection() -> None:
    """apache/pulsar#19629: the answer was lost, and the repeated commit was refused."""
    stage = Stage()
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    await coordinator.end(txn.least, stage.caller(), Outcome.COMMIT)
    with pytest.raises(TransactionNotFound):
        await coordinator.end(txn.least, stage.caller(), Outcome.COMMIT)
    other = Connection()
    await coordinator.end(txn.least, stage.caller(connection=other), Outcome.COMMIT)
    with pytest.raises(TransactionNotFound):
        await coordinator.end(txn.least, stage.caller(connection=other), Outcome.COMMIT)
    with pytest.raises(InvalidTxnStatus):
        await coordinator.end(txn.least, stage.caller(connection=Connection()), Outcome.ABORT)
    await coordinator.close()


async def test_the_outcome_survives_the_coordinator() -> None:
    stage = Stage()
    first = await stage.load("a")
    txn = await with_topic(stage, first)
    await first.end(txn.least, stage.caller(), Outcome.COMMIT)
    await asyncio.sleep(0.01)
    await first.close()
    second = await stage.load("b")
    await second.end(txn.least, stage.caller(connection=Connection()), Outcome.COMMIT)
    with pytest.raises(InvalidTxnStatus):
        await second.end(txn.least, stage.caller(connection=Connection()), Outcome.ABORT)
    await second.close()


async def test_two_ends_at_once_agree() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    ends = await asyncio.gather(
        coordinator.end(txn.least, stage.caller(), Outcome.COMMIT),
        coordinator.end(txn.least, stage.caller(connection=Connection()), Outcome.COMMIT),
        coordinator.end(txn.least, stage.caller(connection=Connection()), Outcome.ABORT),
        return_exceptions=True,
    )
    assert list(ends[:2]) == [None, None]
    assert isinstance(ends[2], InvalidTxnStatus)
    assert stage.participants.told == [(TOPIC, txn, Outcome.COMMIT)]
    await coordinator.close()


async def test_a_transaction_past_its_deadline_is_aborted() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    stage.set_clock.ms += TIMEOUT_MS - 1
    coordinator.tick()
    await turns()
    assert not stage.participants.told
    stage.set_clock.ms += 1
    coordinator.tick()
    await turns()
    assert stage.participants.told == [(TOPIC, txn, Outcome.ABORT)]
    assert coordinator.counts.timed_out == 1
    with pytest.raises(InvalidTxnStatus):
        await coordinator.end(txn.least, stage.caller(), Outcome.COMMIT)
    await coordinator.close()


async def test_a_commit_is_refused_only_once_the_abort_is_durable() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    stage.store.holding = True
    stage.set_clock.ms += TIMEOUT_MS
    coordinator.tick()
    ending = asyncio.ensure_future(coordinator.end(txn.least, stage.caller(), Outcome.COMMIT))
    await turns()
    assert not ending.done()
    stage.store.holding = False
    await stage.store.held[0].lands()
    with pytest.raises(InvalidTxnStatus):
        await ending
    stored = await stage.stored(txn)
    assert stored is not None
    assert stored.state.outcome is Outcome.ABORT
    await coordinator.close()


@pytest.mark.parametrize("known", [True, False], ids=["it knows it", "it does not know it"])
async def test_a_former_owner_refuses_no_commit_that_its_successor_has_made(known: bool) -> None:
    """The refusal would be the outcome for the client, which repeats a commit without an answer."""
    stage = Stage()
    former = await stage.load("a")
    txn = await with_topic(stage, former) if known else None
    owner = await stage.load("b")
    if txn is None:
        txn = await with_topic(stage, owner)
    await owner.end(txn.least, stage.caller(), Outcome.COMMIT)
    stage.set_clock.ms += TIMEOUT_MS
    former.tick()
    with pytest.raises(TransactionCoordinatorNotFound):
        await former.end(txn.least, stage.caller(connection=Connection()), Outcome.COMMIT)
    await owner.end(txn.least, stage.caller(connection=Connection()), Outcome.COMMIT)
    await former.close()
    await owner.close()


@pytest.mark.parametrize("known", [True, False], ids=["it knows it", "it does not know it"])
async def test_a_former_owner_refuses_no_participant_that_its_successor_accepts(
    known: bool,
) -> None:
    stage = Stage()
    former = await stage.load("a")
    txn = await with_topic(stage, former) if known else None
    owner = await stage.load("b")
    if txn is None:
        txn = await with_topic(stage, owner)
    stage.set_clock.ms += TIMEOUT_MS
    former.tick()
    with pytest.raises(TransactionCoordinatorNotFound):
        await former.add(txn.least, stage.caller(), ["persistent://public/default/other"])
    await owner.add(txn.least, stage.caller(), ["persistent://public/default/other"])
    await former.close()
    await owner.close()


@pytest.mark.parametrize("moves", [False, True])
async def test_a_transaction_of_a_time_when_the_clock_was_ahead_has_its_timeout(
    moves: bool,
) -> None:
    stage = Stage()
    stage.set_clock.leap_ms = 365 * 86_400_000
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    stage.set_clock.leap_ms = 0
    if moves:
        await coordinator.close()
        coordinator = await stage.load("b")
    stage.set_clock.ms += TIMEOUT_MS
    coordinator.tick()
    await turns()
    assert stage.participants.told == [(TOPIC, txn, Outcome.ABORT)]
    await coordinator.close()


async def test_the_next_owner_aborts_what_expired_meanwhile() -> None:
    stage = Stage()
    first = await stage.load("a")
    txn = await with_topic(stage, first)
    await first.close()
    stage.set_clock.ms += TIMEOUT_MS
    second = await stage.load("b")
    second.tick()
    await turns()
    assert stage.participants.told == [(TOPIC, txn, Outcome.ABORT)]
    await second.close()


async def test_too_many_open_transactions_get_an_error_on_which_clients_retry() -> None:
    """apache/pulsar#15133: there was no answer at all."""
    stage = Stage(Limits(open_max=2))
    coordinator = await stage.load()
    first = await coordinator.begin(None, TIMEOUT_MS)
    await coordinator.begin(None, TIMEOUT_MS)
    with pytest.raises(TransactionCoordinatorNotFound, match="maxActiveTransactionsPerCoordinator"):
        await coordinator.begin(None, TIMEOUT_MS)
    await coordinator.end(first.least, stage.caller(), Outcome.ABORT)
    await coordinator.begin(None, TIMEOUT_MS)
    await coordinator.close()


async def test_a_role_has_at_most_half_of_the_open_transactions() -> None:
    stage = Stage(Limits(open_max=4))
    coordinator = await stage.load()
    first = await coordinator.begin("alice", TIMEOUT_MS)
    await coordinator.begin("alice", TIMEOUT_MS)
    with pytest.raises(TransactionCoordinatorNotFound, match="2 open transactions of this role"):
        await coordinator.begin("alice", TIMEOUT_MS)
    assert await coordinator.begin("bob", TIMEOUT_MS)
    await coordinator.close()
    # The records count for a broker that takes over, too.
    second = await stage.load("b")
    with pytest.raises(TransactionCoordinatorNotFound, match="of this role"):
        await second.begin("alice", TIMEOUT_MS)
    await second.end(first.least, stage.caller("alice"), Outcome.ABORT)
    assert await second.begin("alice", TIMEOUT_MS)
    assert await second.begin(None, TIMEOUT_MS)
    await second.close()


async def test_only_the_owner_and_super_users_change_a_transaction() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await coordinator.begin("alice", TIMEOUT_MS)
    text = r"Client \(bob\) is neither the owner of the transaction \(0,0\) nor a super user"
    for request in (
        coordinator.add(txn.least, stage.caller("bob"), [TOPIC]),
        coordinator.end(txn.least, stage.caller("bob"), Outcome.COMMIT),
    ):
        with pytest.raises(TransactionNotFound, match=text):
            await request
    await coordinator.add(txn.least, stage.caller("alice"), [TOPIC])
    await coordinator.end(txn.least, stage.caller("admin", super_user=True), Outcome.COMMIT)
    with pytest.raises(TransactionNotFound, match=text):
        await coordinator.end(txn.least, stage.caller("bob", Connection()), Outcome.COMMIT)
    await coordinator.close()


async def test_outcomes_are_deleted_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(Limits(retention_ms=1_000))
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    await coordinator.end(txn.least, stage.caller(), Outcome.COMMIT)
    stage.set_clock.ms += 1_000
    coordinator.tick()
    await asyncio.sleep(0.01)
    assert await stage.stored(txn) is None
    with pytest.raises(TransactionNotFound):
        await coordinator.end(txn.least, stage.caller(connection=Connection()), Outcome.COMMIT)
    monkeypatch.setattr(outcomes, "OUTCOMES_MAX", 1)
    first = await with_topic(stage, coordinator)
    await coordinator.end(first.least, stage.caller(), Outcome.COMMIT)
    second = await with_topic(stage, coordinator)
    await coordinator.end(second.least, stage.caller(), Outcome.COMMIT)
    coordinator.tick()
    await asyncio.sleep(0.01)
    assert (await stage.stored(first), await stage.stored(second) is None) == (None, False)
    await coordinator.close()


async def test_an_outcome_from_the_future_is_deleted_after_the_retention_and_delays_no_other() -> (
    None
):
    stage = Stage(Limits(retention_ms=1_000))
    former = await stage.load("a")
    early = await with_topic(stage, former)
    stage.set_clock.leap_ms = 86_400_000
    await former.end(early.least, stage.caller(), Outcome.COMMIT)
    await former.begin(None, TIMEOUT_MS)  # the next group has the outcome
    await former.close()
    stage.set_clock.leap_ms = 0
    coordinator = await stage.load("b")
    late = await with_topic(stage, coordinator)
    await coordinator.end(late.least, stage.caller(), Outcome.COMMIT)
    coordinator.tick()
    await asyncio.sleep(0.01)
    assert None not in (await stage.stored(early), await stage.stored(late))
    stage.set_clock.ms += 1_000
    coordinator.tick()
    await coordinator.begin(None, TIMEOUT_MS)  # the next group has the deletions
    assert (await stage.stored(early), await stage.stored(late)) == (None, None)
    await coordinator.close()


async def test_the_names_of_participants_have_a_bound_for_all_transactions() -> None:
    stage = Stage(Limits(names_bytes_max=4 * len(TOPIC)))
    coordinator = await stage.load()

    async def add(role: str, *topics: str) -> TxnId:
        txn = await coordinator.begin(role, TIMEOUT_MS)
        await coordinator.add(txn.least, stage.caller(role), topics)
        return txn

    first = await add("alice", TOPIC)
    await coordinator.add(first.least, stage.caller("alice"), [TOPIC])
    second = await add("alice", TOPIC)
    with pytest.raises(TransactionCoordinatorNotFound, match="of this role"):
        await add("alice", TOPIC)
    await add("bob", TOPIC)
    await add("carol", TOPIC)
    with pytest.raises(TransactionCoordinatorNotFound, match="names"):
        await add("dave", TOPIC)
    await coordinator.close()
    coordinator = await stage.load("b")
    with pytest.raises(TransactionCoordinatorNotFound, match="names"):
        await add("dave", TOPIC)
    await coordinator.end(second.least, stage.caller("alice"), Outcome.ABORT)
    await add("dave", TOPIC)
    await coordinator.close()


async def test_a_caller_that_gives_up_stops_nothing() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await with_topic(stage, coordinator)
    stage.participants.holding = True
    ending = asyncio.ensure_future(coordinator.end(txn.least, stage.caller(), Outcome.COMMIT))
    await turns()
    ending.cancel()
    with suppress(asyncio.CancelledError):
        await ending
    stage.participants.held[0].set_result(None)
    await turns()
    assert stage.participants.told == [(TOPIC, txn, Outcome.COMMIT)]
    await coordinator.close()


async def test_one_that_gives_up_does_not_cancel_the_write_of_another() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await coordinator.begin(None, TIMEOUT_MS)
    stage.store.holding = True
    held = asyncio.ensure_future(coordinator.begin(None, TIMEOUT_MS))
    await turns()
    one = asyncio.ensure_future(coordinator.add(txn.least, stage.caller(), [TOPIC]))
    two = asyncio.ensure_future(coordinator.add(txn.least, stage.caller(), [OTHER]))
    await turns()
    one.cancel()
    stage.store.holding = False
    await stage.store.held[0].lands()
    await two
    await held
    stored = await stage.stored(txn)
    assert stored is not None
    assert stored.topics == (TOPIC, OTHER)
    await coordinator.close()


@pytest.mark.parametrize("number", [5, 2**64 - 1])
async def test_an_unknown_transaction_is_not_found(number: int) -> None:
    stage = Stage()
    coordinator = await stage.load()
    requests = [
        coordinator.add(number, stage.caller(), [TOPIC]),
        coordinator.end(number, stage.caller(), Outcome.COMMIT),
    ]
    for request in requests:
        with pytest.raises(TransactionNotFound):
            await request
    await coordinator.close()


async def test_a_closed_coordinator_serves_nothing() -> None:
    stage = Stage()
    coordinator = await stage.load()
    txn = await coordinator.begin(None, TIMEOUT_MS)
    await coordinator.close()
    with pytest.raises(MagnetarError):
        await coordinator.end(txn.least, stage.caller(), Outcome.COMMIT)
    with pytest.raises(TransactionCoordinatorNotFound):
        await coordinator.begin(None, TIMEOUT_MS)


async def test_the_age_of_the_oldest_transaction_outlives_the_coordinator() -> None:
    stage = Stage()
    coordinator = await stage.load("a")
    assert coordinator.oldest_age_s == 0
    oldest = await coordinator.begin(None, TIMEOUT_MS)
    stage.set_clock.ms += 3_000
    newest = await coordinator.begin(None, TIMEOUT_MS)
    stage.set_clock.ms += 2_000
    assert coordinator.oldest_age_s == 5
    await coordinator.close()
    coordinator = await stage.load("b")
    assert coordinator.oldest_age_s == 5
    await coordinator.end(oldest.least, stage.caller(), Outcome.ABORT)
    assert coordinator.oldest_age_s == 2
    stage.set_clock.leap_ms = 3_600_000
    assert coordinator.oldest_age_s == 2
    await coordinator.end(newest.least, stage.caller(), Outcome.ABORT)
    assert coordinator.oldest_age_s == 0
    await coordinator.close()
