"""What the official Python client is told when something is missing, and other features."""

from pathlib import Path

import httpx
import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.server_process import ServerProcess

from .conftest import ConnectClient
from .support import (
    Names,
    ServerAddress,
    assert_silent,
    bodies,
    numbered,
    read,
    send_all,
    take,
    wait_until,
)


@pytest.mark.parametrize(
    "topic", ["persistent://no-such-tenant/ns/t", "persistent://public/no-such-namespace/t"]
)
def test_a_missing_tenant_or_namespace(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(topic)
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe(topic, "sub")
    with pytest.raises(pulsar.TopicNotFound):
        client.create_reader(topic, pulsar.MessageId.earliest)


@pytest.mark.parametrize("topic", ["a/b/c/d/e/f", "what://public/default/t", "a/b"])
def test_a_bad_topic_name(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.InvalidTopicName):
        client.create_producer(topic)


def test_a_partition_that_does_not_exist(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    admin.put(f"/admin/v2/persistent/{names.path}/topic/partitions", json=2).raise_for_status()
    client.create_producer(f"{names.topic()}-partition-1").send(b"x")
    beyond = f"{names.topic()}-partition-2"
    not_offered = f"{names.topic('plain')}-partition-0"
    for attach in (client.create_producer, lambda topic: client.subscribe(topic, "s")):
        with pytest.raises(pulsar.TopicNotFound):
            attach(beyond)
        with pytest.raises(pulsar.NotAllowedError):
            attach(not_offered)
    # It only looks like a partition.
    client.create_producer(f"{names.topic('plain')}-partition-01").send(b"x")
    body = {"allowAutoTopicCreation": False, "topicType": ""}
    admin.post(f"/admin/v2/namespaces/{names.path}/autoTopicCreation", json=body).raise_for_status()
    for topic in (beyond, not_offered, f"{names.topic('other')}-partition-01"):
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(topic)


def test_a_deleted_topic_may_be_created_again(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    producer = client.create_producer(names.topic())
    first = producer.send(b"old")
    producer.close()
    admin.delete(f"/admin/v2/persistent/{names.path}/topic").raise_for_status()
    consumer = client.subscribe(
        names.topic(), "sub", initial_position=pulsar.InitialPosition.Earliest
    )
    assert_silent(consumer)
    second = client.create_producer(names.topic()).send(b"new")
    assert (second.ledger_id(), second.entry_id()) > (first.ledger_id(), first.entry_id())
    assert bodies(take(consumer, 1)) == [b"new"]


def test_no_server_there(connect: ConnectClient) -> None:
    client = connect("pulsar://127.0.0.1:1", operation_timeout_seconds=1)
    with pytest.raises((pulsar.Timeout, pulsar.ConnectError)):
        client.create_producer("t")


def test_a_listener_that_nobody_configured(connect: ConnectClient, topic: str) -> None:
    client = connect(listener_name="no-such", operation_timeout_seconds=2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)


def test_another_address_than_the_one_advertised(connect: ConnectClient, tmp_path: Path) -> None:
    # A standalone in a container, for instance, whose ports are mapped to others of the host.
    with ServerProcess(tmp_path, "--advertised-host", "not-resolved.invalid") as server:
        client = connect(server.service_url)
        client.create_producer("t").send(b"here")
        assert bodies(read(client.create_reader("t", pulsar.MessageId.earliest), 1)) == [b"here"]
        client.close()  # while there is someone to tell


def test_lookup_by_http(connect: ConnectClient, server: ServerAddress, names: Names) -> None:
    client = connect(server.http_url)
    consumer = client.subscribe(names.topic(), "sub")
    send_all(client.create_producer(names.topic()), numbered(3))
    assert bodies(take(consumer, 3)) == numbered(3)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/no-such-namespace/t")


def test_partitions_by_http(
    connect: ConnectClient, server: ServerAddress, admin: httpx.Client, names: Names
) -> None:
    admin.put(f"/admin/v2/persistent/{names.path}/topic/partitions", json=3).raise_for_status()
    client = connect(server.http_url)
    assert len(client.get_topic_partitions(names.topic())) == 3
    consumer = client.subscribe(names.topic(), "sub")
    send_all(client.create_producer(names.topic()), numbered(6))
    assert sorted(bodies(take(consumer, 6))) == numbered(6)


def test_many_producers_and_consumers_on_one_connection(
    client: pulsar.Client, names: Names
) -> None:
    topics = [names.topic(f"t{i}") for i in range(30)]
    consumers = [client.subscribe(topic, "sub") for topic in topics]
    producers = [client.create_producer(topic) for topic in topics]
    for i, producer in enumerate(producers):
        producer.send(b"%d" % i)
    for i, consumer in enumerate(consumers):
        assert bodies(take(consumer, 1)) == [b"%d" % i]


def test_arguments_of_a_wrong_type_raise_in_the_call(client: pulsar.Client, topic: str) -> None:
    consumer, producer = client.subscribe(topic, "sub"), client.create_producer(topic)
    with pytest.raises(TypeError):
        producer.send(b"x", properties={"attempt": 1})
    with pytest.raises(TypeError):
        producer.send_async(b"x", 5)
    with pytest.raises(ValueError, match="0"):
        producer.send(b"x", sequence_id=-1)
    for call in (consumer.acknowledge, consumer.negative_acknowledge):
        with pytest.raises(TypeError):
            call("no message")
    producer.send(b"y")
    assert consumer.receive(5_000).data() == b"y"


def test_a_consumer_is_closed_after_it_has_unsubscribed(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    consumer.unsubscribe()
    consumer.close()


def test_consumers_and_readers_are_closed_after_their_client(
    connect: ConnectClient, topic: str
) -> None:
    client = connect()
    consumer = client.subscribe(topic, "sub")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    client.close()
    consumer.close()
    reader.close()
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive(10)


def test_a_reader_with_a_listener_does_not_read(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(
        topic, pulsar.MessageId.earliest, reader_listener=lambda _reader, _message: None
    )
    with pytest.raises(pulsar.InvalidConfiguration):
        reader.read_next(100)


def test_a_client_that_disconnects_frees_its_subscription(
    connect: ConnectClient, topic: str
) -> None:
    first = connect()
    first.subscribe(topic, "sub")
    first.shutdown()
    second = connect()

    def subscribe() -> pulsar.Consumer | None:
        try:
            return second.subscribe(topic, "sub")
        except pulsar.ConsumerBusy:
            return None

    assert wait_until(subscribe, what="the subscription").is_connected()


def test_a_terminated_topic(client: pulsar.Client, admin: httpx.Client, names: Names) -> None:
    consumer = client.subscribe(names.topic(), "sub")
    producer = client.create_producer(names.topic())
    producer.send(b"last")
    answer = admin.post(f"/admin/v2/persistent/{names.path}/topic/terminate")
    assert answer.raise_for_status().json()["entryId"] == 0
    with pytest.raises((pulsar.TopicTerminated, pulsar.AlreadyClosed)):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(names.topic())
    assert bodies(take(consumer, 1)) == [b"last"]


def test_a_client_keeps_its_connection_at_the_end_of_a_topic(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    """Pulsar announces the end in a command that this client takes for an error of the protocol."""
    consumer = client.subscribe(names.topic(), "sub")
    client.create_producer(names.topic()).send(b"last")
    consumer.acknowledge(take(consumer, 1)[0])
    path = f"/admin/v2/persistent/{names.path}/topic"

    def drained() -> str | None:
        found = admin.get(f"{path}/stats").raise_for_status().json()["subscriptions"]["sub"]
        addresses = [each["address"] for each in found["consumers"]]
        return None if found["msgBacklog"] or not addresses else str(addresses[0])

    before = wait_until(drained, what="the ack")
    admin.post(f"{path}/terminate").raise_for_status()
    # A round trip over the connection, which comes after the announcement.
    reader = client.create_reader(names.topic(), pulsar.MessageId.latest)
    assert not reader.has_message_available()
    assert (drained(), consumer.is_connected()) == (before, True)


def test_a_table_view_holds_the_latest_values(
    client: pulsar.Client, admin: httpx.Client, names: Names
) -> None:
    admin.put(f"/admin/v2/persistent/{names.path}/topic/partitions", json=2).raise_for_status()
    producer = client.create_producer(names.topic())
    for i in range(20):
        producer.send(b"%d" % i, partition_key=f"k{i % 5}")
    view = client.create_table_view(names.topic())
    wait_until(lambda: view.get("k4") == b"19" and len(view) == 5, what="the last values")
    heard: dict[str, bytes] = {}
    view.for_each_and_listen(heard.__setitem__)
    producer.send(b"new", partition_key="k0")
    producer.send(None, partition_key="k1")
    wait_until(lambda: view.get("k0") == b"new", what="the update")
    wait_until(lambda: view.get("k1") is None, what="the tombstone")
    wait_until(lambda: heard.get("k0") == b"new", what="the listener")
    view.close()


def test_encryption_end_to_end(connect: ConnectClient, topic: str, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    client = connect()
    knowing = client.subscribe(topic, "knowing", crypto_key_reader=keys)
    unknowing = client.subscribe(
        topic, "unknowing", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME
    )
    for batching in (False, True):
        producer = client.create_producer(
            topic,
            encryption_key="key-1",
            crypto_key_reader=keys,
            batching_enabled=batching,
            compression_type=pulsar.CompressionType.LZ4,
        )
        producer.send(b"secret", properties={"p": "q"})
        message = take(knowing, 1, ack=True)[0]
        assert (message.data(), message.properties()) == (b"secret", {"p": "q"})
        context = message.encryption_context()
        assert context is not None
        assert len(context.keys()) == 1
        sealed = take(unknowing, 1)[0]
        assert b"secret" not in sealed.data()
        sealed_context = sealed.encryption_context()
        assert sealed_context is not None
        assert sealed_context.is_decryption_failed()
