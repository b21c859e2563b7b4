"""How a dispatcher reads: ahead of its consumer, and never from within itself."""

from magnetar.broker.subscription.limits import SubscriptionLimits
from magnetar.broker.subscription.spec import SubType


async def test_the_next_read_runs_while_the_consumer_works(rig):
    limits = SubscriptionLimits(read_entries_min=10, read_entries_max=10)
    await rig.publish_texts(100)
    subscription = await rig.subscription(limits=limits)
    consumer, sink = await rig.attach(subscription, "a", SubType.Exclusive, permits=8)
    assert len(sink.texts) == 8
    reader = subscription.dispatcher.reader
    # Two of the first read are left, and a second one has come: where nothing is cached.
    assert reader.buffered in (0, 12)
    assert subscription.cursor.read_position.entry_id == 8
    subscription.flow(consumer, 1)
    assert len(sink.texts) == 9, "the buffer answers at once"
    assert reader.buffered <= 20


async def test_surplus_entries_do_not_advance_the_read_position(rig, make_entry):
    await rig.publish(*[make_entry(str(each), batch=5) for each in range(20)])
    subscription = await rig.subscription()
    await rig.attach(subscription, "a", SubType.Exclusive, permits=12)
    assert subscription.cursor.read_position.entry_id == 3


async def test_acks_and_permits_from_within_a_delivery(rig):
    """An in-process client may answer before `deliver` returns."""
    await rig.publish_texts(300)
    for number, sub_type in enumerate(SubType):
        subscription = await rig.subscription(f"s{number}")
        consumer, sink = rig.consumer("a", sub_type)

        def answer(deliveries, subscription=subscription, consumer=consumer):
            for each in deliveries:
                subscription.ack_one(consumer, each.entry.ledger_id, each.entry.entry_id)
            subscription.flow(consumer, len(deliveries))

        sink.on_deliver = answer
        await subscription.add_consumer(consumer)
        subscription.flow(consumer, 7)
        for _ in range(50):
            await rig.settle()
        assert sink.texts == [str(each) for each in range(300)]
        assert subscription.cursor.backlog == 0
        assert (consumer.permits, consumer.unacked) == (7, 0)


async def test_an_answer_during_a_hand_over_does_not_overtake_others(rig):
    subscription = await rig.subscription()
    sinks = []
    for name in "ab":
        consumer, sink = rig.consumer(name, SubType.Key_Shared)

        def answer(deliveries, consumer=consumer):
            subscription.flow(consumer, len(deliveries))

        sink.on_deliver = answer
        await subscription.add_consumer(consumer)
        subscription.flow(consumer, 5)
        sinks.append(sink)
    await rig.publish_texts(400, keys=20)
    for _ in range(50):
        await rig.settle()
    assert sum(len(sink.texts) for sink in sinks) == 400
    for sink in sinks:
        for key in set(sink.keys):
            texts = [int(text) for text, k in zip(sink.texts, sink.keys, strict=True) if k == key]
            assert texts == sorted(texts)
