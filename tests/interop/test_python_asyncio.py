"""The official Python client's asyncio interface."""

import asyncio
import time

import httpx
import pulsar
import pulsar.asyncio
import pytest
from pulsar.asyncio import Client as AsyncClient
from pulsar.schema import StringSchema

from .support import Names, await_backlog, bodies, numbered, position

DEADLINE_S = 30.0


async def take(consumer: pulsar.asyncio.Consumer, count: int) -> list[pulsar.Message]:
    async with asyncio.timeout(DEADLINE_S):
        return [await consumer.receive() for _ in range(count)]


async def assert_nothing_before(
    client: AsyncClient, consumer: pulsar.asyncio.Consumer, topic: str
) -> None:
    """Sends a last message, which must be the next to come. (The wheel aborts the process when a
    receive that waits is cancelled, so silence cannot be listened for.)"""
    producer = await client.create_producer(topic)
    await producer.send(b"the last")
    assert bodies(await take(consumer, 1)) == [b"the last"]


async def test_sending_and_receiving(
    async_client: AsyncClient, admin: httpx.Client, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "sub")
    producer = await async_client.create_producer(topic)
    assert producer.is_connected()
    sent = await asyncio.gather(*(producer.send(payload) for payload in numbered(100)))
    await producer.flush()
    positions = [position(message_id) for message_id in sent]
    assert positions == sorted(set(positions))
    messages = await take(consumer, 100)
    assert bodies(messages) == numbered(100)
    await consumer.acknowledge_cumulative(messages[-1])
    await_backlog(admin, topic, "sub")
    consumer.redeliver_unacknowledged_messages()
    await assert_nothing_before(async_client, consumer, topic)


async def test_batches_with_keys(async_client: AsyncClient, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "sub")
    producer = await async_client.create_producer(topic, batching_enabled=True)
    await asyncio.gather(
        *(
            producer.send(b"%d" % i, partition_key=f"k{i}", properties={"i": str(i)})
            for i in range(10)
        )
    )
    messages = await take(consumer, 10)
    assert [m.partition_key() for m in messages] == [f"k{i}" for i in range(10)]
    assert [m.properties()["i"] for m in messages] == [str(i) for i in range(10)]


async def test_acks_and_negative_acks(async_client: AsyncClient, topic: str) -> None:
    consumer = await async_client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50
    )
    producer = await async_client.create_producer(topic)
    for payload in numbered(4):
        await producer.send(payload)
    messages = await take(consumer, 4)
    for message in messages[:3]:
        await consumer.acknowledge(message)
    await consumer.negative_acknowledge(messages[3])
    again = (await take(consumer, 1))[0]
    assert (again.data(), again.redelivery_count()) == (b"m-3", 1)
    await consumer.acknowledge(again.message_id())
    await assert_nothing_before(async_client, consumer, topic)


async def test_seeking_and_the_last_id(async_client: AsyncClient, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "sub")
    producer = await async_client.create_producer(topic)
    ids = [await producer.send(payload) for payload in numbered(3, "old")]
    await asyncio.sleep(0.05)
    between_ms = int(time.time() * 1000)
    await asyncio.sleep(0.05)
    ids += [await producer.send(payload) for payload in numbered(2, "new")]
    assert position(await consumer.get_last_message_id())[:2] == position(ids[-1])[:2]
    await take(consumer, 5)
    await consumer.seek(ids[1])
    assert bodies(await take(consumer, 3)) == [b"old-2", *numbered(2, "new")]
    await consumer.seek(between_ms)
    assert bodies(await take(consumer, 2)) == numbered(2, "new")


async def test_reading(async_client: AsyncClient, topic: str) -> None:
    producer = await async_client.create_producer(topic)
    ids = [await producer.send(payload) for payload in numbered(5)]
    reader = await async_client.create_reader(topic, pulsar.MessageId.earliest)
    got = []
    async with asyncio.timeout(DEADLINE_S):
        while await reader.has_message_available():
            got.append((await reader.read_next()).data())
        assert got == numbered(5)
        await reader.seek(ids[2])
        assert (await reader.read_next()).data() == b"m-3"
    await reader.close()


async def test_several_topics(async_client: AsyncClient, names: Names) -> None:
    topics = [names.topic(local) for local in ("a", "b")]
    consumer = await async_client.subscribe(topics, "sub", pulsar.ConsumerType.Shared)
    for topic in topics:
        producer = await async_client.create_producer(topic, schema=StringSchema())
        await producer.send(topic)
    assert {m.topic_name() for m in await take(consumer, 2)} == set(topics)


@pytest.fixture
def partitioned(admin: httpx.Client, names: Names) -> str:
    admin.put(f"/admin/v2/persistent/{names.path}/topic/partitions", json=2).raise_for_status()
    return names.topic()


async def test_partitions(async_client: AsyncClient, partitioned: str) -> None:
    partitions = await async_client.get_topic_partitions(partitioned)
    assert partitions == [f"{partitioned}-partition-{i}" for i in range(2)]


async def test_unsubscribing_and_closing(async_client: AsyncClient, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "sub")
    producer = await async_client.create_producer(topic)
    await producer.send(b"forgotten")
    await consumer.unsubscribe()
    consumer = await async_client.subscribe(topic, "sub")
    await assert_nothing_before(async_client, consumer, topic)
    await consumer.close()
    await producer.close()
    with pytest.raises(pulsar.asyncio.PulsarException) as caught:
        await producer.send(b"late")
    assert caught.value.error() == pulsar.Result.AlreadyClosed


async def test_errors_carry_their_result(async_client: AsyncClient, topic: str) -> None:
    await async_client.create_producer(topic, producer_name="one")
    with pytest.raises(pulsar.asyncio.PulsarException) as caught:
        await async_client.create_producer(topic, producer_name="one")
    assert caught.value.error() == pulsar.Result.ProducerBusy
    with pytest.raises(pulsar.asyncio.PulsarException) as caught:
        await async_client.subscribe("persistent://public/no-such-namespace/t", "sub")
    assert caught.value.error() == pulsar.Result.TopicNotFound
