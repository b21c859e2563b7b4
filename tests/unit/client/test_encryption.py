"""The ciphers of end-to-end encryption: rotation of keys, damage, and what the wire has."""

from collections.abc import Mapping

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.broker import running_broker

from magnetar.client import Client, CryptoFailure, Decryption, Encryption, KeyFiles
from magnetar.client.consumer.decryption import context_of
from magnetar.client.crypto.api import CryptoKeyReader
from magnetar.client.crypto.cipher import KEY_LIFETIME_S, ConsumerCipher, ProducerCipher
from magnetar.client.errors import EncryptionFailed
from magnetar.wire._pb import PulsarApi_pb2 as pb

PATIENCE_S = 10.0
_PRIVATE = rsa.generate_private_key(65_537, 2_048)


class Keys(CryptoKeyReader):
    """One key pair, which counts how often its private key is read."""

    def __init__(self) -> None:
        self.reads = 0

    def public_key(self, name: str) -> tuple[bytes, Mapping[str, str]]:
        pem = _PRIVATE.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return pem, {"of": name}

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        assert metadata == {"of": name}
        self.reads += 1
        return _PRIVATE.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def sealed(cipher: ProducerCipher, payload: bytes) -> tuple[pb.MessageMetadata, bytes]:
    """The metadata of an entry and its payload, as they are on the wire."""
    fields, encrypted = cipher.encrypt(payload)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    return pb.MessageMetadata.FromString(metadata.SerializeToString() + fields), encrypted


def opened(cipher: ConsumerCipher, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    context = context_of(metadata)
    return cipher.decrypt(list(context.keys), context.parameter, payload)


def test_entries_share_a_data_key_and_no_initialization_vector() -> None:
    keys = Keys()
    producer = ProducerCipher(Encryption(["k"], keys), lambda: 0.0)
    consumer = ConsumerCipher(keys)
    entries = [sealed(producer, b"same") for _ in range(10)]
    assert [opened(consumer, *entry) for entry in entries] == [b"same"] * 10
    assert keys.reads == 1
    assert len({metadata.encryption_param for metadata, _ in entries}) == 10
    assert len({encrypted for _, encrypted in entries}) == 10
    metadata, encrypted = entries[0]
    size_bytes = metadata.ByteSize() - len(b"\x0a\x01p\x10\x01\x18\x01") + len(encrypted)
    assert size_bytes <= len(b"same") + producer.overhead_bytes


def test_data_keys_are_replaced() -> None:
    keys, now = Keys(), 0.0
    producer = ProducerCipher(Encryption(["k"], keys), lambda: now)
    consumer = ConsumerCipher(keys)
    first, _ = sealed(producer, b"1")
    now = KEY_LIFETIME_S
    second, encrypted = sealed(producer, b"2")
    assert first.encryption_keys[0].value != second.encryption_keys[0].value
    assert opened(consumer, second, encrypted) == b"2"


@pytest.mark.parametrize("part", ["payload", "key", "parameter"])
def test_damage_is_found(part: str) -> None:
    keys = Keys()
    metadata, encrypted = sealed(ProducerCipher(Encryption(["k"], keys), lambda: 0.0), b"x")
    if part == "payload":
        encrypted = bytes([encrypted[0] ^ 1]) + encrypted[1:]
    elif part == "key":
        metadata.encryption_keys[0].value = bytes(256)
    else:
        metadata.encryption_param = b""
    with pytest.raises(EncryptionFailed, match="k: "):
        opened(ConsumerCipher(keys), metadata, encrypted)


async def test_batches_that_are_delivered_encrypted_return_all_their_permits() -> None:
    """The broker counts the messages of a batch, of which the user gets one that is sealed."""
    batches = 5
    unread = Decryption(KeyFiles(), CryptoFailure.CONSUME)
    async with (
        running_broker() as (_, port),
        Client(f"pulsar://127.0.0.1:{port}") as client,
        client.producer("t", encryption=Encryption(["k"], Keys())) as producer,
        client.consumer("t", "s", decryption=unread, receiver_queue_size=4) as consumer,
    ):
        for _ in range(batches):
            for _ in range(10):
                producer.send_nowait(b"x")
            await producer.flush()
        for _ in range(batches):
            message = await consumer.receive(PATIENCE_S)
            assert message.encryption is not None
            assert message.encryption.batch_size == 10
