"""Consumers that come again: epochs, counts and ranges of the one before do not stay."""

import pytest

from magnetar.broker.subscription.spec import KeySharedMode, KeySharedSpec, SubType


@pytest.mark.parametrize("kind", list(SubType))
async def test_an_epoch_of_a_consumer_only_rises(rig, kind) -> None:
    await rig.publish_texts(2, keys=1)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "c", kind)
    dispatcher = subscription.dispatcher
    seen = []
    for epoch in (None, 3, 2, None, 5):
        dispatcher.redeliver(consumer, None, epoch)
        await rig.settle()
        seen.append(consumer.epoch)
    assert seen == [None, 3, 3, 3, 5]
    assert sink.epochs[-1] == 5


@pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared])
async def test_counts_of_redeliveries_end_with_the_last_consumer(rig, kind) -> None:
    await rig.publish_texts(2, keys=1)
    subscription = await rig.subscription()
    consumer, sink = await rig.attach(subscription, "c", kind)
    subscription.dispatcher.redeliver(consumer, None, None)
    await rig.settle()
    assert [each.redelivery_count for each in sink.delivered[2:]] == [1, 1]
    subscription.remove_consumer(consumer)
    await rig.settle()
    _, later = await rig.attach(subscription, "d", kind)
    assert [each.redelivery_count for each in later.delivered] == [0, 0]


async def test_the_ranges_of_an_exclusive_consumer_end_with_it(rig) -> None:
    await rig.publish_texts(20, keys=20)
    subscription = await rig.subscription()
    ranges = KeySharedSpec(KeySharedMode.STICKY, ((0, 20_000),))
    some, sink = await rig.attach(subscription, "c", SubType.Exclusive, key_shared=ranges)
    assert 0 < len(sink.delivered) < 20
    subscription.remove_consumer(some)
    await rig.settle()
    _, later = await rig.attach(subscription, "d", SubType.Exclusive)
    assert len(later.delivered) == 20
