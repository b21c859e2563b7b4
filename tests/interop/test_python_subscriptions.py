"""The official Python client as a consumer: subscription types, receiving, listeners, positions."""

import threading

import httpx
import pulsar
import pytest
from pulsar import ConsumerType as Type

from .conftest import ConnectClient
from .support import (
    PATIENCE_S,
    Names,
    assert_silent,
    await_backlog,
    await_dispatched,
    bodies,
    numbered,
    send_all,
    take,
    take_all,
    unload,
    wait_until,
)


@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_every_type_receives_all(client: pulsar.Client, topic: str, kind: Type) -> None:
    consumer = client.subscribe(topic, "sub", kind, consumer_name="me", properties={"a": "b"})
    assert (consumer.topic(), consumer.subscription_name()) == (topic, "sub")
    assert consumer.consumer_name() == "me"
    producer = client.create_producer(topic)
    send_all(producer, numbered(100))
    assert bodies(take(consumer, 100, ack=True)) == numbered(100)
    consumer.close()
    assert_silent(client.subscribe(topic, "sub", kind))


@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_the_initial_position(client: pulsar.Client, topic: str, kind: Type) -> None:
    producer = client.create_producer(topic)
    send_all(producer, [b"before"])
    latest = client.subscribe(topic, "latest", kind)
    earliest = client.subscribe(
        topic, "earliest", kind, initial_position=pulsar.InitialPosition.Earliest
    )
    send_all(producer, [b"after"])
    assert bodies(take(latest, 1)) == [b"after"]
    assert bodies(take(earliest, 2)) == [b"before", b"after"]


def test_a_second_exclusive_consumer_is_busy(connect: ConnectClient, topic: str) -> None:
    first = connect().subscribe(topic, "sub")
    with pytest.raises(pulsar.ConsumerBusy):
        connect().subscribe(topic, "sub")
    first.close()
    connect().subscribe(topic, "sub")


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        (Type.Exclusive, Type.Shared),
        (Type.Shared, Type.Exclusive),
        (Type.Shared, Type.Failover),
        (Type.Shared, Type.KeyShared),
        (Type.Failover, Type.Shared),
    ],
)
def test_a_type_cannot_change_while_in_use(
    connect: ConnectClient, topic: str, held: Type, asked: Type
) -> None:
    first = connect().subscribe(topic, "sub", held)
    with pytest.raises(pulsar.ConsumerBusy):
        connect().subscribe(topic, "sub", asked)
    first.close()
    connect().subscribe(topic, "sub", asked)


def test_shared_consumers_split_the_messages(
    connect: ConnectClient, admin: httpx.Client, topic: str
) -> None:
    consumers = [
        connect().subscribe(topic, "sub", Type.Shared, receiver_queue_size=30) for _ in range(3)
    ]
    send_all(connect().create_producer(topic), numbered(90))
    # What each can hold is bounded by its permits, so all have to share.
    await_dispatched(admin, topic, "sub", 90)
    parts = [bodies(take(consumer, 30)) for consumer in consumers]
    assert sorted(b for part in parts for b in part) == sorted(numbered(90))
    for consumer in consumers:
        assert_silent(consumer, for_ms=50)


def test_what_a_shared_consumer_did_not_ack_goes_to_the_others(
    connect: ConnectClient, admin: httpx.Client, topic: str
) -> None:
    leaving, staying = (
        connect().subscribe(topic, "sub", Type.Shared, receiver_queue_size=10) for _ in range(2)
    )
    send_all(connect().create_producer(topic), numbered(20))
    await_dispatched(admin, topic, "sub", 20)
    kept = take(staying, 10, ack=True)
    leaving.close()
    taken_over = take(staying, 10)
    assert sorted(bodies(kept) + bodies(taken_over)) == sorted(numbered(20))


def test_a_failover_standby_takes_over_unacked(connect: ConnectClient, topic: str) -> None:
    consumers = [
        connect().subscribe(topic, "sub", Type.Failover, consumer_name=name) for name in "ab"
    ]
    producer = connect().create_producer(topic)
    send_all(producer, numbered(10))
    # Which of the two is active is the server's choice.
    parts = take_all(consumers, 10)
    if parts[1]:
        consumers.reverse()
        parts.reverse()
    (active, standby), (received, others) = consumers, parts
    assert (bodies(received), others) == (numbered(10), [])
    for message in received[:4]:
        active.acknowledge(message)
    assert_silent(standby)
    active.close()
    assert bodies(take(standby, 6)) == numbered(10)[4:]


def test_a_queue_of_one_and_of_none(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for size in (1, 0):
        consumer = client.subscribe(topic, f"sub{size}", receiver_queue_size=size)
        send_all(producer, numbered(10))
        received = [consumer.receive() for _ in range(10)]
        assert bodies(received) == numbered(10)
        consumer.close()


def test_a_slow_consumer_does_not_take_more_than_its_queue(
    connect: ConnectClient, admin: httpx.Client, topic: str
) -> None:
    slow = connect().subscribe(topic, "sub", Type.Shared, receiver_queue_size=5)
    producer = connect().create_producer(topic)
    send_all(producer, numbered(50))
    await_dispatched(admin, topic, "sub", 5)
    quick = connect().subscribe(topic, "sub", Type.Shared)
    assert len(take(quick, 45, ack=True)) == 45
    assert len(take(slow, 5)) == 5
    assert_silent(slow)


def test_batch_receive(client: pulsar.Client, topic: str) -> None:
    full = pulsar.ConsumerBatchReceivePolicy(10, -1, int(PATIENCE_S * 1000))
    patient = client.subscribe(topic, "patient", batch_receive_policy=full)
    in_time = pulsar.ConsumerBatchReceivePolicy(10, -1, 500)
    hasty = client.subscribe(topic, "hasty", batch_receive_policy=in_time)
    producer = client.create_producer(topic)
    send_all(producer, numbered(25))
    assert bodies(patient.batch_receive()) == numbered(10)
    assert bodies(patient.batch_receive()) == numbered(20)[10:]
    # The last of 25 come when the time is over; where the machine stalls, others too.
    received: list[bytes] = []
    while len(received) < 25:
        batch = bodies(hasty.batch_receive())
        assert len(batch) <= 10
        received += batch
    assert received == numbered(25)


def test_a_listener_is_called_paused_and_resumed(client: pulsar.Client, topic: str) -> None:
    heard: list[bytes] = []
    enough = threading.Event()

    def listener(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        heard.append(message.data())
        if len(heard) >= 10:
            enough.set()

    consumer = client.subscribe(topic, "sub", message_listener=listener)
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    assert enough.wait(PATIENCE_S)
    assert heard == numbered(10)
    consumer.pause_message_listener()
    send_all(producer, [b"paused"])
    assert not threading.Event().wait(0.2)
    assert heard == numbered(10)
    consumer.resume_message_listener()
    wait_until(lambda: heard[-1] == b"paused", what="the paused message")


def test_unsubscribing_forgets_the_position(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, [b"a"])
    consumer.unsubscribe()
    again = client.subscribe(topic, "sub")
    assert_silent(again)
    send_all(producer, [b"b"])
    assert bodies(take(again, 1)) == [b"b"]


def test_unsubscribing_is_refused_while_others_are_attached(
    connect: ConnectClient, topic: str
) -> None:
    first, second = (connect().subscribe(topic, "sub", Type.Shared) for _ in range(2))
    with pytest.raises(pulsar.BrokerMetadataError):
        first.unsubscribe()
    second.close()
    first.unsubscribe()


def test_a_position_outlives_its_consumer(
    connect: ConnectClient, admin: httpx.Client, topic: str
) -> None:
    client = connect()
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, numbered(10))
    for message in take(consumer, 10)[:3]:
        consumer.acknowledge(message)
    consumer.close()
    unload(admin, topic)
    assert bodies(take(connect().subscribe(topic, "sub"), 7)) == numbered(10)[3:]


def test_an_unload_does_not_disturb_a_consumer(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    topic = names.topic()
    consumers = {
        kind: client.subscribe(topic, f"sub-{kind}", kind)
        for kind in (Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared)
    }
    producer = client.create_producer(topic)
    for round_ in range(3):
        send_all(producer, numbered(10, f"r{round_}"))
        for consumer in consumers.values():
            assert bodies(take(consumer, 10, ack=True)) == numbered(10, f"r{round_}")
            await_backlog(admin, topic, consumer.subscription_name())
        admin.put(f"/admin/v2/namespaces/{names.path}/unload").raise_for_status()
    for consumer in consumers.values():
        wait_until(consumer.is_connected, what="the consumer's connection")


def test_a_closed_consumer_gives_nothing(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    assert consumer.is_connected()
    consumer.close()
    assert not consumer.is_connected()
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive(100)
