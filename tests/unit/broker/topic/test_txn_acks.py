"""Acks in transactions: pending, committed, aborted, in conflict, and over restarts."""

from typing import Any

import pytest
from tests.unit.broker.topic.stage import Stage, request, run_of
from tests.unit.broker.topic.txn_stage import T1, T2, TxnStage, told, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.transactions import expiry
from magnetar.core.errors import (
    MagnetarError,
    ServiceNotReady,
    TransactionConflict,
    TransactionNotFound,
)
from magnetar.core.ids import EARLIEST
from magnetar.transactions.model import Outcome, TxnId, TxnState

TYPES = pytest.mark.parametrize("sub_type", list(SubType))
INDIVIDUAL = pytest.mark.parametrize("sub_type", [SubType.Shared, SubType.Key_Shared])
ORDERED = pytest.mark.parametrize("sub_type", [SubType.Exclusive, SubType.Failover])


class Acks:
    """A consumer with its answers to acks."""

    def __init__(self, attached: tuple[Any, Any, Any]) -> None:
        self.subscription, self.consumer, self.sink = attached
        self.answers: list[MagnetarError | None] = []

    async def ack(
        self, txn: TxnId, *positions: Any, cumulative: bool = False
    ) -> MagnetarError | None:
        """Acks (ledger, entry) or (ledger, entry, ack set, batch size); returns the answer."""
        before = len(self.answers)
        acks = [(*at, *(None, 0)[len(at) - 2 :]) for at in positions]
        self.subscription.ack_in_transaction(
            self.consumer, txn, acks, cumulative, self.answers.append
        )
        for _ in range(2_000):
            if len(self.answers) > before:
                return self.answers[-1]
            await turns(1)
        raise AssertionError("no answer")

    async def end(self, txn: TxnId, outcome: Outcome) -> None:
        await self.subscription.end_transaction(txn, outcome)
        await turns(50)


async def attached(t: TxnStage, topic: PersistentTopic, sub_type: SubType, **given: Any) -> Acks:
    return Acks(await t.s.attach(topic, request(sub_type=sub_type, **given)))


async def batch(s: Stage, topic: PersistentTopic, size: int) -> tuple[int, int]:
    producer, sink = await s.producer(topic)
    topic.publish(producer, run_of(producer, "batch", batch=size))
    await told(sink, 1)
    ((_, ledger_id, first),) = sink.receipts
    return ledger_id, first


@TYPES
async def test_acks_count_with_the_commit_and_withhold_until_then(sub_type: SubType) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, sub_type)
        t.records.open(T1, topic)
        positions = await t.s.publish(topic, "a", "b", "c")
        await turns(50)
        assert sorted(c.sink.texts) == ["a", "b", "c"]
        assert await c.ack(T1, *positions[:2]) is None
        assert c.subscription.backlog == 3
        c.subscription.redeliver(c.consumer)
        await turns(50)
        assert sorted(c.sink.texts) == ["a", "b", "c", "c"]
        await c.end(T1, Outcome.COMMIT)
        assert c.subscription.backlog == 1
        assert c.subscription.cursor.pending is None
        c.subscription.redeliver(c.consumer)
        await turns(50)
        assert sorted(c.sink.texts) == ["a", "b", "c", "c", "c"]


@INDIVIDUAL
async def test_an_abort_redelivers_each_message_once(sub_type: SubType) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, sub_type)
        t.records.open(T1, topic)
        positions = await t.s.publish(topic, "a", "b", "c")
        await turns(50)
        c.sink.take()
        assert await c.ack(T1, *positions[:2]) is None
        assert c.consumer.unacked == 1
        await c.end(T1, Outcome.ABORT)
        assert sorted(c.sink.take()) == ["a", "b"]
        assert c.consumer.unacked == 3
        await c.end(T1, Outcome.ABORT)
        assert c.sink.take() == []
        for at in positions:
            c.subscription.ack_one(c.consumer, *at)
        assert (c.subscription.backlog, c.consumer.unacked) == (0, 0)


@ORDERED
async def test_an_abort_rewinds_to_the_first_message(sub_type: SubType) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, sub_type)
        t.records.open(T1, topic)
        positions = await t.s.publish(topic, "a", "b", "c", "d")
        await turns(50)
        c.sink.take()
        assert await c.ack(T1, positions[1], positions[2]) is None
        await c.end(T1, Outcome.ABORT)
        assert c.sink.take() == ["b", "c", "d"]


@ORDERED
async def test_cumulative_acks(sub_type: SubType) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, sub_type)
        t.records.open(T1, topic)
        t.records.open(T2, topic)
        positions = await t.s.publish(topic, "a", "b", "c", "d")
        await turns(50)
        c.sink.take()
        assert await c.ack(T1, positions[0], cumulative=True) is None
        assert await c.ack(T1, positions[2], cumulative=True) is None
        assert await c.ack(T1, positions[1], cumulative=True) is None
        assert isinstance(await c.ack(T2, positions[3], cumulative=True), TransactionConflict)
        c.subscription.redeliver(c.consumer)
        await turns(50)
        assert c.sink.take() == ["d"]
        await c.end(T1, Outcome.ABORT)
        assert c.sink.take() == ["a", "b", "c", "d"]
        assert await c.ack(T2, positions[1], cumulative=True) is None
        await c.end(T2, Outcome.COMMIT)
        assert c.subscription.mark_delete == positions[1]
        t.records.open(T1, topic)
        assert isinstance(await c.ack(T1, positions[1], cumulative=True), TransactionConflict)


async def test_conflicts() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        t.records.open(T2, topic)
        a, b, d = await t.s.publish(topic, "a", "b", "d")
        await turns(50)
        assert await c.ack(T1, a) is None
        assert await c.ack(T1, a) is None, "the first answer may have been lost"
        assert isinstance(await c.ack(T2, a), TransactionConflict)
        assert isinstance(await c.ack(T2, b, a), TransactionConflict)
        assert await c.ack(T1, b) is None, "a refused ack leaves nothing"
        c.subscription.ack_one(c.consumer, *d)
        assert isinstance(await c.ack(T2, d), TransactionConflict)
        await c.end(T1, Outcome.COMMIT)
        assert isinstance(await c.ack(T2, a), TransactionConflict)


@pytest.mark.parametrize("cumulative", [False, True])
async def test_an_ack_of_an_entry_that_the_broker_does_not_know_is_repeated(
    cumulative: bool,
) -> None:
    """A former owner gets message ids of its successor: it must not say that they are acked."""
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Exclusive)
        t.records.open(T1, topic)
        ((ledger_id, last),) = await t.s.publish(topic, "a")
        for unknown in ((ledger_id, last + 1), (ledger_id + 1, 0)):
            refused = await c.ack(T1, unknown, cumulative=cumulative)
            assert isinstance(refused, ServiceNotReady)
        assert await c.ack(T1, (ledger_id, last), cumulative=cumulative) is None


async def test_messages_of_a_batch() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        t.records.open(T2, topic)
        at = await batch(t.s, topic, 4)
        await turns(50)
        assert await c.ack(T1, (*at, 0b1110, 4)) is None
        assert await c.ack(T2, (*at, 0b1101, 0)) is None, "the size is read from the entry"
        assert isinstance(await c.ack(T2, (*at, 0b1100, 4)), TransactionConflict)
        assert isinstance(await c.ack(T2, at), TransactionConflict)
        assert c.consumer.unacked == 2
        c.subscription.redeliver(c.consumer)
        await turns(50)
        assert c.sink.delivered[-1].ack_set == 0b1100
        await c.end(T1, Outcome.COMMIT)
        await c.end(T2, Outcome.ABORT)
        assert c.sink.delivered[-1].ack_set == 0b1110
        assert c.consumer.unacked == 3
        t.records.open(T1, topic)
        assert isinstance(await c.ack(T1, (*at, 0b1110, 4)), TransactionConflict)
        assert await c.ack(T1, (*at, 0b0000, 0)) is None, "as Go's client acks the whole batch"
        await c.end(T1, Outcome.COMMIT)
        assert (c.subscription.backlog, c.consumer.unacked) == (0, 0)


@pytest.mark.parametrize("state", [None, *(state for state in TxnState if state.outcome)])
async def test_an_ack_of_a_transaction_that_is_not_open_is_refused(state: TxnState | None) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        (at,) = await t.s.publish(topic, "a")
        if state is not None:
            t.records.open(T1, topic)
            t.records.set(T1, state)
        assert isinstance(await c.ack(T1, at), TransactionNotFound)
        t.records.open(T2, topic, subscriptions=("other",))
        assert isinstance(await c.ack(T2, at), TransactionNotFound)
        assert c.subscription.cursor.pending is None


async def test_an_end_during_the_question_refuses_the_ack() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        (at,) = await t.s.publish(topic, "a")
        t.records.open(T1, topic)
        t.records.go.clear()
        c.subscription.ack_in_transaction(c.consumer, T1, [(*at, None, 0)], False, c.answers.append)
        await turns(20)
        await c.end(T1, Outcome.COMMIT)
        t.records.go.set()
        await turns(20)
        assert len(c.answers) == 1
        assert isinstance(c.answers[0], TransactionNotFound)
        assert c.subscription.backlog == 1


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("state", [*TxnState, None])
@TYPES
async def test_answered_acks_outlive_the_owner_and_their_record_decides(
    sub_type: SubType, state: TxnState | None, crash: bool
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, sub_type)
        t.records.open(T1, topic)
        a, b, *_ = await t.s.publish(topic, "a", "b", "c")
        cumulative = not sub_type.individual_only
        assert await c.ack(T1, b, *(() if cumulative else (a,)), cumulative=cumulative) is None
        if state is None:
            t.records.by_id.clear()
        else:
            t.records.set(T1, state)
        topic = await t.reopened(topic, crash=crash)
        c = await attached(t, topic, sub_type)
        await turns(200)
        committed = state in (TxnState.COMMITTING, TxnState.COMMITTED)
        assert c.subscription.backlog == (1 if committed else 3)
        kept = committed or state is TxnState.OPEN
        assert sorted(c.sink.take()) == (["c"] if kept else ["a", "b", "c"])
        if state is TxnState.OPEN:
            await c.end(T1, Outcome.ABORT)
            if cumulative:
                c = await attached(t, topic, sub_type)
                await turns(50)
            assert sorted(set(c.sink.take())) == [*"ab", *"c" * cumulative]


@ORDERED
@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("cumulative", [False, True])
async def test_a_consumer_that_passed_over_the_acks_of_another_restarts_if_they_are_dropped(
    sub_type: SubType, joins: bool, cumulative: bool
) -> None:
    """Its cumulative ack would count for messages that it has not got."""
    async with txn_stage() as t:
        topic = await t.topic()
        former = await attached(t, topic, sub_type)
        for txn in (T1, T2):
            t.records.open(txn, topic)
        a, b, d = await t.s.publish(topic, "a", "b", "d")
        await turns(50)
        acked = (b,) if cumulative else (a, b)
        assert await former.ack(T1, *acked, cumulative=cumulative) is None
        former.subscription.remove_consumer(former.consumer)
        c = await attached(t, topic, sub_type)
        await turns(50)
        assert c.sink.take() == ["d"]
        if joins:
            assert await c.ack(T1, *acked, cumulative=cumulative) is None
        await c.end(T1, Outcome.ABORT)
        late = await c.ack(T2, d, cumulative=True)
        assert (late is None) is joins
        assert c.sink.closed == ([] if joins else [c.consumer.spec.consumer_id])
        if not joins:
            again = await attached(t, topic, sub_type)
            await turns(50)
            assert again.sink.take() == ["a", "b", "d"]


async def test_acks_stay_pending_when_their_consumer_leaves() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        a, _ = await t.s.publish(topic, "a", "b")
        await turns(50)
        assert await c.ack(T1, a) is None
        c.subscription.remove_consumer(c.consumer)
        other = await attached(t, topic, SubType.Shared, name="other")
        await turns(50)
        assert other.sink.take() == ["b"]
        await other.end(T1, Outcome.ABORT)
        assert other.sink.take() == ["a"]


@INDIVIDUAL
async def test_an_abort_of_acks_from_before_a_restart_redelivers_to_whom_the_key_belongs(
    sub_type: SubType,
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, sub_type)
        t.records.open(T1, topic)
        positions = await t.s.publish(topic, *"abcdefgh")
        assert await c.ack(T1, *positions[::2]) is None
        topic = await t.reopened(topic, crash=True)
        two = [await attached(t, topic, sub_type, name=name) for name in ("x", "y")]
        await turns(100)
        assert sorted([*two[0].sink.take(), *two[1].sink.take()]) == [*"bdfh"]
        for at in positions[1::2]:  # the messages have one key, which drains until then
            two[0].subscription.ack_one(two[0].consumer, *at)
        await two[0].end(T1, Outcome.ABORT)
        await turns(100)
        assert sorted([*two[0].sink.take(), *two[1].sink.take()]) == [*"aceg"]


async def test_recovered_transactions_that_are_open_do_not_delay_the_look_up_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "LOOKED_UP_AT_ONCE_MAX", 1)
    async with txn_stage() as t:
        topic = await t.topic()
        acks = await attached(t, topic, SubType.Shared)
        positions = await t.s.publish(topic, "a", "b")
        await turns(50)
        for txn, position in zip((T1, T2), positions, strict=True):
            t.records.open(txn, topic)
            assert await acks.ack(txn, position) is None
        topic = await t.reopened(topic, crash=True)
        subscription = topic.subscriptions["s"]
        t.records.asked.clear()
        await turns(100)  # no time passes
        assert t.records.asked == [T1, T2]
        assert all(map(subscription.transactions.is_looked_up, (T1, T2)))


async def test_a_seek_drops_the_pending_acks() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        c = await attached(t, topic, SubType.Shared)
        t.records.open(T1, topic)
        (a,) = await t.s.publish(topic, "a")
        assert await c.ack(T1, a) is None
        await c.subscription.seek(EARLIEST)
        await c.end(T1, Outcome.COMMIT)
        assert c.subscription.backlog == 1
        topic = await t.reopened(topic, crash=True)
        assert topic.subscriptions["s"].cursor.pending is None
