"""Exclusive and Failover over a real managed ledger in memory."""

import asyncio

import pytest

from magnetar.broker.dispatch import active_news
from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType
from magnetar.core.errors import ConsumerBusy, ConsumerNotFound, MagnetarError
from magnetar.core.ids import LATEST, Position

EXCLUSIVE, FAILOVER = SubType.Exclusive, SubType.Failover


async def test_backlog_then_tail_arrives_in_order(rig):
    await rig.publish_texts(250)
    subscription = await rig.subscription()
    _, sink = await rig.attach(subscription, "a", EXCLUSIVE, permits=1000)
    assert sink.texts == [str(each) for each in range(250)]
    await rig.publish_texts(50)
    await rig.settle()
    assert sink.texts == [str(each) for each in range(300)]


async def test_nothing_before_flow_and_never_more_than_permits(rig):
    await rig.publish_texts(30)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE, permits=0)
    assert sink.texts == []
    subscription.flow(consumer, 10)
    await rig.settle()
    assert len(sink.texts) == 10
    assert consumer.permits == 0
    subscription.flow(consumer, 100)
    await rig.settle()
    assert sink.texts == [str(each) for each in range(30)]
    assert consumer.permits == 80


async def test_a_batch_overshoots_permits_by_itself_at_most(rig, make_entry):
    await rig.publish(*[make_entry(str(each), batch=7) for each in range(10)])
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE, permits=10)
    assert sink.texts == ["0", "1"]
    assert [each.message_count for each in sink.delivered] == [7, 7]
    assert consumer.permits == -4
    subscription.flow(consumer, 4)
    await rig.settle()
    assert len(sink.texts) == 2
    subscription.flow(consumer, 1)
    await rig.settle()
    assert sink.texts == ["0", "1", "2"]
    assert (consumer.messages_out, consumer.permits) == (21, -6)


async def test_nothing_is_dispatched_to_a_full_socket(rig):
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    sink.writable = False
    await rig.publish_texts(5)
    await rig.settle()
    assert sink.texts == []
    sink.writable = True
    subscription.on_writable(consumer)
    await rig.settle()
    assert len(sink.texts) == 5


async def test_second_exclusive_consumer_is_refused_while_the_first_lives(rig):
    subscription = await rig.subscription()
    _, first_sink = await rig.attach(subscription, "a", EXCLUSIVE)
    second, _ = rig.consumer("b", EXCLUSIVE)
    with pytest.raises(ConsumerBusy, match="Exclusive consumer is already connected"):
        await subscription.add_consumer(second)
    first_sink.alive = False
    await subscription.add_consumer(second)
    assert subscription.consumers == [second]


async def test_other_type_is_refused_and_welcome_once_the_first_left(rig):
    await rig.publish_texts(3)
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", EXCLUSIVE)
    other, _ = rig.consumer("b", SubType.Shared)
    with pytest.raises(ConsumerBusy) as refused:
        await subscription.add_consumer(other)
    assert refused.value.message == (
        "Subscription is of different type. Active subscription type of 'Exclusive' is different "
        "than the connecting consumer's type 'Shared'."
    )
    subscription.remove_consumer(consumer)
    assert subscription.type is EXCLUSIVE
    _, sink = await rig.attach(subscription, "b", SubType.Shared)
    assert sink.texts == ["0", "1", "2"]


async def test_individual_acks_survive_the_consumer(rig):
    positions = await rig.publish_texts(6)
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", EXCLUSIVE)
    subscription.ack_one(consumer, *positions[3])
    subscription.remove_consumer(consumer)
    _, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    assert sink.texts == ["0", "1", "2", "4", "5"]


async def test_cumulative_ack_is_answered_when_durable(rig):
    positions = await rig.publish_texts(6)
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", EXCLUSIVE)
    answered: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()
    subscription.ack(consumer, [(*positions[4], None, 0)], True, answered.set_result)
    assert not answered.done()
    assert await asyncio.wait_for(answered, 20) is None
    assert subscription.cursor.backlog == 1


async def test_redelivery_rewinds_and_carries_the_epoch(rig):
    positions = await rig.publish_texts(5)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE, epoch=0)
    assert set(sink.epochs) == {0}
    subscription.ack_one(consumer, *positions[0])
    sink.take()
    subscription.redeliver(consumer, [positions[3]], 1)
    await rig.settle()
    assert sink.epochs == [1] * 4
    assert sink.take() == ["1", "2", "3", "4"]
    assert [each.redelivery_count for each in sink.delivered] == []


async def test_a_consumer_that_reconnects_starts_behind_mark_delete(rig):
    positions = await rig.publish_texts(150)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE, permits=40)
    for position in positions[:25]:
        subscription.ack_one(consumer, *position)
    subscription.remove_consumer(consumer)
    subscription.flow(consumer, 100)  # late FLOW of a closed consumer
    _, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    assert sink.texts == [str(each) for each in range(25, 150)]


async def test_a_partly_acked_batch_is_sent_with_its_ack_set(rig, make_entry):
    (position,) = await rig.publish(make_entry("b", batch=4))
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", EXCLUSIVE)
    subscription.ack(consumer, [(*position, 0b1010, 4)])
    subscription.remove_consumer(consumer)
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE, permits=10)
    assert [each.ack_set for each in sink.delivered] == [0b1010]
    assert consumer.permits == 8
    subscription.ack(consumer, [(*position, 0b0101, 4)])
    assert subscription.cursor.backlog == 0


async def handed_over(rig, sink, active):
    """Waits until the consumer was notified."""
    told = asyncio.Event()
    sink.on_active = lambda: told.set() if sink.active[-1] is active else None
    await asyncio.wait_for(told.wait(), 20)
    await rig.settle()


async def test_failover_hands_over_only_after_the_delay(rig):
    await rig.publish_texts(4)
    topic = "persistent://public/default/t-partition-1"
    limits = SubscriptionLimits(failover_switch_delay_s=0.02)
    subscription = await rig.subscription(topic=topic, limits=limits)
    _, first_sink = await rig.attach(subscription, "a", FAILOVER)
    await handed_over(rig, first_sink, active=True)
    assert first_sink.take() == ["0", "1", "2", "3"]
    # With two consumers, partition 1 is assigned to the second by name.
    second, second_sink = await rig.attach(subscription, "b", FAILOVER)
    await rig.publish_texts(1)
    await rig.settle()
    assert first_sink.texts == second_sink.texts == []
    await handed_over(rig, second_sink, active=True)
    assert (first_sink.active, second_sink.active) == ([True, False], [True])
    assert second_sink.take() == ["0", "1", "2", "3", "4"]
    # There is no consumer to wait for when the active one leaves.
    subscription.remove_consumer(second)
    await rig.settle()
    assert first_sink.active[-1] is True
    assert first_sink.take() == ["0", "1", "2", "3", "4"]


async def test_consumers_that_join_together_settle_before_one_is_sent_anything(rig):
    await rig.publish_texts(4)
    limits = SubscriptionLimits(failover_switch_delay_s=0.02)
    topic = "persistent://public/default/t-partition-1"
    subscription = await rig.subscription(topic=topic, limits=limits)
    _, first = await rig.attach(subscription, "a", FAILOVER)
    _, second = await rig.attach(subscription, "b", FAILOVER)
    third, _ = await rig.attach(subscription, "c", FAILOVER)
    subscription.remove_consumer(third)
    assert first.texts == second.texts == []
    await handed_over(rig, second, active=True)
    assert (first.texts, second.texts) == ([], ["0", "1", "2", "3"])
    assert (first.active, second.active) == ([False], [True])


async def test_a_new_consumer_is_notified_with_its_first_flow_before_its_messages(rig):
    await rig.publish_texts(1)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", FAILOVER, permits=0)
    # Its client may not know of it before it has the answer to SUBSCRIBE.
    assert sink.active == []
    told: list[list[bool]] = []
    sink.on_deliver = lambda _: told.append(list(sink.active))
    subscription.flow(consumer, 1)
    await rig.settle()
    assert told == [[True]]
    subscription.flow(consumer, 1)
    assert sink.active == [True]


async def test_a_consumer_without_flow_is_notified_too(rig, monkeypatch):
    # Long enough for the second consumer to close again, even on a busy machine.
    monkeypatch.setattr(active_news, "UNHEARD_S_MAX", 0.25)
    subscription = await rig.subscription()
    _, quiet = await rig.attach(subscription, "a", FAILOVER, permits=0)
    gone, gone_sink = await rig.attach(subscription, "b", FAILOVER, permits=0)
    subscription.remove_consumer(gone)
    told = asyncio.Event()
    quiet.on_active = told.set
    await asyncio.wait_for(told.wait(), 20)
    assert quiet.active == [True]
    assert gone_sink.active == []


async def test_failover_prefers_priority(rig):
    subscription = await rig.subscription()
    _, low = await rig.attach(subscription, "a", FAILOVER, priority=1)
    _, high = await rig.attach(subscription, "b", FAILOVER, priority=0)
    assert (low.active[-1], high.active[-1]) == (False, True)


async def test_max_consumers(rig):
    limits = SubscriptionLimits(max_consumers=1)
    subscription = await rig.subscription(limits=limits)
    await rig.attach(subscription, "a", FAILOVER)
    other, _ = rig.consumer("b", FAILOVER)
    with pytest.raises(ConsumerBusy, match="Subscription reached max consumers limit"):
        await subscription.add_consumer(other)


async def test_end_of_topic_is_announced_with_the_first_flow(rig):
    subscription = await rig.subscription()
    await rig.ledger.terminate()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE, permits=0)
    assert sink.ended == 0
    subscription.flow(consumer, 1)
    assert sink.ended == 1


async def test_end_of_topic_is_announced_once_after_the_last_ack(rig):
    positions = await rig.publish_texts(2)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    await rig.ledger.terminate()
    subscription.topic_terminated()
    assert sink.ended == 0
    for position in positions:
        subscription.ack_one(consumer, *position)
    assert sink.ended == 1
    subscription.flow(consumer, 1)
    assert sink.ended == 1
    _, sink = await rig.attach(await rig.subscription("late", initial=LATEST), "b", EXCLUSIVE)
    assert sink.ended == 1


async def test_seek_disconnects_and_moves(rig):
    positions = await rig.publish_texts(10)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    for position in positions:
        subscription.ack_one(consumer, *position)
    await subscription.seek(Position(*positions[4]))
    assert sink.closed == [consumer.spec.consumer_id]
    assert subscription.cursor.backlog == 6
    _, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    assert sink.texts == ["4", "5", "6", "7", "8", "9"]


async def test_a_seek_into_a_batch_is_one_step_also_if_its_client_leaves(rig, make_entry):
    positions = await rig.publish(*[make_entry(str(each), batch=8) for each in range(3)])
    subscription = await rig.subscription()
    seeking = asyncio.ensure_future(subscription.seek(Position(*positions[1]), 0b11110000))
    await asyncio.sleep(0)
    seeking.cancel()
    await asyncio.wait([seeking])
    _, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    assert subscription.cursor.remaining_batch(*positions[1]) == 0b11110000
    assert sink.texts[0] == "1", "it attached behind the seek"


async def test_seek_into_a_batch(rig, make_entry):
    positions = await rig.publish(*[make_entry(str(each), batch=8) for each in range(3)])
    subscription = await rig.subscription()
    await subscription.seek(Position(*positions[1]), 0b11110000, 8)
    _, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    assert [each.ack_set for each in sink.delivered] == [0b11110000, None]


async def test_seek_to_time_skip_expire_peek_clear(rig, make_entry):
    now_ms = rig.clock.now_ms()
    positions = await rig.publish(
        *[make_entry(str(each), time_ms=now_ms - 100_000 + each * 10_000) for each in range(10)]
    )
    subscription = await rig.subscription()
    await subscription.seek_to_time(now_ms - 65_000)
    _, sink = await rig.attach(subscription, "a", EXCLUSIVE, permits=2)
    assert sink.texts == ["4", "5"]
    subscription.cursor.ack(*positions[5])
    assert (await subscription.peek(2)).entry_id == positions[6][1]
    assert await subscription.peek(6) is None
    await subscription.skip(2)
    assert subscription.cursor.mark_delete == positions[6]
    assert not await subscription.expire(
        25
    )  # regardless of their publish times: their ledger is new
    rig.ledger.ledgers[0].created_ms = now_ms - 200_000
    assert await subscription.expire(25)
    assert subscription.cursor.mark_delete == positions[7]
    assert not await subscription.expire(25)
    consumer = subscription.consumers[0]
    subscription.flow(consumer, 1)
    await rig.settle()
    assert sink.texts == ["4", "5", "8"]
    await subscription.clear_backlog()
    subscription.flow(consumer, 10)
    await rig.settle()
    assert sink.texts == ["4", "5", "8"]
    stats = subscription.stats()
    assert (stats.msg_backlog, stats.total_msg_expired, stats.msg_expired) == (0, 1, 0)


async def test_close_sends_everyone_away(rig):
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    subscription.end()
    subscription.end()
    assert sink.closed == [consumer.spec.consumer_id]
    await rig.publish_texts(1)
    assert sink.texts == []
    other, _ = rig.consumer("b", EXCLUSIVE)
    with pytest.raises(MagnetarError, match="Subscription is fenced"):
        await subscription.add_consumer(other)


async def test_a_reader_of_key_ranges_gets_no_other_keys(rig):
    await rig.publish_texts(100, keys=50)
    got = []
    for ranges in (((0, 30_000),), ((30_001, 65_535),)):
        subscription = await rig.subscription(str(ranges))
        policy = KeySharedSpec(KeySharedMode.STICKY, ranges)
        _, sink = await rig.attach(subscription, "a", EXCLUSIVE, key_shared=policy)
        got.append(sink)
    assert sorted(got[0].texts + got[1].texts, key=int) == [str(each) for each in range(100)]
    assert not set(got[0].keys) & set(got[1].keys)


async def test_a_batch_of_no_messages_counts_as_one(rig, make_entry):
    positions = await rig.publish(make_entry("0", batch=0), make_entry("1", batch=-4))
    for number, sub_type in enumerate(SubType):
        subscription = await rig.subscription(f"s{number}")
        consumer, sink = await rig.attach(subscription, "a", sub_type, permits=10)
        assert (sink.texts, consumer.permits) == (["0", "1"], 8)
        for position in positions:
            subscription.ack_one(consumer, *position)
        assert (consumer.unacked, subscription.cursor.backlog) == (0, 0)


async def test_commands_of_a_closed_consumer_have_no_effect(rig):
    positions = await rig.publish_texts(3)
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "a", EXCLUSIVE)
    await subscription.seek(Position(*positions[0]))
    answers: list[MagnetarError | None] = []
    subscription.ack_one(consumer, *positions[0])
    subscription.ack(consumer, [(*positions[1], None, 0)], False, answers.append)
    subscription.redeliver(consumer)
    subscription.flow(consumer, 10)
    assert subscription.cursor.backlog == 3
    assert [type(each) for each in answers] == [ConsumerNotFound]
    _, sink = await rig.attach(subscription, "a", EXCLUSIVE)
    assert sink.texts == ["0", "1", "2"]


@pytest.mark.parametrize("cumulative", [True, False])
async def test_an_ack_of_a_consumer_that_a_seek_closed_is_refused(rig, cumulative):
    """It was sent before the client knew: the seek counts."""
    subscription = await rig.subscription()
    positions = await rig.publish_texts(3)
    consumer, _ = await rig.attach(subscription, "a", SubType.Exclusive)
    await subscription.seek(Position(*positions[0]))
    outcomes: list[object] = []
    subscription.ack(consumer, [(*positions[2], None, 0)], cumulative, outcomes.append)
    await rig.settle()
    assert [type(each) for each in outcomes] == [ConsumerNotFound]
    assert subscription.cursor.backlog == 3
