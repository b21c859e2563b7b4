"""What official clients see here that Apache Pulsar 4.2 does not give them.

These tests follow from Magnetar's promises; run against a Pulsar they fail.
"""

import random
import threading
from collections import defaultdict

import httpx
import pulsar
import pytest
from pulsar import ConsumerType as Type

from .conftest import ConnectClient
from .support import UNTIL_FLUSH_MS, bodies, numbered, take, unload, wait_until


@pytest.mark.parametrize("kind", [Type.Exclusive, Type.Failover, Type.Shared, Type.KeyShared])
def test_acks_inside_a_batch_outlive_the_topic_closing(
    client: pulsar.Client, admin: httpx.Client, topic: str, kind: Type
) -> None:
    """An ack is never undone. Pulsar forgets those of half-acked batches when it unloads."""
    consumer = client.subscribe(topic, "sub", kind, batch_index_ack_enabled=True)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=UNTIL_FLUSH_MS
    )
    for payload in numbered(10):
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    for message in take(consumer, 10)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    unload(admin, topic)
    consumer = client.subscribe(topic, "sub", kind, batch_index_ack_enabled=True)
    assert bodies(take(consumer, 5, ack=True)) == numbered(10)[1::2]


def send_keyed(producer: pulsar.Producer, count: int, keys: int) -> None:
    for i in range(count):
        producer.send_async(b"%d" % i, lambda *_: None, partition_key=f"key-{i % keys}")
    producer.flush()


def test_order_per_key_while_consumers_come_and_go(connect: ConnectClient, topic: str) -> None:
    """A key's messages are first seen in order, at one consumer at a time, and none is lost.

    Pulsar sends newer messages of a key before those that a leaving consumer gave back, in about
    one run of six.
    """
    total, keys = 1500, 25
    client = connect()
    client.subscribe(topic, "sub", Type.KeyShared).close()
    producer = connect().create_producer(topic, block_if_queue_full=True)
    first_seen: dict[int, None] = {}
    outstanding: dict[str, set[str]] = defaultdict(set)
    lock = threading.Lock()
    stop = threading.Event()
    failures: list[str] = []

    def work(name: str, life: int) -> None:
        consumer = client.subscribe(
            topic, "sub", Type.KeyShared, consumer_name=name, receiver_queue_size=20
        )
        while life and not stop.is_set():
            try:
                message = consumer.receive(100)
            except pulsar.Timeout:
                continue
            life -= 1
            with lock:
                first_seen.setdefault(int(message.data()))
                outstanding[message.partition_key()].add(name)
                if len(outstanding[message.partition_key()]) > 1:
                    failures.append(f"{message.partition_key()} {outstanding}")
            stop.wait(0.001)  # it works on it
            with lock:
                # Before the ack: once that is out, another may get the key's next at any moment.
                outstanding[message.partition_key()].discard(name)
            consumer.acknowledge(message)
        consumer.close()

    sender = threading.Thread(target=send_keyed, args=(producer, total, keys))
    sender.start()
    rng = random.Random(7)
    generation = 0
    workers: list[threading.Thread] = []

    def all_seen() -> bool:
        nonlocal generation
        workers[:] = [worker for worker in workers if worker.is_alive()]
        while len(workers) < 4:
            generation += 1
            life = rng.randint(20, 120)
            workers.append(threading.Thread(target=work, args=(f"c{generation}", life)))
            workers[-1].start()
        return len(first_seen) == total

    try:
        wait_until(all_seen, what=f"all {total} messages", within_s=40)
    finally:
        stop.set()
        sender.join()
        for worker in workers:
            worker.join()
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in first_seen:
        by_key[number % keys].append(number)
    assert not failures
    assert generation > 4, "no consumer ever left"
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
