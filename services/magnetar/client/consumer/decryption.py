"""Decryption of received entries, and what happens to those that cannot be decrypted."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magnetar.wire._pb import PulsarApi_pb2 as pb

if TYPE_CHECKING:
    from magnetar.client.crypto.api import Decryption, EncryptionContext


def decryptor(decryption: "Decryption") -> Callable[[pb.MessageMetadata, bytes], bytes]:
    """Returns what decrypts the payloads of one consumer; raises MissingExtra."""
    from magnetar.client.crypto.cipher import ConsumerCipher

    cipher = ConsumerCipher(decryption.reader)

    def decrypt(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        context = context_of(metadata)
        return cipher.decrypt(list(context.keys), context.parameter, payload)

    return decrypt


def context_of(metadata: pb.MessageMetadata) -> "EncryptionContext":
    """Returns how an entry was encrypted."""
    from magnetar.client.crypto.api import EncryptedKey, EncryptionContext

    keys = [
        EncryptedKey(key.key, key.value, {pair.key: pair.value for pair in key.metadata})
        for key in metadata.encryption_keys
    ]
    is_batch = metadata.HasField("num_messages_in_batch")
    return EncryptionContext(
        keys,
        metadata.encryption_param,
        int(metadata.compression),
        metadata.uncompressed_size,
        metadata.num_messages_in_batch if is_batch else 0,
    )


def consumes_encrypted(action: Any, metadata: pb.MessageMetadata) -> bool:
    """Whether an entry is delivered as it is; chunks are not, as they are no messages."""
    return _is(action, "consume") and metadata.num_chunks_from_msg <= 1


def discards_encrypted(action: Any) -> bool:
    """Whether an entry is acknowledged without being delivered."""
    return _is(action, "discard")


def _is(action: Any, value: str) -> bool:
    return action is not None and action.value == value
