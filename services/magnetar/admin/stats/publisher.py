"""The stats of a producer, as part of a topic's stats."""

import msgspec

from magnetar.admin.times import iso
from magnetar.broker.topic.producer import AccessMode, Producer

ACCESS_MODES = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


class PublisherStats(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=False):
    """The stats of a producer; sums over partitions have only its name and numbers."""

    access_mode: str | msgspec.UnsetType = msgspec.UNSET
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    average_msg_size: float = 0.0
    chunked_message_rate: float = 0.0
    producer_id: int = 0
    supports_partial_producer: bool = False
    producer_name: str | msgspec.UnsetType = msgspec.UNSET
    address: str | msgspec.UnsetType = msgspec.UNSET
    connected_since: str | msgspec.UnsetType = msgspec.UNSET
    client_version: str | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


def publisher_stats(producer: Producer) -> PublisherStats:
    """Returns the current stats of a producer."""
    return PublisherStats(
        access_mode=ACCESS_MODES[producer.access_mode],
        msg_rate_in=producer.message_rate_in,
        msg_throughput_in=producer.bytes_rate_in,
        average_msg_size=(
            producer.bytes_in / producer.messages_in if producer.messages_in else 0.0
        ),
        producer_id=producer.producer_id,
        producer_name=producer.name,
        address=producer.sink.address,
        connected_since=iso(producer.connected_since_ms),
        client_version=producer.sink.client_version,
        metadata=producer.metadata,
    )
