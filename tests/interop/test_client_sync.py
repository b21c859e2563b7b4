"""Our blocking client against the server under test: the calls, the types, several threads."""

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_type

import httpx
import pytest

from magnetar.client import (
    BatchReceive,
    InitialPosition,
    JsonSchema,
    Message,
    MessageId,
    RoundRobin,
    SubscriptionType,
    TransactionState,
)
from magnetar.client.errors import AlreadyClosed, InvalidConfiguration, OperationTimeout
from magnetar.client.sync import Client, Consumer, Producer

from .support import PATIENCE_S, Names, ServerAddress, numbered, wait_until


@dataclass
class Order:
    number: int


@pytest.fixture
def own(server: ServerAddress) -> Iterator[Client]:
    before = set(threading.enumerate())
    with Client(server.service_url) as client:
        yield client
    assert not set(threading.enumerate()) - before, "a thread is left"


def test_typed_values(own: Client, topic: str) -> None:
    schema = JsonSchema(Order)
    with (
        own.consumer(topic, "sub", schema=schema) as consumer,
        own.producer(topic, schema=schema) as producer,
    ):
        assert_type(producer, Producer[Order])
        assert_type(consumer, Consumer[Order])
        sent = producer.send(Order(7), key="k", properties={"a": "b"})
        assert_type(sent, MessageId)
        message = consumer.receive(PATIENCE_S)
        assert_type(message, Message[Order])
        assert_type(message.value, Order)
        assert (message.id, message.value, message.key) == (sent, Order(7), "k")


def test_iterating_acknowledging_and_reading(own: Client, topic: str) -> None:
    bodies = numbered(100)
    with own.producer(topic) as producer:
        futures = [producer.send_nowait(body) for body in bodies]
        producer.flush()
        ids = [future.result(PATIENCE_S) for future in futures]
        assert ids == sorted(set(ids))
        assert producer.stats.messages_sent == 100
        assert producer.connected
    with own.consumer(topic, "sub", initial_position=InitialPosition.EARLIEST) as consumer:
        got = []
        for message in consumer:
            got.append(message.value)
            consumer.ack(message)
            if len(got) == 90:
                break
        many = consumer.receive_many(BatchReceive(messages_max=10, timeout_s=PATIENCE_S))
        assert got + [message.value for message in many] == bodies
        consumer.ack_many(message for message in many)
        with pytest.raises(OperationTimeout):
            consumer.receive(0.1)
        consumer.seek(ids[98])
        assert [consumer.receive(PATIENCE_S).value for _ in range(2)] == bodies[98:]
    assert not consumer.connected
    with own.reader(topic) as reader:
        assert [reader.read(PATIENCE_S).value for _ in range(100)] == bodies
        assert not reader.has_message_available()


def test_a_table_view(own: Client, topic: str) -> None:
    with own.producer(topic) as producer, own.table_view(topic) as view:
        heard: list[tuple[str, bytes | None]] = []
        view.listen(lambda key, value: heard.append((key, value)))
        for key in "abc":
            producer.send(key.encode() * 2, key=key)
        producer.send(None, key="b")
        view.refresh()
        assert dict(view.items()) == {"a": b"aa", "c": b"cc"}
        assert (list(view), len(view), "b" in view, view.get("b")) == (["a", "c"], 2, False, None)
        assert heard[-1] == ("b", None)


def test_transactions(own: Client, topic: str) -> None:
    with own.producer(topic) as producer, own.consumer(topic, "sub") as consumer:
        with pytest.raises(ZeroDivisionError), own.transaction() as txn:
            assert producer.send(b"aborted", transaction=txn).entry_id / 0
        with own.transaction() as txn:
            txn.enlist(producer)
            future = producer.send_nowait(b"committed", transaction=txn)
        assert future.result(PATIENCE_S).ledger_id >= 0
        message = consumer.receive(PATIENCE_S)
        assert message.value == b"committed"
        with own.transaction() as txn:
            consumer.ack(message, transaction=txn)
        assert txn.state is TransactionState.COMMITTED


def test_a_waiting_receive_is_interrupted_and_loses_nothing(own: Client, topic: str) -> None:
    with own.producer(topic) as producer, own.consumer(topic, "sub") as consumer:
        queue = consumer._inner._queue

        def press() -> None:
            wait_until(lambda: queue.waiting, what="the receiver")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.receive()
        thread.join(PATIENCE_S)
        wait_until(lambda: not queue.waiting, what="the end of the receiver")
        for body in numbered(3):
            producer.send(body)
        assert [consumer.receive(PATIENCE_S).value for _ in range(3)] == numbered(3)


def test_threads_share_a_client_and_another_closes_it(server: ServerAddress, topic: str) -> None:
    client = Client(server.service_url)
    producer = client.producer(topic)
    consumer = client.consumer(topic, "sub", type=SubscriptionType.SHARED)
    got: list[bytes] = []

    def consume() -> None:
        for message in consumer:
            consumer.ack(message)
            got.append(message.value)

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    producers = [
        threading.Thread(
            target=lambda name=name: [producer.send(body) for body in numbered(20, name)]
        )
        for name in "abc"
    ]
    for thread in (*consumers, *producers):
        thread.start()
    wait_until(lambda: len(got) == 60, what="60 messages")
    client.close()
    for thread in (*consumers, *producers):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sorted(got) == sorted(body for name in "abc" for body in numbered(20, name))
    with pytest.raises(AlreadyClosed):
        producer.send(b"late")
    producer.close()


def test_a_lazy_producer_attaches_to_what_it_sends_to(
    own: Client, admin: httpx.Client, names: Names
) -> None:
    path = f"/admin/v2/persistent/{names.path}/topic"
    admin.put(f"{path}/partitions", json=3).raise_for_status()
    with (
        own.consumer(names.topic(), "sub") as consumer,
        own.producer(names.topic(), lazy=True, batching=None, routing=RoundRobin()) as producer,
    ):

        def attached() -> int:
            stats = admin.get(f"{path}/partitioned-stats").raise_for_status().json()
            return sum(len(each["publishers"]) for each in stats["partitions"].values())

        assert attached() == 1
        refused = [producer.send_nowait(b"refused") for _ in range(3)]
        errors = [future.exception(PATIENCE_S) for future in refused]
        assert InvalidConfiguration in map(type, errors)
        for body in numbered(6):
            producer.send(body)
        assert attached() == 3
        assert producer.connected
        producer.flush()
        stored = 6 + errors.count(None)
        taken = [consumer.receive(PATIENCE_S) for _ in range(stored)]
        assert len({message.topic for message in taken}) == 3


def test_handling_in_threads(own: Client, topic: str) -> None:
    with own.producer(topic) as producer:
        consumer = own.consumer(
            topic, "sub", type=SubscriptionType.SHARED, negative_ack_delay_s=0.05
        )
        handled: list[tuple[bytes, int]] = []
        together = threading.Barrier(4)

        def handle(message: Message[bytes]) -> None:
            if message.redelivery_count == 0:
                together.wait(PATIENCE_S)  # four at a time, or none
            handled.append((message.value, message.redelivery_count))
            if message.value == b"m-3" and message.redelivery_count == 0:
                raise ValueError("comes again")

        runner = threading.Thread(target=lambda: consumer.run(handle, concurrency=4))
        runner.start()
        for body in numbered(8):
            producer.send(body)
        wait_until(lambda: (b"m-3", 1) in handled, what="the second delivery")
        consumer.close()
        runner.join(PATIENCE_S)
        assert not runner.is_alive()
        assert sorted(handled) == sorted([(body, 0) for body in numbered(8)] + [(b"m-3", 1)])
