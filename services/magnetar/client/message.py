"""A received message: its value, its metadata, and the means to acknowledge it."""

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from magnetar.client.errors import SchemaFailed
from magnetar.client.message_id import MessageId

if TYPE_CHECKING:
    from magnetar.client.crypto.api import EncryptionContext

T = TypeVar("T")


class Message(msgspec.Struct, Generic[T], gc=False, eq=False):
    """A message of a topic; its fields are decoded when they are read."""

    data: bytes
    """The payload, decompressed, before the schema decodes it."""
    entry: Any
    """The entry that has the message (`consumer.entry.ReceivedEntry`)."""
    single: Any = None
    """The message's own metadata in a batch; None outside of batches."""
    batch_index: int = -1

    @property
    def value(self) -> T:
        """The value, decoded by the consumer's schema; raises SchemaFailed."""
        metadata = self.entry.metadata
        version = metadata.schema_version if metadata.HasField("schema_version") else None
        schema = self.entry.source.schema
        value: T
        try:
            if schema.separates_key:
                data = None if self.is_null else self.data
                value = schema.decode_with_key(self.key_bytes, data, version)
            else:
                value = schema.decode(self.data, version)
        except SchemaFailed as error:
            if self.is_null:
                raise SchemaFailed(
                    "The message is a null value: check `is_null` before `value`", topic=self.topic
                ) from None
            error.topic = self.topic
            raise
        return value

    @property
    def id(self) -> MessageId:
        """Where the message is stored."""
        entry = self.entry
        return MessageId(
            entry.ledger_id,
            entry.entry_id,
            entry.source.partition,
            self.batch_index,
            entry.batch_size,
            entry.source.topic,
            entry.first_chunk,
            entry,
        )

    @property
    def topic(self) -> str:
        """The full name of the topic or partition."""
        topic: str = self.entry.source.topic
        return topic

    @property
    def _own(self) -> Any:
        return self.entry.metadata if self.single is None else self.single

    @property
    def key(self) -> str | None:
        """The partition key as text; in base64 if it is not text."""
        own = self._own
        return str(own.partition_key) if own.HasField("partition_key") else None

    @property
    def key_bytes(self) -> bytes | None:
        """The partition key as bytes."""
        own = self._own
        if not own.HasField("partition_key"):
            return None
        if own.partition_key_b64_encoded:
            return base64.b64decode(own.partition_key)
        return bytes(own.partition_key.encode())

    @property
    def ordering_key(self) -> bytes | None:
        """The key by which Key_Shared subscriptions order messages, if it is not the other."""
        own = self._own
        return own.ordering_key if own.HasField("ordering_key") else None

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that the producer gave the message."""
        return {pair.key: pair.value for pair in self._own.properties}

    @property
    def event_time_ms(self) -> int:
        """The event time that the producer gave, in ms since 1970; 0 without one."""
        return int(self._own.event_time)

    @property
    def publish_time_ms(self) -> int:
        """When the producer sent the message, by its clock, in ms since 1970."""
        return int(self.entry.metadata.publish_time)

    @property
    def deliver_at_ms(self) -> int:
        """The requested time of delivery; 0 without one."""
        return int(self.entry.metadata.deliver_at_time)

    @property
    def sequence_id(self) -> int:
        """The producer's number of the message."""
        if self.single is None:
            return int(self.entry.metadata.sequence_id)
        if self.single.HasField("sequence_id"):
            return int(self.single.sequence_id)
        return int(self.entry.metadata.sequence_id) + self.batch_index

    @property
    def producer_name(self) -> str:
        """The name of the producer."""
        return str(self.entry.metadata.producer_name)

    @property
    def redelivery_count(self) -> int:
        """How often the broker has delivered the message before, as far as it remembers."""
        return int(self.entry.redelivery_count)

    @property
    def schema_version(self) -> bytes | None:
        """The version of the schema with which the message was written."""
        metadata = self.entry.metadata
        return metadata.schema_version if metadata.HasField("schema_version") else None

    @property
    def replicated_from(self) -> str | None:
        """The cluster in which the message was published, if it was replicated."""
        metadata = self.entry.metadata
        return metadata.replicated_from if metadata.HasField("replicated_from") else None

    @property
    def is_null(self) -> bool:
        """Whether the message has no value: compaction deletes its key."""
        return bool(self._own.null_value)

    @property
    def index(self) -> int | None:
        """The number of the message in its topic, if the broker counts messages."""
        broker = self.entry.broker_metadata
        if broker is None or not broker.HasField("index"):
            return None
        if self.batch_index < 0:
            return int(broker.index)
        return int(broker.index - self.entry.batch_size + 1 + self.batch_index)

    @property
    def broker_publish_time_ms(self) -> int | None:
        """When the broker stored the message, if it adds that."""
        broker = self.entry.broker_metadata
        if broker is None or not broker.HasField("broker_timestamp"):
            return None
        return int(broker.broker_timestamp)

    @property
    def encryption(self) -> "EncryptionContext | None":
        """How the message was encrypted; None if it was not."""
        from magnetar.client.consumer.decryption import context_of

        metadata = self.entry.metadata
        return context_of(metadata) if metadata.encryption_keys else None

    def __repr__(self) -> str:
        return f"Message({self.id}, {len(self.data)} bytes, topic {self.topic})"
