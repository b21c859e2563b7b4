"""The parts of topics' stats that programs read: `GET …/stats` and `GET …/partitioned-stats`.

The structs decode the answers of Magnetar and of Apache Pulsar, which writes null for some unknown
values. A broker writes the whole document (`admin.stats.topic.TopicStats`).
"""

import msgspec


class ConsumerSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A connected consumer."""

    consumer_name: str | None = None
    unacked_messages: int = 0
    last_acked_timestamp: int = 0
    """Unix time in ms; 0 if it has acknowledged nothing."""
    address: str | None = None
    available_permits: int = 0
    key_hash_range_arrays: tuple[tuple[int, int], ...] | None = None
    """The hash ranges of a consumer of a Key_Shared subscription, both ends included."""


class SubscriptionSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription with its consumers."""

    type: str | None = None
    """`Exclusive`, `Shared`, `Failover` or `Key_Shared`; `None` or null before the first use."""
    msg_backlog: int = 0
    """Entries."""
    backlog_size: int = 0
    """Bytes."""
    unacked_messages: int = 0
    is_durable: bool = True
    key_shared_mode: str | None = None
    subscription_properties: dict[str, str] | None = None
    consumers: tuple[ConsumerSummary, ...] | None = None


class TopicSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A topic with its producers and subscriptions.

    The fields are required: a topic of which nothing is known must not count as unused.
    """

    publishers: tuple[msgspec.Raw, ...]
    subscriptions: dict[str, SubscriptionSummary]
