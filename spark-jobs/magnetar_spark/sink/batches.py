"""Batches of messages for one topic, as producers send them. Pure."""

from dataclasses import dataclass, field

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import build_batch
from magnetar.wire.compression import compress
from magnetar_spark.sink.rows import Message
from magnetar_spark.sink.settings import ProducerSettings


@dataclass(frozen=True, slots=True)
class Batch:
    """An entry without the fields that depend on its producer."""

    topic: str
    head: pb.MessageMetadata
    payload: bytes
    count: int


@dataclass(slots=True)
class OpenBatch:
    """The messages of one topic that wait for more."""

    topic: str
    settings: ProducerSettings
    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, message: Message) -> bool:
        """Adds a message; returns whether the batch is full."""
        self.messages.append(message)
        self.size_bytes += message.size_bytes
        return (
            not self.settings.batching
            or len(self.messages) >= self.settings.batch_messages
            or self.size_bytes >= self.settings.batch_bytes
        )

    def built(self) -> Batch:
        """Returns the batch, compressed."""
        head = pb.MessageMetadata(producer_name="", sequence_id=0, publish_time=0)
        if not self.settings.batching:
            (message,) = self.messages
            _describe(head, message)
            plain = message.value or b""
        else:
            pairs = []
            for message in self.messages:
                single = pb.SingleMessageMetadata(payload_size=0)
                _describe(single, message)
                pairs.append((single, message.value or b""))
            head.num_messages_in_batch = len(self.messages)
            plain = build_batch(pairs)
        payload = compress(self.settings.compression, plain)
        head.uncompressed_size = len(plain)
        if self.settings.compression:
            head.compression = pb.CompressionType.ValueType(self.settings.compression)
        return Batch(self.topic, head, payload, len(self.messages))


def _describe(metadata: pb.MessageMetadata | pb.SingleMessageMetadata, message: Message) -> None:
    if message.key is not None:
        metadata.partition_key = message.key
        metadata.partition_key_b64_encoded = message.key_is_base64
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    for name, value in message.properties:
        metadata.properties.add(key=name, value=value)
    if message.value is None:
        metadata.null_value = True
