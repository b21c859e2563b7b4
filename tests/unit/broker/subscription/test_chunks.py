"""Chunked messages on a Shared subscription."""

import pytest

from magnetar.broker.subscription.spec import SubType

SHARED = SubType.Shared


@pytest.fixture
def chunk(make_entry):
    def chunk(uuid, index, count):
        return make_entry(f"{uuid}{index}", chunk=(uuid, index, count))

    return chunk


async def test_chunks_of_a_message_stay_at_one_consumer(rig, make_entry, chunk):
    subscription = await rig.subscription()
    _, first = await rig.attach(subscription, "a", SHARED)
    _, second = await rig.attach(subscription, "b", SHARED)
    for index in range(4):
        for uuid in "xyz":
            await rig.publish(chunk(uuid, index, 4), make_entry("plain"))
            await rig.settle()
    for uuid in "xyz":
        expected = [f"{uuid}{index}" for index in range(4)]
        got = [[text for text in each.texts if text[0] == uuid] for each in (first, second)]
        assert got in ([expected, []], [[], expected])
    assert (first.texts + second.texts).count("plain") == 12
    assert "plain" in first.texts
    assert "plain" in second.texts


async def test_a_chunk_waits_for_its_consumer_without_delaying_others(rig, make_entry, chunk):
    subscription = await rig.subscription()
    first, first_sink = await rig.attach(subscription, "a", SHARED, permits=1)
    await rig.publish(chunk("x", 0, 3))
    await rig.settle()
    assert first_sink.texts == ["x0"]
    _, second_sink = await rig.attach(subscription, "b", SHARED)
    await rig.publish(chunk("x", 1, 3), make_entry("p"), chunk("x", 2, 3), make_entry("q"))
    await rig.settle()
    assert second_sink.texts == ["p", "q"]
    assert subscription.stats().msg_in_replay == 2
    subscription.flow(first, 1)
    await rig.settle()
    assert first_sink.texts == ["x0", "x1"]
    subscription.flow(first, 5)
    await rig.settle()
    assert first_sink.texts == ["x0", "x1", "x2"]
    assert subscription.stats().msg_in_replay == 0


async def test_when_the_owner_leaves_another_gets_all_chunks(rig, chunk):
    subscription = await rig.subscription()
    first, _ = await rig.attach(subscription, "a", SHARED, permits=2)
    await rig.publish(*[chunk("x", index, 5) for index in range(3)])
    await rig.settle()
    _, second_sink = await rig.attach(subscription, "b", SHARED, permits=2)
    third, third_sink = await rig.attach(subscription, "c", SHARED, permits=0)
    assert second_sink.texts == []
    subscription.remove_consumer(first)
    await rig.settle()
    assert second_sink.texts == ["x0", "x1"]
    subscription.flow(third, 100)
    await rig.publish(*[chunk("x", index, 5) for index in (3, 4)])
    await rig.settle()
    assert third_sink.texts == []
    subscription.flow(subscription.consumers[0], 100)
    await rig.settle()
    assert second_sink.texts == [f"x{index}" for index in range(5)]


async def test_parked_chunks_keep_their_redelivery_count(rig, chunk):
    subscription = await rig.subscription()
    first, sink = await rig.attach(subscription, "a", SHARED, permits=3)
    await rig.publish(*[chunk("x", index, 5) for index in range(3)])
    await rig.settle()
    assert sink.take() == ["x0", "x1", "x2"]
    _, other_sink = await rig.attach(subscription, "b", SHARED)
    for times in (1, 2):
        subscription.redeliver(first)
        await rig.settle()
        assert sink.texts == other_sink.texts == []
        subscription.flow(first, 3)
        await rig.settle()
        assert [each.redelivery_count for each in sink.delivered] == [times] * 3
        assert sink.take() == ["x0", "x1", "x2"]


async def test_leftover_chunks_do_not_stall_the_subscription(rig, make_entry, chunk):
    positions = await rig.publish(*[chunk("x", index, 3) for index in range(3)], make_entry("p"))
    subscription = await rig.subscription()
    subscription.cursor.ack(*positions[0])
    consumer, sink = await rig.attach(subscription, "a", SHARED)
    assert sink.texts == ["x1", "x2", "p"]
    for position in positions[1:]:
        subscription.ack_one(consumer, *position)
    assert subscription.cursor.backlog == 0


async def test_skipped_parked_chunks_are_not_delivered(rig, chunk):
    subscription = await rig.subscription()
    first, first_sink = await rig.attach(subscription, "a", SHARED, permits=1)
    positions = await rig.publish(*[chunk("x", index, 6) for index in range(4)])
    await rig.settle()
    await rig.attach(subscription, "b", SHARED)
    assert subscription.stats().msg_in_replay == 3
    subscription.ack_one(first, *positions[1])
    assert subscription.stats().msg_in_replay == 2
    await subscription.skip(2)
    assert subscription.stats().msg_in_replay == 1
    subscription.flow(first, 10)
    await rig.settle()
    assert first_sink.texts == ["x0", "x3"]
