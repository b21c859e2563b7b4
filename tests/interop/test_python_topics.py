"""Partitioned and non-persistent topics, topic lists and patterns, through the official client."""

import re

import httpx
import pulsar
import pytest
from pulsar import ConsumerType as Type
from pulsar import PartitionsRoutingMode as Routing

from .support import (
    Names,
    assert_silent,
    bodies,
    numbered,
    send_all,
    take,
)


def create_partitioned(
    admin: httpx.Client, names: Names, count: int, local: str = "topic", domain: str = "persistent"
) -> str:
    path = f"/admin/v2/{domain}/{names.path}/{local}/partitions"
    admin.put(path, json=count).raise_for_status()
    return names.topic(local, domain)


def test_the_partitions_of_a_topic(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = create_partitioned(admin, names, 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{i}" for i in range(3)]
    client.create_producer(names.topic("plain"))
    assert client.get_topic_partitions(names.topic("plain")) == [names.topic("plain")]


@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_all_partitions_are_consumed(
    client: pulsar.Client, admin: httpx.Client, names: Names, kind: Type
) -> None:
    topic = create_partitioned(admin, names, 4)
    consumer = client.subscribe(topic, "sub", kind)
    producer = client.create_producer(topic)
    send_all(producer, numbered(40))
    messages = take(consumer, 40, ack=True)
    assert sorted(bodies(messages)) == sorted(numbered(40))
    assert {m.topic_name() for m in messages} == {f"{topic}-partition-{i}" for i in range(4)}
    assert {m.message_id().partition() for m in messages} == {0, 1, 2, 3}
    assert_silent(consumer)


def test_routing_round_robin_single_and_custom(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = create_partitioned(admin, names, 3)
    consumer = client.subscribe(topic, "sub")

    def spread(**options: object) -> list[int]:
        producer = client.create_producer(topic, **options)
        send_all(producer, numbered(9))
        producer.close()
        counts = [0, 0, 0]
        for message in take(consumer, 9, ack=True):
            counts[message.message_id().partition()] += 1
        return counts

    assert spread(message_routing_mode=Routing.RoundRobinDistribution) == [3, 3, 3]
    assert sorted(spread(message_routing_mode=Routing.UseSinglePartition)) == [0, 0, 9]
    assert spread(
        message_routing_mode=Routing.CustomPartition, message_router=lambda _, count: count - 2
    ) == [0, 9, 0]


def test_a_key_goes_to_one_partition(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = create_partitioned(admin, names, 4)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    for i in range(60):
        producer.send(b"%d" % i, partition_key=f"k{i % 12}")
    partitions: dict[str, set[int]] = {}
    for message in take(consumer, 60):
        partitions.setdefault(message.partition_key(), set()).add(message.message_id().partition())
    assert all(len(where) == 1 for where in partitions.values())
    assert len(set.union(*partitions.values())) > 1


def test_lazy_producers_attach_when_they_send(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = create_partitioned(admin, names, 3)
    producer = client.create_producer(
        topic,
        lazy_start_partitioned_producers=True,
        message_routing_mode=Routing.UseSinglePartition,
    )
    producer.send(b"x")
    path = f"/admin/v2/persistent/{names.path}/topic/partitioned-stats"
    partitions = admin.get(path).raise_for_status().json()["partitions"].values()
    assert sum(len(p["publishers"]) for p in partitions) == 1


def test_a_topic_that_grows_keeps_its_messages(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = create_partitioned(admin, names, 2)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    path = f"/admin/v2/persistent/{names.path}/topic/partitions"
    admin.post(path, json=4).raise_for_status()
    assert client.get_topic_partitions(topic)[-1] == f"{topic}-partition-3"
    # A subscription of the topic is one of its new partitions too, from their start.
    send_all(client.create_producer(topic), numbered(8, "new"))
    consumer.close()
    received = bodies(take(client.subscribe(topic, "sub"), 18))
    assert sorted(received) == sorted(numbered(10) + numbered(8, "new"))


def test_several_topics_in_one_subscription(client: pulsar.Client, names: Names) -> None:
    topics = [names.topic(local) for local in ("a", "b", "c")]
    consumer = client.subscribe(topics, "sub", Type.Shared)
    for topic in topics:
        send_all(client.create_producer(topic), numbered(5, topic[-1]))
    messages = take(consumer, 15, ack=True)
    assert {m.topic_name() for m in messages} == set(topics)
    for topic in topics:
        assert [m.data() for m in messages if m.topic_name() == topic] == numbered(5, topic[-1])
    assert_silent(consumer)


def test_a_pattern_finds_topics(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    create_partitioned(admin, names, 2, "wanted-parts")
    locals_ = ("wanted-a", "other", "wanted-parts")
    producers = {local: client.create_producer(names.topic(local)) for local in locals_}
    consumer = client.subscribe(re.compile(f"{names.path}/wanted-.*"), "sub")
    for local, producer in producers.items():
        send_all(producer, numbered(4, local))
    received = bodies(take(consumer, 8, ack=True))
    assert sorted(received) == sorted(numbered(4, "wanted-a") + numbered(4, "wanted-parts"))
    assert_silent(consumer)


def test_a_pattern_without_topics_yet(client: pulsar.Client, names: Names) -> None:
    consumer = client.subscribe(re.compile(f"{names.path}/nothing-.*"), "sub")
    assert_silent(consumer)


def test_a_pattern_over_both_domains(client: pulsar.Client, names: Names) -> None:
    client.create_producer(names.topic("x-kept"))
    client.create_producer(names.topic("x-fleeting", "non-persistent"))
    for mode, expected in (
        (pulsar.RegexSubscriptionMode.PersistentOnly, {"x-kept"}),
        (pulsar.RegexSubscriptionMode.NonPersistentOnly, {"x-fleeting"}),
        (pulsar.RegexSubscriptionMode.AllTopics, {"x-kept", "x-fleeting"}),
    ):
        consumer = client.subscribe(
            re.compile(f"{names.path}/x-.*"), f"sub-{mode}", regex_subscription_mode=mode
        )
        client.create_producer(names.topic("x-kept")).send(b"k")
        client.create_producer(names.topic("x-fleeting", "non-persistent")).send(b"f")
        heard = [m.topic_name().rsplit("/", 1)[1] for m in take(consumer, len(expected))]
        assert sorted(heard) == sorted(expected)
        assert_silent(consumer)
        consumer.close()


def test_a_non_persistent_topic_reaches_who_is_there(client: pulsar.Client, names: Names) -> None:
    topic = names.topic(domain="non-persistent")
    producer = client.create_producer(topic)
    producer.send(b"nobody hears this")
    consumers = [
        client.subscribe(topic, f"sub-{kind}", kind)
        for kind in (Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared)
    ]
    sent = producer.send(b"heard")
    assert (sent.ledger_id(), sent.entry_id()) in {(0, 0), (-1, -1)}
    for consumer in consumers:
        message = take(consumer, 1, ack=True)[0]
        assert message.data() == b"heard"
        assert_silent(consumer, for_ms=50)


def test_a_partitioned_non_persistent_topic(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = create_partitioned(admin, names, 2, domain="non-persistent")
    consumer = client.subscribe(topic, "sub", Type.Shared)
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    assert sorted(bodies(take(consumer, 10, ack=True))) == sorted(numbered(10))
