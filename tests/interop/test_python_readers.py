"""Readers, seeking and last message ids, through the official Python client."""

import threading
import time

import httpx
import pulsar
import pytest
from pulsar import ConsumerType as Type
from pulsar import MessageId as Id

from .support import (
    PATIENCE_S,
    UNTIL_FLUSH_MS,
    Names,
    assert_silent,
    await_backlog,
    bodies,
    numbered,
    position,
    read,
    send_all,
    take,
)


def fill_batch(client: pulsar.Client, topic: str, payloads: list[bytes]) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=UNTIL_FLUSH_MS
    )
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    producer.close()


def test_reading_from_the_start_from_the_end_and_from_an_id(
    client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    ids = send_all(producer, numbered(10))
    start = client.create_reader(topic, Id.earliest)
    end = client.create_reader(topic, Id.latest)
    after = client.create_reader(topic, ids[4])
    including = client.create_reader(topic, ids[4], start_message_id_inclusive=True)
    restored = client.create_reader(topic, Id.deserialize(ids[4].serialize()))
    send_all(producer, [b"new"])
    everything = [*numbered(10), b"new"]
    assert bodies(read(start, 11)) == everything
    assert bodies(read(end, 1)) == [b"new"]
    assert bodies(read(after, 6)) == everything[5:]
    assert bodies(read(including, 7)) == everything[4:]
    assert bodies(read(restored, 6)) == everything[5:]


def test_reading_from_inside_a_batch(client: pulsar.Client, topic: str) -> None:
    fill_batch(client, topic, numbered(10))
    ids = [m.message_id() for m in read(client.create_reader(topic, Id.earliest), 10)]
    after = client.create_reader(topic, ids[4])
    including = client.create_reader(topic, ids[4], start_message_id_inclusive=True)
    assert bodies(read(after, 5)) == numbered(10)[5:]
    assert bodies(read(including, 6)) == numbered(10)[4:]


def test_a_reader_knows_whether_there_is_more(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    reader = client.create_reader(topic, Id.earliest)
    assert not reader.has_message_available()
    send_all(producer, numbered(2))
    for body in numbered(2):
        assert reader.has_message_available()
        assert read(reader, 1)[0].data() == body
    assert not reader.has_message_available()
    with pytest.raises(pulsar.Timeout):
        reader.read_next(100)
    fill_batch(client, topic, numbered(3))
    for _ in range(3):
        assert reader.has_message_available()
        read(reader, 1)
    assert not reader.has_message_available()


def test_a_reader_at_the_end_with_an_inclusive_start(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, numbered(3))
    reader = client.create_reader(topic, Id.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert bodies(read(reader, 1)) == numbered(3)[2:]
    assert not reader.has_message_available()


def test_a_reader_seeks(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = send_all(producer, numbered(10))
    reader = client.create_reader(topic, Id.earliest)
    read(reader, 10)
    reader.seek(ids[6])
    assert bodies(read(reader, 3)) == numbered(10)[7:]
    reader.seek(Id.earliest)
    assert bodies(read(reader, 10)) == numbered(10)
    reader.seek(Id.latest)
    assert not reader.has_message_available()
    send_all(producer, [b"new"])
    assert bodies(read(reader, 1)) == [b"new"]


def test_a_reader_listener_hears_everything(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    send_all(producer, numbered(5))
    heard: list[bytes] = []
    enough = threading.Event()

    def listener(reader: pulsar.Reader, message: pulsar.Message) -> None:
        heard.append(message.data())
        if len(heard) == 8:
            enough.set()

    client.create_reader(topic, Id.earliest, reader_listener=listener)
    send_all(producer, numbered(3, "late"))
    assert enough.wait(PATIENCE_S)
    assert heard == numbered(5) + numbered(3, "late")


def test_a_reader_of_a_partitioned_topic(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = names.topic()
    admin.put(f"/admin/v2/persistent/{names.path}/topic/partitions", json=3).raise_for_status()
    producer = client.create_producer(topic)
    send_all(producer, numbered(30))
    reader = client.create_reader(topic, Id.earliest)
    assert sorted(bodies(read(reader, 30))) == sorted(numbered(30))
    assert not reader.has_message_available()


def test_a_reader_leaves_nothing_behind(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = names.topic()
    client.create_producer(topic).send(b"x")
    reader = client.create_reader(topic, Id.earliest, reader_name="r", subscription_role_prefix="p")
    assert reader.is_connected()
    path = f"/admin/v2/persistent/{names.path}/topic/subscriptions"
    assert [name.startswith("p-") for name in admin.get(path).json()] == [True]
    reader.close()
    assert not reader.is_connected()
    assert admin.get(path).json() == []


def test_the_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    assert consumer.get_last_message_id().entry_id() == -1
    producer = client.create_producer(topic)
    sent = send_all(producer, numbered(3))[-1]
    assert position(consumer.get_last_message_id())[:2] == position(sent)[:2]
    fill_batch(client, topic, numbered(4))
    last = consumer.get_last_message_id()
    assert last.batch_index() == 3
    assert position(take(consumer, 7)[-1].message_id()) == position(last)


@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_a_consumer_seeks_by_id(
    client: pulsar.Client, admin: httpx.Client, topic: str, kind: Type
) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    producer = client.create_producer(topic)
    ids = send_all(producer, numbered(10))
    take(consumer, 10, ack=True)
    await_backlog(admin, topic, "sub")
    consumer.seek(ids[4])
    assert bodies(take(consumer, 5)) == numbered(10)[5:]
    consumer.seek(Id.earliest)
    assert bodies(take(consumer, 10, ack=True)) == numbered(10)
    consumer.seek(Id.latest)
    send_all(producer, [b"new"])
    assert bodies(take(consumer, 1)) == [b"new"]
    assert_silent(consumer)


def test_seeking_onto_the_start_of_an_inclusive_consumer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", start_message_id_inclusive=True)
    producer = client.create_producer(topic)
    ids = send_all(producer, numbered(5))
    take(consumer, 5)
    consumer.seek(ids[2])
    assert bodies(take(consumer, 3)) == numbered(5)[2:]


def test_seeking_into_a_batch(client: pulsar.Client, admin: httpx.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    fill_batch(client, topic, numbered(10))
    messages = take(consumer, 10, ack=True)
    await_backlog(admin, topic, "sub")  # acks that the client keeps back may come behind the seek
    consumer.seek(messages[3].message_id())
    assert bodies(take(consumer, 6)) == numbered(10)[4:]


def test_a_consumer_seeks_by_time(client: pulsar.Client, admin: httpx.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, numbered(3, "old"))
    time.sleep(0.05)
    between_ms = int(time.time() * 1000)
    time.sleep(0.05)
    send_all(producer, numbered(3, "new"))
    take(consumer, 6, ack=True)
    await_backlog(admin, topic, "sub")
    consumer.seek(between_ms)
    assert bodies(take(consumer, 3)) == numbered(3, "new")
    consumer.seek(0)
    assert bodies(take(consumer, 6)) == numbered(3, "old") + numbered(3, "new")
    consumer.seek(int(time.time() * 1000) + 60_000)
    assert_silent(consumer)


def test_seeking_all_partitions_by_time(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = names.topic()
    admin.put(f"/admin/v2/persistent/{names.path}/topic/partitions", json=2).raise_for_status()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    take(consumer, 10, ack=True)
    for partition in client.get_topic_partitions(topic):
        await_backlog(admin, partition, "sub")
    consumer.seek(0)
    assert sorted(bodies(take(consumer, 10))) == sorted(numbered(10))


def test_message_ids_compare_and_travel(
    client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    first, second = send_all(producer, numbered(2))
    wrapped = [Id.wrap(first), Id.wrap(second)]
    assert wrapped[0] < wrapped[1]
    assert wrapped[0] != wrapped[1]
    restored = Id.deserialize(first.serialize())
    assert position(restored) == position(first)
    consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
    received = take(consumer, 1)[0].message_id()
    with_topic = Id.deserialize(received.serialize(), topic=topic)
    consumer.acknowledge(with_topic)
    await_backlog(admin, topic, "sub", 1)
    consumer.redeliver_unacknowledged_messages()
    assert bodies(take(consumer, 1)) == [b"m-1"]
