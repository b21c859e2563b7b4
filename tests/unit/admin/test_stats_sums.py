"""Sums over partitions and brokers: every value is counted once, by its own rule."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest

from magnetar.admin.stats.drain import TOPICS_PER_TURN, drain_of
from magnetar.admin.stats.partitioned import summed
from magnetar.admin.stats.publisher import PublisherStats
from magnetar.admin.stats.topic import TopicStats
from magnetar.broker.subscription.spec import SubType
from magnetar.broker.subscription.stats import ConsumerStats, SubscriptionStats
from magnetar.documents.backlog import (
    TIME_TO_DRAIN_S_MAX,
    WORST_SHOWN_MAX,
    BrokerDrain,
    SubscriptionDrain,
    time_to_drain_s,
)

from .support import Admin

Stats = TypeVar("Stats", bound=msgspec.Struct)


@pytest.mark.parametrize(
    ("backlog_bytes", "rate_in", "rate_out", "seconds"),
    [
        (0, 5.0, 1.0, 0.0),
        (1_000, 50.0, 150.0, 10.0),
        (1_000, 0.0, 100.0, 10.0),
        (1_000, 100.0, 100.0, TIME_TO_DRAIN_S_MAX),
        (1_000, 101.0, 100.0, TIME_TO_DRAIN_S_MAX),
        (1_000, 0.0, 0.0, TIME_TO_DRAIN_S_MAX),
        (TIME_TO_DRAIN_S_MAX * 2, 0.0, 1.0, TIME_TO_DRAIN_S_MAX),
        (1, 0.0, 2.0, 0.5),
    ],
)
def test_a_backlog_drains_at_the_difference_of_the_rates(
    backlog_bytes: float, rate_in: float, rate_out: float, seconds: float
) -> None:
    assert time_to_drain_s(backlog_bytes, rate_in, rate_out) == seconds


def behind(backlog_bytes: int) -> SubscriptionDrain:
    return SubscriptionDrain(backlog_bytes, 1, "topic", f"s{backlog_bytes}", 0.0, 0.0, True)


def test_the_drains_of_two_brokers_add_up_and_show_the_worst_of_both() -> None:
    first = BrokerDrain(["a"], 1, 20, 300, 4_000, 2_000, 10.0, 30.0, worst=[behind(3), behind(1)])
    other = BrokerDrain(["b"], 5, 60, 700, 8_000, 6_000, 50.0, 70.0, worst=[behind(2)])
    both = first.plus(other)
    assert both == BrokerDrain(
        ["a", "b"],
        topics=6,
        subscriptions_behind=80,
        backlog_entries=1_000,
        backlog_bytes=12_000,
        wanted_bytes=8_000,
        wanted_bytes_per_second_in=60.0,
        wanted_bytes_per_second_out=100.0,
        time_to_drain_seconds=200.0,
        worst=[behind(3), behind(2), behind(1)],
    )
    many = BrokerDrain(["c"], worst=[behind(size) for size in range(100, 100 + WORST_SHOWN_MAX)])
    sizes = [item.backlog_bytes for item in first.plus(many).worst]
    assert sizes == list(range(99 + WORST_SHOWN_MAX, 99, -1))


async def test_a_brokers_drain_includes_only_subscriptions_with_a_backlog(admin: Admin) -> None:
    await admin.consumer("wants", SubType.Shared)
    await admin.done("PUT", "~/persistent/t1/n1/a/subscription/idle")
    await admin.done("PUT", "~/persistent/t1/n1/b/subscription/read")
    await admin.publish([b"m"] * 3)
    await admin.done("PUT", "~/non-persistent/t1/n1/np")
    drain = (await admin.done("GET", "~/magnetar/drain")).json()
    assert drain["brokers"] == [admin.service.broker_id]
    assert (drain["topics"], drain["subscriptionsBehind"], drain["backlogEntries"]) == (3, 2, 6)
    by_name = {item["subscription"]: item for item in drain["worst"]}
    assert set(by_name) == {"wants", "idle"}
    assert {name: item["wanted"] for name, item in by_name.items()} == {
        "wants": True,
        "idle": False,
    }
    wanted, idle = by_name["wants"]["backlogBytes"], by_name["idle"]["backlogBytes"]
    assert wanted == idle > 0
    assert (drain["wantedBytes"], drain["backlogBytes"]) == (wanted, wanted + idle)
    assert drain["timeToDrainSeconds"] == TIME_TO_DRAIN_S_MAX  # nothing was read for a minute
    assert by_name["idle"]["topic"] == "persistent://t1/n1/a"


async def test_a_consumer_waits_for_the_broker_unless_it_is_blocked_or_without_permits(
    admin: Admin,
) -> None:
    consumers = [await admin.consumer("s", SubType.Shared, name=name) for name in "ab"]
    await admin.publish([b"m"] * 3)
    topic = await admin.topic()
    for consumer, rate in zip(consumers, (5.0, 7.0), strict=True):
        consumer.rates.throughput = rate
    for states, wanted in (
        (((1, False), (0, False)), True),
        (((0, False), (1, False)), True),
        (((1, True), (0, False)), False),
        (((1, True), (1, True)), False),
        (((0, False), (0, False)), False),
    ):
        for consumer, (permits, blocked) in zip(consumers, states, strict=True):
            consumer.permits, consumer.blocked = permits, blocked
        drain = await drain_of("b", [topic])
        (first,) = drain.worst
        assert (first.wanted, first.bytes_per_second_out) == (wanted, 12.0)
        assert drain.wanted_bytes == (drain.backlog_bytes if wanted else 0)
        assert drain.wanted_bytes_per_second_out == (12.0 if wanted else 0.0)


@pytest.mark.parametrize("topics", [TOPICS_PER_TURN - 1, TOPICS_PER_TURN])
async def test_other_tasks_run_while_many_topics_are_summed(admin: Admin, topics: int) -> None:
    topic, turns = await admin.topic(), list[int]()
    asyncio.get_running_loop().call_soon(turns.append, 1)
    drain = await drain_of("b", [topic] * topics)
    assert drain.topics == topics
    assert len(turns) == (topics == TOPICS_PER_TURN)


@dataclass(frozen=True)
class Backlog:
    """The part of a cursor that a drain uses."""

    backlog: int
    backlog_bytes_estimate: int


async def test_a_brokers_drain_shows_the_largest_backlogs_first(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes topics after a pause of the loop; the number of subscriptions is bounded."""
    topic = await admin.topic()
    for number in range(WORST_SHOWN_MAX + 5):
        await admin.done("PUT", f"~/persistent/t1/n1/a/subscription/s{number}")
    sizes = dict(zip(topic.subscriptions, range(10, 1_000, 10), strict=False))
    for name, subscription in topic.subscriptions.items():
        monkeypatch.setattr(subscription, "cursor", Backlog(1, sizes[name]))
    drain = await drain_of("b", [topic] * 1)
    expected = sorted(sizes.values(), reverse=True)[:WORST_SHOWN_MAX]
    assert [item.backlog_bytes for item in drain.worst] == expected
    assert drain.backlog_bytes == sum(sizes.values())
    many = await drain_of("b", [topic] * (TOPICS_PER_TURN + 1))
    assert many.topics == TOPICS_PER_TURN + 1
    assert many.subscriptions_behind == many.topics * len(sizes)


# -- partitions ------------------------------------------------------------------------------

EARLIEST = {
    TopicStats: {"topic_creation_time_stamp", "earliest_msg_publish_time_in_backlogs"},
    SubscriptionStats: {"earliest_msg_publish_time_in_backlog"},
    ConsumerStats: set[str](),
}
LATEST = {
    TopicStats: {"last_publish_time_stamp"},
    SubscriptionStats: {
        "last_expire_timestamp",
        "last_consumed_flow_timestamp",
        "last_consumed_timestamp",
        "last_acked_timestamp",
        "last_mark_delete_advanced_timestamp",
    },
    ConsumerStats: {"avg_messages_per_entry"},
}
SUMMED = {
    TopicStats: {
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
        "msg_drop_rate",
    },
    SubscriptionStats: {
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
    },
    ConsumerStats: {
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
    },
}


def numbered(kind: type[Stats], start: int, **fields: object) -> Stats:
    """Returns stats for which each rule (sum, extreme, average) gives a different value."""
    stats = kind(**fields)
    expected = SUMMED[kind] | EARLIEST[kind] | LATEST[kind]
    for offset, field in enumerate(sorted(expected)):
        setattr(stats, field, start * 1_000 + offset)
    return stats


def check(total: msgspec.Struct, parts: Sequence[msgspec.Struct]) -> None:
    kind = type(total)
    for fields, rule in ((SUMMED, sum), (EARLIEST, min), (LATEST, max)):
        for field in fields[kind]:
            assert getattr(total, field) == rule(getattr(part, field) for part in parts), field


def consumer(name: str, start: int, **fields: object) -> ConsumerStats:
    return numbered(ConsumerStats, start, consumer_name=name, **fields)


def test_partitions_are_summed_and_times_are_the_earliest_or_the_latest() -> None:
    consumers = [
        [consumer("both", 1, blocked_consumer_on_unacked_msgs=True), consumer("first", 2)],
        [consumer("both", 3), consumer("second", 4)],
    ]
    subscriptions = [
        numbered(
            SubscriptionStats, 7, type="Shared", subscription_properties={"a": "1"},
            consumers=consumers[0], blocked_subscription_on_unacked_msgs=True, durable=False,
        ),
        numbered(
            SubscriptionStats, 5, type="Shared", subscription_properties={"b": "2"},
            consumers=consumers[1], cursor_error="damaged",
        ),
    ]  # fmt: skip
    only_here = numbered(SubscriptionStats, 9, type="Exclusive")
    parts = [
        numbered(TopicStats, 3, subscriptions={"s": subscriptions[0]}),
        numbered(TopicStats, 2, subscriptions={"s": subscriptions[1], "t": only_here}),
    ]
    total = summed(parts)
    check(total, parts)
    assert total.average_msg_size == total.msg_throughput_in / total.msg_rate_in
    assert set(total.subscriptions) == {"s", "t"}
    check(total.subscriptions["s"], subscriptions)
    check(total.subscriptions["t"], [only_here])
    both = total.subscriptions["s"]
    assert (both.type, both.durable) == ("Shared", False)
    assert both.blocked_subscription_on_unacked_msgs
    assert both.subscription_properties == {"a": "1", "b": "2"}
    assert both.cursor_error == "damaged"
    by_name = {item.consumer_name: item for item in both.consumers}
    assert set(by_name) == {"both", "first", "second"}
    check(by_name["both"], [consumers[0][0], consumers[1][0]])
    check(by_name["second"], [consumers[1][1]])
    assert by_name["both"].blocked_consumer_on_unacked_msgs
    assert not by_name["first"].blocked_consumer_on_unacked_msgs


def test_attributes_of_subscriptions_and_consumers_are_not_summed() -> None:
    """The first partition that has the value defines it."""
    consumer_is: dict[str, Any] = {
        "consumer_name": "c", "address": "/h:1", "connected_since": "1", "client_version": "v",
        "metadata": {"a": "b"}, "last_acked_time": "2", "last_consumed_time": "3",
    }  # fmt: skip
    subscription_is: dict[str, Any] = {
        "is_durable": False, "durable": False, "is_replicated": True, "replicated": True,
        "allow_out_of_order_delivery": True, "key_shared_mode": "STICKY",
    }  # fmt: skip
    first = SubscriptionStats(
        type="Key_Shared", consumers=[ConsumerStats(**consumer_is)], **subscription_is
    )
    later = SubscriptionStats(type="Shared", consumers=[ConsumerStats(consumer_name="c")])
    for parts in ([first], [first, later]):
        total = summed([TopicStats(subscriptions={"s": item}) for item in parts])
        (subscription,) = total.subscriptions.values()
        assert subscription.type == "Key_Shared"
        for field, value in subscription_is.items():
            assert getattr(subscription, field) == value, field
        (consumer,) = subscription.consumers
        for field, value in consumer_is.items():
            assert getattr(consumer, field) == value, field
    # A subscription without consumers has no type yet.
    idle = TopicStats(subscriptions={"s": SubscriptionStats()})
    busy = TopicStats(subscriptions={"s": SubscriptionStats(type="Failover")})
    for several in ([idle, busy], [busy, idle]):
        assert summed(several).subscriptions["s"].type == "Failover"
    assert summed([idle]).subscriptions["s"].cursor_error is msgspec.UNSET


def test_an_unknown_time_of_a_partition_is_not_the_earliest() -> None:
    known, unknown = TopicStats(topic_creation_time_stamp=5), TopicStats()
    assert summed([known, unknown]).topic_creation_time_stamp == 5
    assert summed([unknown, known]).topic_creation_time_stamp == 5
    assert summed([unknown]).topic_creation_time_stamp == 0


def test_limits_are_the_topics_and_only_non_persistent_topics_have_a_drop_rate() -> None:
    part = TopicStats(backlog_quota_limit_size=5, backlog_quota_limit_time=7)
    total = summed([part, part])
    assert (total.backlog_quota_limit_size, total.backlog_quota_limit_time) == (5, 7)
    assert total.msg_drop_rate is msgspec.UNSET
    assert total.average_msg_size == 0.0


def test_a_partitioned_producer_is_merged_and_others_are_separate() -> None:
    def producer(name: str, rate: float, throughput: float, size: float = 0.0) -> PublisherStats:
        return PublisherStats(
            producer_name=name, msg_rate_in=rate, msg_throughput_in=throughput,
            average_msg_size=size,
        )  # fmt: skip

    parts = [
        TopicStats(publishers=[producer("p", 1.0, 100.0), producer("idle", 0.0, 0.0, 40.0)]),
        TopicStats(publishers=[producer("p", 3.0, 500.0), producer("idle", 0.0, 0.0, 30.0)]),
    ]
    actual = {item.producer_name: item for item in summed(parts).publishers}
    assert set(actual) == {"p", "idle"}
    both = actual["p"]
    assert (both.msg_rate_in, both.msg_throughput_in, both.average_msg_size) == (4.0, 600.0, 150.0)
    assert actual["idle"].average_msg_size == 40.0
