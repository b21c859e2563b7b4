"""Acknowledging, redelivery, its counts, and dead letters, through the official Python client."""

import httpx
import pulsar
import pytest
from pulsar import ConsumerType as Type

from .conftest import ConnectClient
from .support import (
    UNTIL_FLUSH_MS,
    Names,
    assert_silent,
    await_backlog,
    bodies,
    numbered,
    send_all,
    take,
    unload,
    wait_until,
)

IN_ORDER = [Type.Exclusive, Type.Failover]
SHARED = [Type.Shared, Type.KeyShared]


def send_batch(client: pulsar.Client, topic: str, payloads: list[bytes]) -> None:
    """Sends all payloads as one entry."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=UNTIL_FLUSH_MS
    )
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    producer.close()


@pytest.mark.parametrize("kind", IN_ORDER + SHARED)
@pytest.mark.parametrize("by", ["message", "id"])
def test_individual_acks_hold(
    client: pulsar.Client, admin: httpx.Client, topic: str, kind: Type, by: str
) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    for message in take(consumer, 10)[::2]:
        consumer.acknowledge(message if by == "message" else message.message_id())
    await_backlog(admin, topic, "sub", 5)
    consumer.close()
    unload(admin, topic)
    consumer = client.subscribe(topic, "sub", kind)
    assert bodies(take(consumer, 5, ack=True)) == numbered(10)[1::2]
    await_backlog(admin, topic, "sub", 0)


@pytest.mark.parametrize("kind", IN_ORDER)
def test_cumulative_acks_hold(
    client: pulsar.Client, admin: httpx.Client, topic: str, kind: Type
) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    consumer.acknowledge_cumulative(take(consumer, 10)[6])
    await_backlog(admin, topic, "sub", 3)
    consumer.close()
    unload(admin, topic)
    assert bodies(take(client.subscribe(topic, "sub", kind), 3)) == numbered(10)[7:]


@pytest.mark.parametrize("kind", SHARED)
def test_cumulative_acks_are_refused_where_messages_are_shared(
    client: pulsar.Client, topic: str, kind: Type
) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(take(consumer, 1)[0])


def test_without_batch_index_acks_a_batch_is_all_or_nothing(
    client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub", Type.Shared)
    send_batch(client, topic, numbered(10))
    messages = take(consumer, 10)
    for message in messages[:5]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "sub", Type.Shared)
    messages = take(consumer, 10)
    assert bodies(messages) == numbered(10)
    for message in messages:
        consumer.acknowledge(message)
    await_backlog(admin, topic, "sub", 0)


@pytest.mark.parametrize("kind", IN_ORDER + SHARED)
def test_batch_index_acks_hold(
    client: pulsar.Client, admin: httpx.Client, topic: str, kind: Type
) -> None:
    options = {"batch_index_ack_enabled": True}
    consumer = client.subscribe(topic, "sub", kind, **options)
    send_batch(client, topic, numbered(10))
    for message in take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "sub", kind, **options)
    messages = take(consumer, 5)
    assert bodies(messages) == numbered(10)[1::2]
    consumer.acknowledge(messages[0])
    consumer.close()
    consumer = client.subscribe(topic, "sub", kind, **options)
    assert bodies(take(consumer, 4, ack=True)) == numbered(10)[3::2]
    await_backlog(admin, topic, "sub", 0)


def test_a_cumulative_ack_inside_a_batch(
    client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub", batch_index_ack_enabled=True)
    send_batch(client, topic, numbered(10))
    consumer.acknowledge_cumulative(take(consumer, 10)[5])
    consumer.close()
    consumer = client.subscribe(topic, "sub", batch_index_ack_enabled=True)
    assert bodies(take(consumer, 4)) == numbered(10)[6:]


@pytest.mark.parametrize("kind", SHARED)
def test_a_negative_ack_brings_only_that_message_back(
    client: pulsar.Client, topic: str, kind: Type
) -> None:
    consumer = client.subscribe(topic, "sub", kind, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    messages = take(consumer, 10)
    for message in messages:
        assert message.redelivery_count() == 0
        if message.data() in {b"m-3", b"m-7"}:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = take(consumer, 2)
    assert sorted(bodies(again)) == [b"m-3", b"m-7"]
    assert [m.redelivery_count() for m in again] == [1, 1]
    consumer.negative_acknowledge(again[0])
    consumer.acknowledge(again[1])
    third = take(consumer, 1, ack=True)[0]
    assert (third.data(), third.redelivery_count()) == (again[0].data(), 2)
    assert_silent(consumer)


@pytest.mark.parametrize("kind", IN_ORDER)
def test_a_negative_ack_of_an_ordered_subscription(
    client: pulsar.Client, admin: httpx.Client, topic: str, kind: Type
) -> None:
    consumer = client.subscribe(topic, "sub", kind, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic)
    send_all(producer, numbered(6))
    messages = take(consumer, 6)
    for message in messages[:3]:
        consumer.acknowledge(message)
    await_backlog(admin, topic, "sub", 3)
    consumer.negative_acknowledge(messages[4])
    assert bodies(take(consumer, 3, ack=True)) == numbered(6)[3:]
    assert_silent(consumer)


@pytest.mark.parametrize("kind", IN_ORDER + SHARED)
def test_all_unacked_messages_come_again_when_requested(
    client: pulsar.Client, admin: httpx.Client, topic: str, kind: Type
) -> None:
    consumer = client.subscribe(topic, "sub", kind)
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    for message in take(consumer, 10)[:4]:
        consumer.acknowledge(message)
    await_backlog(admin, topic, "sub", 6)  # the client keeps acks back, and asks past them
    consumer.redeliver_unacknowledged_messages()
    assert sorted(bodies(take(consumer, 6, ack=True))) == numbered(10)[4:]
    assert_silent(consumer)


def test_an_unacked_message_times_out(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(ValueError, match="10 seconds"):
        client.subscribe(topic, "sub", Type.Shared, unacked_messages_timeout_ms=1000)
    consumers = [
        client.subscribe(topic, f"sub-{kind}", kind, unacked_messages_timeout_ms=10_000)
        for kind in SHARED
    ]
    producer = client.create_producer(topic)
    send_all(producer, numbered(2))
    kept = []
    for consumer in consumers:
        first, second = take(consumer, 2)
        consumer.acknowledge(first)
        kept.append(second.data())
    for consumer, body in zip(consumers, kept, strict=True):
        again = take(consumer, 1, within_s=40, ack=True)[0]
        assert again.data() == body
        assert again.redelivery_count() >= 1


@pytest.mark.parametrize("leaving", ["closed", "lost"])
def test_the_count_does_not_grow_when_consumers_leave(
    connect: ConnectClient, topic: str, leaving: str
) -> None:
    """Only a negative ack, a timeout or an explicit redelivery counts."""
    connect().create_producer(topic)
    client = connect()
    consumer = client.subscribe(topic, "sub", Type.Shared)
    connect().create_producer(topic).send(b"x")
    for _ in range(3):
        assert take(consumer, 1)[0].redelivery_count() == 0
        following = connect()
        next_consumer = following.subscribe(topic, "sub", Type.Shared)
        if leaving == "closed":
            consumer.close()
        else:
            client.shutdown()
        client, consumer = following, next_consumer


@pytest.mark.parametrize("kind", SHARED)
def test_what_cannot_be_processed_becomes_a_dead_letter(
    client: pulsar.Client, names: Names, kind: Type
) -> None:
    topic, dead_topic = names.topic(), names.topic("dead")
    dead = client.subscribe(dead_topic, "check")
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead_topic, "init-sub")
    consumer = client.subscribe(
        topic, "sub", kind, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=50
    )
    producer = client.create_producer(topic)
    producer.send(b"bad", partition_key="k", properties={"p": "q"})
    deliveries = 0
    letters: list[pulsar.Message] = []

    def reached_the_dead_letters() -> bool:
        nonlocal deliveries
        try:
            consumer.negative_acknowledge(consumer.receive(100))
            deliveries += 1
        except pulsar.Timeout:
            letters.extend(bodies_or_none(dead))
        return bool(letters)

    wait_until(reached_the_dead_letters, what="the dead letter")
    assert deliveries == 3
    assert letters[0].data() == b"bad"
    assert letters[0].properties()["p"] == "q"
    assert letters[0].properties()["REAL_TOPIC"] == topic
    assert bodies(take(client.subscribe(dead_topic, "init-sub"), 1)) == [b"bad"]


def test_dead_letters_are_kept_for_a_consumer_that_comes_later(
    client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    consumer = client.subscribe(
        topic,
        "sub",
        Type.Shared,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=50,
    )
    send_all(client.create_producer(topic), [b"bad"])
    for _ in range(2):
        consumer.negative_acknowledge(take(consumer, 1)[0])
    dead_topic = f"{topic}-sub-DLQ"
    path = dead_topic.replace("://", "/")

    def stored() -> bool:
        stats = admin.get(f"/admin/v2/{path}/stats")
        return stats.status_code == httpx.codes.OK and bool(stats.json()["msgInCounter"])

    wait_until(stored, what="the dead letter")
    assert bodies(take(client.subscribe(dead_topic, "dlq", Type.Shared), 1)) == [b"bad"]


def bodies_or_none(consumer: pulsar.Consumer) -> list[pulsar.Message]:
    """One message if there is one at once."""
    try:
        return [consumer.receive(100)]
    except pulsar.Timeout:
        return []
