"""Series per subscription, and per consumer if `consumer_metrics` is on."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from magnetar.broker.subscription.api import Subscription
from magnetar.broker.subscription.stats import SubscriptionStats
from magnetar.observe.metrics import escape, family

ROW: Final = (
    ("pulsar_subscription_back_log", "gauge"),
    ("pulsar_subscription_back_log_no_delayed", "gauge"),
    ("pulsar_subscription_delayed", "gauge"),
    ("pulsar_subscription_in_replay", "gauge"),
    ("pulsar_subscription_unacked_messages", "gauge"),
    ("pulsar_subscription_blocked_on_unacked_messages", "gauge"),
    ("pulsar_subscription_msg_rate_out", "gauge"),
    ("pulsar_subscription_msg_throughput_out", "gauge"),
    ("pulsar_subscription_msg_rate_redeliver", "gauge"),
    ("pulsar_subscription_msg_ack_rate", "gauge"),
    ("pulsar_subscription_msg_rate_expired", "gauge"),
    ("pulsar_subscription_msg_drop_rate", "gauge"),
    ("pulsar_subscription_total_msg_expired", "counter"),
    ("pulsar_subscription_consumers_count", "gauge"),
    ("pulsar_subscription_last_expire_timestamp", "gauge"),
    ("pulsar_subscription_last_acked_timestamp", "gauge"),
    ("pulsar_subscription_last_consumed_flow_timestamp", "gauge"),
    ("pulsar_subscription_last_consumed_timestamp", "gauge"),
    ("pulsar_subscription_last_mark_delete_advanced_timestamp", "gauge"),
    ("pulsar_out_messages_total", "counter"),
    ("pulsar_out_bytes_total", "counter"),
)
FILTERED: Final = tuple(
    f"pulsar_subscription_filter_{outcome}_msg_count"
    for outcome in ("processed", "accepted", "rejected", "rescheduled")
)
"""Only for subscriptions whose filters have judged a message."""
THROTTLED: Final = (
    "pulsar_subscription_dispatch_throttled_msg_events",
    "pulsar_subscription_dispatch_throttled_bytes_events",
)
"""Only for subscriptions that a dispatch rate has throttled; the reason is a label."""
CONSUMER_ROW: Final = (
    ("pulsar_consumer_msg_rate_out", "gauge"),
    ("pulsar_consumer_msg_throughput_out", "gauge"),
    ("pulsar_consumer_msg_rate_redeliver", "gauge"),
    ("pulsar_consumer_msg_ack_rate", "gauge"),
    ("pulsar_consumer_unacked_messages", "gauge"),
    ("pulsar_consumer_blocked_on_unacked_messages", "gauge"),
    ("pulsar_consumer_available_permits", "gauge"),
    ("pulsar_consumer_out_messages_total", "counter"),
    ("pulsar_consumer_out_bytes_total", "counter"),
)

Row = tuple[float, ...]
_IDLE_TAIL: Final = (0,) * (len(ROW) - 2)


class Sums(NamedTuple):
    """The values of a topic's row that come from its subscriptions."""

    consumers: int = 0
    rate_out: float = 0.0
    throughput_out: float = 0.0
    backlog: int = 0
    backlog_bytes: int = 0

    def plus(self, other: "Sums") -> "Sums":
        """Adds two sums; the backlog's bytes are those of the larger backlog."""
        return Sums(
            self.consumers + other.consumers,
            self.rate_out + other.rate_out,
            self.throughput_out + other.throughput_out,
            self.backlog + other.backlog,
            max(self.backlog_bytes, other.backlog_bytes),
        )


NO_SUBSCRIPTIONS: Final = Sums()


class SubscriptionSeries:
    """Collects the rows of subscriptions and consumers, then writes their families."""

    def __init__(self, *, rows: bool, consumers: bool) -> None:
        self._with_rows = rows
        self._with_consumers = consumers
        self._labels: list[str] = []
        self._rows: list[Row] = []
        self._throttled_labels: list[str] = []
        self._throttled: list[tuple[int, int]] = []
        self._filtered_labels: list[str] = []
        self._filtered: list[tuple[int, ...]] = []
        self._consumer_labels: list[str] = []
        self._consumer_rows: list[Row] = []

    def add(self, topic_labels: str, name: str, subscription: Subscription) -> Sums:
        """Adds a subscription of the topic with the given label text; returns its sums."""
        labels = f'{topic_labels[:-1]},subscription="{escape(name)}"}}'
        if subscription.unused:
            backlog = subscription.backlog or 0
            if self._with_rows:
                self._labels.append(labels)
                self._rows.append((backlog, backlog, *_IDLE_TAIL))
            size = subscription.backlog_bytes if backlog else 0
            return Sums(backlog=backlog, backlog_bytes=size)
        stats = subscription.stats()
        if self._with_rows:
            self._labels.append(labels)
            self._rows.append(_row(stats))
            self._add_throttled(labels, stats)
            self._add_filtered(labels, stats)
        if self._with_consumers:
            self._add_consumers(labels, subscription, stats)
        return Sums(
            len(stats.consumers),
            stats.msg_rate_out,
            stats.msg_throughput_out,
            stats.msg_backlog,
            stats.backlog_size,
        )

    def _add_throttled(self, labels: str, stats: SubscriptionStats) -> None:
        for reason, messages, size_bytes in (
            (
                "subscription",
                stats.dispatch_throttled_msg_events_by_subscription_limit,
                stats.dispatch_throttled_bytes_events_by_subscription_limit,
            ),
            (
                "topic",
                stats.dispatch_throttled_msg_events_by_topic_limit,
                stats.dispatch_throttled_bytes_events_by_topic_limit,
            ),
            (
                "broker",
                stats.dispatch_throttled_msg_events_by_broker_limit,
                stats.dispatch_throttled_bytes_events_by_broker_limit,
            ),
        ):
            if messages or size_bytes:
                self._throttled_labels.append(f'{labels[:-1]},reason="{reason}"}}')
                self._throttled.append((messages, size_bytes))

    def _add_filtered(self, labels: str, stats: SubscriptionStats) -> None:
        if stats.filter_processed_msg_count:
            self._filtered_labels.append(labels)
            self._filtered.append(
                (
                    stats.filter_processed_msg_count,
                    stats.filter_accepted_msg_count,
                    stats.filter_rejected_msg_count,
                    stats.filter_rescheduled_msg_count,
                )
            )

    def _add_consumers(
        self, labels: str, subscription: Subscription, stats: SubscriptionStats
    ) -> None:
        for consumer, consumer_stats in zip(subscription.consumers, stats.consumers, strict=True):
            self._consumer_labels.append(
                f'{labels[:-1]},consumer_name="{escape(consumer_stats.consumer_name)}",'
                f'consumer_id="{consumer.spec.consumer_id}"}}'
            )
            self._consumer_rows.append(
                (
                    consumer_stats.msg_rate_out,
                    consumer_stats.msg_throughput_out,
                    consumer_stats.msg_rate_redeliver,
                    consumer_stats.message_ack_rate,
                    consumer_stats.unacked_messages,
                    int(consumer_stats.blocked_consumer_on_unacked_msgs),
                    consumer_stats.available_permits,
                    consumer_stats.msg_out_counter,
                    consumer_stats.bytes_out_counter,
                )
            )

    def families(self) -> Iterator[str]:
        """Yields the text of each family."""
        for (name, kind), column in zip(ROW, zip(*self._rows, strict=True), strict=False):
            yield family(name, self._labels, column, kind)
        throttled_columns = zip(*self._throttled, strict=True)
        for name, column in zip(THROTTLED, throttled_columns, strict=False):
            yield family(name, self._throttled_labels, column, "counter")
        for name, column in zip(FILTERED, zip(*self._filtered, strict=True), strict=False):
            yield family(name, self._filtered_labels, column, "counter")
        consumer_columns = zip(*self._consumer_rows, strict=True)
        for (name, kind), column in zip(CONSUMER_ROW, consumer_columns, strict=False):
            yield family(name, self._consumer_labels, column, kind)


def _row(stats: SubscriptionStats) -> Row:
    return (
        stats.msg_backlog,
        stats.msg_backlog_no_delayed,
        stats.msg_delayed,
        stats.msg_in_replay,
        stats.unacked_messages,
        int(stats.blocked_subscription_on_unacked_msgs),
        stats.msg_rate_out,
        stats.msg_throughput_out,
        stats.msg_rate_redeliver,
        stats.message_ack_rate,
        stats.msg_rate_expired,
        0.0 if stats.msg_drop_rate is msgspec.UNSET else stats.msg_drop_rate,
        stats.total_msg_expired,
        len(stats.consumers),
        stats.last_expire_timestamp,
        stats.last_acked_timestamp,
        stats.last_consumed_flow_timestamp,
        stats.last_consumed_timestamp,
        stats.last_mark_delete_advanced_timestamp,
        stats.msg_out_counter,
        stats.bytes_out_counter,
    )
