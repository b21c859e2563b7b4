"""`GET …/stats`: a topic, its producers and its subscriptions.

As in Pulsar, `backlogSize` is the largest backlog of any subscription: the bytes that could be
deleted if it had none. Fields of features that Magnetar lacks have Pulsar's value for "off".
"""

from typing import Final

import msgspec

from magnetar.admin.stats.broken import broken_subscription_stats
from magnetar.admin.stats.publisher import PublisherStats, publisher_stats
from magnetar.broker.cold.compaction_state import CompactionFacts
from magnetar.broker.dispatch.metadata import publish_time_ms
from magnetar.broker.lifecycle.quota import QuotaType, quotas_of
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.broker.topic.api import Topic
from magnetar.broker.topic.persistent import as_persistent
from magnetar.broker.topic.transactions.stats import BufferStats
from magnetar.policies.lifecycle import BACKLOG_QUOTA

UNLIMITED: Final = -1


class CompactionStats(msgspec.Struct, rename="camel"):
    """The last compaction; all fields are 0 if none has run."""

    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0


def compaction_stats(facts: CompactionFacts) -> CompactionStats:
    """Returns the stats of the last compaction, from its record."""
    record = facts.record
    if record is None:
        return CompactionStats(last_compaction_failed_timestamp=facts.failed_ms)
    return CompactionStats(
        last_compaction_removed_event_count=record.messages_removed,
        last_compaction_succeed_timestamp=record.compacted_ms,
        last_compaction_failed_timestamp=facts.failed_ms,
        last_compaction_duration_time_in_mills=record.duration_ms,
    )


class TopicStats(msgspec.Struct, rename="camel", kw_only=True):
    """The stats of a topic, or the sums over partitions, which have no owner."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_in_counter: int = 0
    msg_in_counter: int = 0
    system_topic_bytes_in_counter: int = 0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    bytes_out_internal_counter: int = 0
    average_msg_size: float = 0.0
    msg_chunk_published: bool = False
    storage_size: int = 0
    backlog_size: int = 0
    backlog_quota_limit_size: int = 0
    backlog_quota_limit_time: int = 0
    oldest_backlog_message_age_seconds: int = 0
    publish_rate_limited_times: int = 0
    earliest_msg_publish_time_in_backlogs: int = 0
    offloaded_storage_size: int = 0
    last_offload_ledger_id: int = 0
    last_offload_success_time_stamp: int = 0
    last_offload_failure_time_stamp: int = 0
    ongoing_txn_count: int = 0
    aborted_txn_count: int = 0
    committed_txn_count: int = 0
    publishers: list[PublisherStats] = []
    waiting_publishers: int = 0
    subscriptions: dict[str, SubscriptionStats] = {}
    replication: dict[str, object] = {}
    topic_epoch: int | msgspec.UnsetType = msgspec.UNSET
    """Missing if no producer ever had exclusive access, and in sums over partitions."""
    deduplication_status: str | msgspec.UnsetType = msgspec.UNSET
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    compaction: CompactionStats = msgspec.field(default_factory=CompactionStats)
    owner_broker: str | msgspec.UnsetType = msgspec.UNSET
    topic_creation_time_stamp: int = 0
    last_publish_time_stamp: int = 0
    msg_drop_rate: float | msgspec.UnsetType = msgspec.UNSET


def _transactions(topic: Topic) -> BufferStats | None:
    persistent = as_persistent(topic)
    if persistent is None or not persistent.transactional:
        return None
    return persistent.transactions.stats()


def topic_stats(topic: Topic, broker_id: str) -> TopicStats:
    """Returns the current stats of a loaded topic."""
    counters, transactions = topic.counters, _transactions(topic)
    stats = TopicStats(
        msg_rate_in=counters.message_rate_in,
        msg_throughput_in=counters.bytes_rate_in,
        msg_in_counter=counters.messages_in,
        bytes_in_counter=counters.bytes_in,
        average_msg_size=(
            counters.bytes_rate_in / counters.message_rate_in if counters.message_rate_in else 0.0
        ),
        publishers=[publisher_stats(producer) for producer in topic.producers],
        waiting_publishers=topic.producers.waiting_count,
        ongoing_txn_count=0 if transactions is None else transactions.open_count,
        committed_txn_count=0 if transactions is None else transactions.committed_total,
        aborted_txn_count=0 if transactions is None else transactions.aborted_total,
        subscriptions={
            name: subscription.stats() for name, subscription in topic.subscriptions.items()
        },
        owner_broker=broker_id,
        publish_rate_limited_times=counters.publish_limited_times,
        last_publish_time_stamp=counters.last_published_ms,
    )
    persistent = as_persistent(topic)
    if persistent is not None:
        stats.subscriptions |= broken_subscription_stats(persistent)
    for part in stats.subscriptions.values():
        stats.msg_rate_out += part.msg_rate_out
        stats.msg_throughput_out += part.msg_throughput_out
        stats.msg_out_counter += part.msg_out_counter
        stats.bytes_out_counter += part.bytes_out_counter
        stats.backlog_size = max(stats.backlog_size, part.backlog_size)
        stats.non_contiguous_deleted_messages_ranges += part.non_contiguous_deleted_messages_ranges
    if persistent is not None:
        ledger = persistent.managed_ledger
        stats.storage_size = ledger.bytes_total
        stats.topic_creation_time_stamp = ledger.created_ms
        stats.backlog_quota_limit_size, stats.backlog_quota_limit_time = quota_limits(topic)
        stats.oldest_backlog_message_age_seconds = -1
        stats.deduplication_status = persistent.deduplication_switch.status
        if (epoch := topic.producers.epoch) is not None:
            stats.topic_epoch = epoch
    else:
        stats.msg_drop_rate = sum(
            part.msg_drop_rate
            for part in stats.subscriptions.values()
            if part.msg_drop_rate is not msgspec.UNSET
        )
    return stats


def quota_limits(topic: Topic) -> tuple[int, int]:
    """Returns the topic's backlog quotas in bytes and in seconds; -1 if it has none."""
    limits = {quota.type: quota.limit for quota in quotas_of(topic.policies.value(BACKLOG_QUOTA))}
    return limits.get(QuotaType.SIZE, UNLIMITED), limits.get(QuotaType.AGE, UNLIMITED)


async def add_earliest_times(stats: TopicStats, topic: Topic) -> None:
    """Adds the publish time of the oldest unacknowledged message of each subscription."""
    persistent = as_persistent(topic)
    if persistent is None:
        return
    for name, subscription_stats in stats.subscriptions.items():
        subscription = persistent.subscriptions.get(name)
        entry = None if subscription is None else await subscription.peek(1)
        if entry is None:
            continue
        earliest = publish_time_ms(entry.data)
        subscription_stats.earliest_msg_publish_time_in_backlog = earliest
        stats.earliest_msg_publish_time_in_backlogs = earlier_ms(
            stats.earliest_msg_publish_time_in_backlogs, earliest
        )


def earlier_ms(time_ms: int, other_ms: int) -> int:
    """Returns the earlier of two times; 0 means unknown."""
    return min(time_ms, other_ms) if time_ms and other_ms else time_ms or other_ms
