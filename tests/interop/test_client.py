"""Our own client against the server under test: Magnetar, or Apache Pulsar by its addresses."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from magnetar.client import (
    EARLIEST,
    Batching,
    Client,
    Compression,
    DeadLetterPolicy,
    InitialPosition,
    MessageId,
    RedeliveryBackoff,
    SubscriptionType,
)
from magnetar.client.errors import (
    AlreadyClosed,
    ConsumerBusy,
    MessageTooBig,
    ProducerBusy,
)

from .client_rig import assert_silent, take, values
from .support import Names, ServerAddress, numbered


@pytest.fixture
async def own(server: ServerAddress) -> AsyncIterator[Client]:
    async with Client(server.service_url) as client:
        yield client


async def test_messages_with_all_their_metadata(own: Client, topic: str) -> None:
    async with own.consumer(topic, "sub") as consumer, own.producer(topic) as producer:
        sent = await producer.send(
            b"value", key="k", ordering_key=b"\x01", properties={"a": "b"}, event_time_ms=7
        )
        (message,) = await take(consumer, 1)
        assert message.id == sent
        assert (message.value, message.key, message.ordering_key) == (b"value", "k", b"\x01")
        assert (message.properties, message.event_time_ms) == ({"a": "b"}, 7)
        assert message.producer_name == producer.name
        assert (message.sequence_id, message.redelivery_count) == (0, 0)
        await producer.send(None, key_bytes=b"\xff")
        (message,) = await take(consumer, 1)
        assert (message.is_null, message.key_bytes) == (True, b"\xff")


@pytest.mark.parametrize("compression", list(Compression))
async def test_batches_of_each_compression(
    own: Client, topic: str, compression: Compression
) -> None:
    bodies = numbered(500)
    async with own.consumer(topic, "sub") as consumer:
        async with own.producer(topic, compression=compression) as producer:
            futures = [producer.send_nowait(body) for body in bodies]
            ids = await asyncio.gather(*futures)
            assert ids == sorted(set(ids))
            assert producer.stats.entries_sent < 10
        assert values(await take(consumer, 500, ack=True)) == bodies
        await assert_silent(consumer)


async def test_messages_without_batches(own: Client, topic: str) -> None:
    bodies = numbered(200)
    async with own.consumer(topic, "sub") as consumer:
        async with own.producer(topic, batching=None) as producer:
            for body in bodies:
                producer.send_nowait(body)
        assert values(await take(consumer, 200, ack=True)) == bodies


async def test_chunks(own: Client, topic: str) -> None:
    large = bytes(range(256)) * 30_000
    async with own.consumer(topic, "sub", ack_receipt=True) as consumer:
        async with own.producer(topic, batching=None) as plain:
            with pytest.raises(MessageTooBig):
                await plain.send(large)
        async with own.producer(topic, chunking=True) as producer:
            sent = await producer.send(large)
            assert sent.first_chunk is not None
            (message,) = await take(consumer, 1, ack=True)
            assert message.value == large
            assert message.id == sent
            assert message.id.first_chunk == sent.first_chunk
        await consumer.redeliver_unacknowledged()
        await assert_silent(consumer)


@pytest.fixture
def partitioned(names: Names, admin: httpx.Client) -> str:
    """A topic with four partitions."""
    path = f"/admin/v2/persistent/{names.path}/topic/partitions"
    admin.put(path, json=4).raise_for_status()
    return names.topic()


async def test_partitions(own: Client, partitioned: str) -> None:
    topic = partitioned
    async with own.consumer(topic, "sub") as consumer:
        async with own.producer(topic) as producer:
            for i in range(200):
                producer.send_nowait(b"%d" % i, key=f"k{i % 20}")
            await producer.flush()
            assert producer.partitions == 4
        messages = await take(consumer, 200, ack=True)
        assert len({message.id.partition for message in messages}) == 4
        by_key: dict[str | None, list[int]] = {}
        for message in messages:
            by_key.setdefault(message.key, []).append(int(message.value))
        assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_shared_negative_acks_come_again_with_a_count(own: Client, topic: str) -> None:
    async with own.consumer(
        topic,
        "sub",
        type=SubscriptionType.SHARED,
        negative_ack_backoff=RedeliveryBackoff(min_s=0.1, max_s=1.0),
    ) as consumer:
        async with own.producer(topic, batching=None) as producer:
            for body in numbered(3):
                await producer.send(body)
        first, second, third = await take(consumer, 3)
        await consumer.ack(first)
        await consumer.ack(third)
        await consumer.nack(second)
        (again,) = await take(consumer, 1, ack=True)
        assert (again.id, again.redelivery_count) == (second.id, 1)


async def test_ack_timeouts(own: Client, topic: str) -> None:
    async with own.consumer(
        topic, "sub", type=SubscriptionType.SHARED, ack_timeout_s=1.0, ack_timeout_tick_s=0.5
    ) as consumer:
        async with own.producer(topic) as producer:
            await producer.send(b"once")
        (first,) = await take(consumer, 1)
        (again,) = await take(consumer, 1, ack=True)
        assert first.id == again.id


async def test_acks_of_single_messages_of_a_batch(own: Client, topic: str) -> None:
    async with own.producer(topic, batching=Batching(delay_s=60.0)) as producer:
        async with own.consumer(
            topic, "sub", type=SubscriptionType.SHARED, batch_index_ack=True, ack_receipt=True
        ) as consumer:
            for body in numbered(10):
                producer.send_nowait(body)
            await producer.flush()
            messages = await take(consumer, 10)
            await consumer.ack_many(messages[::2])
        async with own.consumer(
            topic, "sub", type=SubscriptionType.SHARED, batch_index_ack=True, ack_receipt=True
        ) as consumer:
            assert values(await take(consumer, 5, ack=True)) == numbered(10)[1::2]
            await assert_silent(consumer)


async def test_cumulative_acks(own: Client, topic: str) -> None:
    async with own.producer(topic, batching=None) as producer:
        async with own.consumer(topic, "sub") as consumer:
            for body in numbered(10):
                await producer.send(body)
            messages = await take(consumer, 10)
            await consumer.ack_cumulative(messages[6])
        async with own.consumer(topic, "sub") as consumer:
            assert values(await take(consumer, 3)) == numbered(10)[7:]


async def test_dead_letters(own: Client, topic: str) -> None:
    policy = DeadLetterPolicy(max_redeliver_count=1, initial_subscription="kept")
    async with own.consumer(
        topic,
        "sub",
        type=SubscriptionType.SHARED,
        dead_letter=policy,
        negative_ack_delay_s=0.05,
    ) as consumer:
        async with own.producer(topic) as producer:
            sent = await producer.send(b"bad", key="k", properties={"a": "b"})
        for count in (0, 1):
            (message,) = await take(consumer, 1)
            assert message.redelivery_count == count
            await consumer.nack(message)
        async with own.consumer(
            f"{topic}-sub-DLQ", "kept", initial_position=InitialPosition.EARLIEST
        ) as dead:
            (letter,) = await take(dead, 1, ack=True)
            assert (letter.value, letter.key) == (b"bad", "k")
            assert letter.properties["a"] == "b"
            assert letter.properties["REAL_TOPIC"] == topic
            assert letter.properties["ORIGIN_MESSAGE_ID"].startswith(
                f"{sent.ledger_id}:{sent.entry_id}:"
            )
        await assert_silent(consumer)


async def test_retry_letters(own: Client, topic: str) -> None:
    policy = DeadLetterPolicy(max_redeliver_count=1, initial_subscription="kept")
    async with own.consumer(
        topic, "sub", type=SubscriptionType.SHARED, dead_letter=policy, retry_enabled=True
    ) as consumer:
        async with own.producer(topic) as producer:
            await producer.send(b"later")
        (message,) = await take(consumer, 1)
        await consumer.reconsume_later(message, 0)
        (message,) = await take(consumer, 1)
        assert message.topic == f"{topic}-sub-RETRY"
        assert message.properties["RECONSUMETIMES"] == "1"
        await consumer.reconsume_later(message, 0)
        async with own.consumer(
            f"{topic}-sub-DLQ", "kept", initial_position=InitialPosition.EARLIEST
        ) as dead:
            (letter,) = await take(dead, 1)
            assert letter.properties["RECONSUMETIMES"] == "2"
            assert letter.properties["REAL_TOPIC"] == topic


async def test_readers_and_seeks(own: Client, topic: str) -> None:
    async with own.producer(topic) as producer:
        futures = [producer.send_nowait(body) for body in numbered(10)]
        ids = await asyncio.gather(*futures)
    assert ids[0].batch_size == 10
    async with own.reader(topic, ids[3]) as reader:
        assert (await reader.read(30)).value == numbered(10)[4]
    async with own.reader(topic, ids[3], inclusive=True) as reader:
        assert (await reader.read(30)).value == numbered(10)[3]
    async with own.reader(topic) as reader:
        read = []
        while await reader.has_message_available():
            read.append((await reader.read(30)).value)
        assert read == numbered(10)
        restored = MessageId.deserialize(ids[7].serialize(), topic)
        await reader.seek(restored)
        assert (await reader.read(30)).value == numbered(10)[7]
        await reader.seek(EARLIEST)
        assert (await reader.read(30)).value == numbered(10)[0]


async def test_seeking_a_subscription(own: Client, topic: str) -> None:
    async with own.consumer(topic, "sub") as consumer, own.producer(topic) as producer:
        ids = [await producer.send(body) for body in numbered(5)]
        await take(consumer, 5, ack=True)
        await consumer.seek(ids[2])
        assert values(await take(consumer, 3, ack=True)) == numbered(5)[2:]
        await consumer.seek(0)
        assert values(await take(consumer, 5, ack=True)) == numbered(5)


async def test_a_table_view(own: Client, topic: str) -> None:
    async with own.producer(topic) as producer:
        await producer.send(b"1", key="a")
        await producer.send(b"2", key="b")
        await producer.send(b"3", key="a")
        async with own.table_view(topic) as view:
            assert dict(view.items()) == {"a": b"3", "b": b"2"}
            await producer.send(None, key="b")
            await producer.send(b"4", key="c")
            await view.refresh()
            assert dict(view.items()) == {"a": b"3", "c": b"4"}


async def test_topics_of_a_pattern(own: Client, names: Names) -> None:
    async with (
        own.producer(names.topic("a-1")) as first,
        own.pattern_consumer(
            f"{names.path}/a-.*", "sub", initial_position=InitialPosition.EARLIEST
        ) as consumer,
    ):
        await first.send(b"first")
        assert values(await take(consumer, 1, ack=True)) == [b"first"]
        async with own.producer(names.topic("b-1")) as other:
            await other.send(b"other")
        async with own.producer(names.topic("a-2")) as second:
            await second.send(b"second")
            assert values(await take(consumer, 1, ack=True)) == [b"second"]
        await assert_silent(consumer)


async def test_names_that_are_taken(own: Client, topic: str) -> None:
    async with own.producer(topic, name="p"), own.consumer(topic, "sub"):
        with pytest.raises(ProducerBusy) as busy:
            await own.producer(topic, name="p")
        assert busy.value.topic == topic
        assert busy.value.remedy
        with pytest.raises(ConsumerBusy):
            await own.consumer(topic, "sub")


async def test_sequence_ids_continue(own: Client, topic: str) -> None:
    async with own.producer(topic, name="p") as producer:
        await producer.send(b"1", sequence_id=41)
        await producer.send(b"2")
        assert producer.last_sequence_id == 42


async def test_several_topics_and_a_listener(own: Client, names: Names) -> None:
    topics = [names.topic(f"t{i}") for i in range(3)]
    handled: list[bytes] = []
    async with own.consumer(topics, "sub", type=SubscriptionType.SHARED) as consumer:

        async def handle(message: object) -> None:
            handled.append(message.value)  # type: ignore[attr-defined]
            if len(handled) == 30:
                await asyncio.sleep(0)
                closing.set()

        closing = asyncio.Event()
        running = asyncio.create_task(consumer.run(handle, concurrency=4))
        for topic in topics:
            async with own.producer(topic) as producer:
                for body in numbered(10):
                    await producer.send(body, key="k")
        async with asyncio.timeout(30):
            await closing.wait()
        await consumer.close()
        await running
    assert sorted(handled) == sorted(numbered(10) * 3)


async def test_a_closed_client_refuses(server: ServerAddress, topic: str) -> None:
    client = Client(server.service_url)
    producer = await client.producer(topic)
    await client.close()
    with pytest.raises(AlreadyClosed):
        await producer.send(b"late")
    with pytest.raises(AlreadyClosed):
        await client.producer(topic)


async def test_acknowledged_messages_that_are_not_persistent(own: Client, names: Names) -> None:
    """They share one id, so that no ack is one of a later message."""
    topic = names.topic(domain="non-persistent")
    async with own.consumer(topic, "sub") as consumer, own.producer(topic) as producer:
        for body in numbered(5):
            await producer.send(body)
            assert values(await take(consumer, 1, ack=True)) == [body]
        assert consumer.stats.duplicates_dropped == 0
