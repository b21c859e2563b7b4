"""The connection of a consumer, as dispatchers use it."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.managed_ledger.entry import Entry


class Delivery(msgspec.Struct, gc=False):
    """An entry that is delivered to a consumer.

    `ack_set` is the bit set of batch indexes not yet acknowledged, as an int (bit i = index i), or
    None if all of the entry's messages are to be delivered.
    """

    entry: Entry
    message_count: int
    redelivery_count: int = 0
    ack_set: int | None = None


class ConsumerSink(Protocol):
    """The connection of a consumer. No method blocks or raises, except `is_alive`, which waits."""

    @property
    def writable(self) -> bool:
        """False while the connection's send buffer is above its high-water mark.

        Dispatchers hand over nothing then; `Subscription.on_writable` is called once it has
        drained.
        """

    @property
    def address(self) -> str:
        """The peer, as `/127.0.0.1:40712`."""

    @property
    def client_version(self) -> str:
        """The version that the client announced."""

    @property
    def protocol_version(self) -> int:
        """The protocol version that both sides support."""

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], epoch: int | None) -> None:
        """Writes one MESSAGE frame for each delivery, in order. `epoch`: the consumer's, if any."""

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> None:
        """Notifies a Failover consumer whether it is the active one."""

    def end_of_topic(self, consumer_id: int) -> None:
        """Notifies the consumer that it has received everything of a terminated topic."""

    def close_consumer(self, consumer_id: int, destination: BrokerRecord | None = None) -> None:
        """Asks the client to reattach the consumer (after a seek, unload or deletion).

        With `destination`, the client connects to that broker directly (PIP-307).
        """

    async def is_alive(self) -> bool:
        """Whether the peer answers a ping within a deadline.

        If not, a new consumer may replace the consumers of this connection.
        """
