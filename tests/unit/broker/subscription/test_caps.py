"""Caps on what consumers hold unacknowledged, and what counts: at the exact numbers."""

import pytest

from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType
from magnetar.core.ids import Position

KINDS = pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared])


@KINDS
async def test_a_consumer_that_holds_as_much_as_a_new_cap_gets_no_more(rig, kind):
    await rig.publish_texts(30, keys=7)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "c", kind, permits=10)
    assert consumer.unacked == 10
    subscription.set_limits(SubscriptionLimits(max_unacked_per_consumer=11))
    assert not consumer.blocked
    subscription.set_limits(SubscriptionLimits(max_unacked_per_consumer=10))
    assert consumer.blocked
    subscription.flow(consumer, 100)
    await rig.settle()
    assert len(sink.delivered) == 10
    subscription.set_limits(SubscriptionLimits(max_unacked_per_consumer=0))
    await rig.settle()
    assert not consumer.blocked
    assert len(sink.delivered) == 30


@KINDS
async def test_a_subscription_that_holds_as_much_as_a_new_cap_gives_no_more(rig, kind):
    await rig.publish_texts(30, keys=7)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "c", kind, permits=10)
    dispatcher = subscription.dispatcher
    for cap, blocked in ((0, False), (11, False), (10, True), (9, True)):
        subscription.set_limits(SubscriptionLimits(max_unacked_per_subscription=cap))
        assert dispatcher.blocked is blocked, cap
    subscription.flow(consumer, 100)
    await rig.settle()
    assert len(sink.delivered) == 10
    assert not consumer.blocked
    for place in rig.published[:5]:
        subscription.ack_one(consumer, *place)
    await rig.settle()
    assert (len(sink.delivered), dispatcher.unacked) == (10, 5)
    # Half of 9 is 4: the sixth lifts the cap, and the subscription fills up to it again.
    subscription.ack_one(consumer, *rig.published[5])
    await rig.settle()
    assert (len(sink.delivered), dispatcher.unacked, dispatcher.blocked) == (15, 9, True)


@KINDS
async def test_acked_messages_of_a_batch_count(rig, kind, make_entry):
    (place,) = await rig.publish(make_entry("batch", batch=5, key="k"))
    subscription = await rig.subscription()
    consumer, _ = await rig.attach(subscription, "c", kind)
    dispatcher = subscription.dispatcher
    assert (consumer.unacked, dispatcher.unacked) == (5, 5)
    dispatcher.settle_part(consumer, *place, 3)
    assert (consumer.unacked, dispatcher.unacked, consumer.acked_messages) == (3, 3, 2)
    dispatcher.settle_part(consumer, *place, 3)
    assert (consumer.unacked, consumer.acked_messages) == (3, 2)
    dispatcher.settle(consumer, *place)
    assert (consumer.unacked, dispatcher.unacked, consumer.acked_messages) == (0, 0, 5)
    dispatcher.settle_part(consumer, *place, 0)
    assert (consumer.unacked, consumer.acked_messages) == (0, 5)


@KINDS
async def test_redelivered_entries_are_counted_and_skipped_ones_are_not_sent(rig, kind):
    await rig.publish_texts(6, keys=2)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "c", kind)
    sink.take()
    dispatcher = subscription.dispatcher
    dispatcher.redeliver(consumer, [rig.published[1], rig.published[4], (9, 9)], None)
    await rig.settle()
    assert consumer.redelivered_messages == 2
    assert sorted(sink.take()) == ["1", "4"]
    assert (consumer.unacked, dispatcher.unacked) == (6, 6)
    dispatcher.settle_up_to(Position(*rig.published[3]))
    assert (consumer.unacked, dispatcher.unacked) == (2, 2)
    dispatcher.redeliver(consumer, None, None)
    await rig.settle()
    assert sorted(sink.take()) == ["4", "5"]


@pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared, SubType.Exclusive])
async def test_a_skip_takes_exactly_what_is_up_to_it(rig, kind):
    await rig.publish_texts(8, keys=3)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "c", kind, permits=1)
    first = sink.take()
    assert first == ["0"]
    subscription.cursor.ack_cumulative(Position(*rig.published[4]))
    subscription.dispatcher.settle_up_to(Position(*rig.published[4]))
    subscription.flow(consumer, 100)
    await rig.settle()
    assert sorted(sink.take()) == ["5", "6", "7"]


async def test_permits_and_times_are_those_of_the_flow(rig):
    await rig.publish_texts(3)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "c", SubType.Shared, permits=0)
    assert (consumer.first_flow_ms, consumer.first_sent_ms, sink.calls) == (0, 0, 0)
    subscription.flow(consumer, 2)
    await rig.settle()
    first = consumer.first_flow_ms
    assert first == consumer.last_flow_ms > 0
    assert consumer.first_sent_ms > 0
    assert (consumer.permits, consumer.messages_out) == (0, 2)
    assert consumer.bytes_out == sum(len(each.entry.data) for each in sink.delivered)
    subscription.flow(consumer, 2)
    await rig.settle()
    assert (consumer.first_flow_ms, consumer.permits) == (first, 1)
    assert consumer.messages_out == 3


@pytest.mark.parametrize("kind", list(SubType))
async def test_the_end_of_a_topic_is_announced_once_after_the_last_ack(rig, kind):
    await rig.publish_texts(2, keys=1)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "c", kind, permits=0)
    await rig.ledger.terminate()
    subscription.dispatcher.dispatch()
    assert sink.ended == 0
    subscription.flow(consumer, 10)
    await rig.settle()
    subscription.dispatcher.announce_end()
    assert sink.ended == 0
    subscription.cursor.ack_cumulative(Position(*rig.published[1]))
    for _ in range(2):
        subscription.dispatcher.announce_end()
    assert sink.ended == 1
