"""Delayed messages: who gets them, when, and what acks, seeks, restarts and policies do to them."""

import asyncio
from typing import Any

import pytest
from tests.unit.broker.topic.delay_stage import (
    HOUR_MS,
    DelayStage,
    delay_stage,
    delayed_entry,
    delays_of,
    schedule_of,
    texts,
)
from tests.unit.broker.topic.txn_stage import T1, Records
from tests.unit.ledger.stage import turns

from magnetar.broker.session.refusal import checked_parts
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.topic.delayed import delayed_delivery
from magnetar.broker.topic.delayed.delayed_delivery import DelayedDelivery
from magnetar.core.errors import NotAllowed, PersistenceError
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.record import DELAYED_CURSOR
from magnetar.policies.filters import ENTRY_FILTERS
from magnetar.transactions.model import Outcome, TxnState
from magnetar.wire.events import SendRun

SHARED = [SubType.Shared, SubType.Key_Shared]


@pytest.mark.parametrize("sub_type", SHARED)
async def test_a_message_is_delivered_at_its_time_and_not_before(sub_type: SubType) -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, _, sink = await s.consume(topic, sub_type=sub_type)
        await s.send(topic, ("late", 60_000), ("later", 2 * 60_000), ("now", 0))
        assert texts(sink) == ["now"]
        assert subscription.stats().msg_delayed == 2
        assert subscription.stats().msg_backlog_no_delayed == 1
        await s.pass_ms(topic, 59_999)
        assert texts(sink) == ["now"]
        await s.pass_ms(topic, 1)
        assert texts(sink) == ["now", "late"]
        await s.pass_ms(topic, HOUR_MS)
        assert texts(sink) == ["now", "late", "later"]
        assert subscription.stats().msg_delayed == 0
        assert [delivery.redelivery_count for delivery in sink.delivered] == [0, 0, 0]


@pytest.mark.parametrize("sub_type", [SubType.Exclusive, SubType.Failover])
async def test_types_that_deliver_in_order_deliver_at_once(sub_type: SubType) -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, _, sink = await s.consume(topic, sub_type=sub_type)
        await s.send(topic, ("late", 60_000), ("now", 0))
        assert texts(sink) == ["late", "now"]
        assert subscription.stats().msg_delayed == 0


async def test_a_message_may_be_a_tick_early_unless_that_is_forbidden() -> None:
    async with delay_stage(delayed_delivery_strict=False, delayed_delivery_tick_ms=5_000) as s:
        topic = await s.topic()
        _, _, sink = await s.consume(topic)
        await s.send(topic, ("late", 60_000), ("soon", 5_000))
        assert texts(sink) == ["soon"]
        await s.pass_ms(topic, 54_999)
        assert texts(sink) == ["soon"]
        await s.pass_ms(topic, 1)
        assert texts(sink) == ["soon", "late"]


async def test_all_subscriptions_share_the_index_also_one_created_later() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        _, _, one = await s.consume(topic, "one")
        await s.send(topic, ("late", 60_000), ("now", 0))
        _, _, two = await s.consume(topic, "two")
        _, _, failover = await s.consume(topic, "three", SubType.Failover)
        assert texts(one) == texts(two) == ["now"]
        assert texts(failover) == ["late", "now"]
        await s.pass_ms(topic, 60_000)
        assert texts(one) == texts(two) == ["now", "late"]
        assert texts(failover) == ["late", "now"]


async def test_a_subscription_that_is_behind_gets_each_message_once() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, consumer, sink = await s.consume(topic, permits=1)
        await s.send(topic, ("a", 0), ("late", 1_000), ("b", 0), ("late2", 2_000), ("c", 0))
        assert texts(sink) == ["a"]
        await s.pass_ms(topic, 1_500)  # the reader has not passed "late2"
        subscription.flow(consumer, 10)
        await turns(60)
        assert sorted(texts(sink)) == ["a", "b", "c", "late"]
        await s.pass_ms(topic, 1_500)
        assert sorted(texts(sink)) == ["a", "b", "c", "late", "late2"]


@pytest.mark.parametrize("sub_type", SHARED)
async def test_an_ack_before_its_time_takes_a_message_away(sub_type: SubType) -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, consumer, sink = await s.consume(topic, sub_type=sub_type)
        gone, kept = await s.send(topic, ("gone", 1_000), ("kept", 1_000))
        subscription.ack_one(consumer, *gone)
        assert subscription.stats().msg_delayed == 1
        await s.pass_ms(topic, 1_000)
        assert texts(sink) == ["kept"]
        subscription.ack_one(consumer, *kept)
        assert subscription.backlog == 0


async def test_a_seek_reads_released_messages_and_skips_delayed_ones() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, _, sink = await s.consume(topic)
        await s.send(topic, ("a", 1_000), ("b", 60_000), ("c", 0))
        await s.pass_ms(topic, 1_000)
        assert texts(sink) == ["c", "a"]
        await subscription.seek(EARLIEST)
        _, _, again = await s.consume(topic)
        assert texts(again) == ["a", "c"]
        await s.pass_ms(topic, 60_000)
        assert texts(again) == ["a", "c", "b"]


async def test_what_the_administrator_does_counts_for_delayed_messages() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        skipped, _, one = await s.consume(topic, "skipped")
        cleared, _, two = await s.consume(topic, "cleared")
        expired, _, three = await s.consume(topic, "expired")
        await s.send(topic, ("a", 60_000), ("b", 60_000))
        await skipped.skip(1)
        await cleared.clear_backlog()
        s.s.clock.advance(20_000)
        await expired.expire(10)
        await s.pass_ms(topic, 60_000)
        assert (texts(one), texts(two), texts(three)) == (["b"], [], [])


async def test_consumers_that_leave_and_return_get_only_what_is_due() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, consumer, sink = await s.consume(topic)
        await s.send(topic, ("a", 1_000), ("b", 60_000), ("c", 0))
        topic.remove_consumer(subscription, consumer)
        await s.pass_ms(topic, 1_000)
        assert texts(sink) == ["c"]
        _, _, sink = await s.consume(topic)
        assert texts(sink) == ["a", "c"]
        await s.pass_ms(topic, 60_000)
        assert texts(sink) == ["a", "c", "b"]


@pytest.mark.parametrize("crash", [True, False])
async def test_a_restart_keeps_the_delays(crash: bool) -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, consumer, sink = await s.consume(topic)
        positions = await s.send(topic, ("a", 60_000), ("b", 120_000), ("c", 0), ("d", 60_000))
        subscription.ack_one(consumer, *positions[0])
        await subscription.cursor.flush()
        topic = await s.reopened(topic, crash=crash)
        subscription, _, sink = await s.consume(topic)
        assert texts(sink) == ["c"]
        assert subscription.stats().msg_delayed == 2
        await s.pass_ms(topic, 60_000)
        assert texts(sink) == ["c", "d"]
        s.s.clock.advance(HOUR_MS)
        topic = await s.reopened(topic, crash=crash)
        _, _, sink = await s.consume(topic)
        assert texts(sink) == ["b", "c", "d"], "their time passed while the topic was closed"


async def test_the_index_is_created_before_the_first_delayed_message_is_stored() -> None:
    """A broker that crashed between the two would deliver the message early."""
    async with delay_stage() as s:
        topic = await s.topic()
        await s.send(topic, ("now", 0))
        assert DELAYED_CURSOR not in topic.managed_ledger.cursors
        assert topic.delays is None
        s.s.store.away = True
        sending = s.send(topic, ("late", 60_000))
        await turns(1)
        s.s.store.away = False
        try:
            await sending
        finally:
            assert topic.managed_ledger.entries_total == 1 or (
                DELAYED_CURSOR in topic.managed_ledger.cursors
            )


async def test_a_topic_with_only_past_delivery_times_needs_no_index() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        _, _, sink = await s.consume(topic)
        await s.send(topic, ("past", -60_000))
        assert texts(sink) == ["past"]
        assert DELAYED_CURSOR not in topic.managed_ledger.cursors


async def test_a_batch_with_a_delivery_time_is_delayed_as_a_whole() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        _, _, sink = await s.consume(topic)
        await s.send(topic, ("batch", 1_000), batch=3)
        assert texts(sink) == []
        await s.pass_ms(topic, 1_000)
        assert texts(sink) == ["batch"]
        assert sink.delivered[0].message_count == 3


async def test_the_longest_delay_of_a_policy_is_enforced() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        await s.policy(topic, maxDeliveryDelayInMillis=10_000)
        await s.send(topic, ("in time", 10_000))
        with pytest.raises(NotAllowed) as refused:
            await s.send(topic, ("too late", 10_001))
        assert str(refused.value) == "Exceeds max allowed delivery delay of 10000 milliseconds"
        with pytest.raises(NotAllowed):
            await s.send(topic, ("first", 10_000), ("too late", 10_001), ("last", 9_000))
        assert topic.delays is not None
        assert len(topic.delays.delayed or ()) == 3, "its neighbors are stored"
        await s.policy(topic, active=False, maxDeliveryDelayInMillis=10_000)
        await s.send(topic, ("unlimited", 10_001))


async def test_a_policy_that_is_switched_off_delivers_at_once_and_deletes_the_index() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        _, _, sink = await s.consume(topic)
        await s.send(topic, ("a", 60_000), ("b", 0))
        await s.policy(topic, active=False)
        assert texts(sink) == ["b", "a"]
        assert DELAYED_CURSOR not in topic.managed_ledger.cursors
        await s.send(topic, ("c", 60_000))
        assert texts(sink) == ["b", "a", "c"]
        await s.policy(topic, active=True)
        await s.send(topic, ("d", 60_000))
        assert texts(sink) == ["b", "a", "c"]
        await s.pass_ms(topic, 60_000)
        assert texts(sink) == ["b", "a", "c", "d"]


@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ABORT])
@pytest.mark.parametrize("due_first", [True, False])
@pytest.mark.parametrize("sub_type", SHARED)
async def test_a_delayed_message_of_a_transaction_needs_the_commit_and_its_time(
    outcome: Outcome, due_first: bool, sub_type: SubType
) -> None:
    async with delay_stage() as s:
        records = await with_transactions(s)
        topic = await s.topic()
        _, _, sink = await s.consume(topic, sub_type=sub_type)
        records.open(T1, topic)
        await s.send(topic, ("late", 60_000), txn=T1)

        async def end() -> None:
            committed = outcome is Outcome.COMMIT
            records.set(T1, TxnState.COMMITTED if committed else TxnState.ABORTED)
            await topic.transactions.end_transaction(T1, outcome)
            await turns(60)

        if due_first:
            await s.pass_ms(topic, 60_000)
            assert texts(sink) == []
            await end()
        else:
            await end()
            assert texts(sink) == []
            await s.pass_ms(topic, 60_000)
        assert texts(sink) == (["late"] if outcome is Outcome.COMMIT else [])


async def with_transactions(s: DelayStage) -> Records:
    from tests.unit.broker.topic.txn_stage import TxnStage

    return TxnStage(s.s).records


async def test_a_position_tells_until_when_it_is_delayed() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        subscription, _, _ = await s.consume(topic)
        now_ms = s.s.clock.now_ms()
        late, now = [Position(*at) for at in await s.send(topic, ("a", 60_000), ("b", 0))]
        assert await topic.delayed_until(late) == now_ms + 60_000
        assert await topic.delayed_until(now) is None
        assert subscription.delays(late)
        assert not subscription.delays(now)
        await s.pass_ms(topic, 60_000)
        assert await topic.delayed_until(late) is None


async def test_a_clock_that_is_set_back_neither_repeats_nor_loses_a_message() -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        _, _, sink = await s.consume(topic)
        await s.send(topic, ("a", 60_000))
        await s.pass_ms(topic, 60_000)
        s.s.clock.advance(-HOUR_MS)
        await s.send(topic, ("b", 1_000), ("c", 2 * HOUR_MS))
        assert texts(sink) == ["a", "b"], "its time is before one that has come already"
        await s.pass_ms(topic, 4 * HOUR_MS)
        assert texts(sink) == ["a", "b", "c"]


@pytest.mark.parametrize("crash", [True, False])
async def test_many_delayed_messages_are_stored_in_runs_and_restored(crash: bool) -> None:
    async with delay_stage(delayed_delivery_memory_messages=1_000) as s:
        topic = await s.topic()
        _, _, sink = await s.consume(topic, permits=10_000)
        for first in (0, 1_000, 2_000):
            numbers = range(first, min(first + 1_000, 2_500))
            await s.send(topic, *((f"{n}", 60_000 + n * 10) for n in numbers))
            await turns(300)
        schedule = schedule_of(topic)
        assert len(schedule.runs) == 2
        assert schedule.in_memory == 500
        assert len(schedule) == 2_500
        assert len(delays_of(topic).store.log.record.kept) == 2
        topic = await s.reopened(topic, crash=crash)
        schedule = schedule_of(topic)
        assert (len(schedule.runs), len(schedule), len(schedule.future)) == (2, 2_500, 2_500)
        _, _, sink = await s.consume(topic, permits=10_000)
        assert texts(sink) == []
        await s.pass_ms(topic, 60_000 + 10_000)
        await turns(200)
        assert sorted(map(int, texts(sink))) == list(range(1_001))
        await s.pass_ms(topic, 15_000)
        await turns(300)
        assert sorted(map(int, texts(sink))) == list(range(2_500))
        assert schedule.runs == []
        await turns(100)
        assert delays_of(topic).store.log.record.kept == ()


async def test_a_producer_that_is_faster_than_the_index_waits_and_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delayed_delivery, "WAIT_MOMENTS_FACTOR", 1)
    async with delay_stage(delayed_delivery_memory_messages=1_000) as s:
        topic = await s.topic()
        await s.send(topic, ("first", 60_000))
        delays, schedule = delays_of(topic), schedule_of(topic)
        stored = asyncio.Event()
        store_run = DelayedDelivery._store_run

        async def slow(self: DelayedDelivery, *given: Any) -> None:
            await stored.wait()
            await store_run(self, *given)

        monkeypatch.setattr(DelayedDelivery, "_store_run", slow)
        await s.send(topic, *((f"{n}", 60_000 + n) for n in range(999)))
        assert schedule.in_memory == 1_000
        sending = asyncio.ensure_future(s.send(topic, ("held", 60_000)))
        await turns(20)
        assert schedule.in_memory == 1_000
        assert not sending.done()
        stored.set()
        await sending
        assert len(schedule) == 1_001
        assert not delays._flush_failed


async def test_a_producer_is_refused_if_the_index_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delayed_delivery, "MEMORY_MOMENTS_FACTOR", 1)
    monkeypatch.setattr(delayed_delivery, "WAIT_MOMENTS_FACTOR", 1)

    async def fails(*_given: Any) -> None:
        raise PersistenceError("no bookies")

    monkeypatch.setattr(DelayedDelivery, "_store_run", fails)
    async with delay_stage(delayed_delivery_memory_messages=1_000) as s:
        topic = await s.topic()
        await s.send(topic, *((f"{n}", 60_000 + n) for n in range(1_000)))
        with pytest.raises(PersistenceError, match="cannot be stored: 1000 of them are in memory"):
            await s.send(topic, ("refused", 60_000))
        producer, sink = await s.s.producer(topic)
        other, _ = await s.s.producer(topic, name="other")
        now_ms = s.s.clock.now_ms()
        entries = [delayed_entry(text, now_ms + 60_000, now_ms) for text in ("one", "two")]
        (part, _), *_ = checked_parts(
            SendRun(producer.producer_id, [0, 1], [0, 1], [1, 1], entries, 0, None)
        )
        gate = topic.gate_of(part)
        assert gate is not None
        gate.publish(producer, part)
        await turns(20)
        assert [number for (number,), _ in sink.errors] == [0], "the next may not overtake it"
        assert (producer.closed, sink.sent_away) == (True, [(producer, None)])
        assert not other.closed
        topic.remove_producer(other)
        await s.send(topic, ("at once", 0))


@pytest.mark.parametrize("sub_type", SHARED)
async def test_filters_judge_delayed_messages_too(sub_type: SubType) -> None:
    async with delay_stage() as s:
        topic = await s.topic()
        names = {"entryFilterNames": "expression"}
        parameters = {"filter.expression": "key LIKE 'yes%'"}
        await s.s.set(ENTRY_FILTERS, {**names, "parameters": parameters}, topic)
        subscription, _, sink = await s.consume(topic, sub_type=sub_type)
        sent = [("yes", 0), ("no", 0), ("yes later", 1_000), ("no later", 1_000)]
        positions = await s.send(topic, *sent)
        assert texts(sink) == ["yes"]
        await s.pass_ms(topic, 1_000)
        assert texts(sink) == ["yes", "yes later"]
        assert [subscription.cursor.is_done(*position) for position in positions] == [
            *(False, True, False, True)
        ]
