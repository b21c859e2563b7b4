"""Key_Shared subscriptions: who gets which key, and in which order, while consumers come and go."""

from collections import defaultdict

import pulsar
import pytest

from .conftest import ConnectClient
from .support import assert_silent, bodies, send_all, take, take_all

KeyShared = pulsar.ConsumerType.KeyShared
HASH_RANGE = 65536


def sticky(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(
        key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges)
    )


def send_keyed(producer: pulsar.Producer, count: int, keys: int) -> None:
    for i in range(count):
        producer.send_async(b"%d" % i, lambda *_: None, partition_key=f"key-{i % keys}")
    producer.flush()


@pytest.mark.parametrize("batching", [False, True])
def test_a_key_stays_with_one_consumer(connect: ConnectClient, topic: str, batching: bool) -> None:
    # Named, since who gets which hashes follows from the names.
    consumers = [connect().subscribe(topic, "sub", KeyShared, consumer_name=n) for n in "abc"]
    producer = connect().create_producer(
        topic, batching_enabled=batching, batching_type=pulsar.BatchingType.KeyBased
    )
    send_keyed(producer, 300, keys=30)
    received = take_all(consumers, 300)
    holders: dict[str, set[int]] = defaultdict(set)
    for index, part in enumerate(received):
        order: dict[str, list[int]] = defaultdict(list)
        for message in part:
            holders[message.partition_key()].add(index)
            order[message.partition_key()].append(int(message.data()))
        assert all(numbers == sorted(numbers) for numbers in order.values())
    assert all(len(holding) == 1 for holding in holders.values())
    assert set.union(*holders.values()) == {0, 1, 2}, "a consumer got no key at all"


def test_the_ordering_key_wins(connect: ConnectClient, topic: str) -> None:
    consumers = [connect().subscribe(topic, "sub", KeyShared) for _ in range(2)]
    producer = connect().create_producer(topic)
    for i in range(40):
        producer.send(b"x", partition_key=f"key-{i}", ordering_key="same")
    assert sorted(map(len, take_all(consumers, 40))) == [0, 40]


def test_sticky_ranges_split_by_hash(connect: ConnectClient, topic: str) -> None:
    half = HASH_RANGE // 2
    low = connect().subscribe(topic, "sub", KeyShared, key_shared_policy=sticky((0, half - 1)))
    high = connect().subscribe(
        topic, "sub", KeyShared, key_shared_policy=sticky((half, HASH_RANGE - 1))
    )
    producer = connect().create_producer(topic)
    send_keyed(producer, 200, keys=50)
    low_keys, high_keys = ({m.partition_key() for m in part} for part in take_all([low, high], 200))
    assert low_keys
    assert high_keys
    assert low_keys | high_keys == {f"key-{i}" for i in range(50)}
    assert not low_keys & high_keys


def test_a_range_may_be_held_once(connect: ConnectClient, topic: str) -> None:
    connect().subscribe(topic, "sub", KeyShared, key_shared_policy=sticky((0, 100)))
    with pytest.raises(pulsar.ConsumerAssignError):
        connect().subscribe(topic, "sub", KeyShared, key_shared_policy=sticky((50, 200)))
    connect().subscribe(topic, "sub", KeyShared, key_shared_policy=sticky((101, 200)))


def test_the_modes_do_not_mix(connect: ConnectClient, topic: str) -> None:
    first = connect().subscribe(topic, "sub", KeyShared, key_shared_policy=sticky((0, 100)))
    with pytest.raises(pulsar.ConsumerBusy):
        connect().subscribe(topic, "sub", KeyShared)
    first.close()
    connect().subscribe(topic, "sub", KeyShared)


def test_a_key_waits_for_its_old_holder(connect: ConnectClient, topic: str) -> None:
    """A newcomer gets none of a key's messages while older ones are unacked elsewhere."""
    old = connect().subscribe(topic, "sub", KeyShared, consumer_name="old")
    producer = connect().create_producer(topic)
    send_keyed(producer, 40, keys=20)
    held = take(old, 40)
    new = connect().subscribe(topic, "sub", KeyShared, consumer_name="new")
    send_keyed(producer, 40, keys=20)
    assert_silent(new)
    for message in held:
        old.acknowledge(message)
    to_new, to_old = take_all([new, old], 40)
    assert to_new, "the newcomer got no key"
    assert not {m.partition_key() for m in to_new} & {m.partition_key() for m in to_old}


def test_messages_without_a_key_are_shared(connect: ConnectClient, topic: str) -> None:
    consumers = [connect().subscribe(topic, "sub", KeyShared, consumer_name=n) for n in "ab"]
    producer = connect().create_producer(topic)
    sent = [b"%d" % i for i in range(100)]
    send_all(producer, sent)
    received = [bodies(part) for part in take_all(consumers, 100)]
    assert sorted(received[0] + received[1]) == sorted(sent)
    assert all(received), "all went to one consumer"
