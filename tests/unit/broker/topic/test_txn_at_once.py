"""A topic whose broker has the records in its own process admits and commits without a wait."""

import asyncio

import pytest
from tests.unit.broker.topic.stage import request
from tests.unit.broker.topic.txn_stage import T1, T2, told, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.core.errors import MagnetarError, NotAllowed, ServiceNotReady
from magnetar.managed_ledger.appender import OnAppended
from magnetar.transactions.model import Outcome, TxnId, TxnState
from magnetar.wire.events import SendRun


def run_of(txn: TxnId) -> SendRun:
    return SendRun(1, [0], [0], [1], [b""], 0, txn)


async def test_later_transactions_are_admitted_without_a_gate() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.immediate = True
        t.records.open(T1, topic)
        t.records.open(T2, topic)
        assert topic.gate_of(run_of(T1)) is not None  # the log has no watermark yet
        await t.sent(topic, T1, "a")
        assert topic.gate is None
        assert topic.gate_of(run_of(T2)) is None
        assert t.records.asked == [T1, T2]
        await t.sent(topic, T2, "b")
        assert topic.transactions.end_at_once(T1, Outcome.COMMIT)
        assert topic.transactions.end_at_once(T2, Outcome.COMMIT)
        _, _, sink = await t.s.attach(topic, request())
        await turns(50)
        assert sink.texts == ["a", "b"]


@pytest.mark.parametrize("state", [None, *(state for state in TxnState if state.outcome)])
async def test_an_ended_transaction_is_refused_without_a_wait(state: TxnState | None) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.immediate = True
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a")
        if state is not None:
            t.records.open(T2, topic)
            t.records.set(T2, state)
        assert isinstance(topic.admission(run_of(T2)), NotAllowed)
        t.records.failing = True
        assert isinstance(topic.admission(run_of(T2)), ServiceNotReady)
        assert T2 not in topic.transactions.buffer.open


async def test_a_topic_that_is_being_recovered_admits_nothing_at_once() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a")
        topic = await t.reopened(topic, crash=True)
        t.records.immediate = True
        t.records.open(T2, topic)
        if topic.transactions.stats().state == "Initializing":
            assert not isinstance(topic.admission(run_of(T2)), MagnetarError | None)
            assert not topic.transactions.end_at_once(T1, Outcome.COMMIT)
        for _ in range(200):
            if topic.transactions.stats().state == "Ready":
                break
            await turns(1)
        assert topic.admission(run_of(T2)) is None
        assert topic.transactions.end_at_once(T1, Outcome.COMMIT)


async def test_only_a_commit_without_appends_in_flight_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        _, _, sink = await t.s.attach(topic, request())
        t.records.open(T1, topic)
        t.records.open(T2, topic)
        await t.sent(topic, T1, "a")
        await t.sent(topic, T2, "b")
        transactions = topic.transactions
        assert not transactions.end_at_once(T2, Outcome.ABORT)
        held: list[OnAppended] = []
        monkeypatch.setattr(
            type(topic.managed_ledger), "append", lambda _self, _entries, done: held.append(done)
        )
        producer, answers = await t.s.producer(topic)
        await t.send(topic, producer, T1, "c")
        assert not transactions.end_at_once(T1, Outcome.COMMIT)
        ending = asyncio.ensure_future(transactions.end_transaction(T1, Outcome.COMMIT))
        await turns(20)
        # The end that waits for the append goes on; a second one must not overtake it.
        assert not transactions.end_at_once(T1, Outcome.COMMIT)
        held[0](1, 7, ServiceNotReady("the append failed"))
        await told(answers, 1)
        monkeypatch.undo()
        await ending
        await transactions.end_transaction(T2, Outcome.ABORT)
        await turns(50)
        assert sink.texts == ["a"]
        assert transactions.committed_total == transactions.aborted_total == 1
        assert transactions.end_at_once(T1, Outcome.COMMIT)  # unknown here: nothing to do
        assert not transactions.end_at_once(T1, Outcome.ABORT)  # the owner must be confirmed
