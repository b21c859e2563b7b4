"""How a dispatcher reaches the connection of a consumer, without knowing about sockets."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.managed_ledger.entry import Entry


class Delivery(msgspec.Struct, gc=False):
    """One entry on its way to a consumer.

    `ack_set` is the bit set of batch indexes not yet acknowledged, as an int (bit i = index i), or
    None where all of the entry's messages are to be delivered.
    """

    entry: Entry
    message_count: int
    redelivery_count: int = 0
    ack_set: int | None = None


class ConsumerSink(Protocol):
    """One connection, as its consumers see it. Nothing here blocks or raises."""

    @property
    def writable(self) -> bool:
        """False while the connection's send buffer is above its high-water mark.

        Dispatchers hand over nothing then; `Subscription.on_writable` is called when it drained.
        """

    @property
    def address(self) -> str:
        """The peer, as `/127.0.0.1:40712`."""

    @property
    def client_version(self) -> str: ...

    @property
    def protocol_version(self) -> int: ...

    def deliver(self, consumer_id: int, deliveries: Sequence[Delivery], epoch: int | None) -> None:
        """Writes one MESSAGE frame for each delivery, in order. `epoch`: the consumer's, if any."""

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> None:
        """Tells a Failover consumer whether it is the active one."""

    def end_of_topic(self, consumer_id: int) -> None:
        """Tells the consumer that the terminated topic is drained."""

    def close_consumer(self, consumer_id: int, destination: BrokerRecord | None = None) -> None:
        """Asks the client to reattach the consumer (after a seek, unload or deletion).

        With `destination`, it is served there now (PIP-307).
        """

    async def is_alive(self) -> bool:
        """Asks the peer for a sign of life and waits for it, with a deadline of its own.

        False once the connection is gone: a new consumer may take the place of its consumers.
        """
