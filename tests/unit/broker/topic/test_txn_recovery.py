"""A topic with transactions after its owner has changed, in order or by a crash."""

import pytest
from tests.unit.broker.topic.stage import request
from tests.unit.broker.topic.txn_stage import T1, T2, T3, TxnStage, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.transactions import watermark
from magnetar.core.ids import EARLIEST
from magnetar.managed_ledger.record import WATERMARK_PROPERTY, watermark_of
from magnetar.transactions.model import Outcome, TxnState

CRASH = pytest.mark.parametrize("crash", [False, True])


async def all_texts(t: TxnStage, topic: PersistentTopic, name: str = "reads") -> list[str]:
    _, _, sink = await t.s.attach(topic, request(name))
    await turns(200)
    return sink.texts


@CRASH
@pytest.mark.parametrize("state", list(TxnState))
async def test_the_record_decides_what_a_crash_left_open(state: TxnState, crash: bool) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        await t.sent(topic, None, "a")
        t.records.open(T1, topic)
        await t.sent(topic, T1, "b")
        await t.sent(topic, None, "c")
        t.records.set(T1, state)
        topic = await t.reopened(topic, crash=crash)
        assert topic.managed_ledger.horizon is not None
        visible = {TxnState.OPEN: "a"}.get(state, "abc" if "COMMIT" in state.value else "ac")
        assert "".join(await all_texts(t, topic)) == visible
        if state is TxnState.OPEN:
            await t.sent(topic, T1, "d")
            await topic.transactions.end_transaction(T1, Outcome.COMMIT)
            assert "".join(await all_texts(t, topic, "again")) == "abcd"
        assert not len(topic.transactions.buffer)


@CRASH
async def test_an_abort_is_durable_once_it_is_answered_whatever_becomes_of_the_record(
    crash: bool,
) -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        for txn, text in ((T1, "a"), (None, "b"), (T2, "c"), (T3, "d")):
            if txn is not None:
                t.records.open(txn, topic)
            await t.sent(topic, txn, text)
        await topic.transactions.end_transaction(T3, Outcome.ABORT)
        await topic.transactions.end_transaction(T1, Outcome.ABORT)
        await topic.transactions.end_transaction(T2, Outcome.COMMIT)
        t.records.by_id.clear()
        for _ in range(3):
            topic = await t.reopened(topic, crash=crash)
            assert "".join(await all_texts(t, topic)) == "bc"
            await topic.subscriptions["reads"].seek(EARLIEST)
            assert topic.subscriptions["reads"].backlog == 2
            await topic.delete_subscription("reads", force=True)
        assert topic.managed_ledger.index.entries == 4


async def test_plain_messages_continue_while_the_records_cannot_be_read() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a")
        t.records.failing = True
        topic = await t.reopened(topic, crash=True)
        await t.sent(topic, None, "b")
        assert await all_texts(t, topic) == []
        t.records.failing = False
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        await turns(100)
        assert await all_texts(t, topic, "again") == ["a", "b"]


async def test_a_topic_that_was_closed_without_open_transactions_reads_nothing() -> None:
    async with txn_stage() as t:
        topic = await t.topic()
        await topic.create_subscription("keeps", EARLIEST, {})
        t.records.open(T1, topic)
        await t.sent(topic, T1, "a", "b")
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        last = topic.managed_ledger.last_confirmed
        topic = await t.reopened(topic)
        assert topic.managed_ledger.properties == {WATERMARK_PROPERTY: str(last)}
        assert topic.properties == {}
        assert topic.managed_ledger.horizon is None
        assert await all_texts(t, topic) == ["a", "b"]


@pytest.mark.parametrize(("bound", "each"), [("WATERMARK_ENTRIES", 1), ("WATERMARK_BYTES", 100)])
async def test_the_watermark_follows_what_is_settled_by_entries_or_bytes(
    monkeypatch: pytest.MonkeyPatch, bound: str, each: int
) -> None:
    monkeypatch.setattr(watermark, bound, 4 * each)
    async with txn_stage() as t:
        topic = await t.topic()
        t.records.open(T1, topic)
        await t.sent(topic, None, "x" * each)
        await t.sent(topic, T1, "x" * each)
        stored = topic.managed_ledger.properties[WATERMARK_PROPERTY]
        await t.sent(topic, None, *["x" * each] * 6)
        t.s.clock.advance(2_000)
        await t.sent(topic, None, "x" * each)
        await turns(100)
        held = topic.managed_ledger.properties[WATERMARK_PROPERTY]
        assert held == stored, "an open transaction holds it back"
        await topic.transactions.end_transaction(T1, Outcome.COMMIT)
        last = topic.managed_ledger.last_confirmed
        await turns(100)
        assert topic.managed_ledger.properties[WATERMARK_PROPERTY] == str(last)
        t.s.clock.advance(2_000)
        await t.sent(topic, None, "x" * each)
        await turns(100)
        assert topic.managed_ledger.properties[WATERMARK_PROPERTY] == str(last), "too little"
        await t.sent(topic, None, *["x" * each] * 6)
        await turns(100)
        moved = watermark_of(topic.managed_ledger.properties)
        assert moved is not None
        assert moved > last
