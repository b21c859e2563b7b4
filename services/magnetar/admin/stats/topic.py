"""`GET …/stats`: a topic, its producers and its subscriptions.

`backlogSize` is that of the subscription which is furthest behind, as Pulsar has it: what could be
deleted if nobody were. Fields of features that are not offered stay at Pulsar's value for "off".
"""

from typing import Final

import msgspec

from magnetar.admin.stats.broken import broken_subscription_stats
from magnetar.admin.stats.publisher import PublisherStats, publisher_stats
from magnetar.broker.compaction_state import CompactionFacts
from magnetar.broker.dispatch.metadata import publish_time_ms
from magnetar.broker.lifecycle.quota import QuotaType, quotas_of
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topics import Topic
from magnetar.policies.lifecycle import BACKLOG_QUOTA

UNLIMITED: Final = -1


class CompactionStats(msgspec.Struct, rename="camel"):
    """The last compaction; all 0: none ever ran."""

    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0


def compaction_stats(facts: CompactionFacts) -> CompactionStats:
    """From what metadata says."""
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
    """One topic; also the sum over partitions, which has no owner."""

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
    """Left out where no producer ever had the topic to itself; also of a sum over partitions."""
    deduplication_status: str | msgspec.UnsetType = msgspec.UNSET
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    compaction: CompactionStats = msgspec.field(default_factory=CompactionStats)
    owner_broker: str | msgspec.UnsetType = msgspec.UNSET
    topic_creation_time_stamp: int = 0
    last_publish_time_stamp: int = 0
    msg_drop_rate: float | msgspec.UnsetType = msgspec.UNSET


def topic_stats(topic: Topic, broker_id: str) -> TopicStats:
    """What is known of a loaded topic now."""
    counters = topic.counters
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
        subscriptions={
            name: subscription.stats() for name, subscription in topic.subscriptions.items()
        },
        owner_broker=broker_id,
        publish_rate_limited_times=counters.publish_limited_times,
        last_publish_time_stamp=counters.last_published_ms,
    )
    if isinstance(topic, PersistentTopic):
        stats.subscriptions |= broken_subscription_stats(topic)
    for each in stats.subscriptions.values():
        stats.msg_rate_out += each.msg_rate_out
        stats.msg_throughput_out += each.msg_throughput_out
        stats.msg_out_counter += each.msg_out_counter
        stats.bytes_out_counter += each.bytes_out_counter
        stats.backlog_size = max(stats.backlog_size, each.backlog_size)
        stats.non_contiguous_deleted_messages_ranges += each.non_contiguous_deleted_messages_ranges
    if isinstance(topic, PersistentTopic):
        ledger = topic.managed_ledger
        stats.storage_size = ledger.bytes_total
        stats.topic_creation_time_stamp = ledger.created_ms
        stats.backlog_quota_limit_size, stats.backlog_quota_limit_time = quota_limits(topic)
        stats.oldest_backlog_message_age_seconds = -1
        stats.deduplication_status = "Disabled"
        if (epoch := topic.producers.epoch) is not None:
            stats.topic_epoch = epoch
    else:
        stats.msg_drop_rate = sum(
            each.msg_drop_rate
            for each in stats.subscriptions.values()
            if each.msg_drop_rate is not msgspec.UNSET
        )
    return stats


def quota_limits(topic: PersistentTopic) -> tuple[int, int]:
    """The topic's backlog quotas in bytes and in seconds; -1 where there is none."""
    limits = {each.type: each.limit for each in quotas_of(topic.policies.value(BACKLOG_QUOTA))}
    return limits.get(QuotaType.SIZE, UNLIMITED), limits.get(QuotaType.AGE, UNLIMITED)


async def add_earliest_times(stats: TopicStats, topic: Topic) -> None:
    """Adds when the oldest unacknowledged message of each subscription was published."""
    if not isinstance(topic, PersistentTopic):
        return
    for name, found in stats.subscriptions.items():
        subscription = topic.subscriptions.get(name)
        entry = None if subscription is None else await subscription.peek(1)
        if entry is None:
            continue
        found.earliest_msg_publish_time_in_backlog = earliest = publish_time_ms(entry.data)
        known = stats.earliest_msg_publish_time_in_backlogs
        stats.earliest_msg_publish_time_in_backlogs = min(known, earliest) if known else earliest
