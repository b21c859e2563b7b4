"""Producer names, the four access modes and fencing, seen through the official Python client."""

import threading

import httpx
import pulsar
import pytest
from pulsar import ProducerAccessMode as Mode

from .conftest import ConnectClient
from .support import PATIENCE_S, Names, numbered, send_all, take, unload, wait_until


def test_producers_without_a_name_get_different_ones(client: pulsar.Client, topic: str) -> None:
    names = {client.create_producer(topic).producer_name() for _ in range(5)}
    assert len(names) == 5
    assert "" not in names


def test_a_taken_name_is_busy(connect: ConnectClient, topic: str) -> None:
    first = connect().create_producer(topic, producer_name="one")
    with pytest.raises(pulsar.ProducerBusy):
        connect().create_producer(topic, producer_name="one")
    first.send(b"still mine")


def test_a_name_is_free_again_after_closing(client: pulsar.Client, topic: str) -> None:
    for _ in range(3):
        producer = client.create_producer(topic, producer_name="one")
        producer.send(b"x")
        producer.close()


def test_the_name_of_a_shut_down_client_is_free_again(connect: ConnectClient, topic: str) -> None:
    first = connect()
    first.create_producer(topic, producer_name="one").send(b"x")
    first.shutdown()
    second = connect()

    def create() -> pulsar.Producer | None:
        try:
            return second.create_producer(topic, producer_name="one")
        except pulsar.ProducerBusy:
            return None

    assert wait_until(create, what="the name").producer_name() == "one"


def test_the_same_name_on_two_topics(client: pulsar.Client, names: Names) -> None:
    for local in ("a", "b"):
        client.create_producer(names.topic(local), producer_name="one").send(b"x")


def test_shared_and_exclusive_exclude_each_other(connect: ConnectClient, names: Names) -> None:
    client = connect()
    shared_topic, exclusive_topic = names.topic("shared"), names.topic("exclusive")
    client.create_producer(shared_topic)
    with pytest.raises(pulsar.ProducerFenced):
        connect().create_producer(shared_topic, access_mode=Mode.Exclusive)

    exclusive = client.create_producer(exclusive_topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        connect().create_producer(exclusive_topic)
    with pytest.raises(pulsar.ProducerFenced):
        connect().create_producer(exclusive_topic, access_mode=Mode.Exclusive)
    exclusive.close()
    connect().create_producer(exclusive_topic).send(b"free again")


def test_waiting_for_exclusive_access(connect: ConnectClient, topic: str) -> None:
    holder = connect().create_producer(topic, access_mode=Mode.Exclusive)
    waiter_client = connect()
    created: list[pulsar.Producer] = []

    def wait_for_access() -> None:
        created.append(waiter_client.create_producer(topic, access_mode=Mode.WaitForExclusive))

    thread = threading.Thread(target=wait_for_access)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive(), "it did not wait"
    assert created == []
    with pytest.raises(pulsar.ProducerBusy):
        connect().create_producer(topic)
    holder.send(b"mine")
    holder.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it was not let in"
    created[0].send(b"now mine")


def test_waiters_are_let_in_one_after_the_other(connect: ConnectClient, topic: str) -> None:
    holder = connect().create_producer(topic, access_mode=Mode.Exclusive)
    created: list[pulsar.Producer] = []
    threads = []
    for _ in range(3):
        waiter = connect()

        def wait_for_access(waiter: pulsar.Client = waiter) -> None:
            created.append(waiter.create_producer(topic, access_mode=Mode.WaitForExclusive))

        threads.append(threading.Thread(target=wait_for_access))
        threads[-1].start()
    current = holder
    for i in range(3):
        current.close()
        wait_until(lambda: len(created) > i, what=f"waiter {i}")  # noqa: B023
        current = created[i]
        current.send(b"in turn")
        assert len(created) == i + 1
    for thread in threads:
        thread.join()


def test_fencing_takes_the_topic_over(connect: ConnectClient, topic: str) -> None:
    consumer = connect().subscribe(topic, "sub")
    old = connect().create_producer(topic, access_mode=Mode.Exclusive)
    old.send(b"old")
    new = connect().create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    new.send(b"new")

    def is_refused() -> bool:
        try:
            old.send(b"too late")
        except (pulsar.ProducerFenced, pulsar.AlreadyClosed):
            return True
        return False

    assert is_refused()
    assert [m.data() for m in take(consumer, 2)] == [b"old", b"new"]
    with pytest.raises(pulsar.ProducerFenced):
        connect().create_producer(topic, access_mode=Mode.Exclusive)


def test_fencing_takes_over_from_shared_producers(connect: ConnectClient, topic: str) -> None:
    shared = [connect().create_producer(topic) for _ in range(2)]
    for producer in shared:
        producer.send(b"shared")
    connect().create_producer(topic, access_mode=Mode.ExclusiveWithFencing).send(b"mine")
    with pytest.raises(pulsar.ProducerBusy):
        connect().create_producer(topic)


def test_an_unload_does_not_disturb_a_producer(
    client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, producer_name="steady")
    for round_ in range(3):
        send_all(producer, numbered(5, f"r{round_}"))
        unload(admin, topic)
    send_all(producer, numbered(5, "end"))
    # What it had taken before it was sent away, it is given again.
    received: set[bytes] = set()
    while len(received) < 20:
        received.add(take(consumer, 1)[0].data())
    assert received == {b for r in ("r0", "r1", "r2", "end") for b in numbered(5, r)}
    wait_until(producer.is_connected, what="the producer's connection")


def test_an_exclusive_producer_keeps_its_place_over_an_unload(
    connect: ConnectClient, admin: httpx.Client, topic: str
) -> None:
    producer = connect().create_producer(topic, access_mode=Mode.Exclusive)
    producer.send(b"before")
    unload(admin, topic)
    producer.send(b"after")
    with pytest.raises(pulsar.ProducerFenced):
        connect().create_producer(topic, access_mode=Mode.Exclusive)


def test_messages_in_flight_survive_an_unload(
    client: pulsar.Client, admin: httpx.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    receipts: list[pulsar.Result] = []
    for i in range(2000):
        producer.send_async(b"%d" % i, lambda result, _: receipts.append(result))
        if i % 500 == 250:
            unload(admin, topic)
    producer.flush()
    wait_until(lambda: len(receipts) == 2000, what="2000 receipts")
    assert set(receipts) == {pulsar.Result.Ok}
    seen: dict[int, None] = {}
    while len(seen) < 2000:
        seen.setdefault(int(take(consumer, 1, ack=True)[0].data()))
    assert list(seen) == list(range(2000)), "first seen out of order"
