"""The part of `topics stats` on a subscription and its consumers, under Pulsar's JSON names.

`msgspec.to_builtins` converts these to the JSON object. Fields of features that we do not have
(delayed delivery) stay zero. Rates are those of the last `update_rates`; everything
else is current.
Shape checked against a Pulsar 4.2.4 standalone.
"""

from datetime import UTC, datetime

import msgspec

from magnetar.broker.subscription.consumer import Consumer


class DrainingHashStats(msgspec.Struct, rename="camel"):
    """A hash that waits for its old consumer's acknowledgments."""

    hash: int
    unack_msgs: int
    blocked_attempts: int


class ConsumerStats(msgspec.Struct, rename="camel", kw_only=True):
    """The statistics of a consumer."""

    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    chunked_message_rate: float = 0.0
    consumer_name: str = ""
    available_permits: int = 0
    unacked_messages: int = 0
    avg_messages_per_entry: int = 0
    blocked_consumer_on_unacked_msgs: bool = False
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    draining_hashes: list[DrainingHashStats] | msgspec.UnsetType = msgspec.UNSET
    address: str = ""
    connected_since: str = ""
    client_version: str = ""
    last_acked_timestamp: int = 0
    last_consumed_timestamp: int = 0
    first_messages_sent_timestamp: int = 0
    last_consumed_flow_timestamp: int = 0
    first_consumed_flow_timestamp: int = 0
    key_hash_range_arrays: list[tuple[int, int]] | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] = {}
    last_acked_time: str = ""
    last_consumed_time: str = ""
    app_id: str | msgspec.UnsetType = msgspec.UNSET


class SubscriptionStats(msgspec.Struct, rename="camel", kw_only=True):
    """The statistics of a subscription and its consumers."""

    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    chunked_message_rate: float = 0.0
    msg_backlog: int = 0
    backlog_size: int = 0
    earliest_msg_publish_time_in_backlog: int = 0
    msg_backlog_no_delayed: int = 0
    blocked_subscription_on_unacked_msgs: bool = False
    msg_delayed: int = 0
    msg_in_replay: int = 0
    unacked_messages: int = 0
    type: str = "None"
    active_consumer_name: str | msgspec.UnsetType = msgspec.UNSET
    msg_rate_expired: float = 0.0
    msg_expired: int = 0
    total_msg_expired: int = 0
    last_expire_timestamp: int = 0
    last_consumed_flow_timestamp: int = 0
    last_consumed_timestamp: int = 0
    last_acked_timestamp: int = 0
    last_mark_delete_advanced_timestamp: int = 0
    consumers: list[ConsumerStats] = []
    is_durable: bool = True
    is_replicated: bool = False
    allow_out_of_order_delivery: bool = False
    key_shared_mode: str | msgspec.UnsetType = msgspec.UNSET
    consumers_after_mark_delete_position: dict[str, str] = {}
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    subscription_properties: dict[str, str] = {}
    filter_processed_msg_count: int = 0
    filter_accepted_msg_count: int = 0
    filter_rejected_msg_count: int = 0
    filter_rescheduled_msg_count: int = 0
    dispatch_throttled_msg_events_by_subscription_limit: int = 0
    dispatch_throttled_bytes_events_by_subscription_limit: int = 0
    dispatch_throttled_msg_events_by_topic_limit: int = 0
    dispatch_throttled_bytes_events_by_topic_limit: int = 0
    dispatch_throttled_msg_events_by_broker_limit: int = 0
    dispatch_throttled_bytes_events_by_broker_limit: int = 0
    durable: bool = True
    replicated: bool = False
    cursor_error: str | msgspec.UnsetType = msgspec.UNSET
    """Why the cursor cannot be read (a field of ours); absent if it can."""
    msg_drop_rate: float | msgspec.UnsetType = msgspec.UNSET
    read_failure: str | msgspec.UnsetType = msgspec.UNSET


def instant(time_ms: int) -> str:
    """Formats a time as Java's `Instant` does: with milliseconds only if they are not zero."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    unit = "milliseconds" if time_ms % 1000 else "seconds"
    return moment.isoformat(timespec=unit).removesuffix("+00:00") + "Z"


def consumer_stats(consumer: Consumer) -> ConsumerStats:
    """Returns the statistics that do not depend on the dispatcher."""
    spec, sink, rates = consumer.spec, consumer.sink, consumer.rates
    return ConsumerStats(
        msg_rate_out=rates.out,
        msg_throughput_out=rates.throughput,
        bytes_out_counter=consumer.bytes_out,
        msg_out_counter=consumer.messages_out,
        msg_rate_redeliver=rates.redeliver,
        message_ack_rate=rates.ack,
        consumer_name=spec.name,
        available_permits=consumer.permits,
        unacked_messages=consumer.unacked,
        avg_messages_per_entry=(round(consumer.average_messages) if consumer.first_sent_ms else 0),
        blocked_consumer_on_unacked_msgs=consumer.blocked,
        address=sink.address,
        connected_since=instant(consumer.connected_since_ms),
        client_version=sink.client_version,
        last_acked_timestamp=consumer.last_acked_ms,
        last_consumed_timestamp=consumer.last_consumed_ms,
        first_messages_sent_timestamp=consumer.first_sent_ms,
        last_consumed_flow_timestamp=consumer.last_flow_ms,
        first_consumed_flow_timestamp=consumer.first_flow_ms,
        metadata=dict(spec.metadata),
        last_acked_time=instant(consumer.last_acked_ms),
        last_consumed_time=instant(consumer.last_consumed_ms),
        app_id=spec.app_id or msgspec.UNSET,
    )


class GoneConsumers:
    """Totals of detached consumers, so that a subscription's counters never decrease."""

    __slots__ = ("bytes_out", "last_acked_ms", "last_consumed_ms", "last_flow_ms", "messages_out")

    def __init__(self) -> None:
        self.bytes_out = self.messages_out = 0
        self.last_acked_ms = self.last_consumed_ms = self.last_flow_ms = 0

    def add(self, consumer: Consumer) -> None:
        """Adds the counters of a detached consumer."""
        self.bytes_out += consumer.bytes_out
        self.messages_out += consumer.messages_out
        self.last_acked_ms = max(self.last_acked_ms, consumer.last_acked_ms)
        self.last_consumed_ms = max(self.last_consumed_ms, consumer.last_consumed_ms)
        self.last_flow_ms = max(self.last_flow_ms, consumer.last_flow_ms)


def total(stats: SubscriptionStats, consumers: list[ConsumerStats], gone: GoneConsumers) -> None:
    """Fills in the sums and latest times over the consumers."""
    stats.consumers = consumers
    stats.bytes_out_counter = gone.bytes_out
    stats.msg_out_counter = gone.messages_out
    stats.last_acked_timestamp = gone.last_acked_ms
    stats.last_consumed_timestamp = gone.last_consumed_ms
    stats.last_consumed_flow_timestamp = gone.last_flow_ms
    for consumer in consumers:
        stats.msg_rate_out += consumer.msg_rate_out
        stats.msg_throughput_out += consumer.msg_throughput_out
        stats.msg_rate_redeliver += consumer.msg_rate_redeliver
        stats.message_ack_rate += consumer.message_ack_rate
        stats.bytes_out_counter += consumer.bytes_out_counter
        stats.msg_out_counter += consumer.msg_out_counter
        stats.unacked_messages += consumer.unacked_messages
        stats.draining_hashes_count += consumer.draining_hashes_count
        stats.draining_hashes_cleared_total += consumer.draining_hashes_cleared_total
        stats.draining_hashes_unacked_messages += consumer.draining_hashes_unacked_messages
        stats.last_acked_timestamp = max(stats.last_acked_timestamp, consumer.last_acked_timestamp)
        stats.last_consumed_timestamp = max(
            stats.last_consumed_timestamp, consumer.last_consumed_timestamp
        )
        stats.last_consumed_flow_timestamp = max(
            stats.last_consumed_flow_timestamp, consumer.last_consumed_flow_timestamp
        )
