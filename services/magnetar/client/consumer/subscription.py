"""What the consumers of all topics of one subscription share, and the SUBSCRIBE command."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from magnetar.client.consumer.queue import MessageQueue
from magnetar.client.consumer.stats import ConsumerStats
from magnetar.client.errors import ClientError
from magnetar.client.message import Message
from magnetar.client.message_id import LATEST, MessageId
from magnetar.client.network.lookup import schema_to_wire
from magnetar.client.options import ConsumerOptions, SubscriptionType
from magnetar.client.schema.api import Schema
from magnetar.wire._pb import PulsarApi_pb2 as pb


class Letters(Protocol):
    """Sends messages to the dead letter topic."""

    async def dead(self, messages: list[Message[Any]]) -> None:
        """Sends messages that were delivered too often; raises ClientError."""


class Shared(msgspec.Struct):
    """The parts that all topics and partitions of one consumer use."""

    subscription: str
    options: ConsumerOptions
    schema: Schema[Any]
    queue: MessageQueue
    stats: ConsumerStats
    ended: Callable[[ClientError], None]
    """Called when a topic gives up for good."""
    end_of_topic: Callable[[str], None]
    letters: Letters | None = None
    decrypt: Callable[[pb.MessageMetadata, bytes], bytes] | None = None
    """Decrypts the payload of an entry; raises EncryptionFailed. None: no decryption."""
    closed: bool = False

    @property
    def acks_single(self) -> bool:
        """Whether single messages can be redelivered: the subscription is shared."""
        return self.options.type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class StartPosition(msgspec.Struct):
    """Where a non-durable consumer begins: after, or at, a message."""

    message_id: MessageId | None = None
    inclusive: bool = False
    rollback_s: int = 0

    def __post_init__(self) -> None:
        # A received id refers to its entry, and so to the consumer that keeps this position:
        # messages are not seen by the garbage collector, so such a cycle would stay for ever.
        if self.message_id is not None and self.message_id.entry is not None:
            self.message_id = msgspec.structs.replace(self.message_id, entry=None)

    def skips(self, place: tuple[int, int], batch_index: int) -> bool:
        """Whether a delivered message lies before the start."""
        start = self.message_id
        if start is None or start.ledger_id < 0 or start.entry_id == LATEST.entry_id:
            return False
        if place != (start.ledger_id, start.entry_id):
            return False
        if start.batch_index < 0:
            return not self.inclusive
        return batch_index < start.batch_index + (not self.inclusive)

    def to_wire(self) -> pb.MessageIdData | None:
        """Returns the id for SUBSCRIBE and SEEK."""
        start = self.message_id
        if start is None:
            return None
        if start.first_chunk is not None and self.inclusive:
            start = start.first_chunk
        wire: pb.MessageIdData = MessageId(
            start.ledger_id, start.entry_id, start.partition, start.batch_index
        ).to_wire()
        is_message = start.ledger_id >= 0 and start.entry_id != LATEST.entry_id
        if is_message and self.inclusive and start.batch_index < 0:
            # The broker starts after an entry, but at an entry if the id is of a batch.
            wire.batch_index = 0
        return wire

    @property
    def is_latest(self) -> bool:
        """Whether the start is the end of the topic."""
        return self.message_id is not None and self.message_id == LATEST


def subscribe_command(
    shared: Shared, topic: str, consumer_id: int, start: StartPosition, epoch: int
) -> pb.CommandSubscribe:
    """Returns the SUBSCRIBE of one topic or partition."""
    options = shared.options
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=shared.subscription,
        subType=pb.CommandSubscribe.SubType.ValueType(int(options.type)),
        consumer_id=consumer_id,
        request_id=0,
        priority_level=options.priority,
        durable=options.durable,
        read_compacted=options.read_compacted,
        initialPosition=pb.CommandSubscribe.InitialPosition.ValueType(
            int(options.initial_position)
        ),
        replicate_subscription_state=options.replicate_subscription,
        force_topic_creation=options.create_topic,
        metadata=[pb.KeyValue(key=k, value=v) for k, v in options.properties.items()],
        subscription_properties=[
            pb.KeyValue(key=k, value=v) for k, v in options.subscription_properties.items()
        ],
    )
    if options.name:
        command.consumer_name = options.name
    if not shared.acks_single:
        command.consumer_epoch = epoch
    if (wire := start.to_wire()) is not None:
        command.start_message_id.CopyFrom(wire)
    if start.rollback_s:
        command.start_message_rollback_duration_sec = start.rollback_s
    if (info := shared.schema.info) is not None:
        command.schema.CopyFrom(schema_to_wire(info))
    policy = options.key_shared
    if policy is not None:
        meta = command.keySharedMeta
        meta.keySharedMode = pb.STICKY if policy.sticky_ranges else pb.AUTO_SPLIT
        meta.allowOutOfOrderDelivery = policy.allow_out_of_order
        for first, last in policy.sticky_ranges:
            meta.hashRanges.add(start=first, end=last)
    return command
