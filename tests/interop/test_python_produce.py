"""The official Python client as a producer: what it sends comes back as it was."""

import datetime
import threading
import time

import httpx
import pulsar
import pytest

from .support import (
    UNTIL_FLUSH_MS,
    assert_silent,
    await_backlog,
    bodies,
    numbered,
    position,
    send_all,
    take,
    wait_until,
)

COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]
MESSAGE_SIZE_MAX_BYTES = 5 * 1024 * 1024
TICK_MS = 1_000


def test_a_sent_message_is_received(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    sent = producer.send(b"hello")
    received = take(consumer, 1)[0]
    assert received.data() == b"hello"
    assert position(received.message_id())[:2] == position(sent)[:2]
    assert received.topic_name() == topic
    assert received.producer_name() == producer.producer_name()
    assert received.redelivery_count() == 0
    consumer.acknowledge(received)
    assert_silent(consumer)


def test_every_field_of_a_message_arrives(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name="named", properties={"team": "x"})
    before_ms = int(time.time() * 1000)
    producer.send(
        b"body",
        properties={"a": "1", "b": "ünï"},
        partition_key="key",
        ordering_key="order",
        sequence_id=41,
        event_timestamp=1234567890,
    )
    message = take(consumer, 1)[0]
    assert message.properties() == {"a": "1", "b": "ünï"}
    assert message.partition_key() == "key"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 1234567890
    assert before_ms - 1000 <= message.publish_timestamp() <= int(time.time() * 1000) + 1000
    assert message.producer_name() == "named"
    assert producer.last_sequence_id() == 41


def test_ids_only_grow(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    positions = [position(message_id) for message_id in send_all(producer, numbered(50))]
    assert positions == sorted(set(positions))


@pytest.mark.parametrize("batching", [False, True])
def test_send_async_answers_in_order(client: pulsar.Client, topic: str, batching: bool) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=batching)
    answers: list[tuple[pulsar.Result, tuple[int, int, int]]] = []
    payloads = numbered(500)
    for payload in payloads:
        producer.send_async(payload, lambda result, mid: answers.append((result, position(mid))))
    producer.flush()
    wait_until(lambda: len(answers) == 500, what="500 receipts")
    assert {result for result, _ in answers} == {pulsar.Result.Ok}
    positions = [at for _, at in answers]
    assert positions == sorted(set(positions))
    assert bodies(take(consumer, 500)) == payloads


def test_a_batch_is_one_entry(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=UNTIL_FLUSH_MS,
        batching_max_messages=10,
    )
    for payload in numbered(10):
        producer.send_async(payload, lambda *_: None)
    messages = take(consumer, 10)
    assert bodies(messages) == numbered(10)
    assert len({position(m.message_id())[:2] for m in messages}) == 1
    assert [m.message_id().batch_index() for m in messages] == list(range(10))


def test_key_based_batches_hold_one_key_each(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=UNTIL_FLUSH_MS,
    )
    for i in range(12):
        producer.send_async(b"%d" % i, lambda *_: None, partition_key=f"k{i % 3}")
    producer.flush()
    entries: dict[tuple[int, int], set[str]] = {}
    for message in take(consumer, 12):
        at = position(message.message_id())[:2]
        entries.setdefault(at, set()).add(message.partition_key())
    assert sorted(map(sorted, entries.values())) == [["k0"], ["k1"], ["k2"]]


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda kind: str(kind).split(".")[-1])
def test_every_compression_round_trips(
    client: pulsar.Client, topic: str, compression: pulsar.CompressionType, batching: bool
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(
        topic, compression_type=compression, batching_enabled=batching
    )
    payloads = [b"x" * 10_000 + b"%d" % i for i in range(20)]
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    assert bodies(take(consumer, 20)) == payloads


def test_a_message_just_under_the_limit(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    payload = bytes(range(256)) * 4 * 1024 * 4
    payload += b"z" * (MESSAGE_SIZE_MAX_BYTES - len(payload) - 1024)
    producer.send(payload)
    assert take(consumer, 1)[0].data() == payload


def test_an_oversized_message_is_refused_and_the_producer_lives(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (MESSAGE_SIZE_MAX_BYTES + 1))
    producer.send(b"small")
    assert take(consumer, 1)[0].data() == b"small"


def test_chunks_become_one_message(client: pulsar.Client, admin: httpx.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, chunking_enabled=True)
    payload = bytes(range(256)) * (12 * 1024 * 4)
    sent = producer.send(payload)
    producer.send(b"after")
    first, second = take(consumer, 2)
    assert first.data() == payload
    assert position(first.message_id())[:2] == position(sent)[:2]
    consumer.acknowledge(first)
    assert second.data() == b"after"
    await_backlog(admin, topic, "sub", 1)
    consumer.redeliver_unacknowledged_messages()
    assert take(consumer, 1)[0].data() == b"after"


def test_interleaved_chunks_of_two_producers(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    payloads = [bytes([65 + i]) * (11 * 1024 * 1024) for i in range(2)]
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in payloads]
    threads = [
        threading.Thread(target=producer.send, args=(payload,))
        for producer, payload in zip(producers, payloads, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(bodies(take(consumer, 2))) == payloads


def test_null_values_differ_from_empty_ones(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(None, partition_key="gone")
    producer.send(b"", partition_key="empty")
    null, empty = take(consumer, 2)
    assert (null.partition_key(), null.has_null_value()) == ("gone", True)
    assert (empty.partition_key(), empty.has_null_value(), empty.data()) == ("empty", False, b"")


def test_a_replicated_subscription_is_refused(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "sub", replicate_subscription_state_enabled=True)


def test_a_message_may_narrow_where_it_is_replicated_to(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"a", disable_replication=True)
    producer.send(b"b", replication_clusters=["standalone"])
    assert bodies(take(consumer, 2)) == [b"a", b"b"]


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_shared_types_get_a_message_at_its_delivery_time(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "sub", consumer_type=kind)
    producer = client.create_producer(topic)
    at_ms = int(time.time() * 1000) + 3_000
    due_ms = {b"later": at_ms + 1_000, b"at": at_ms}
    for body, deliver_at in due_ms.items():
        producer.send(body, deliver_at=deliver_at)
    producer.send(b"past", deliver_at=at_ms - 60_000)
    producer.send(b"now")
    assert sorted(bodies(take(consumer, 2))) == [b"now", b"past"]
    while due_ms:  # where both are due at once, on a machine that was busy, either may be first
        (body,) = bodies(take(consumer, 1))
        assert time.time() * 1000 >= due_ms.pop(body) - TICK_MS, "a tick early at most"


def test_a_type_that_delivers_in_order_gets_a_delayed_message_at_once(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=datetime.timedelta(hours=1))
    producer.send(b"now")
    assert bodies(take(consumer, 2)) == [b"delayed", b"now"]


def test_sequence_ids_follow_the_initial_one(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, initial_sequence_id=10)
    assert producer.last_sequence_id() == 10
    send_all(producer, numbered(3))
    assert producer.last_sequence_id() == 13
    producer.send(b"jump", sequence_id=100)
    assert producer.last_sequence_id() == 100


def test_a_new_producer_starts_without_a_sequence(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    assert producer.last_sequence_id() == -1
    send_all(producer, numbered(2))
    assert producer.last_sequence_id() == 1


def test_a_full_queue_is_reported_or_waited_for(client: pulsar.Client, topic: str) -> None:
    results: list[pulsar.Result] = []
    payload = b"x" * 1024
    refusing = client.create_producer(topic, max_pending_messages=1)
    for _ in range(200):
        refusing.send_async(payload, lambda result, _: results.append(result))
    refusing.flush()
    wait_until(lambda: len(results) == 200, what="200 answers")
    assert set(results) == {pulsar.Result.Ok, pulsar.Result.ProducerQueueIsFull}

    results.clear()
    waiting = client.create_producer(topic, max_pending_messages=1, block_if_queue_full=True)
    for _ in range(200):
        waiting.send_async(payload, lambda result, _: results.append(result))
    waiting.flush()
    wait_until(lambda: len(results) == 200, what="200 answers")
    assert set(results) == {pulsar.Result.Ok}


def test_sending_from_many_threads_loses_nothing(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=True)
    threads = [
        threading.Thread(target=send_all, args=(producer, numbered(25, f"t{i}"))) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = bodies(take(consumer, 200))
    for i in range(8):
        assert [b for b in received if b.startswith(b"t%d-" % i)] == numbered(25, f"t{i}")


def test_nothing_may_be_sent_after_closing(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="named")
    assert producer.is_connected()
    producer.send(b"first")
    producer.close()
    assert not producer.is_connected()
    assert (producer.producer_name(), producer.last_sequence_id()) == ("named", 0)
    with pytest.raises(pulsar.AlreadyClosed):
        producer.send(b"late")
