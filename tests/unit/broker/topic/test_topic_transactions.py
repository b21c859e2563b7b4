"""Messages of transactions on a persistent topic: admission, the horizon, commit and abort."""

import pytest
from tests.unit.broker.topic.stage import request
from tests.unit.broker.topic.txn_stage import T1, T2, T3, told, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription.spec import SubType
from magnetar.core.errors import NotAllowed, ServiceNotReady
from magnetar.core.ids import EARLIEST
from magnetar.transactions.model import Outcome, TxnState

TYPES = pytest.mark.parametrize("sub_type", list(SubType))


@TYPES
async def test_messages_become_visible_with_the_commit_and_hold_back_later_ones(
    sub_type: SubType,
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        _, _, sink = await t.s.attach(topic, request(sub_type=sub_type))
        t.records.open(T1, topic)
        await t.sent(topic, None, "a")
        await t.sent(topic, T1, "b", "c")
        await t.sent(topic, None, "d")
        await turns(50)
        assert sink.texts == ["a"]
        assert t.records.asked == [T1]
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        await turns(50)
        assert sink.texts == ["a", "b", "c", "d"]
        assert topic.managed_ledger.horizon is None
        assert topic.transactions.committed_total == 1


@TYPES
async def test_aborted_messages_are_never_delivered_and_leave_no_backlog(sub_type: SubType) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        subscription, _, sink = await t.s.attach(topic, request(sub_type=sub_type))
        t.records.open(T1, topic)
        t.records.open(T2, topic)
        await t.sent(topic, T1, "b")
        await t.sent(topic, T2, "c")
        await t.sent(topic, None, "d")
        await topic.transactions.end_transaction(T1, Outcome.ABORT)
        await turns(50)
        assert sink.texts == []
        await topic.transactions.end_transaction(T2, Outcome.COMMIT)
        await turns(50)
        assert sink.texts == ["c", "d"]
        assert subscription.backlog == 2
        assert topic.transactions.aborted_total == 1
        _, _, later = await t.s.attach(topic, request("later", sub_type=sub_type))
        assert later.texts == ["c", "d"]
        assert topic.subscriptions["later"].backlog == 2
        await topic.subscriptions["later"].seek(EARLIEST)
        assert topic.subscriptions["later"].backlog == 2


async def test_the_horizon_is_the_first_open_transaction_in_the_log() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        _, _, sink = await t.s.attach(topic)
        for txn in (T1, T2, T3):
            t.records.open(txn, topic)
            await t.sent(topic, txn, str(txn))
        await topic.transactions.end_transaction(T2, Outcome.COMMIT)
        await turns(50)
        assert sink.texts == []
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        await turns(50)
        assert sink.texts == [str(T1), str(T2)]
        await topic.transactions.end_transaction(T3, Outcome.COMMIT)
        await turns(50)
        assert sink.texts == [str(T1), str(T2), str(T3)]


async def test_messages_wait_in_order_behind_the_question_and_other_producers_do_not() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        _, _, sink = await t.s.attach(topic)
        t.records.open(T1, topic)
        t.records.go.clear()
        producer, answers = await t.s.producer(topic)
        await t.send(topic, producer, T1, "1")
        await t.send(topic, producer, None, "2")
        await t.send(topic, producer, T1, "3")
        await t.sent(topic, None, "other")
        await turns(50)
        assert answers.told == []
        assert sink.texts == ["other"]
        t.records.go.set()
        await told(answers, 3)
        assert t.records.asked == [T1]
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        await turns(50)
        assert sink.texts == ["other", "1", "2", "3"]
        assert topic.gate is None


@pytest.mark.parametrize("state", [None, *(state for state in TxnState if state.outcome)])
async def test_a_message_of_a_transaction_that_is_not_open_is_refused_in_order(
    state: TxnState | None,
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        if state is not None:
            t.records.open(T1, topic)
            t.records.set(T1, state)
        producer, answers = await t.s.producer(topic)
        await t.send(topic, producer, None, "1")
        await t.send(topic, producer, T1, "2")
        await t.send(topic, producer, None, "3")
        await told(answers, 3)
        assert answers.told == ["receipts", "errors", "receipts"]
        ((_, error),) = answers.errors
        assert isinstance(error, NotAllowed)
        assert str(error) == (
            "Transaction [(0,1)] has been ended. Please use a new transaction to send message."
        )
        assert topic.managed_ledger.horizon is None
        assert topic.gate is None


async def test_a_message_for_a_topic_that_the_transaction_has_not_added_is_refused() -> None:
    async with txn_stage() as t:
        topic, other = await t.topic(), await t.topic("other")
        t.records.open(T1, other)
        producer, answers = await t.s.producer(topic)
        await t.send(topic, producer, T1, "1")
        await told(answers, 1)
        assert "has not added the topic" in str(answers.errors[0][1])


async def test_a_record_that_cannot_be_read_refuses_the_message_to_be_sent_again() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.open(T1, topic)
        t.records.failing = True
        producer, answers = await t.s.producer(topic)
        await t.send(topic, producer, T1, "1")
        await told(answers, 1)
        assert isinstance(answers.errors[0][1], ServiceNotReady)
        t.records.failing = False
        await t.sent(topic, T1, "2")


async def test_an_end_during_the_question_makes_its_answer_count_no_longer() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.open(T1, topic)
        t.records.go.clear()
        producer, answers = await t.s.producer(topic)
        await t.send(topic, producer, T1, "1")
        await turns(20)
        await topic.transactions.end_transaction(T1, Outcome.ABORT)
        t.records.go.set()
        await told(answers, 1)
        assert answers.told == ["errors"]
        await turns(50)
        assert not len(topic.transactions.buffer)
        assert topic.managed_ledger.entries_total == 0


async def test_the_end_waits_for_appends_in_flight() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.open(T1, topic)
        await t.sent(topic, T1, "1")
        _, _, sink = await t.s.attach(topic)
        producer, answers = await t.s.producer(topic)
        t.s.bookie.hold = True
        await t.send(topic, producer, T1, "2")
        ending = t.s.service.tasks.start(
            topic.transactions.end_transaction(T1, Outcome.ABORT), "end"
        )
        assert ending is not None
        await turns(60)
        assert not ending.done()
        await t.send(topic, producer, T1, "3")
        t.s.bookie.hold = False
        t.s.bookie.release()
        await ending
        await told(answers, 2)
        assert answers.told == ["receipts", "errors"]
        await t.sent(topic, None, "4")
        await turns(50)
        assert sink.texts == ["4"]


async def test_a_topic_without_transactions_has_no_state_for_them() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await t.s.attach(topic)
        await t.sent(topic, None, "1")
        assert topic._transactions is None
        assert topic.managed_ledger.aborted is None
        assert not topic.managed_ledger.properties
