"""A subscription's consumers over its life: types, acks of batches, rates, and what stats say."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.subscription.conftest import entry_bytes
from tests.unit.broker.topic.stage import Sink, Stage, request, run_of, stage
from tests.unit.broker.topic.test_last_message import view
from tests.unit.ledger.stage import turns

from magnetar.broker.subscription import cursor_moves
from magnetar.broker.subscription.consumer import Consumer
from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import ConsumerBusy, MagnetarError, NotAllowed, ServiceNotReady
from magnetar.core.ids import EARLIEST, Position
from magnetar.policies.rates import DISPATCH_RATE, SUBSCRIPTION_DISPATCH_RATE

KINDS = pytest.mark.parametrize("kind", ["persistent", "non-persistent"])
TYPES = pytest.mark.parametrize("sub_type", list(SubType))


async def opened(s: Stage, kind: str) -> Any:
    return await (s.topic() if kind == "persistent" else s.nonpersistent())


async def stored(topic: PersistentTopic, s: Stage, *texts: str, batch: int = 1) -> list[Position]:
    producer, sink = await s.producer(topic)
    topic.publish(producer, run_of(producer, *texts, batch=batch))
    while not sink.told:
        await turns(1)
    topic.remove_producer(producer)
    ((_, ledger_id, first),) = sink.receipts
    return [Position(ledger_id, first + each) for each in range(len(texts))]


# -- types


@KINDS
@TYPES
async def test_a_subscription_has_the_type_of_its_attached_consumers(
    kind: str, sub_type: SubType
) -> None:
    async with stage() as s:
        topic = await opened(s, kind)
        subscription, first, _ = await s.attach(topic, request(sub_type=sub_type))
        for other in SubType:
            if other is not sub_type:
                with pytest.raises(ConsumerBusy, match="Subscription is of different type"):
                    await s.attach(topic, request(sub_type=other))
        if sub_type is SubType.Exclusive:
            with pytest.raises(ConsumerBusy):
                await s.attach(topic, request(sub_type=sub_type))
        else:
            _, second, _ = await s.attach(topic, request(sub_type=sub_type))
            assert len(subscription.consumers) == 2
            subscription.remove_consumer(second)
        assert list(subscription.consumers) == [first]
        assert subscription.type is sub_type
        subscription.remove_consumer(first)
        assert not subscription.consumers
        for other in SubType:
            _, each, _ = await s.attach(topic, request(sub_type=other))
            again = topic.subscriptions["s"]
            assert again.type is other
            topic.remove_consumer(again, each)


@pytest.mark.parametrize("alive", [True, False])
async def test_only_an_exclusive_consumer_replaces_one_with_a_dead_connection(
    alive: bool,
) -> None:
    """With other types, both attach, and no ping is sent."""
    async with stage() as s:
        topic = await s.topic()
        for sub_type in SubType:
            subscription, first, sink = await s.attach(topic, request(sub_type=sub_type))
            sink.alive = alive
            if alive and sub_type is SubType.Exclusive:
                with pytest.raises(ConsumerBusy):
                    await s.attach(topic, request(sub_type=sub_type))
            else:
                await s.attach(topic, request(sub_type=sub_type))
            stays = alive or sub_type is not SubType.Exclusive
            assert (first in subscription.consumers) is stays
            assert first.attached is stays
            for each in list(subscription.consumers):
                subscription.remove_consumer(each)


async def test_the_standby_of_a_non_persistent_failover_gets_nothing() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, active, at = await s.attach(
            topic, request(name="a", sub_type=SubType.Failover), permits=1
        )
        waiting = request(name="b", sub_type=SubType.Failover)
        waiting.spec.priority_level = 1
        _, _, standby = await s.attach(topic, waiting)
        assert subscription.active is active
        producer, _ = await s.producer(topic)
        topic.publish(producer, run_of(producer, "x", "y"))
        assert (at.texts, standby.texts, subscription.dropped) == (["x"], [], 1)
        topic.remove_consumer(subscription, active)
        topic.publish(producer, run_of(producer, "z"))
        assert standby.texts == ["z"]


async def test_ranges_of_a_nonpersistent_consumer_are_free_when_it_leaves() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        sticky = KeySharedSpec(KeySharedMode.STICKY, ((0, 65_535),))
        await s.attach(topic, asked := request(sub_type=SubType.Shared))
        topic.remove_consumer(topic.subscriptions["s"], topic.subscriptions["s"].consumers[0])

        def keyed() -> Any:
            asked = request(sub_type=SubType.Key_Shared)
            asked.spec.key_shared = sticky
            return asked

        subscription, first, _ = await s.attach(topic, keyed())
        other, _, _ = await s.attach(topic, request("other"))
        with pytest.raises(MagnetarError, match="Range conflict"):
            await s.attach(topic, keyed())
        assert subscription.stats().consumers[0].key_hash_range_arrays == [(0, 65_535)]
        await s.attach(topic, request("keeps"))
        subscription.remove_consumer(first)
        second = Consumer(keyed().spec, sink := Sink(), s.clock)
        await subscription.add_consumer(second)
        subscription.flow(second, 5)
        assert asked.subscription == "s"
        subscription.publish([entry_bytes("x", key="k")])
        assert sink.texts == ["x"]
        assert other.consumers


async def test_a_nonpersistent_ack_wants_no_answer() -> None:
    async with stage() as s:
        topic = await s.nonpersistent()
        subscription, consumer, _ = await s.attach(topic, permits=0)
        subscription.ack(consumer, [(0, 0, None, 0)])
        s.clock.advance(5)
        subscription.flow(consumer, 3)
        s.clock.advance(5)
        subscription.flow(consumer, 4)
        assert consumer.permits == 7
        assert (consumer.first_flow_ms, consumer.last_flow_ms) == (
            s.clock.now_ms() - 5,
            s.clock.now_ms(),
        )


# -- acks


async def test_a_cumulative_ack_into_a_batch_leaves_the_rest_of_it() -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, "a", "b", "c", batch=4)
        subscription, consumer, _ = await s.attach(topic, request(sub_type=SubType.Exclusive))
        answers: list[object] = []
        subscription.ack(consumer, [(*places[1], 0b1100, 4)], True, answers.append)
        while not answers:
            await turns(1)
        assert answers == [None]
        cursor = subscription.cursor
        assert cursor.mark_delete == places[0]
        assert cursor.remaining_batch(*places[1]) == 0b1100
        subscription.ack(consumer, [(*places[1], None, 0)], True)
        assert cursor.mark_delete == places[1]
        for several in ([], [(*places[1], None, 0), (*places[2], None, 0)]):
            answers.clear()
            subscription.ack(consumer, several, True, answers.append)
            assert [type(each) for each in answers] == [NotAllowed]
        assert cursor.mark_delete == places[1]


@pytest.mark.parametrize("kept", [True, False])
async def test_an_ack_after_all_consumers_left_is_refused(kept: bool) -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, "a", "b")
        subscription, consumer, _ = await s.attach(topic)
        subscription.remove_consumer(consumer)
        answers: list[object] = []
        if kept:
            await s.attach(topic)
        subscription.ack(consumer, [(*places[0], None, 0)], False, answers.append)
        subscription.ack_one(consumer, *places[1])
        assert len(answers) == 1
        assert answers != [None]
        assert subscription.cursor.backlog == 2


@pytest.mark.parametrize("ahead", [(0, 1), (1, 0)])
async def test_an_ack_of_an_entry_that_the_broker_does_not_know_gets_no_receipt(
    ahead: tuple[int, int],
) -> None:
    async with stage() as s:
        topic = await s.topic()
        (place,) = await stored(topic, s, "a")
        subscription, consumer, _ = await s.attach(topic)
        answers: list[MagnetarError | None] = []
        unknown = (place[0] + ahead[0], ahead[1])
        for cumulative in (False, True):
            subscription.ack(consumer, [(*unknown, None, 0)], cumulative, answers.append)
        assert [type(answer) for answer in answers] == [ServiceNotReady] * 2
        subscription.ack(consumer, [(*place, None, 0)], False, answers.append)
        await turns(20)
        assert answers[2:] == [None]


async def test_acks_before_the_first_consumer_of_a_type_need_no_dispatcher() -> None:
    """As of a client that closes its consumer and then acks: the answer is an error, no crash."""
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, "a")
        subscription = await topic.create_subscription("s", EARLIEST, {})
        stranger = Consumer(request().spec, Sink(), s.clock)
        answers: list[object] = []
        subscription.ack(stranger, [(*places[0], None, 0)], False, answers.append)
        subscription.flow(stranger, 5)
        subscription.redeliver(stranger)
        subscription.remove_consumer(stranger)
        assert len(answers) == 1
        assert answers != [None]
        assert subscription.state() == {}
        assert (subscription.type, subscription.consumers) == (None, ())


# -- rates


@pytest.mark.parametrize("policy", [DISPATCH_RATE, SUBSCRIPTION_DISPATCH_RATE])
async def test_a_rate_applies_to_attached_consumers_and_to_those_of_the_next_type(
    policy: Any,
) -> None:
    async with stage() as s:
        topic = await s.topic()
        subscription, first, sink = await s.attach(topic)
        value = {
            "dispatchThrottlingRateInMsg": 2,
            "dispatchThrottlingRateInByte": -1,
            "ratePeriodInSecond": 1,
            "relativeToPublishRate": False,
        }
        await s.set(policy, value, topic)
        await stored(topic, s, *"abcdefghij")
        await turns(50)
        assert 0 < len(sink.texts) < 10
        subscription.remove_consumer(first)
        _, _, later = await s.attach(topic, request(sub_type=SubType.Exclusive))
        await turns(50)
        assert len(later.texts) < 10
        await s.set(policy, {**value, "dispatchThrottlingRateInMsg": -1}, topic)
        await turns(50)
        assert later.texts[-1] == "j"


async def test_a_topic_without_a_rate_has_nothing_that_counts_its_deliveries() -> None:
    """It would cost every delivery."""
    async with stage() as s:
        topic = await s.topic()
        subscription, _, _ = await s.attach(topic)
        assert subscription.throttle is None
        topic.policies_changed()
        assert subscription.throttle is None
        await s.set(DISPATCH_RATE, {"dispatchThrottlingRateInMsg": 2}, topic)
        assert subscription.throttle is not None


# -- moving


async def test_the_nth_unacknowledged_entry_passes_over_acknowledged_ones() -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, *"abcdef")
        subscription, consumer, _ = await s.attach(topic)
        for number in (0, 2, 3):
            subscription.ack_one(consumer, *places[number])
        ledger, cursor = topic.managed_ledger, subscription.cursor

        async def nth(number: int, *, exact: bool = False) -> Position | None:
            return await cursor_moves.nth_unacked(ledger, cursor, number, exact=exact)

        found = [await nth(number) for number in range(5)]
        assert found == [None, places[1], places[4], places[5], places[5]]
        exact = [await nth(number, exact=True) for number in range(1, 5)]
        assert exact == [places[1], places[4], places[5], None]
        await subscription.skip(2)
        assert (cursor.mark_delete, cursor.backlog) == (places[4], 1)
        entry = await subscription.peek(1)
        assert entry is not None
        assert entry.position == places[5]
        assert await subscription.peek(2) is None


async def test_a_search_by_time_passes_the_time_to_the_cold_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They then answer from their footers, without reading an entry."""
    async with stage() as s:
        topic = await s.topic()
        asked: list[object] = []
        find_by = topic.managed_ledger._source.find_by

        async def noted(predicate: Any, after: Position, before_ms: int | None = None) -> Any:
            asked.append(before_ms)
            return await find_by(predicate, after, before_ms)

        places = await stored(topic, s, "a")
        with monkeypatch.context() as patch:
            patch.setattr(type(topic.managed_ledger._source), "find_by", staticmethod(noted))
            assert await cursor_moves.last_older_than(topic.managed_ledger, 1_000) is None
            assert await cursor_moves.last_older_than(topic.managed_ledger, 1_001) == places[0]
        assert asked == [1_000, 1_001]


async def test_a_seek_waits_for_the_one_under_way_and_consumers_for_both() -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, *"abc")
        subscription, consumer, sink = await s.attach(topic)
        s.bookie.hold = True
        first = asyncio.ensure_future(subscription.seek(places[1]))
        second = asyncio.ensure_future(subscription.seek(places[2]))
        await turns(10)
        attaching = asyncio.ensure_future(s.attach(topic))
        await turns(30)
        assert list(subscription.consumers) == []
        assert not first.done()
        assert sink.closed == [], "clients attach again after the answer to their seek"
        s.bookie.release()
        await asyncio.gather(first, second)
        assert sink.closed == [consumer.spec.consumer_id]
        _, _, later = await attaching
        await turns(20)
        assert later.texts == ["c"]


@pytest.mark.parametrize("compacted", [True, False])
async def test_a_consumer_of_what_was_compacted_may_seek_before_what_is_kept(
    compacted: bool, tmp_path: Path
) -> None:
    async with stage() as s:
        topic = await s.topic()
        places = await stored(topic, s, *"abc")
        seen = await view(s, topic, tmp_path, places[2], (places[0], entry_bytes("a")))
        await topic.managed_ledger.truncate()
        await stored(topic, s, "d")
        subscription, consumer, _ = await s.attach(topic, request(sub_type=SubType.Exclusive))
        consumer.compacted = seen if compacted else None
        await subscription.seek(places[1])
        mark, first = subscription.cursor.mark_delete, topic.managed_ledger.first_position
        assert mark == (places[0] if compacted else first)
        assert mark <= first
