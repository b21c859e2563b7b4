"""Received messages with the official client's methods, and messages that a router sees."""

from typing import Any, Final, Protocol

from magnetar.client import message as own
from magnetar.client.crypto.api import EncryptedKey
from magnetar.client.crypto.api import EncryptionContext as OwnContext
from magnetar.client.producer.outgoing import OutgoingMessage
from magnetar.pulsar.enums import CompressionType
from magnetar.pulsar.message_id import MessageId
from magnetar.schemas.model import version_from_bytes

NO_VERSION: Final = -1


class Decoder(Protocol):
    """The part of a schema that a message uses."""

    def decode_message(self, msg: "Message") -> Any:
        """Returns the value of a message."""


class EncryptionKey:
    """A data key, encrypted with the public key of a name."""

    def __init__(self, key: EncryptedKey) -> None:
        self._key = key

    @property
    def key(self) -> str:
        """The name of the key."""
        return self._key.name

    @property
    def value(self) -> bytes:
        """The encrypted data key."""
        return self._key.value

    @property
    def metadata(self) -> dict[str, str]:
        """What the producer's key reader added."""
        return dict(self._key.metadata)

    def __repr__(self) -> str:
        return f"EncryptionKey(key={self.key}, value_len={len(self.value)})"


class EncryptionContext:
    """How a message was encrypted."""

    def __init__(self, context: OwnContext, *, failed: bool) -> None:
        self._context, self._failed = context, failed

    def keys(self) -> list[EncryptionKey]:
        """The data key, once for each public key."""
        return [EncryptionKey(key) for key in self._context.keys]

    def param(self) -> bytes:
        """The initialization vector."""
        return self._context.parameter

    def algorithm(self) -> str:
        """Empty: the cipher is AES-GCM."""
        return ""

    def compression_type(self) -> CompressionType:
        """The compression that was applied before."""
        return CompressionType(self._context.compression)

    def uncompressed_message_size(self) -> int:
        """The size before compression; 0 without compression."""
        return self._context.uncompressed_bytes if self._context.compression else 0

    def batch_size(self) -> int:
        """The number of messages in the batch; -1 outside of batches."""
        return self._context.batch_size or -1

    def is_decryption_failed(self) -> bool:
        """Whether the message was delivered encrypted."""
        return self._failed


class Message:
    """A received message."""

    # Programs set attributes of their own; without one, a message has no dictionary.
    __slots__ = ("__dict__", "__weakref__", "_message", "_schema")

    def __init__(self, message: own.Message[bytes], schema: Decoder) -> None:
        self._message = message
        self._schema = schema

    def data(self) -> bytes:
        """The payload."""
        return self._message.data

    def value(self) -> Any:
        """The payload as the schema decodes it."""
        return self._schema.decode_message(self)

    def properties(self) -> dict[str, str]:
        """The properties that the producer gave the message."""
        return dict(self._message.properties)

    def partition_key(self) -> str:
        """The partition key; empty without one."""
        return self._message.key or ""

    def ordering_key(self) -> str:
        """The ordering key; empty without one."""
        return (self._message.ordering_key or b"").decode(errors="surrogateescape")

    def publish_timestamp(self) -> int:
        """When the message was sent, in ms since 1970."""
        return self._message.publish_time_ms

    def event_timestamp(self) -> int:
        """The event time in ms since 1970; 0 without one."""
        return self._message.event_time_ms

    def message_id(self) -> MessageId:
        """Where the message is stored."""
        return MessageId.wrap(self._message.id)

    def topic_name(self) -> str:
        """The topic or partition."""
        return self._message.topic

    def redelivery_count(self) -> int:
        """How often the broker has delivered the message before."""
        return self._message.redelivery_count

    def schema_version(self) -> str:
        """The version of the writer's schema: eight bytes as text; empty without one."""
        return (self._message.schema_version or b"").decode("latin-1")

    def int_schema_version(self) -> int:
        """The version of the writer's schema as a number; -1 without one."""
        version = self._message.schema_version
        number = version_from_bytes(version) if version else None
        return NO_VERSION if number is None else number

    def writer_schema(self) -> bytes | None:
        """The definition of its writer, if it is known and the reader has an Avro schema."""
        writers = getattr(self._message.entry.source.schema, "writers", {})
        definition: bytes | None = writers.get(self._message.schema_version)
        return definition

    def producer_name(self) -> str:
        """The name of the producer."""
        return self._message.producer_name

    def has_null_value(self) -> bool:
        """Whether the message deletes its key in a compacted topic."""
        return self._message.is_null

    def encryption_context(self) -> EncryptionContext | None:
        """How the message was encrypted; None if it was not."""
        context = self._message.encryption
        if context is None:
            return None
        return EncryptionContext(context, failed=self._message.entry.sealed)


class RoutedMessage:
    """A message before it is sent, as a router sees it."""

    def __init__(self, message: OutgoingMessage) -> None:
        self._message = message

    def data(self) -> bytes:
        """The payload."""
        return self._message.payload

    def value(self) -> bytes:
        """The payload."""
        return self._message.payload

    def properties(self) -> dict[str, str]:
        """The properties of the message."""
        return dict(self._message.properties)

    def partition_key(self) -> str:
        """The partition key; empty without one."""
        return self._message.key or ""

    def ordering_key(self) -> str:
        """The ordering key; empty without one."""
        return (self._message.ordering_key or b"").decode()

    def event_timestamp(self) -> int:
        """The event time in ms since 1970; 0 without one."""
        return self._message.event_time_ms

    def has_null_value(self) -> bool:
        """Whether the message deletes its key in a compacted topic."""
        return self._message.null_value
