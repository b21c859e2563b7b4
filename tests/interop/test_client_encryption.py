"""End-to-end encryption of our own client, and of the official Python client beside it."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from magnetar.client import (
    Batching,
    Client,
    Compression,
    CryptoFailure,
    CryptoKeyReader,
    Decryption,
    Encryption,
    InitialPosition,
    KeyFiles,
    SubscriptionType,
)
from magnetar.client.errors import EncryptionFailed, EncryptionRequired, InvalidConfiguration

from .client_rig import assert_silent, take, values
from .support import Names, ServerAddress, numbered
from .support import take as take_official


@pytest.fixture
async def own(server: ServerAddress) -> AsyncIterator[Client]:
    async with Client(server.service_url) as client:
        yield client


def write_pair(
    folder: Path,
    name: str,
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / f"{name}.pem").write_bytes(private)
    (folder / f"{name}.pub.pem").write_bytes(public)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("a", "b"):
        write_pair(folder, name, rsa.generate_private_key(65_537, 2_048))
    write_pair(folder, "ec", ec.generate_private_key(ec.SECP256R1()))
    write_pair(folder, "edwards", ed25519.Ed25519PrivateKey.generate())
    return folder


class Folder(CryptoKeyReader):
    """Keys by their names, with metadata."""

    def __init__(self, folder: Path, own: str = "") -> None:
        self._folder = folder
        self._own = own
        self.asked: list[tuple[str, dict[str, str]]] = []

    def public_key(self, name: str) -> tuple[bytes, Mapping[str, str]]:
        return (self._folder / f"{name}.pub.pem").read_bytes(), {"version": "1"}

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        self.asked.append((name, dict(metadata)))
        if name != self._own:
            raise KeyError(name)
        return (self._folder / f"{name}.pem").read_bytes()


def files(folder: Path) -> KeyFiles:
    return KeyFiles(public=folder / "a.pub.pem", private=folder / "a.pem")


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZLIB])
@pytest.mark.parametrize("batched", [False, True])
async def test_both_clients_read_each_other(
    own: Client,
    client: pulsar.Client,
    topic: str,
    folder: Path,
    compression: Compression,
    batched: bool,
) -> None:
    reader = pulsar.CryptoKeyReader(str(folder / "a.pub.pem"), str(folder / "a.pem"))
    theirs = client.subscribe(topic, "theirs", crypto_key_reader=reader)
    keys = files(folder)
    async with own.consumer(topic, "ours", decryption=Decryption(keys)) as ours:
        async with own.producer(
            topic,
            encryption=Encryption(["a"], keys),
            compression=compression,
            batching=Batching() if batched else None,
        ) as producer:
            futures = [producer.send_nowait(body) for body in numbered(50)]
            await producer.flush()
            assert all(future.done() for future in futures)
        assert values(await take(ours, 50, ack=True)) == numbered(50)
        assert [m.data() for m in take_official(theirs, 50)] == numbered(50)
        official = client.create_producer(
            topic,
            encryption_key="a",
            crypto_key_reader=reader,
            batching_enabled=batched,
            compression_type=pulsar.CompressionType.ZLib
            if compression
            else None or pulsar.CompressionType.NONE,
        )
        for body in numbered(50, "official"):
            official.send_async(body, None)
        official.flush()
        assert values(await take(ours, 50, ack=True)) == numbered(50, "official")


async def test_any_owner_of_a_key_can_read(own: Client, topic: str, folder: Path) -> None:
    reader = Folder(folder, own="b")
    async with (
        own.consumer(topic, "s", decryption=Decryption(reader)) as consumer,
        own.producer(topic, encryption=Encryption(["a", "b"], Folder(folder))) as producer,
    ):
        for body in numbered(3):
            await producer.send(body)
        messages = await take(consumer, 3)
        assert values(messages) == numbered(3)
        context = messages[0].encryption
        assert context is not None
        assert [key.name for key in context.keys] == ["a", "b"]
        assert context.keys[0].metadata == {"version": "1"}
    assert reader.asked.count(("b", {"version": "1"})) == 1


async def test_a_message_may_have_keys_of_both_kinds(own: Client, topic: str, folder: Path) -> None:
    async with own.producer(topic, encryption=Encryption(["a", "ec"], Folder(folder))) as producer:
        await producer.send(b"secret")
    for name in ("a", "ec"):
        decryption = Decryption(Folder(folder, own=name))
        async with own.reader(topic, decryption=decryption) as reader:
            assert (await reader.read(30)).value == b"secret"


async def test_chunks(own: Client, topic: str, folder: Path) -> None:
    large = bytes(range(256)) * 30_000
    keys = files(folder)
    async with (
        own.consumer(topic, "s", decryption=Decryption(keys)) as consumer,
        own.producer(topic, encryption=Encryption(["a"], keys), chunking=True) as producer,
    ):
        await producer.send(large, properties={"a": "b"})
        assert values(await take(consumer, 1)) == [large]


async def test_what_happens_to_messages_that_cannot_be_decrypted(
    own: Client, topic: str, folder: Path
) -> None:
    wrong = KeyFiles(private=folder / "b.pem")
    right = files(folder)
    start = InitialPosition.EARLIEST
    async with own.producer(topic, encryption=Encryption(["a"], right)) as producer:
        futures = [producer.send_nowait(body) for body in numbered(3)]
        await producer.flush()
        assert all(future.done() for future in futures)
    async with own.consumer(topic, "s", initial_position=start) as consumer:
        await assert_silent(consumer)
    async with own.consumer(topic, "s", decryption=Decryption(wrong)) as consumer:
        await assert_silent(consumer)
        assert consumer.stats.entries_bad == 1
    consuming = Decryption(wrong, CryptoFailure.CONSUME)
    async with own.consumer(topic, "s", decryption=consuming) as consumer:
        (message,) = await take(consumer, 1)
        assert message.encryption is not None
        assert message.encryption.batch_size == 3
        assert b"m-0" not in message.data
    async with own.consumer(topic, "s", decryption=Decryption(right)) as consumer:
        assert values(await take(consumer, 3)) == numbered(3)
    discarding = Decryption(wrong, CryptoFailure.DISCARD)
    async with own.consumer(topic, "s", decryption=discarding) as consumer:
        await assert_silent(consumer)
    async with own.consumer(topic, "s", decryption=Decryption(right)) as consumer:
        await assert_silent(consumer)


async def test_a_failed_message_comes_again(own: Client, topic: str, folder: Path) -> None:
    async with (
        own.consumer(
            topic,
            "s",
            type=SubscriptionType.SHARED,
            decryption=Decryption(Folder(folder, own="c")),
            ack_timeout_s=0.2,
            ack_timeout_tick_s=0.1,
        ) as consumer,
        own.producer(topic, encryption=Encryption(["a"], files(folder))) as producer,
    ):
        await producer.send(b"secret")
        (folder / "c.pem").write_bytes(b"")
        reader = consumer.options.decryption.reader
        reader._own = "a"
        assert values(await take(consumer, 1, ack=True)) == [b"secret"]


@pytest.fixture
def closed_namespace(names: Names, admin: httpx.Client) -> str:
    """A topic in a namespace that takes encrypted messages only."""
    path = f"/admin/v2/namespaces/{names.path}/encryptionRequired"
    admin.post(path, json=True).raise_for_status()
    return names.topic()


async def test_namespaces_that_require_encryption(
    own: Client, closed_namespace: str, folder: Path
) -> None:
    keys = files(folder)
    with pytest.raises(EncryptionRequired, match="Give the producer `encryption`"):
        await own.producer(closed_namespace)
    async with own.producer(closed_namespace, encryption=Encryption(["a"], keys)) as producer:
        await producer.send(b"x")
    async with own.reader(closed_namespace, decryption=Decryption(keys)) as reader:
        assert (await reader.read(30)).value == b"x"


async def test_keys_that_cannot_be_used(own: Client, topic: str, folder: Path) -> None:
    for reader, name in (
        (Folder(folder), "edwards"),
        (Folder(folder), "not-there"),
        (KeyFiles(public=folder / "a.pem"), "a"),
    ):
        with pytest.raises(EncryptionFailed, match=name):
            await own.producer(topic, encryption=Encryption([name], reader))
    with pytest.raises(InvalidConfiguration, match="public key"):
        await own.producer(topic, encryption=Encryption(["a"], KeyFiles()))
    with pytest.raises(InvalidConfiguration, match="keys"):
        Encryption([], KeyFiles())
    with pytest.raises(InvalidConfiguration, match="plain"):
        own.consumer(
            topic,
            "s",
            type=SubscriptionType.SHARED,
            retry_enabled=True,
            decryption=Decryption(KeyFiles()),
        )
