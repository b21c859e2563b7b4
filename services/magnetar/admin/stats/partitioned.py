"""`GET …/partitioned-stats`: the sums over a topic's partitions, and each partition's stats.

Producers and consumers with the same name on several partitions are merged: their rates, permits
and unacked messages are added. Times are the latest ones; the creation time is the earliest.
"""

from collections.abc import Iterable, Mapping

import msgspec

from magnetar.admin.stats.publisher import PublisherStats
from magnetar.admin.stats.topic import TopicStats, earlier_ms
from magnetar.broker.subscription.stats import ConsumerStats, SubscriptionStats

_SUMMED = (
    "msg_rate_in",
    "msg_throughput_in",
    "msg_rate_out",
    "msg_throughput_out",
    "bytes_in_counter",
    "msg_in_counter",
    "bytes_out_counter",
    "msg_out_counter",
    "storage_size",
    "backlog_size",
    "publish_rate_limited_times",
    "offloaded_storage_size",
    "waiting_publishers",
    "non_contiguous_deleted_messages_ranges",
)
_SUBSCRIPTION_SUMMED = (
    "msg_rate_out",
    "msg_throughput_out",
    "bytes_out_counter",
    "msg_out_counter",
    "msg_rate_redeliver",
    "message_ack_rate",
    "msg_backlog",
    "backlog_size",
    "msg_backlog_no_delayed",
    "msg_in_replay",
    "unacked_messages",
    "msg_rate_expired",
    "msg_expired",
    "total_msg_expired",
    "draining_hashes_count",
    "draining_hashes_cleared_total",
    "draining_hashes_unacked_messages",
    "non_contiguous_deleted_messages_ranges",
)
_CONSUMER_SUMMED = (
    "msg_rate_out",
    "msg_throughput_out",
    "bytes_out_counter",
    "msg_out_counter",
    "msg_rate_redeliver",
    "message_ack_rate",
    "available_permits",
    "unacked_messages",
    "draining_hashes_count",
    "draining_hashes_cleared_total",
    "draining_hashes_unacked_messages",
)
_LATEST = (
    "last_expire_timestamp",
    "last_consumed_flow_timestamp",
    "last_consumed_timestamp",
    "last_acked_timestamp",
    "last_mark_delete_advanced_timestamp",
)


def partitioned_stats(
    partitions: Mapping[str, TopicStats], metadata: Mapping[str, object], *, per_partition: bool
) -> dict[str, object]:
    """Returns the document; `partitions` are by full name."""
    document: dict[str, object] = msgspec.to_builtins(summed(partitions.values()))
    document["metadata"] = metadata
    document["partitions"] = dict(partitions) if per_partition else {}
    return document


def summed(partitions: Iterable[TopicStats]) -> TopicStats:
    """Sums the stats of a topic's partitions."""
    total = TopicStats()
    publishers: dict[str, PublisherStats] = {}
    for part in partitions:
        _add(total, part, _SUMMED)
        total.backlog_quota_limit_size = part.backlog_quota_limit_size
        total.backlog_quota_limit_time = part.backlog_quota_limit_time
        total.last_publish_time_stamp = max(
            total.last_publish_time_stamp, part.last_publish_time_stamp
        )
        total.topic_creation_time_stamp = earlier_ms(
            total.topic_creation_time_stamp, part.topic_creation_time_stamp
        )
        total.earliest_msg_publish_time_in_backlogs = earlier_ms(
            total.earliest_msg_publish_time_in_backlogs, part.earliest_msg_publish_time_in_backlogs
        )
        if part.msg_drop_rate is not msgspec.UNSET:
            so_far = 0.0 if total.msg_drop_rate is msgspec.UNSET else total.msg_drop_rate
            total.msg_drop_rate = so_far + part.msg_drop_rate
        _add_publishers(publishers, part.publishers)
        for name, subscription in part.subscriptions.items():
            _add_subscription(total.subscriptions, name, subscription)
    total.publishers = list(publishers.values())
    if total.msg_rate_in:
        total.average_msg_size = total.msg_throughput_in / total.msg_rate_in
    return total


def _add(total: msgspec.Struct, part: msgspec.Struct, fields: Iterable[str]) -> None:
    for field in fields:
        setattr(total, field, getattr(total, field) + getattr(part, field))


def _add_publishers(publishers: dict[str, PublisherStats], parts: Iterable[PublisherStats]) -> None:
    for part in parts:
        # A partitioned producer has one name on all partitions.
        total = publishers.setdefault(str(part.producer_name), PublisherStats())
        total.producer_name = part.producer_name
        total.msg_rate_in += part.msg_rate_in
        total.msg_throughput_in += part.msg_throughput_in
        if total.msg_rate_in:
            total.average_msg_size = total.msg_throughput_in / total.msg_rate_in
        else:
            total.average_msg_size = max(total.average_msg_size, part.average_msg_size)


def _add_subscription(
    subscriptions: dict[str, SubscriptionStats], name: str, part: SubscriptionStats
) -> None:
    total = subscriptions.get(name)
    if total is None:
        total = subscriptions[name] = SubscriptionStats(
            type=part.type,
            is_durable=part.is_durable,
            durable=part.durable,
            is_replicated=part.is_replicated,
            replicated=part.replicated,
            allow_out_of_order_delivery=part.allow_out_of_order_delivery,
            key_shared_mode=part.key_shared_mode,
        )
    _add(total, part, _SUBSCRIPTION_SUMMED)
    for field in _LATEST:
        setattr(total, field, max(getattr(total, field), getattr(part, field)))
    total.earliest_msg_publish_time_in_backlog = earlier_ms(
        total.earliest_msg_publish_time_in_backlog, part.earliest_msg_publish_time_in_backlog
    )
    total.blocked_subscription_on_unacked_msgs |= part.blocked_subscription_on_unacked_msgs
    total.subscription_properties = total.subscription_properties | part.subscription_properties
    if part.cursor_error is not msgspec.UNSET:
        total.cursor_error = part.cursor_error
    if total.type == "None":
        total.type = part.type
    by_name = {consumer.consumer_name: consumer for consumer in total.consumers}
    for consumer in part.consumers:
        same = by_name.get(consumer.consumer_name)
        if same is None:
            same = by_name[consumer.consumer_name] = ConsumerStats(
                consumer_name=consumer.consumer_name,
                address=consumer.address,
                connected_since=consumer.connected_since,
                client_version=consumer.client_version,
                metadata=consumer.metadata,
                last_acked_time=consumer.last_acked_time,
                last_consumed_time=consumer.last_consumed_time,
            )
        _add(same, consumer, _CONSUMER_SUMMED)
        same.blocked_consumer_on_unacked_msgs |= consumer.blocked_consumer_on_unacked_msgs
        same.avg_messages_per_entry = max(
            same.avg_messages_per_entry, consumer.avg_messages_per_entry
        )
    total.consumers = list(by_name.values())
